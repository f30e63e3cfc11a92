"""Clients that speak wrongly or with ill intent get the proper error; nobody else notices."""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from tests.end_to_end.raw_client import ConnectionLost, RawClient, Refused, batch, message
from tests.official_sdk import administration, client, sas_token
from tests.processes import ServedBroker
from twinbus.amqp.connection import AMQP_HEADER, MAX_FRAME_BYTES, SASL_HEADER
from twinbus.amqp.frames import decode_performative, encode_frame
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Open,
    Performative,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
)
from twinbus.amqp.types import Symbol, UInt, UShort

pytestmark = pytest.mark.end_to_end

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    with ServedBroker(tmp_path_factory.mktemp("broker")) as broker:
        text = broker.connection_string()
        with administration(text) as admin, client(text) as sdk:
            admin.create_queue("kept")
            admin.create_queue("other")
            admin.create_queue("orders")
            with sdk.get_queue_sender("kept") as sender:
                sender.send_messages(ServiceBusMessage("kept"))
            yield broker
            with sdk.get_queue_receiver("kept") as receiver:
                assert [str(each) for each in receiver.peek_messages(5)] == ["kept"]


@pytest.fixture
def broker(served: ServedBroker) -> Iterator[ServedBroker]:
    """The broker; whatever a test does to it, a bystander's message must stay where it is."""
    yield served
    assert served.health()["status"] == "ok"
    assert "Traceback" not in served.log()
    with administration(served.connection_string()) as admin:
        assert admin.get_queue_runtime_properties("kept").active_message_count == 1


def say(broker: ServedBroker, data: bytes) -> bytes:
    """All that the broker answers before it hangs up."""
    return converse(broker, data).answer


@dataclass(frozen=True)
class Conversation:
    """What one peer was answered, and where the broker's log is about it."""

    answer: bytes
    port: int
    """The peer's own port, which the log names."""
    log_start: int
    """Where the log ended when the peer connected: an earlier peer may have had the same port."""

    def is_logged(self, broker: ServedBroker, text: str) -> bool:
        """Wait for a line about this peer with `text` in it; false after the patience."""
        peer = re.compile(rf":{self.port}\b.*{re.escape(text)}")
        ends = time.monotonic() + PATIENCE_S
        # The broker writes its line in its own time: the peer may see the end of the connection
        # before the line is in the file.
        while not peer.search(broker.log()[self.log_start :]):
            if time.monotonic() > ends:
                return False
            time.sleep(0.01)
        return True


def converse(broker: ServedBroker, data: bytes) -> Conversation:
    """Send `data`; return what the broker answers before it closes the connection."""
    log_start = len(broker.log())
    with socket.create_connection(("localhost", broker.port()), timeout=PATIENCE_S) as peer:
        port = int(peer.getsockname()[1])
        peer.sendall(data)
        answer = b""
        try:
            while more := peer.recv(1 << 16):
                answer += more
        except ConnectionResetError:
            pass
        return Conversation(answer, port, log_start)


def performatives(frames: bytes) -> list[object]:
    found: list[object] = []
    while frames:
        size, offset = int.from_bytes(frames[:4]), frames[4] * 4
        found.append(decode_performative(frames[offset:size])[0])
        frames = frames[size:]
    return found


def opening() -> bytes:
    return encode_frame(0, Open(container_id="stranger", max_frame_size=UInt(MAX_FRAME_BYTES)))


@pytest.mark.parametrize(
    "garbage",
    [b"\x00" * 64, b"EHLO example.org\r\n", b"\xff\xfe\xfd" * 100, b"SSH-2.0-x\r\n"],
    ids=["zeros", "smtp", "binary", "ssh"],
)
def test_garbage_is_answered_with_the_amqp_header(broker: ServedBroker, garbage: bytes) -> None:
    talk = converse(broker, garbage)
    assert talk.answer == AMQP_HEADER
    assert talk.is_logged(broker, "neither AMQP nor HTTP")


def test_tls_on_the_plain_port_is_closed_with_a_hint(broker: ServedBroker) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64
    talk = converse(broker, hello)
    assert talk.answer == b""
    assert talk.is_logged(broker, "UseDevelopmentEmulator=true")


def test_an_amqp_version_we_do_not_speak_is_answered_with_ours(broker: ServedBroker) -> None:
    assert say(broker, b"AMQP\x00\x00\x09\x01").startswith(b"AMQP\x00\x01\x00\x00")


@pytest.mark.parametrize(
    ("frame", "condition", "said"),
    [
        ((MAX_FRAME_BYTES + 1).to_bytes(4) + b"\x02\x00\x00\x00", "framing-error", "65537 bytes"),
        (b"\xff\xff\xff\xff\x02\x00\x00\x00", "framing-error", "4294967295 bytes"),
        (b"\x00\x00\x00\x04\x02\x00\x00\x00", "framing-error", "4 bytes"),
        (b"\x00\x00\x00\x10\x09\x00\x00\x00" + b"\x00" * 8, "framing-error", "offset 36"),
        (b"\x00\x00\x00\x0c\x02\x00\x00\x00\xff\xff\xff\xff", "decode-error", ""),
        (b"\x00\x00\x00\x10\x02\x00\x00\x00\x00\x53\x12\xd0\xff\xff\xff\xff", "decode-error", ""),
    ],
    ids=["too large", "huge", "too small", "offset past the end", "no performative", "lying size"],
)
def test_a_frame_that_breaks_the_protocol_closes_its_connection_with_the_reason(
    broker: ServedBroker, frame: bytes, condition: str, said: str
) -> None:
    talk = converse(broker, AMQP_HEADER + opening() + frame)
    assert talk.answer.startswith(AMQP_HEADER)
    opened, closed = performatives(talk.answer.removeprefix(AMQP_HEADER))
    assert isinstance(opened, Open)
    assert isinstance(closed, Close)
    assert closed.error is not None
    assert str(closed.error.condition).endswith(condition)
    assert said in str(closed.error.description)
    assert talk.is_logged(broker, "broke off")


def test_deeply_nested_values_are_refused_without_harm(broker: ServedBroker) -> None:
    bomb = b"\x45"
    for _ in range(200):
        bomb = b"\xd0" + (len(bomb) + 4).to_bytes(4) + b"\x00\x00\x00\x01" + bomb
    body = b"\x00\x53\x10" + bomb
    frame = (len(body) + 8).to_bytes(4) + b"\x02\x00\x00\x00" + body
    _, closed = performatives(say(broker, AMQP_HEADER + frame).removeprefix(AMQP_HEADER))
    assert isinstance(closed, Close)
    assert closed.error is not None
    assert str(closed.error.condition) == "amqp:decode-error"


def test_an_unknown_sasl_mechanism_is_refused(broker: ServedBroker) -> None:
    init = encode_frame(0, SaslInit(mechanism=Symbol("CRAM-MD5")), frame_type=1)
    answer = say(broker, SASL_HEADER + init)
    offered, outcome = performatives(answer.removeprefix(SASL_HEADER))
    assert isinstance(offered, SaslMechanisms)
    assert isinstance(outcome, SaslOutcome)
    assert outcome.code == 1


async def test_a_wrong_key_is_told_on_cbs_and_opens_nothing(broker: ServedBroker) -> None:
    with pytest.raises(Refused, match="signature does not match"):
        await RawClient.open(broker.connection_string(key="guessed"))
    assert "refused" in broker.log()
    assert "guessed" not in broker.log()


async def test_links_without_a_token_and_to_nowhere_are_refused_with_the_condition(
    broker: ServedBroker,
) -> None:
    connection = await RawClient.open(broker.connection_string())
    for attach in (connection.sender("nowhere"), connection.receiver("nowhere", credit=1)):
        with pytest.raises(Refused) as refused:
            await attach
        assert refused.value.condition == "amqp:not-found"
    with pytest.raises(Refused) as refused:
        await connection.receiver("kept", credit=1, session="none here")
    assert refused.value.condition == "amqp:not-allowed"
    await connection.close()


async def test_a_message_too_large_or_malformed_is_refused_and_the_link_goes_on(
    broker: ServedBroker,
) -> None:
    connection = await RawClient.open(broker.connection_string())
    sender = await connection.sender("other")
    cases = {
        message("large", b"x" * (256 * 1024 + 1)): "amqp:link:message-size-exceeded",
        message("huge", b"x" * (2 * 1024 * 1024)): "amqp:link:message-size-exceeded",
        b"\xff\xff\xff": "amqp:decode-error",
        b"\x00\x53\x73\xd0\xff\xff\xff\xff": "amqp:decode-error",
    }
    for payload, condition in cases.items():
        await sender.room()
        with pytest.raises(Refused) as refused:
            await sender.send(payload)
        assert refused.value.condition == condition
    # A batch is all or nothing: one bad message in it refuses the rest.
    with pytest.raises(Refused):
        await sender.send(batch([message("good"), b"\xff"]), is_batch=True)
    await sender.send(message("last"))
    receiver = await connection.receiver("other", credit=10)
    arrived = await receiver.receive()
    assert arrived is not None
    assert arrived.key == "last"
    await receiver.complete(arrived)
    assert await receiver.receive(0.2) is None
    await connection.close()


def ask(broker: ServedBroker, method: str, path: str, body: bytes = b"", token: str = "") -> int:
    """The HTTP status of an administration request."""
    headers = {"Authorization": token} if token else {}
    url = f"http://localhost:{broker.port()}/{path}"
    request = urllib.request.Request(url, data=body or None, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_http_errors_are_the_ones_of_the_administration_api(broker: ServedBroker) -> None:
    token = sas_token(broker.connection_string())
    forged = sas_token(broker.connection_string(key="guessed"))
    assert ask(broker, "GET", "kept?api-version=2021-05") == 401
    assert ask(broker, "GET", "kept?api-version=2021-05", token="Bearer nonsense") == 401
    assert ask(broker, "DELETE", "kept?api-version=2021-05", token=forged) == 401
    assert ask(broker, "GET", "nowhere?api-version=2021-05", token=token) in {200, 404}
    assert ask(broker, "PUT", "bad?api-version=2021-05", b"<entry", token) == 400
    assert ask(broker, "PUT", "bad?api-version=2021-05", b"x" * 2_000_000, token) == 413
    assert ask(broker, "GET", "kept?api-version=2021-05", token=token) == 200


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
        hostile.connection.output.put(encode_frame(channel, performative))
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
                stranger.sendall(b"A" if number % 2 else AMQP_HEADER + plain_opening())
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


def plain_opening() -> bytes:
    return encode_frame(0, Open(container_id="stranger"))


def resident_bytes(broker: ServedBroker) -> int:
    pages = Path(f"/proc/{broker.process.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


async def test_the_broker_stops_reading_from_a_client_that_never_reads(
    broker: ServedBroker,
) -> None:
    silent = await RawClient.open(broker.connection_string())
    wire = silent.transport.socket
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
    silent.transport.abort()


async def test_an_attach_and_its_detach_in_one_packet_do_no_harm(broker: ServedBroker) -> None:
    hasty = await RawClient.open(broker.connection_string())
    frames: list[Performative] = [attach(7), Detach(handle=UInt(7), closed=True)]
    hasty.connection.output.put(b"".join(encode_frame(0, frame) for frame in frames))
    hasty.flush()
    await hasty.sender("orders")
    await hasty.close()
