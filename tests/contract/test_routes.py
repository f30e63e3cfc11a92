"""The ways to a namespace: WebSocket, a proxy that lets nothing else pass, another endpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage, TransportType

from tests.contract.certificates import client_context, write_authority
from tests.contract.http_proxy import TunnelProxy
from tests.contract.pairs import bodies, drain, embedded, nothing_left, quick, until
from twinbus import EmbeddedBroker, Namespace, pair_namespaces
from twinbus.broker.sas import AcceptedToken
from twinbus.client.administration import NotAnswered, counts_of, list_backlog_queues
from twinbus.client.connection import NamespaceConnection
from twinbus.client.request_node import ConnectionLost
from twinbus.namespace.access import Endpoint, NamespaceAccess, endpoint_of
from twinbus.servicebus.names import backlog_paths

pytestmark = [
    pytest.mark.contract,
    # The SDK's own calls, for the login of a proxy.
    pytest.mark.filterwarnings("ignore:The 'proxy_auth' parameter:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:BasicAuth is deprecated:DeprecationWarning"),
]

TOKEN = "eyJ0eXAi.eyJhdWQi.s3cret"
LOGIN = "me:s3cret"
NAMES = ("contoso", "contoso-dr")
BACKLOG = backlog_paths("contoso", 1)


ACCEPTED = AcceptedToken(name="app", text=TOKEN, rights=frozenset({"Manage"}))
# With the default key a broker answers to the names of its own machine only.
broker = embedded(key="own", tls=True, tokens=[ACCEPTED], scope="module")


@pytest.fixture(scope="module")
def proxy() -> Iterator[TunnelProxy]:
    hidden = {f"{name}.invalid": "localhost" for name in NAMES}
    with TunnelProxy(hidden, login=LOGIN) as running:
        yield running


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: TunnelProxy) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(write_authority(tmp_path)))
    monkeypatch.setenv("CONTOSO_TOKEN", TOKEN)
    monkeypatch.setenv("CONTOSO_PROXY", proxy.url.replace("//", f"//{LOGIN}@"))


def described(broker: EmbeddedBroker, name: str, host: str, **route: str) -> Namespace:
    text = f"sb://{host}:{broker.port(name)}?credential=env:CONTOSO_TOKEN"
    return Namespace.from_access(NamespaceAccess.parse(text, name=name, **route))


def by_keywords(broker: EmbeddedBroker, name: str) -> Namespace:
    return Namespace.from_connection_string(
        broker.connection_string(name, tls=True),
        name,
        ssl_context=client_context(),
        transport_type=TransportType.AmqpOverWebsocket,
    )


WAYS: dict[str, Callable[[EmbeddedBroker, str], Namespace]] = {
    "direct": lambda broker, name: described(broker, name, "localhost"),
    "websocket": lambda broker, name: described(broker, name, "localhost", transport="websocket"),
    "websocket, keywords of the SDK": by_keywords,
    "websocket, proxy": lambda broker, name: described(
        broker, name, f"{name}.invalid", proxy="env:CONTOSO_PROXY"
    ),
    "endpoint": lambda broker, name: described(
        broker, name, f"{name}.invalid", transport="amqp", endpoint=f"localhost:{broker.port(name)}"
    ),
    "endpoint, websocket": lambda broker, name: described(
        broker,
        name,
        f"{name}.invalid",
        transport="websocket",
        endpoint=f"localhost:{broker.port(name)}",
    ),
}


@pytest.mark.parametrize("way", WAYS)
async def test_each_way_serves_senders_administration_and_syphon(
    broker: EmbeddedBroker, proxy: TunnelProxy, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    primary, secondary = (WAYS[way](broker, name) for name in NAMES)
    options = quick(
        backlog_queue_count=1, attempt_timeout=15.0, enable_syphon=True, syphon_poll=1.0
    )
    began = len(proxy.requests)
    async with pair_namespaces(primary, secondary, options) as pair:
        assert pair.backlog_queues == BACKLOG
        async with pair.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("healthy"))
            pair.force_failover("orders")
            await sender.send_messages(ServiceBusMessage("diverted"))
        received = await drain(broker.connection_string("contoso"), "orders", 2, wait_s=10)
    assert sorted(bodies(received)) == ["diverted", "healthy"]
    endpoint = endpoint_of(secondary)
    assert await list_backlog_queues(endpoint) == list(BACKLOG)
    assert (await counts_of(endpoint, BACKLOG[0])).waiting == 0
    through = {request.split()[1].rpartition(":")[0] for request in proxy.requests[began:]}
    assert through == ({"contoso.invalid", "contoso-dr.invalid"} if "proxy" in way else set())
    assert "s3cret" in TOKEN + LOGIN
    assert "s3cret" not in caplog.text
    assert "twinbus" in {record.name.partition(".")[0] for record in caplog.records}


async def test_a_large_backlog_passes_a_websocket_in_both_directions(
    broker: EmbeddedBroker,
) -> None:
    """More than what may wait to be written: the owner pauses and resumes."""
    body, count = b"x" * 200_000, 40
    primary, secondary = (WAYS["websocket"](broker, name) for name in NAMES)
    async with (
        pair_namespaces(primary, secondary, quick(backlog_queue_count=1)) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        pair.force_failover("orders")
        for _ in range(count):
            await sender.send_messages(ServiceBusMessage(body), timeout=60)
    options = quick(backlog_queue_count=1, enable_syphon=True, syphon_poll=1.0)
    again = [WAYS["websocket"](broker, name) for name in NAMES]
    async with pair_namespaces(again[0], again[1], options):
        text = broker.connection_string("contoso")
        received = await drain(text, "orders", count, wait_s=30)
    assert [b"".join(message.body) for message in received] == [body] * count


async def test_a_connection_over_websocket_leaves_nothing_behind(broker: EmbeddedBroker) -> None:
    endpoint = endpoint_of(WAYS["websocket"](broker, "contoso"))
    async with nothing_left():
        closed = NamespaceConnection(endpoint, lambda _: None)
        await closed.open()
        assert await closed.authorize("orders")
        await closed.close()
        dropped = NamespaceConnection(endpoint, lambda _: None)
        await dropped.open()
        dropped.drop("it does not answer")
        assert await dropped.lost == "it does not answer"
        await dropped.close()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


def refused(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, url: str) -> Endpoint:
    monkeypatch.setenv("CONTOSO_PROXY", url)
    return endpoint_of(WAYS["websocket, proxy"](broker, "contoso"))


async def test_a_proxy_that_refuses_is_named_in_one_line_without_its_login(
    broker: EmbeddedBroker, proxy: TunnelProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = proxy.url.replace("//", "//me:s3cret-too@")
    endpoint = refused(broker, monkeypatch, wrong)
    with pytest.raises(ConnectionLost, match="the proxy answers 407") as caught:
        await NamespaceConnection(endpoint, lambda _: None).open()
    with pytest.raises(NotAnswered, match="407") as counting:
        await counts_of(endpoint, "orders")
    for error in (caught.value, counting.value):
        assert "\n" not in str(error)
        assert "s3cret" not in str(error)
    with TunnelProxy() as strict:
        endpoint = refused(broker, monkeypatch, strict.url)
        with pytest.raises(ConnectionLost, match="the proxy answers 403"):
            await NamespaceConnection(endpoint, lambda _: None).open()
    with pytest.raises(ConnectionLost, match="cannot be reached"):
        await NamespaceConnection(refused(broker, monkeypatch, strict.url), lambda _: None).open()
