"""Clients that never put a good token: what they make the broker keep is small, and ends in time.

They begin sessions, attach links, send parts of large messages, give and take credit, in any
amount, and some of them read nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from hypothesis import strategies as st

from tests.fuzz.frames import check_bounds
from tests.fuzz.part import Part, run_async
from tests.fuzz.world import FuzzWorld
from tests.unit.broker.links.joined import JoinedTransport
from twinbus.amqp.connection import AMQP_HEADER, EMPTY_FRAME
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.performatives import Attach, Begin, Flow, Open, Source, Target, Transfer
from twinbus.amqp.types import UInt

PIECE_BYTES = 8 * 1024
COUNTS = (1, 15, 17, 100, 400)
ADDRESSES = ("$cbs", "orders", "orders/$management", "$CBS", "")
CHANNEL_MAX = 4_999


def _begin(number: int) -> bytes:
    begin = Begin(next_outgoing_id=UInt(0), incoming_window=UInt(0), outgoing_window=UInt(1))
    return encode_frame(number % CHANNEL_MAX, begin)


def _attach(role: bool, address: str) -> Callable[[int], bytes]:
    def frame(number: int) -> bytes:
        return encode_frame(
            0,
            Attach(
                name=f"{address}{role}{number}",
                handle=UInt(number),
                role=role,
                source=Source(address=address if role else "me"),
                target=Target(address="me" if role else address),
            ),
        )

    return frame


def _transfer(more: bool, payload: bytes) -> Callable[[int], bytes]:
    def frame(number: int) -> bytes:
        transfer = Transfer(
            handle=UInt(0),
            delivery_id=UInt(0 if more else number),
            delivery_tag=b"t",
            settled=True,
            more=more,
        )
        return encode_frame(0, transfer, payload)

    return frame


def _flow(number: int) -> bytes:
    flow = Flow(
        next_incoming_id=UInt(0),
        incoming_window=UInt(number % 2),
        next_outgoing_id=UInt(0),
        outgoing_window=UInt(1),
        handle=UInt(number % 3),
        delivery_count=UInt(0),
        link_credit=UInt(1000),
        echo=True,
    )
    return encode_frame(0, flow)


_BAD_TOKEN = encode_message(
    properties=Properties(message_id="1", reply_to="me"),
    application_properties={"operation": "put-token", "name": "a" * 200},
    value="SharedAccessSignature sr=x&sig=y&se=1&skn=z",
)
MOVES: dict[str, Callable[[int], bytes]] = {
    "begin": _begin,
    **{f"read {address}": _attach(True, address) for address in ADDRESSES},
    **{f"write {address}": _attach(False, address) for address in ADDRESSES},
    "part": _transfer(True, b"x" * 20_000),
    "small part": _transfer(True, b"x" * 500),
    "token": _transfer(False, _BAD_TOKEN),
    "flow": _flow,
    "nothing": lambda _: EMPTY_FRAME,
}


@dataclass(frozen=True)
class Visit:
    moves: list[tuple[str, int]]
    reads: bool
    opens: bool
    """False: it sends a few bytes and no more."""


visits = st.builds(
    Visit,
    st.lists(
        st.tuples(st.sampled_from(tuple(MOVES)), st.sampled_from(COUNTS)), min_size=1, max_size=4
    ),
    st.booleans(),
    st.sampled_from((True, True, True, False)),
)


def check(visit: Visit) -> None:
    run_async(_check(visit))


async def _check(visit: Visit) -> None:
    async with FuzzWorld.running() as world:
        peer, transport = world.server.peer(), JoinedTransport()
        peer.connection_made(cast(asyncio.Transport, transport))
        if not visit.reads:
            peer.pause_writing()
        stream = AMQP_HEADER + encode_frame(0, Open(container_id="c")) + _begin(0)
        stream += _attach(False, "$cbs")(0) + _attach(True, "$cbs")(1)
        for name, count in visit.moves:
            stream += b"".join(MOVES[name](number) for number in range(2, 2 + count))
        if not visit.opens:
            stream = stream[:12]
        for at in range(0, len(stream), PIECE_BYTES):
            peer.data_received(stream[at : at + PIECE_BYTES])
            for _ in range(3):
                await asyncio.sleep(0)
            check_bounds(peer, len(stream))
            probation = peer.probation
            assert probation is not None, "a stranger is trusted"
            assert probation._timer is not None, "no deadline runs for a stranger"
            assert visit.reads or transport.is_paused, "a client that reads nothing is read from"
        peer.connection_lost(None)
        await world.check()


STRANGERS = Part("strangers", visits, check, short=20, round=60)
