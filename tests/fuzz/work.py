"""The work that a client can make the broker do, against the bytes that it sends.

A client repeats one thing, on a connection that it has filled before: with links, sessions,
unsettled deliveries, requests. The processor time is at most 5 ms for each KiB that it sent, or
that it was sent: an answer is work too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import Phase
from hypothesis import strategies as st

from tests.fuzz.part import Part, run_async
from tests.fuzz.values import INTEGERS
from tests.fuzz.world import FuzzWorld, message
from tests.unit.broker.links.joined import JoinedClient
from twinbus.amqp import encoding
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Source,
    Target,
    Transfer,
)
from twinbus.amqp.session import Session
from twinbus.amqp.types import Array, Timestamp, UInt
from twinbus.broker.descriptions import RuleDescription, SqlFilter
from twinbus.broker.links import management
from twinbus.broker.messages.incoming import parse

WORK_S_PER_KIB = 0.005
ATTACK_BYTES = 48 * 1024
PIECE_BYTES = 16 * 1024
TRIES = 3
"""Measured again, the least counts: the machine has other work, which a bound must not see."""

UINT_MAX = 2**32 - 1
HANDLE = 40_000
"""Of links that the attack attaches; those of the setting have lower ones."""

HASH_MODULUS = (1 << 61) - 1


@dataclass(frozen=True)
class Setting:
    """What is there before the attack."""

    links: int
    """Receivers of one queue."""
    sessions: int
    unsettled: int
    """Deliveries of one link that the client has not settled."""
    message_sessions: int
    """Sessions with a message in them."""
    rules: int


@dataclass(frozen=True)
class Siege:
    setting: Setting
    name: str
    number: int
    """Chooses among the variants of the attack."""


class Lines:
    """What the attack may name: channel and handles of the client's session."""

    def __init__(self, client: JoinedClient, session: Session) -> None:
        self.client = client
        self.channel = session.channel
        self.requests = 0
        self.replies = 1
        self.receiver = 2


Unit = Callable[[Lines, int, int], bytes]
"""Takes the lines, the number of the repetition and the variant; the bytes to send."""


def _flow(lines: Lines, number: int, variant: int) -> bytes:
    values = [int(each) for each in INTEGERS if 0 <= each <= UINT_MAX]
    handle = None if variant % 3 == 0 else UInt(lines.receiver)
    return encode_frame(
        lines.channel,
        Flow(
            next_incoming_id=UInt(0),
            incoming_window=UInt(values[variant % len(values)]),
            next_outgoing_id=UInt(0),
            outgoing_window=UInt(100),
            handle=handle,
            delivery_count=None if handle is None else UInt(0),
            link_credit=None if handle is None else UInt(variant % 2),
            drain=variant % 5 == 0,
            echo=variant % 7 == 0,
        ),
    )


def _dispose(lines: Lines, number: int, variant: int) -> bytes:
    """Settle a wide range, again and again, or one delivery at the far end."""
    first, last = ((0, 2**31 - 1), (10_000, 2**31), (5, 15_000), (number, number + 9_000))[
        variant % 4
    ]
    state = (Accepted(), Modified(delivery_failed=True), None)[variant % 3]
    disposition = Disposition(
        role=True, first=UInt(first), last=UInt(last), settled=variant % 2 == 0, state=state
    )
    return encode_frame(lines.channel, disposition)


def _attach_detach(lines: Lines, number: int, variant: int) -> bytes:
    handle = UInt(HANDLE)
    addresses = ("orders", "talks", "nowhere", "orders/$management", "$cbs")
    source, target = Source(address=addresses[variant % 5]), Target(address="r")
    attach = Attach(name=f"x{number}", handle=handle, role=True, source=source, target=target)
    return encode_frame(lines.channel, attach) + encode_frame(
        lines.channel, Detach(handle=handle, closed=True)
    )


def _begin_end(lines: Lines, number: int, variant: int) -> bytes:
    channel = 4_000
    begin = Begin(
        next_outgoing_id=UInt(0), incoming_window=UInt(variant % 2), outgoing_window=UInt(1)
    )
    return encode_frame(channel, begin) + (encode_frame(channel, End()) if variant % 3 else b"")


def _request(lines: Lines, number: int, variant: int) -> bytes:
    operations = tuple(management.OPERATIONS)
    body: dict[str, Any] = {
        "session-id": ("nobody", "0")[variant % 2],
        "message-count": (1, 4000)[variant % 2],
        "from-sequence-number": (0, 10**9)[variant // 2 % 2],
        "sequence-numbers": Array([10**9]),
        "skip": (0, 10**6)[variant // 3 % 2],
        "top": (0, 1)[variant % 2],
        "enqueued-time-utc": Timestamp(0),
        "rule-name": f"r{number}",
    }
    if variant % 3 == 0:
        del body["session-id"]
    headers: dict[Any, Any] = {
        "operation": operations[variant % len(operations)],
        "associated-link-name": ("nobody", "in-0")[variant // 5 % 2],
    }
    payload = encode_message(
        properties=Properties(message_id="1", reply_to="r"),
        application_properties=headers,
        value=body,
    )
    return _transfer(lines, number, payload)


def _transfer(lines: Lines, number: int, payload: bytes, handle: int | None = None) -> bytes:
    transfer = Transfer(
        handle=UInt(lines.requests if handle is None else handle),
        delivery_id=UInt(number),
        delivery_tag=b"t",
        settled=True,
    )
    return encode_frame(lines.channel, transfer, payload)


def _keys_alike(lines: Lines, number: int, variant: int) -> bytes:
    """A map whose keys all hash alike, in the properties of an ATTACH or in a request."""
    count = 3_500  # As many as a frame holds.
    pairs = b"".join(
        b"\x98" + (each * HASH_MODULUS + 7).to_bytes(16) + b"\x40" for each in range(1, count + 1)
    )
    table = b"\xd1" + (len(pairs) + 4).to_bytes(4) + (2 * count).to_bytes(4) + pairs
    if variant % 2:
        return _transfer(lines, number, b"\x00\x53\x77" + table)
    attach = encode_frame(lines.channel, Attach(name="x", handle=UInt(HANDLE), role=True))
    # The empty properties are the last of its 14 fields.
    body = attach[8:]
    fields = encoding.list_of([encoding.encode("x"), encoding.uint(HANDLE), b"\x41"])
    wide = fields[3:] + b"\x40" * 10 + table
    size = len(wide) + 4
    body = b"\x00\x53\x12\xd0" + size.to_bytes(4) + (14).to_bytes(4) + wide
    return (8 + len(body)).to_bytes(4) + b"\x02\x00" + lines.channel.to_bytes(2) + body


def _publish(lines: Lines, number: int, variant: int) -> bytes:
    """A message to a topic whose rules compare long texts."""
    patterns = ("%" + "a_" * 250 + "b%", "%_" * 40 + "b", "%" + "a" * 60 + "b%", "_" * 400)
    text, pattern = "a" * 20_000, patterns[variant % len(patterns)]
    payload = message(str(number), application_properties={"t": text, "pattern": pattern})
    return _transfer(lines, number, payload, handle=3)


UNITS: dict[str, Unit] = {
    "flow": _flow,
    "dispose": _dispose,
    "attach": _attach_detach,
    "begin": _begin_end,
    "request": _request,
    "keys": _keys_alike,
    "publish": _publish,
}
_settings = st.builds(
    Setting,
    # Mostly small: an example that first opens thousands of links takes a second.
    st.sampled_from((1, 1, 1, 1, 100, 4_000)),
    st.sampled_from((1, 1, 1, 1_000)),
    st.sampled_from((0, 0, 0, 0, 12_000)),
    st.sampled_from((1, 1, 1, 500)),
    st.sampled_from((1, 3)),
)
sieges = st.builds(Siege, _settings, st.sampled_from(tuple(UNITS)), st.integers(0, 1_000))


def check(siege: Siege) -> None:
    least_s, allowed_s = 0.0, 0.0
    for _ in range(TRIES):
        took: list[float] = []
        run_async(_measure(siege, took))
        spent_s, allowed_s = took
        least_s = min(least_s or spent_s, spent_s)
        if least_s <= allowed_s:
            return
    raise AssertionError(
        f"{siege.name} took {least_s * 1000:.0f} ms of processor time, allowed are"
        f" {allowed_s * 1000:.0f}"
    )


async def _measure(siege: Siege, took: list[float]) -> None:
    async with FuzzWorld.running() as world:
        client, lines = await _prepare(world, siege.setting)
        unit, pieces, size = UNITS[siege.name], [b""], 0
        for number in range(ATTACK_BYTES):
            part = unit(lines, number, siege.number)
            size += len(part)
            pieces[-1] += part
            if len(pieces[-1]) >= PIECE_BYTES:
                pieces.append(b"")
            if size >= ATTACK_BYTES:
                break
        sent = len(client.transport.written)
        began = time.process_time()
        for piece in pieces:
            client.peer.data_received(piece)
            for _ in range(3):
                await asyncio.sleep(0)
        spent_s = time.process_time() - began
        sent = len(client.transport.written) - sent
        took[:] = [spent_s, (size + sent) / 1024 * WORK_S_PER_KIB]
        client.peer.connection_lost(None)


async def _prepare(world: FuzzWorld, setting: Setting) -> tuple[JoinedClient, Lines]:
    namespace, now_ms = world.server.namespace, world.server.now_ms()
    for _ in range(setting.unsettled):
        namespace.send(namespace.send_target("orders"), [parse(message("m"), str)], now_ms)
    for number in range(setting.message_sessions):
        talk = parse(message("m", session=str(number)), str)
        namespace.send(namespace.send_target("talks"), [talk], now_ms)
    for number in range(setting.rules):
        rule = RuleDescription(name=f"n{number}", filter=SqlFilter(expression="t LIKE pattern"))
        namespace.create_rule("news", "all", rule, now_ms)
    client = JoinedClient(world.server)
    await client.exchange()
    session = client.connection.begin()
    await client.exchange(3)
    target = Target(address="talks/$management")
    session.attach_sender("ask", source=Source(address="r"), target=target)
    source = Source(address="talks/$management")
    replies = session.attach_receiver("answers", source=source, target=Target(address="r"))
    receiver = session.attach_receiver(
        "in-0", source=Source(address="orders"), target=Target(address="me")
    )
    session.attach_sender("news", source=Source(address="r"), target=Target(address="news"))
    await client.exchange(3)
    replies.grant(2**30)
    receiver.grant(2**30)
    for number in range(setting.links - 1):
        session.attach_receiver(
            f"x-{number}", source=Source(address="orders"), target=Target(address="me")
        )
    for _ in range(setting.sessions - 1):
        client.connection.begin()
    await client.exchange(40 + setting.unsettled // 32)
    return client, Lines(client, session)


WORK = Part(
    "work",
    sieges,
    check,
    finds=(
        Siege(Setting(1, 1, 8_000, 1, 1), "dispose", 9),
        Siege(Setting(1, 1, 8_000, 1, 1), "attach", 6),
        Siege(Setting(4_000, 1, 0, 1, 1), "request", 2),
    ),
    short=2,
    round=10,
    phases=(Phase.explicit, Phase.generate),
)
