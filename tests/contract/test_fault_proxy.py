"""The official SDK through a fault proxy, in front of a broker that works."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiver,
    ServiceBusSender,
    TransportType,
)
from azure.servicebus.aio import ServiceBusClient as AsyncClient
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from tests.official_sdk import Faults, client
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import Transfer
from twinbus.broker.faults import Fault
from twinbus.proxy.certificate import make_certificate, trust_lines
from twinbus.proxy.host import FaultProxy, through, upstream_of
from twinbus.testing import LocalNamespace, ProxiedNamespace

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalNamespace]:
    with LocalNamespace() as namespace:
        yield namespace


@pytest.fixture(scope="module")
def proxied(broker: LocalNamespace) -> Iterator[ProxiedNamespace]:
    with ProxiedNamespace(broker.connection_string, fault_seed=7) as namespace:
        yield namespace


@pytest.fixture
def queue(broker: LocalNamespace, request: pytest.FixtureRequest) -> str:
    path: str = request.node.name.replace("[", "-").replace("]", "")
    broker.create_queue(path)
    return path


@pytest.fixture
def sdk(proxied: ProxiedNamespace) -> Iterator[ServiceBusClient]:
    with client(proxied.connection_string, retry_total=0) as plain:
        yield plain


def send(sender: ServiceBusSender, text: str = "x", timeout_s: float = 30) -> None:
    sender.send_messages(ServiceBusMessage(text), timeout=timeout_s)


def texts(receiver: ServiceBusReceiver, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count and (
        batch := receiver.receive_messages(count - len(found), max_wait_time=30)
    ):
        for message in batch:
            receiver.complete_message(message)
        found += [str(message) for message in batch]
    return found


def test_messages_settlements_and_requests_pass(
    broker: LocalNamespace, sdk: ServiceBusClient, queue: str
) -> None:
    with sdk.get_queue_sender(queue) as sender, sdk.get_queue_receiver(queue) as receiver:
        send(sender, "small")
        send(sender, "large" * 40_000)  # in several frames
        [number] = sender.schedule_messages(ServiceBusMessage("later"), _in_an_hour())
        sender.cancel_scheduled_messages(number)
        assert [len(text) for text in texts(receiver, 2)] == [5, 200_000]


def _in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def test_a_throttle_of_one_in_two_leaves_every_accepted_message(
    proxied: ProxiedNamespace, broker: LocalNamespace, sdk: ServiceBusClient, queue: str
) -> None:
    accepted = []
    throttle = Fault(kind="throttle", entity=queue, probability=0.5)
    with sdk.get_queue_sender(queue) as sender, proxied.outage(throttle):
        for number in range(30):
            try:
                send(sender, str(number))
            except ServiceBusServerBusyError:
                continue
            accepted.append(str(number))
    assert 0 < len(accepted) < 30
    assert [str(message) for message in broker.sent(queue)] == accepted


def test_more_sends_are_refused_than_a_link_has_credit_and_the_link_goes_on(
    proxied: ProxiedNamespace, broker: LocalNamespace, sdk: ServiceBusClient, queue: str
) -> None:
    with sdk.get_queue_sender(queue) as sender:
        send(sender, "first")
        with proxied.outage(Fault(kind="throttle", entity=queue)):
            for _ in range(1_100):
                with pytest.raises(ServiceBusServerBusyError):
                    send(sender)
        send(sender, "last")
    assert [str(message) for message in broker.sent(queue)] == ["first", "last"]


@pytest.mark.parametrize(
    ("kind", "is_stored"), [("drop_before_commit", False), ("drop_after_commit", True)]
)
def test_a_drop_leaves_the_sender_without_an_answer(
    proxied: ProxiedNamespace,
    broker: LocalNamespace,
    sdk: ServiceBusClient,
    queue: str,
    kind: str,
    is_stored: bool,
) -> None:
    drop = Fault(kind=kind, entity=queue, count=1)  # type: ignore[arg-type]
    with sdk.get_queue_sender(queue) as sender:
        with proxied.outage(drop), pytest.raises(ServiceBusConnectionError):
            send(sender, "lost answer")
        send(sender, "next")
    stored = ["lost answer"] if is_stored else []
    assert [str(message) for message in broker.sent(queue)] == [*stored, "next"]


def test_a_send_that_hangs_ends_with_the_callers_timeout_and_others_go_on(
    proxied: ProxiedNamespace, broker: LocalNamespace, sdk: ServiceBusClient, queue: str
) -> None:
    broker.create_queue(f"{queue}-other")
    with (
        sdk.get_queue_sender(queue) as sender,
        sdk.get_queue_sender(f"{queue}-other") as other,
    ):
        with proxied.outage("hang", queue):
            with pytest.raises(OperationTimeoutError):
                send(sender, timeout_s=0.5)
            send(other, "on")
        send(sender, "again")
    assert [str(message) for message in broker.sent(queue)] == ["again"]


def test_a_delay_is_as_long_as_it_says(
    proxied: ProxiedNamespace, sdk: ServiceBusClient, queue: str
) -> None:
    with sdk.get_queue_sender(queue) as sender:
        send(sender)
        with proxied.outage(Fault(kind="delay", delay_ms=300, entity=queue)):
            began_s = time.monotonic()
            send(sender)
            assert time.monotonic() - began_s >= 0.3


def test_a_detached_receiver_attaches_again(
    proxied: ProxiedNamespace, broker: LocalNamespace, queue: str
) -> None:
    detach = Fault(kind="detach", entity=queue, condition="amqp:link:detach-forced", count=1)
    with (
        client(broker.connection_string) as direct,
        direct.get_queue_sender(queue) as sender,
        client(proxied.connection_string, retry_total=3) as sdk,
        sdk.get_queue_receiver(queue) as receiver,
    ):
        send(sender, "one")
        assert texts(receiver, 1) == ["one"]
        with proxied.outage(detach):
            send(sender, "two")
            assert texts(receiver, 1) == ["two"]


def test_a_refused_link_says_why(
    proxied: ProxiedNamespace, sdk: ServiceBusClient, queue: str
) -> None:
    refuse = Fault(kind="refuse_attach", entity=queue, description="closed for the game day")
    sender = sdk.get_queue_sender(queue)
    with proxied.outage(refuse), pytest.raises(ServiceBusError, match="closed for the game day"):
        send(sender, timeout_s=5)
    sender.close()


def test_a_half_open_connection_says_nothing_and_others_go_on(
    proxied: ProxiedNamespace, broker: LocalNamespace, sdk: ServiceBusClient, queue: str
) -> None:
    stuck, fresh = sdk.get_queue_sender(queue), sdk.get_queue_sender(queue)
    send(stuck, "before")
    with proxied.outage(Fault(kind="half_open", entity=queue, count=1)):
        for _ in range(2):
            with pytest.raises(OperationTimeoutError):
                send(stuck, "into the void", timeout_s=0.5)
        send(fresh, "after")
    assert [str(message) for message in broker.sent(queue)] == ["before", "after"]
    stuck.close()
    fresh.close()


def test_a_cut_off_proxy_refuses_and_comes_back_on_its_port(
    proxied: ProxiedNamespace, broker: LocalNamespace, sdk: ServiceBusClient, queue: str
) -> None:
    with sdk.get_queue_sender(queue) as sender:
        with proxied.outage("kill"), pytest.raises(ServiceBusError):
            send(sender, timeout_s=2)
        send(sender, "back")
    assert [str(message) for message in broker.sent(queue)] == ["back"]


async def relayed(
    broker: LocalNamespace, work: Callable[[FaultProxy, str], None], *, tls: bool = False
) -> None:
    """Run `work` in a thread beside a proxy of its own."""
    certificate = make_certificate("localhost") if tls else None
    port = broker.connection_string.partition("localhost:")[2].partition("/")[0]
    proxy = FaultProxy(
        upstream_of(f"sb://localhost:{port}"),
        tls=None if certificate is None else certificate.context,
    )
    await proxy.start()
    try:
        trusted = "" if certificate is None else str(certificate.authority)
        await asyncio.to_thread(work, proxy, trusted)
    finally:
        await proxy.close()
        if certificate is not None:
            certificate.remove()
    assert not proxy.connections


def test_over_tls_the_certificate_of_the_run_is_trusted_and_no_other(
    broker: LocalNamespace, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "twinbus")

    def work(proxy: FaultProxy, authority: str) -> None:
        async def over_tls(verify: str | None) -> None:
            # As for a real namespace: its own string, and where to connect.
            text = (
                "Endpoint=sb://contoso.servicebus.windows.net/;"
                "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"
            )
            trust: dict[str, Any] = {} if verify is None else {"connection_verify": verify}
            async with (
                AsyncClient.from_connection_string(
                    text,
                    custom_endpoint_address=f"sb://localhost:{proxy.port}",
                    transport_type=TransportType.Amqp,
                    retry_total=0,
                    **trust,
                ) as sdk,
                sdk.get_queue_sender(queue) as sender,
            ):
                await sender.send_messages(ServiceBusMessage("over TLS"))

        asyncio.run(over_tls(authority))
        with pytest.raises(ServiceBusError):
            asyncio.run(over_tls(None))

    asyncio.run(relayed(broker, work, tls=True))
    assert [str(message) for message in broker.sent(queue)] == ["over TLS"]
    assert "SharedAccessSignature" not in caplog.text
    assert "SAS_KEY_VALUE" not in caplog.text


def test_faults_are_steered_over_http_with_the_key_of_the_run_only(
    broker: LocalNamespace, queue: str
) -> None:
    def work(proxy: FaultProxy, _: str) -> None:
        faults = Faults(proxy.steering_string)
        plain = client(through(broker.connection_string, proxy.port), retry_total=0)
        with plain as sdk, sdk.get_queue_sender(queue) as sender:
            send(sender)
            number = faults.add("refuse_send", entity=queue, frame=None)
            assert [one["id"] for one in faults.list()["faults"]] == [number]
            with pytest.raises(ServiceBusError):
                send(sender)
            faults.add("detach", entity=queue, link="nobody's")
            faults.clear()
            send(sender)
        with pytest.raises(OSError, match="401"):
            Faults(broker.connection_string.replace(*_ports(broker, proxy))).list()

    asyncio.run(relayed(broker, work))


def _ports(broker: LocalNamespace, proxy: FaultProxy) -> tuple[str, str]:
    port = broker.connection_string.partition("localhost:")[2].partition("/")[0]
    return f"localhost:{port}", f"localhost:{proxy.port}"


def test_a_service_that_does_not_read_stops_the_client_and_not_the_memory() -> None:
    async def flood() -> int:
        async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]

        service = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1)
        proxy = FaultProxy(upstream_of(f"sb://127.0.0.1:{service.sockets[0].getsockname()[1]}"))
        await proxy.start()
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"AMQP\x00\x01\x00\x00")
        frame = encode_frame(1, Transfer(0, 0, b"t", 0), bytes(1_000_000))
        sent_bytes = 0
        try:
            while sent_bytes < 64_000_000:
                writer.write(frame)
                await asyncio.wait_for(writer.drain(), 2)
                sent_bytes += len(frame)
        except TimeoutError:
            pass
        writer.transport.abort()
        await proxy.close()
        service.close()
        return sent_bytes

    # Buffers of four sockets hold some megabytes.
    assert asyncio.run(flood()) < 40_000_000


def test_a_namespace_that_is_down_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def connect() -> bytes:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            proxy = FaultProxy(upstream_of(f"sb://127.0.0.1:{nobody.getsockname()[1]}"))
            await proxy.start()
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"AMQP\x00\x01\x00\x00")
            try:
                return await asyncio.wait_for(reader.read(), 30)
            except ConnectionResetError:
                return b""
            finally:
                writer.close()
                await proxy.close()

    assert asyncio.run(connect()) == b""
    assert "cannot be reached" in caplog.text


def test_a_line_for_each_sdk_names_the_port_and_the_authority() -> None:
    certificate = make_certificate("contoso.servicebus.windows.net")
    lines = trust_lines(4711, certificate.authority)
    certificate.remove()
    assert not certificate.authority.exists()
    assert [line.split()[0] for line in lines] == (
        ["Python", "Twinbus", ".NET", "Java", "JavaScript", "Go"]
    )
    for line in lines:
        named = str(certificate.authority) in line or "the same keywords" in line
        assert named, line
