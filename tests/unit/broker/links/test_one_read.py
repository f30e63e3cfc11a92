"""What a client sends has the same effect in one read as in many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product

import pytest

from tests.unit.broker.fakes import facts, incoming
from tests.unit.broker.links.joined import JoinedClient, new_server
from twinbus.amqp.events import DeliveryArrived, Detached, Disposed, Event
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.message import encode_message
from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    RELEASED_BYTES,
    Modified,
    Source,
    Target,
    encode_state,
)
from twinbus.amqp.session import Session
from twinbus.broker.descriptions import QueueDescription

BODY = encode_message(data=b"sent")
MESSAGES = 3


class OneClient:
    """A client with a receiver that holds deliveries and a sender, on one session."""

    def __init__(self) -> None:
        self.server = new_server()
        now_ms = self.server.now_ms()
        self.queue = self.server.namespace.create_queue("q", QueueDescription(), now_ms)
        self.sent = self.server.namespace.create_queue("sent", QueueDescription(), now_ms)
        self.client = JoinedClient(self.server)
        self.session: Session
        self.receiver: ReceiverLink
        self.sender: SenderLink
        self.held: list[int] = []

    async def open(self) -> None:
        await self.client.exchange()
        self.session = session = self.client.connection.begin()
        await self.client.exchange()
        here = Target(address="me")
        self.receiver = session.attach_receiver("in", source=Source(address="q"), target=here)
        target = Target(address="sent")
        self.sender = session.attach_sender("out", source=Source(address="me"), target=target)
        self.receiver.grant(MESSAGES)
        for _ in range(MESSAGES):
            self.queue.enqueue(incoming(), self.server.now_ms())
        seen = await self.client.exchange()
        self.held = [one.delivery_id for one in seen if isinstance(one, DeliveryArrived)]
        assert len(self.held) == MESSAGES

    # What a client may do

    def accept(self) -> None:
        self.session.settle(self.held[0], self.held[0], ACCEPTED_BYTES, as_receiver=True)
        self.session.flush()

    def release(self) -> None:
        self.session.settle(self.held[1], self.held[1], RELEASED_BYTES, as_receiver=True)
        self.session.flush()

    def abandon(self) -> None:
        state = encode_state(Modified(delivery_failed=True))
        self.session.dispose(self.held[2], self.held[2], state)

    def send(self) -> None:
        self.sender.send(BODY, b"a")

    def send_settled(self) -> None:
        self.sender.send(BODY, b"b", settled=True)

    def drain(self) -> None:
        self.receiver.grant(1, drain=True)

    def attach(self) -> None:
        self.session.attach_receiver("more", source=Source(address="q"), target=Target())

    def detach_receiver(self) -> None:
        self.receiver.detach()

    def detach_sender(self) -> None:
        self.sender.detach()

    def end(self) -> None:
        self.client.connection.end_session(self.session)

    def close(self) -> None:
        self.client.connection.close()

    def outcome(self, seen: list[Event]) -> object:
        """What is in the queues, and what the client was told of its sends and settlements."""
        now_ms = self.server.now_ms()
        kept = [[each[0], *each[2:]] for each in facts(self.queue, now_ms)]
        locked = len(self.queue.states.locks)
        told = [
            (one.by_receiver, one.first, one.last, one.settled, type(one.state))
            for one in seen
            if isinstance(one, Disposed)
        ]
        left = [one.link.name for one in seen if isinstance(one, Detached)]
        return kept, locked, len(facts(self.sent, now_ms)), told, left


ACTIONS: list[Callable[[OneClient], None]] = [
    OneClient.accept,
    OneClient.release,
    OneClient.abandon,
    OneClient.send,
    OneClient.send_settled,
    OneClient.drain,
    OneClient.attach,
    OneClient.detach_receiver,
    OneClient.detach_sender,
    OneClient.end,
    OneClient.close,
]
LAST = {OneClient.end, OneClient.close}
ON_RECEIVER = {OneClient.accept, OneClient.release, OneClient.abandon, OneClient.drain}
ON_SENDER = {OneClient.send, OneClient.send_settled}


def is_possible(first: Callable[[OneClient], None], second: Callable[[OneClient], None]) -> bool:
    """Whether a client can do the second after the first, in its own view of the connection."""
    if first in LAST:
        return first is OneClient.end and second is OneClient.close
    if first is OneClient.detach_receiver:
        return second not in ON_RECEIVER
    return first is not OneClient.detach_sender or second not in ON_SENDER


PAIRS = [pair for pair in product(ACTIONS, repeat=2) if is_possible(*pair)]


async def outcome_of(actions: list[Callable[[OneClient], None]], *, is_one_read: bool) -> object:
    world = OneClient()
    await world.open()
    frames = []
    for action in actions:
        action(world)
        frames.append(world.client.connection.take_output(1))
    # All in one turn of the loop, so that only the cuts between the reads differ.
    for data in [b"".join(frames)] if is_one_read else frames:
        world.client.peer.data_received(data)
    outcome = world.outcome(await world.client.exchange())
    await world.server.close()
    return outcome


@pytest.mark.parametrize(
    ("first", "second"), PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS]
)
def test_two_frames_in_one_read_do_what_they_do_in_two(
    first: Callable[[OneClient], None], second: Callable[[OneClient], None]
) -> None:
    one = asyncio.run(outcome_of([first, second], is_one_read=True))
    assert one == asyncio.run(outcome_of([first, second], is_one_read=False))


@pytest.mark.parametrize("ends", ["detach", "end", "close"])
async def test_settlements_right_before_the_end_of_their_link_count(ends: str) -> None:
    """rhea and the .NET SDK settle and close without waiting for an answer."""
    world = OneClient()
    await world.open()
    world.accept()
    world.release()
    world.abandon()
    {"detach": world.detach_receiver, "end": world.end, "close": world.close}[ends]()
    world.client.peer.data_received(world.client.connection.take_output(1))
    await world.client.exchange()
    left = facts(world.queue, world.server.now_ms())
    assert [(number, count) for number, _, _, count in left] == [(2, 0), (3, 1)]
    assert len(world.queue.states.locks) == 0
    await world.server.close()
