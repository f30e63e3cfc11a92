"""Clients that mean harm, on real sockets: refused with a reason; others keep their messages."""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from tests.end_to_end.raw_client import ConnectionLost, RawClient
from tests.official_sdk import administration, client
from tests.processes import ServedBroker
from twinbus.amqp.connection import AMQP_HEADER
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Detach,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
)
from twinbus.amqp.types import UInt, UShort

pytestmark = pytest.mark.end_to_end

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    with ServedBroker(tmp_path_factory.mktemp("broker")) as broker:
        with administration(broker.connection_string()) as admin:
            admin.create_queue("orders")
        yield broker


@pytest.fixture
def broker(served: ServedBroker) -> Iterator[ServedBroker]:
    yield served
    assert served.health()["status"] == "ok"
    assert "Traceback" not in served.log()


def attach(handle: int, address: str = "orders", *, settled: bool = False) -> Attach:
    """A client's receiver; `settled`: what it receives is deleted."""
    return Attach(
        name=f"link-{handle}",
        handle=UInt(handle),
        role=True,
        snd_settle_mode=1 if settled else 0,
        source=Source(address=address),
        target=Target(address="me"),
    )


def credit(handle: int) -> Flow:
    return Flow(
        next_incoming_id=UInt(0),
        incoming_window=UInt(1000),
        next_outgoing_id=UInt(0),
        outgoing_window=UInt(1000),
        handle=UInt(handle),
        delivery_count=UInt(0),
        link_credit=UInt(10),
    )


async def test_a_second_begin_on_a_session_in_use_leaves_no_consumer_behind(
    broker: ServedBroker,
) -> None:
    hostile = await RawClient.open(broker.connection_string())
    frames: list[tuple[int, Performative]] = [
        (1, Begin(remote_channel=UShort(0), incoming_window=UInt(1000))),
        (0, End()),
        (1, attach(0, settled=True)),
        (1, credit(0)),
    ]
    for channel, performative in frames:
        hostile._connection.output.put(encode_frame(channel, performative))
    hostile.flush()
    with pytest.raises(ConnectionLost, match="answers channel 0"):
        await hostile.sender("orders")
    with client(broker.connection_string()) as sdk:
        with sdk.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("kept"))
        with sdk.get_queue_receiver("orders", max_wait_time=PATIENCE_S) as receiver:
            (message,) = receiver.receive_messages()
            assert str(message) == "kept"
            receiver.complete_message(message)


def test_strangers_are_few_and_cut_off_while_an_honest_client_works(tmp_path: Path) -> None:
    # The honest client has to open and to put a token within the same time, on a busy machine.
    options = ("--strangers-max", "20", "--open-limit", "6", "--token-limit", "6")
    with ServedBroker(tmp_path, options=options) as broker:
        with administration(broker.connection_string()) as admin:
            admin.create_queue("orders")
        strangers = [
            socket.create_connection(("127.0.0.1", broker.port()), PATIENCE_S) for _ in range(40)
        ]
        for number, stranger in enumerate(strangers):
            with suppress(OSError):
                # Half of them open the connection, all of them then say nothing more.
                stranger.sendall(b"A" if number % 2 else AMQP_HEADER + opening())
        for stranger in strangers:
            with suppress(ConnectionResetError), stranger:
                while stranger.recv(1 << 16):
                    pass
        for reason in (
            "20 connections of its address have put no token (--strangers-max)",
            "no OPEN came within 6 s (--open-limit)",
            "no valid token came within 6 s (--token-limit)",
        ):
            assert is_logged(broker, reason), reason
        # A stranger that was cut off counts until the broker has seen its socket close, which may
        # be a moment after this connection: the SDK's own retry is part of what is promised.
        with client(broker.connection_string(), retry_total=3) as sdk:
            with sdk.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("honest"))
            with sdk.get_queue_receiver("orders", max_wait_time=PATIENCE_S) as receiver:
                (message,) = receiver.receive_messages()
                assert str(message) == "honest"
        assert "Traceback" not in broker.log()


def is_logged(broker: ServedBroker, text: str) -> bool:
    """Wait for a text in the log: a peer may see its end before the line is in the file."""
    ends = time.monotonic() + PATIENCE_S
    while text not in broker.log():
        if time.monotonic() > ends:
            return False
        time.sleep(0.01)
    return True


def opening() -> bytes:
    return encode_frame(0, Open(container_id="stranger"))


def resident_bytes(broker: ServedBroker) -> int:
    pages = Path(f"/proc/{broker.process.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


async def test_the_broker_stops_reading_from_a_client_that_never_reads(
    broker: ServedBroker,
) -> None:
    silent = await RawClient.open(broker.connection_string())
    wire = silent._transport._socket
    assert wire is not None
    wire.pause_reading()
    # Otherwise the two kernels keep some ten megabytes of answers before the broker has to.
    wire.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    echo = Flow(
        next_incoming_id=UInt(0),
        incoming_window=UInt(1000),
        next_outgoing_id=UInt(0),
        outgoing_window=UInt(1000),
        echo=True,
    )
    before_bytes = resident_bytes(broker)
    # Each of these asks for an answer of the same size.
    wire.write(encode_frame(0, echo) * 800_000)
    await asyncio.sleep(5.0)
    assert wire.get_write_buffer_size() > 0
    assert resident_bytes(broker) - before_bytes < 16 * 1024 * 1024
    silent._transport.abort()


async def test_an_attach_and_its_detach_in_one_packet_do_no_harm(broker: ServedBroker) -> None:
    hasty = await RawClient.open(broker.connection_string())
    frames: list[Performative] = [attach(7), Detach(handle=UInt(7), closed=True)]
    hasty._connection.output.put(b"".join(encode_frame(0, frame) for frame in frames))
    hasty.flush()
    await hasty.sender("orders")
    await hasty.close()
