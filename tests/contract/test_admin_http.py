"""The HTTP side of a real broker: the namespace, rights, refusals, faults, and the asyncio client.

The broker is whole (listener, HTTP, engine, group commit) with its store in memory.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
)
from azure.servicebus.management import (
    AccessRights,
    ApiVersion,
    AuthorizationRule,
    ServiceBusAdministrationClient,
)

from tests.official_sdk import administration, sas_token
from tests.processes import with_key
from twinbus.broker import descriptions
from twinbus.broker.admin.api import AdminRequest, respond, verified
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.links.context import Tokens
from twinbus.broker.profile import LAPTOP
from twinbus.broker.sas import AccessPolicy
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.store import MemoryStore
from twinbus.errors import StoreFull
from twinbus.namespace.tokens import sign

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.contract

PATIENCE_S = 60.0
"""For an answer, which takes milliseconds on a quiet machine."""

Admin = Any
"""The SDK's client; its optional fields would need a check each before a test may look at them."""

SENDER = descriptions.AuthorizationRule(
    key_name="sender", primary_key="send-key", rights=frozenset({"Send"})
)
ENTRY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<{0} xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{1}</{0}></content></entry>'
)


@pytest.fixture
def embedded() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso", rules=[SENDER]) as running:
        yield running


@pytest.fixture
def admin(embedded: EmbeddedBroker) -> Iterator[Admin]:
    with administration(embedded.connection_string()) as client:
        yield client


def ask(
    embedded: EmbeddedBroker,
    method: str,
    path: str,
    body: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, str]:
    """Status and body of a request as any HTTP client would make it."""
    request = urllib.request.Request(
        f"http://localhost:{embedded.port()}{path}",
        data=None if body is None else body.encode(),
        headers={"Authorization": sas_token(embedded.connection_string()), **(headers or {})},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_subscription_can_be_born_with_a_rule_of_its_own(
    embedded: EmbeddedBroker, admin: Admin
) -> None:
    """The SDKs of other languages create a subscription and its first rule in one request."""
    admin.create_topic("events")
    inner = (
        "<DefaultRuleDescription><Filter i:type='SqlFilter'><SqlExpression>a = 1</SqlExpression>"
        "</Filter><Action i:type='EmptyRuleAction'/><Name>first</Name></DefaultRuleDescription>"
    )
    body = ENTRY.format("SubscriptionDescription", inner)
    status, _ = ask(embedded, "PUT", "/events/Subscriptions/s?api-version=2021-05", body)
    assert status == 201
    assert [rule.name for rule in admin.list_rules("events", "s")] == ["first"]


# The namespace, rights, errors


def test_the_namespace_tells_who_it_is(embedded: EmbeddedBroker, admin: Admin) -> None:
    properties = admin.get_namespace_properties()
    assert (properties.name, properties.messaging_sku) == ("contoso", "Standard")
    # The JavaScript and the Go SDK require both times.
    assert properties.created_at_utc <= properties.modified_at_utc
    admin.create_queue("orders")
    created_at = admin.get_queue_runtime_properties("orders").created_at_utc
    assert admin.get_namespace_properties().created_at_utc == created_at
    status, body = ask(embedded, "GET", "/health", headers={"Authorization": ""})
    assert (status, json.loads(body)) == (200, {"status": "ok", "namespace": "contoso"})


def test_an_old_version_of_the_api_is_spoken_too(embedded: EmbeddedBroker) -> None:
    transport = administration(embedded.connection_string())._pipeline._transport
    with ServiceBusAdministrationClient.from_connection_string(
        embedded.connection_string(), api_version=ApiVersion.V2017_04, transport=transport
    ) as old:
        old.create_queue("orders")
        assert [queue.name for queue in old.list_queues()] == ["orders"]


@pytest.mark.parametrize(
    ("name", "key"),
    [("RootManageSharedAccessKey", "wrong"), ("nobody", "x"), ("sender", "send-key")],
)
def test_only_a_key_with_the_right_to_manage_opens(
    embedded: EmbeddedBroker, name: str, key: str
) -> None:
    with administration(with_key(embedded.connection_string(), name, key)) as stranger:
        for attempt in (
            lambda: stranger.create_queue("orders"),
            lambda: list(stranger.list_queues()),
            stranger.get_namespace_properties,
        ):
            with pytest.raises(ClientAuthenticationError, match=name):
                attempt()


def test_a_rule_of_one_entity_manages_that_entity_and_no_other(
    embedded: EmbeddedBroker, admin: Admin
) -> None:
    manage = AuthorizationRule(
        type="SharedAccessAuthorizationRule", claim_type="SharedAccessKey", claim_value="None",
        key_name="owner", primary_key="owner-key", rights=[AccessRights.MANAGE],
    )  # fmt: skip
    admin.create_queue("orders", authorization_rules=[manage])
    admin.create_queue("other")
    token = sas_token(with_key(embedded.connection_string(), "owner", "owner-key"), "orders")
    owner = {"Authorization": token}
    assert ask(embedded, "GET", "/orders", headers=owner)[0] == 200
    assert ask(embedded, "GET", "/other", headers=owner)[0] == 401
    assert ask(embedded, "GET", "/$Resources/queues", headers=owner)[0] == 401
    forward = ENTRY.format("QueueDescription", "<ForwardTo>sb://localhost/other</ForwardTo>")
    update = {**owner, "If-Match": "*"}
    status, body = ask(embedded, "PUT", "/orders", forward, update)
    assert (status, "Forwarding needs it" in body) == (401, True)
    helper = {"ServiceBusSupplementaryAuthorization": sas_token(embedded.connection_string())}
    assert ask(embedded, "PUT", "/orders", forward, {**update, **helper})[0] == 200


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_request_may_name_the_host_in_its_target(
    embedded: EmbeddedBroker, admin: Admin, scheme: str
) -> None:
    """The WebSockets of the Java SDK do so, and HTTP obliges a server to accept it."""
    admin.create_queue("a/b")
    key = {"Authorization": sas_token(embedded.connection_string())}
    upgrade = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol": "AMQPWSB10",
    }  # fmt: skip
    for path, headers, status, text in (
        ("/health", {}, 200, b"contoso"),
        ("/a%2Fb?api-version=2021-05", key, 200, b"LockDuration"),
        ("/$servicebus/websocket", upgrade, 101, b""),
    ):
        with closing(
            HTTPConnection("localhost", embedded.port(), timeout=PATIENCE_S)
        ) as connection:
            connection.request("GET", f"{scheme}://localhost{path}", headers=headers)
            response = connection.getresponse()
            assert response.status == status, path
            assert text in (response.read() if text else b""), path


def test_a_token_for_the_address_of_a_request_opens_it_and_no_other(
    embedded: EmbeddedBroker, admin: Admin
) -> None:
    """The JavaScript SDK signs each administration request for its own address, in lower case."""
    admin.create_queue("orders")
    admin.create_topic("news")
    admin.create_subscription("news", "all")
    for path in (
        *("/$namespaceinfo", "/$Resources/queues", "/$Resources/topics", "/orders"),
        *("/news/Subscriptions", "/news/Subscriptions/all/Rules"),
        "/news/Subscriptions/all/Rules/$Default",
    ):
        address = f"{path}?api-version=2021-05"
        signed = address.lower().removeprefix("/")
        own = {"Authorization": sas_token(embedded.connection_string(), signed)}
        assert ask(embedded, "GET", address, headers=own)[0] == 200, path
        assert ask(embedded, "GET", "/", headers=own)[0] == 401, path
        assert ask(embedded, "GET", "/news", headers=own)[0] == 401, path
        sender = with_key(embedded.connection_string(), "sender", "send-key")
        weak = {"Authorization": sas_token(sender, signed)}
        assert ask(embedded, "GET", address, headers=weak)[0] == 401, path


def test_bad_requests_are_refused_in_xml(embedded: EmbeddedBroker) -> None:
    bad = [
        ("PUT", "/orders", "not xml", 400),
        ("PUT", "/orders", ENTRY.format("Riddle", ""), 400),
        ("PUT", "/t/subscriptions/s", ENTRY.format("QueueDescription", ""), 400),
        ("PUT", "/$Resources/queues", ENTRY.format("QueueDescription", ""), 400),
        ("DELETE", "/$namespaceinfo", None, 400),
        ("POST", "/orders", "", 405),
        ("GET", "/$Resources/queues?$top=many", None, 400),
        ("PUT", "/orders", "x" * (1024 * 1024 + 1), 413),
    ]
    for method, path, body, expected in bad:
        status, answer = ask(embedded, method, path, body)
        assert (status, f"<Code>{expected}</Code>" in answer) == (expected, True), (method, path)
    request = urllib.request.Request(f"http://localhost:{embedded.port()}/orders")
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(request, timeout=PATIENCE_S)
    refused.value.close()


class FullDisk:
    """A group commit whose disk takes nothing."""

    async def durable(self) -> None:
        raise StoreFull("no room left")


def test_a_change_that_the_disk_did_not_take_is_not_confirmed() -> None:
    root = replace(SENDER, rights=frozenset({"Manage"}))
    namespace = BrokerNamespace(
        "contoso", MemoryStore(), Tokens(), notify=lambda _: None, deleted=lambda _: None
    )
    services = SimpleNamespace(
        name="contoso",
        namespace=namespace,
        commit=FullDisk(),
        policy=AccessPolicy([root]),
        now_ms=lambda: 1_700_000_000_000,
        wake=lambda: None,
        track=lambda _refusal: None,
        credits=None,
        profile=LAPTOP,
        changing=set(),
        entity_rules=lambda _path: (),
    )
    request = AdminRequest(
        method="PUT",
        raw_path="/orders",
        query={},
        headers={"authorization": sign("sb://localhost/", "sender", "send-key", 1_800_000_000)},
        body=ENTRY.format("QueueDescription", "").encode(),
    )
    token = verified(services.policy, request, 1_700_000_000.0)
    answer = asyncio.run(respond(cast("BrokerServer", services), request, token))
    assert (answer.status, b"no room left" in answer.body) == (500, True)


# Faults


def test_faults_that_make_no_sense_or_are_not_allowed_are_refused(embedded: EmbeddedBroker) -> None:
    assert ask(embedded, "POST", "/$faults", "{")[0] == 400
    status, body = ask(embedded, "POST", "/$faults", '{"kind": "explode"}')
    assert (status, "explode" in json.loads(body)["error"]) == (400, True)
    assert ask(embedded, "DELETE", "/$faults/99")[0] == 404
    assert ask(embedded, "PUT", "/$faults")[0] == 405
    token = sas_token(with_key(embedded.connection_string(), "sender", "send-key"))
    assert ask(embedded, "GET", "/$faults", headers={"Authorization": token})[0] == 401
