"""Who is let in: the network by TLS only, this machine's own pages; and secrets stay secret."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import AccessRights
from azure.servicebus.management import AuthorizationRule as SdkRule

from tests.contract.certificates import client_context, server_context, write_server_files
from tests.end_to_end.raw_client import ConnectionLost, RawClient, Refused, message
from tests.official_sdk import administration, client
from tests.processes import ANSWER_LIMIT_S, ServedBroker, run_twinbus, with_key
from twinbus.broker.admin.atom_entities import entity_path
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.links.context import Tokens
from twinbus.broker.listener import AMQP_HEADER, TLS_HEADER
from twinbus.broker.refusals import ArgumentInvalid
from twinbus.broker.websocket import SUBPROTOCOLS
from twinbus.console.options import ServeOptions
from twinbus.errors import BrokerStartError

pytestmark = pytest.mark.contract

EVERYWHERE = "0.0.0.0"
KEY = "a key of its own"
SCRAPER = "token of the scraper"


class SecuredBroker(ServedBroker):
    """A broker that answers /health inside TLS only."""

    def health(self, name: str | None = None) -> dict[str, Any]:
        url = f"https://localhost:{self.port(name)}/health"
        with urllib.request.urlopen(
            url, timeout=ANSWER_LIMIT_S, context=client_context()
        ) as response:
            answer: dict[str, Any] = json.load(response)
            return answer


def plain(port: int, said: bytes) -> bytes:
    """What the broker answers to the first bytes in plain text, up to 400 bytes."""
    with socket.create_connection(("127.0.0.1", port), 20) as peer:
        peer.sendall(said)
        return peer.recv(400)


def get(port: int, path: str, *, tls: bool, token: str | None = None) -> int:
    """The status of a request."""
    url = f"{'https' if tls else 'http'}://localhost:{port}{path}"
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    context: ssl.SSLContext | None = client_context() if tls else None
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_certificate_switches_plain_text_off_beyond_loopback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with EmbeddedBroker(host=EVERYWHERE, key=KEY, tls=server_context()) as broker:
        port = broker.port()
        assert plain(port, AMQP_HEADER) == TLS_HEADER
        assert b"403 Forbidden" in plain(port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert get(port, "/health", tls=True) == 200
    assert caplog.text.count("--no-require-tls lets plain text in") == 2


def test_plain_text_can_be_let_in_and_kept_out_anywhere() -> None:
    tls = server_context()
    with EmbeddedBroker(host=EVERYWHERE, key=KEY, tls=tls, require_tls=False) as broker:
        assert plain(broker.port(), AMQP_HEADER) == AMQP_HEADER
    with EmbeddedBroker(tls=tls) as broker:
        assert plain(broker.port(), AMQP_HEADER) == AMQP_HEADER
    with EmbeddedBroker(tls=tls, require_tls=True) as broker:
        assert plain(broker.port(), AMQP_HEADER) == TLS_HEADER
    with EmbeddedBroker(host=EVERYWHERE, key=KEY, require_tls=False) as broker:
        assert plain(broker.port(), AMQP_HEADER) == AMQP_HEADER


def test_tls_without_a_certificate_is_refused_beyond_loopback_and_where_it_is_required() -> None:
    with pytest.raises(
        BrokerStartError, match=r"TLS is required on '0\.0\.0\.0'.*--no-require-tls"
    ):
        EmbeddedBroker(host=EVERYWHERE, key=KEY)
    with pytest.raises(BrokerStartError, match="there is no certificate"):
        EmbeddedBroker(require_tls=True)


@pytest.mark.parametrize("host", [EVERYWHERE, "localhost"])
def test_metrics_ask_for_their_token_and_health_for_none(host: str) -> None:
    with EmbeddedBroker(host=host, key=KEY, metrics_token=SCRAPER, require_tls=False) as broker:
        port = broker.port()
        assert get(port, "/metrics", tls=False) == 401
        assert get(port, "/metrics", tls=False, token="guessed") == 401
        assert get(port, "/metrics", tls=False, token=SCRAPER) == 200
        assert get(port, "/health", tls=False) == 200


def test_metrics_without_a_token_are_open_on_loopback_and_closed_beyond() -> None:
    with EmbeddedBroker() as broker:
        assert get(broker.port(), "/metrics", tls=False) == 200
    with EmbeddedBroker(host=EVERYWHERE, key=KEY, require_tls=False) as broker:
        assert get(broker.port(), "/metrics", tls=False) == 403
        assert get(broker.port(), "/metrics", tls=False, token="anything") == 403


def test_serve_takes_the_options(tmp_path: Path) -> None:
    certificate, key = write_server_files(tmp_path)
    token_file = tmp_path / "token"
    token_file.write_text(f"{SCRAPER}\n")
    options = ("--tls-cert", str(certificate), "--tls-key", str(key))
    more = (
        "--metrics-token-file",
        str(token_file),
        "--no-require-tls",
        "--token",
        "app:web:Manage",
    )
    with ServedBroker(tmp_path, ephemeral=True, options=(*options, *more)) as broker:
        assert get(broker.port(), "/$Resources/queues", tls=True, token="web") == 200
        assert get(broker.port(), "/metrics", tls=True) == 401
        assert get(broker.port(), "/metrics", tls=False, token=SCRAPER) == 200
        assert SCRAPER not in broker.log()


def test_serve_beyond_loopback_needs_a_certificate_and_then_speaks_tls_only(tmp_path: Path) -> None:
    beyond = ("--host", EVERYWHERE, "--key", KEY)
    refused = run_twinbus("serve", "contoso:0", "--ephemeral", *beyond)
    assert refused.returncode == 2
    assert "TLS is required on '0.0.0.0'" in refused.stderr
    certificate, key = write_server_files(tmp_path)
    options = (*beyond, "--tls-cert", str(certificate), "--tls-key", str(key))
    with SecuredBroker(tmp_path, ephemeral=True, options=options) as broker:
        assert plain(broker.port(), AMQP_HEADER) == TLS_HEADER
        assert get(broker.port(), "/health", tls=True) == 200
        assert get(broker.port(), "/metrics", tls=True) == 403
        assert KEY not in broker.log()


PATH = "/$servicebus/websocket"

FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://[not an address"},
    {"Origin": "http://localhost.evil.example"},
    {"Host": "evil.example"},
    {"Host": "evil.example:5672", "Origin": "http://evil.example:5672"},
    {"Host": "[::1", "Origin": "http://localhost"},
]
OWN = [
    {},
    {"Origin": "http://localhost:3000"},
    {"Origin": "https://127.0.0.1"},
    {"Host": "[::1]:5672", "Origin": "http://[::1]:5672"},
    {"Host": "contoso.localhost:5672"},
]


async def dial(broker: EmbeddedBroker, headers: dict[str, str]) -> bytes:
    """What the broker answers to the first bytes of AMQP; the handshake's error if it refuses."""
    url = f"ws://127.0.0.1:{broker.port()}{PATH}"
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, protocols=[SUBPROTOCOLS[0]], headers=headers) as client,
    ):
        await client.send_bytes(b"AMQP\x00\x01\x00\x00")
        return await client.receive_bytes()


async def status(broker: EmbeddedBroker, path: str, headers: dict[str, str]) -> int:
    url = f"http://127.0.0.1:{broker.port()}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status


async def test_pages_of_other_sites_are_refused_with_the_default_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with EmbeddedBroker() as broker:
        for headers in FOREIGN:
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await dial(broker, headers)
            assert await status(broker, "/$Resources/queues", headers) == 403
            assert await status(broker, "/metrics", headers) == 403
            assert await status(broker, "/health", headers) == 200
        for headers in OWN:
            assert await dial(broker, headers) == b"AMQP\x00\x01\x00\x00"
            assert await status(broker, "/$Resources/queues", headers) == 401
    assert len(caplog.messages) >= len(FOREIGN)
    assert all("give it a key of your own (--key)" in line for line in caplog.messages[:3])


async def test_a_broker_with_a_key_of_its_own_serves_pages_of_all_sites() -> None:
    with EmbeddedBroker(key="a key of its own") as broker:
        for headers in (*FOREIGN[:6], *OWN):
            assert await dial(broker, headers) == b"AMQP\x00\x01\x00\x00"
        # Nobody is asked for a token there, so it must not be a page that asks.
        for headers in FOREIGN:
            assert await status(broker, "/metrics", headers) == 403
        for headers in OWN:
            assert await status(broker, "/metrics", headers) == 200


SECRET_KEY = "c2VjcmV0LWtleQ=="


def test_no_repr_shows_a_key() -> None:
    rule = AuthorizationRule(key_name="a", primary_key=SECRET_KEY, secondary_key=SECRET_KEY)
    options = ServeOptions(
        namespaces=["contoso"], key=SECRET_KEY, rule=[f"a:{SECRET_KEY}:Send"], token=[SECRET_KEY]
    )
    assert SECRET_KEY not in repr(rule)
    assert SECRET_KEY not in repr(options)


def test_a_key_and_rules_come_from_files_and_the_environment_and_are_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file, rule_file = tmp_path / "key", tmp_path / "rules"
    key_file.write_text(f"{SECRET_KEY}\n")
    rule_file.write_text(
        "# who may send\nsender:first-secret:Send\n\nreader:second-secret:Listen\n"
    )
    monkeypatch.setenv("TWINBUS_RULES", "other:third-secret:Send")
    options = ("--key-file", str(key_file), "--rule-file", str(rule_file))
    with ServedBroker(tmp_path, options=options) as broker:
        assert SECRET_KEY not in broker.connection_string()
        with administration(broker.connection_string(key=SECRET_KEY)) as admin:
            admin.create_queue("orders")
        for rule, key in (("sender", "first-secret"), ("other", "third-secret")):
            text = broker.connection_string(rule=rule, key=key)
            with client(text) as sdk, sdk.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage(rule))
        text = broker.connection_string(rule="reader", key="second-secret")
        with client(text) as sdk, sdk.get_queue_receiver("orders", max_wait_time=60) as receiver:
            assert [str(each) for each in receiver.peek_messages(5)] == ["sender", "other"]
        for secret in (SECRET_KEY, "first-secret", "second-secret", "third-secret"):
            assert secret not in broker.log()


async def test_a_connection_ends_when_its_key_is_changed() -> None:
    with EmbeddedBroker() as broker:
        text = broker.connection_string()
        with administration(text) as admin:
            queue = admin.create_queue(
                "orders", authorization_rules=[sdk_rule("writer", "old key"), sdk_rule("other")]
            )
            other = await RawClient.open(with_key(text, "other", "a key"), "orders")
            writer = await RawClient.open(with_key(text, "writer", "old key"), "orders")
            queue.authorization_rules = [sdk_rule("writer", "new key"), sdk_rule("other")]
            admin.update_queue(queue)
            with pytest.raises(ConnectionLost, match="the rule 'writer' was changed"):
                await writer.sender("orders")
            sender = await other.ready_sender("orders")
            await sender.send(message("still here"))
            await other.close()
            renewed = await RawClient.open(with_key(text, "writer", "new key"), "orders")
            await renewed.close()


def sdk_rule(name: str, key: str = "a key") -> SdkRule:
    return SdkRule(
        type="SharedAccessAuthorizationRule",
        rights=[AccessRights.SEND],
        key_name=name,
        primary_key=key,
        secondary_key="",
    )


async def test_an_address_that_is_no_url_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBroker() as broker:
        text = broker.connection_string()
        connection = await RawClient.open(text)
        with pytest.raises(Refused, match=r"amqps://\["):
            await connection.sender("amqps://[x/orders")
        await connection.close()
        with pytest.raises(Refused, match="has an empty part"):
            await RawClient.open(with_key(text, "nobody", "a key"), "x://[y")
    with pytest.raises(ArgumentInvalid, match="is no address"):
        entity_path("sb://[x/orders")
    assert "Traceback" not in caplog.text


def test_no_lock_token_tells_another() -> None:
    tokens = Tokens()
    given = [tokens() for _ in range(1000)]
    assert {len(token) for token in given} == {16}
    assert len(set(given)) == 1000
    # No part of a token is the same in all of them, as that of a counter is.
    assert all(len({token[place] for token in given}) > 100 for place in range(16))
