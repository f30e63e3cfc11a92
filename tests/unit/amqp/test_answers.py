"""A read that is the answer to one delivery has a shortcut, which reads what `receive` reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.amqp.test_connection import Pair, read
from twinbus.amqp.connection import Connection, ConnectionPhase
from twinbus.amqp.events import ANSWERS_MAX, Disposed, Event
from twinbus.amqp.frames import encode_disposition_frame, encode_frame
from twinbus.amqp.performatives import (
    Accepted,
    Disposition,
    End,
    Error,
    Modified,
    Rejected,
    Released,
    TransactionalState,
    encode_state,
)
from twinbus.amqp.session import Session
from twinbus.amqp.transport import ClientTransport
from twinbus.amqp.types import Symbol, UInt

ACCEPTED = encode_state(Accepted())


def opened() -> Connection:
    """A client with a session and a link; the server's channel is 0."""
    pair = Pair()
    pair.exchange()
    pair.sender()
    return pair.client


def answer(number: int, channel: int = 0, state: bytes = ACCEPTED) -> bytes:
    return encode_disposition_frame(channel, True, number, number, True, state)


STATES: st.SearchStrategy[Any] = st.sampled_from(
    [
        Accepted(),
        Released(),
        Modified(delivery_failed=True),
        Modified(message_annotations={Symbol("a"): 1}),
        Rejected(error=Error(condition=Symbol("amqp:x"), description="no")),
        TransactionalState(b"t", Accepted()),
    ]
)
NUMBERS = st.sampled_from([0, 1, 255, 256, 2**31, 2**32 - 1])


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """The answer to a delivery or to several, in one of the forms that peers write."""
    channel, state = draw(st.sampled_from([0, 0, 0, 1])), draw(STATES)
    first, role, settled = draw(NUMBERS), draw(st.booleans()), draw(st.booleans())
    last = draw(st.sampled_from([first, first, first, min(first + 1, 2**32 - 1)]))
    if draw(st.booleans()):
        return encode_disposition_frame(channel, role, first, last, settled, encode_state(state))
    numbers = {"first": UInt(first), "last": draw(st.sampled_from([None, UInt(last)]))}
    frame = Disposition(role=role, settled=settled, state=state, **numbers)  # type: ignore[arg-type]
    return encode_frame(channel, frame)


@st.composite
def reads(draw: st.DrawFn) -> bytes:
    """What one read brings: an answer, several, or one with a byte that is not as usual."""
    data = draw(answers())
    change = draw(st.sampled_from(["none", "none", "byte", "more", "cut"]))
    if change == "byte":
        place, value = draw(st.integers(0, len(data) - 1)), draw(st.integers(0, 255))
        return data[:place] + bytes((value,)) + data[place + 1 :]
    if change == "cut":
        return data[: draw(st.integers(1, len(data) - 1))]
    return data + draw(answers()) if change == "more" else data


def seen(events: list[Event]) -> list[Any]:
    """Events with their sessions by channel, so that those of two connections can be compared."""
    return [
        (each.session.channel, each.by_receiver, each.first, each.last, each.settled, each.state)
        if isinstance(each, Disposed)
        else each
        for each in events
    ]


@given(st.lists(reads(), max_size=6))
def test_the_shortcut_reads_what_receive_reads(read_by_read: list[bytes]) -> None:
    short, general = opened(), opened()
    for data in read_by_read:
        found = short.receive_answer(data, 5)
        events: list[Event] = [found] if found is not None else read(short, data, 5)
        assert seen(events) == seen(read(general, data, 5))
        assert (short.phase, short._buffer) == (general.phase, general._buffer)
        has_output, output = short.has_output, short.take_output(6)
        assert output == general.take_output(6)
        assert has_output == bool(output)
        assert short.next_deadline_ms() == general.next_deadline_ms()


def test_answers_in_the_brokers_form_take_the_shortcut() -> None:
    client = opened()
    for number in (0, 1, 2**32 - 1):
        found = client.receive_answer(answer(number), 1)
        assert found is not None
        assert (found.first, found.last, found.state) == (number, number, Accepted())


def test_an_answer_of_a_session_that_has_ended_takes_the_general_way() -> None:
    client = opened()
    assert client.receive_answer(answer(0), 1) is not None
    read(client, encode_frame(0, End()))
    assert client.receive_answer(answer(1), 1) is None


@pytest.mark.parametrize("part", [b"\x00\x00", answer(7)[:20]])
def test_an_answer_after_a_part_of_a_frame_takes_the_general_way(part: bytes) -> None:
    client = opened()
    assert client.receive_answer(answer(0), 1) is not None
    read(client, part)
    assert client.receive_answer(answer(1), 1) is None


def test_a_peer_cannot_make_a_connection_remember_ever_more_shapes() -> None:
    client = opened()
    for channel in range(3 * ANSWERS_MAX):
        client.receive_answer(answer(0, channel), 1)
    assert len(client._answers) == ANSWERS_MAX


def the_session(client: Connection) -> Session:
    """The one that `opened` began."""
    return next(iter(client.sessions.values()))


def settle(client: Connection) -> None:
    """Settle a delivery; the disposition waits for others that it can be joined with."""
    the_session(client).settle(3, 3, ACCEPTED, as_receiver=True)


DEEDS: dict[str, Callable[[Connection], Any]] = {
    "nothing": lambda client: None,
    "settle": settle,
    "flow": lambda client: the_session(client).write_flow(),
    "session": lambda client: client.begin(),
    "close": lambda client: client.close(),
}
"""What the owner of a connection may do when it gets an answer."""


@given(st.lists(st.sampled_from([*DEEDS, "take"]), max_size=8))
def test_a_connection_has_output_if_there_are_bytes_to_take(names: list[str]) -> None:
    client = opened()
    for name in [*names, "take"]:
        if name != "take":
            DEEDS[name](client)
            continue
        has_output, output = client.has_output, client.take_output(1)
        assert has_output or not output
        assert output or not has_output or client.phase is not ConnectionPhase.OPEN


class Socket(Mock):
    """The part of a transport that `ClientTransport` uses; `write` notes what it gets."""

    def get_extra_info(self, name: str) -> None:
        return None


@pytest.mark.parametrize("name", DEEDS)
async def test_what_the_owner_adds_when_it_gets_an_answer_is_written_at_once(name: str) -> None:
    client, twin = opened(), opened()
    protocol = ClientTransport(client, lambda _: DEEDS[name](client), now_ms=lambda: 1)
    socket = Socket()
    protocol.connection_made(socket)
    protocol.data_received(answer(0))
    DEEDS[name](twin)
    written = b"".join(call.args[0] for call in socket.write.mock_calls)
    protocol.connection_lost(None)
    assert written == twin.take_output(1)
