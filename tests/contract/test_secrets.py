"""Secrets: kept out of reprs, logs and the terminal; given by files; withdrawn when they change."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import AccessRights
from azure.servicebus.management import AuthorizationRule as SdkRule

from tests.end_to_end.raw_client import ConnectionLost, RawClient, Refused, message
from tests.official_sdk import administration, client
from tests.processes import ServedBroker
from twinbus.broker.admin.atom_entities import entity_path
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.links.context import LockTokens
from twinbus.broker.refusals import ArgumentInvalid
from twinbus.console.options import ServeOptions

pytestmark = pytest.mark.contract

KEY = "c2VjcmV0LWtleQ=="


def test_no_repr_shows_a_key() -> None:
    rule = AuthorizationRule(key_name="a", primary_key=KEY, secondary_key=KEY)
    options = ServeOptions(namespaces=["contoso"], key=KEY, rule=[f"a:{KEY}:Send"], token=[KEY])
    assert KEY not in repr(rule)
    assert KEY not in repr(options)


def test_a_key_and_rules_come_from_files_and_the_environment_and_are_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file, rule_file = tmp_path / "key", tmp_path / "rules"
    key_file.write_text(f"{KEY}\n")
    rule_file.write_text(
        "# who may send\nsender:first-secret:Send\n\nreader:second-secret:Listen\n"
    )
    monkeypatch.setenv("TWINBUS_RULES", "other:third-secret:Send")
    options = ("--key-file", str(key_file), "--rule-file", str(rule_file))
    with ServedBroker(tmp_path, options=options) as broker:
        assert KEY not in broker.connection_string()
        with administration(broker.connection_string(key=KEY)) as admin:
            admin.create_queue("orders")
        for rule, key in (("sender", "first-secret"), ("other", "third-secret")):
            text = broker.connection_string(rule=rule, key=key)
            with client(text) as sdk, sdk.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage(rule))
        text = broker.connection_string(rule="reader", key="second-secret")
        with client(text) as sdk, sdk.get_queue_receiver("orders", max_wait_time=60) as receiver:
            assert [str(each) for each in receiver.peek_messages(5)] == ["sender", "other"]
        for secret in (KEY, "first-secret", "second-secret", "third-secret"):
            assert secret not in broker.log()


async def test_a_connection_ends_when_its_key_is_changed() -> None:
    with EmbeddedBroker() as broker:
        text = broker.connection_string()
        with administration(text) as admin:
            queue = admin.create_queue(
                "orders", authorization_rules=[sdk_rule("writer", "old key"), sdk_rule("other")]
            )
            other = await RawClient.open(of_rule(text, "other", "a key"), "orders")
            writer = await RawClient.open(of_rule(text, "writer", "old key"), "orders")
            queue.authorization_rules = [sdk_rule("writer", "new key"), sdk_rule("other")]
            admin.update_queue(queue)
            with pytest.raises(ConnectionLost, match="the rule 'writer' was changed"):
                await writer.sender("orders")
            sender = await other.sender("orders")
            await sender.room()
            await sender.send(message("still here"))
            await other.close()
            renewed = await RawClient.open(of_rule(text, "writer", "new key"), "orders")
            await renewed.close()


def sdk_rule(name: str, key: str = "a key") -> SdkRule:
    return SdkRule(
        type="SharedAccessAuthorizationRule",
        rights=[AccessRights.SEND],
        key_name=name,
        primary_key=key,
        secondary_key="",
    )


def of_rule(text: str, name: str, key: str) -> str:
    endpoint, _, _ = text.partition("SharedAccessKeyName=")
    return f"{endpoint}SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true"


async def test_an_address_that_is_no_url_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBroker() as broker:
        text = broker.connection_string()
        connection = await RawClient.open(text)
        with pytest.raises(Refused, match=r"amqps://\["):
            await connection.sender("amqps://[x/orders")
        await connection.close()
        with pytest.raises(Refused, match="has an empty part"):
            await RawClient.open(of_rule(text, "nobody", "a key"), "x://[y")
    with pytest.raises(ArgumentInvalid, match="is no address"):
        entity_path("sb://[x/orders")
    assert "Traceback" not in caplog.text


def test_no_lock_token_tells_another() -> None:
    tokens = LockTokens()
    given = [tokens() for _ in range(1000)]
    assert {len(token) for token in given} == {16}
    assert len(set(given)) == 1000
    # No part of a token is the same in all of them, as that of a counter is.
    assert all(len({token[place] for token in given}) > 100 for place in range(16))
