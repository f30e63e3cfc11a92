"""Frames of recorded SDK sessions, mutated, against the broker's end of a connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from hypothesis import strategies as st

from tests.fuzz.part import Part, run_async
from tests.fuzz.recordings import Mutation, frames_of, mutated, mutations
from tests.fuzz.world import FuzzWorld, message
from tests.unit.broker.links.joined import JoinedTransport
from twinbus.amqp.link import ReceiverLink
from twinbus.broker.budgets import CONNECTION_LINKS
from twinbus.broker.links.client_limits import (
    LINKS_MAX,
    OUTPUT_BYTES_MAX,
    RECEIVED_BYTES_MAX,
    SESSIONS_MAX,
)
from twinbus.broker.links.context import ReplyLink
from twinbus.broker.links.peer import Peer
from twinbus.broker.messages.incoming import parse

TICKS = 3
"""Loop iterations after each piece, so that deliveries and answers leave."""


@dataclass(frozen=True)
class Attack:
    recording: int
    changes: list[Mutation]
    piece_bytes: int
    """0: frame by frame."""
    says_goodbye: bool
    """False: the network ends the connection."""
    kept_percent: int = 100
    """How much of the recording is sent."""


attacks = st.builds(
    Attack,
    st.integers(0, 100),
    st.lists(mutations, min_size=1, max_size=6),
    st.sampled_from((0, 0, 0, 0, 50, 5000)),
    st.booleans(),
    st.sampled_from((100, 100, 95, 85, 75, 60)),
)


def check(attack: Attack) -> None:
    run_async(_check(attack))


async def _check(attack: Attack) -> None:
    async with FuzzWorld.running() as world:
        stock(world)
        peer, transport = world.server.peer(), JoinedTransport()
        peer.connection_made(cast(asyncio.Transport, transport))
        stream = mutated(attack.recording, attack.changes, attack.kept_percent)
        for piece in _pieces(stream, attack.piece_bytes):
            if transport.is_closed:
                break
            peer.data_received(piece)
            for _ in range(TICKS):
                await asyncio.sleep(0)
            check_bounds(peer, len(stream))
            transport.written = b""
        if attack.says_goodbye:
            peer.close("amqp:connection:forced", "bye", linger=False)
        peer.connection_lost(None)
        await world.check()


def _pieces(stream: bytes, size: int) -> list[bytes]:
    if size:
        return [stream[at : at + size] for at in range(0, len(stream), size)]
    pieces, at = [], 0
    for frame in frames_of(stream):
        if not frame or at >= len(stream):
            break
        pieces.append(frame)
        at += len(frame)
    return [*pieces, stream[at:]]


def stock(world: FuzzWorld) -> None:
    """Put messages where the recorded receivers expect some."""
    namespace, now_ms = world.server.namespace, world.server.now_ms()
    for target, count in (("orders", 6), ("talks", 2), ("news", 2)):
        entity = namespace.send_target(target)
        for number in range(count):
            wire = message(f"{target}-{number}", session="s")
            namespace.send(entity, [parse(wire, str)], now_ms)


def check_bounds(peer: Peer, stream_bytes: int) -> None:
    """What one client can make the broker keep is bounded, most of all before its token."""
    connection = peer.connection
    links = [link for each in connection.sessions.values() for link in each.links.values()]
    held = len(connection._buffer) + connection.output.size_bytes
    held += sum(link.partial_bytes for link in links if isinstance(link, ReceiverLink))
    replies = sum(link.owner._waiting_bytes for link in links if isinstance(link.owner, ReplyLink))
    budget = peer.budgets.held_bytes
    assert replies <= budget.used <= budget.limit
    assert peer.budgets.links.used <= CONNECTION_LINKS
    assert peer.budgets.sessions.used == len(connection.sessions)
    if peer.probation is None:
        assert held <= stream_bytes + 2 * OUTPUT_BYTES_MAX
        return
    assert held <= 2 * RECEIVED_BYTES_MAX
    assert len(connection.sessions) <= SESSIONS_MAX
    for session in connection.sessions.values():
        assert len(session.links) <= LINKS_MAX


FINDS = (
    # A second BEGIN that names a channel in use, and its END: a receiver that nobody closed.
    Attack(1, [Mutation("craft", 10, 2 * 16 + 3)], 0, False, 85),
)
FRAMES = Part("frames", attacks, check, finds=FINDS, short=25, round=100)
