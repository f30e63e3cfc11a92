"""A client with a receiver that holds deliveries, and what it may do next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product

from tests.unit.amqp.frame_rules import FrameRules
from tests.unit.broker.fakes import facts, incoming
from tests.unit.broker.links.joined import TICKS, Front, JoinedClient
from twinbus.amqp.events import Attached, DeliveryArrived, Detached, Disposed, Event
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
from twinbus.broker.faults import Fault
from twinbus.broker.server import BrokerServer

BODY = encode_message(data=b"sent")
MESSAGES = 3


class OneClient:
    """A client with a receiver that holds deliveries and, if it `sends`, a sender."""

    def __init__(self, broker: BrokerServer, front: Front, *, sends: bool = True) -> None:
        now_ms = broker.now_ms()
        self.broker = broker
        self.queue = broker.namespace.create_queue("q", QueueDescription(), now_ms)
        self.sent = broker.namespace.create_queue("sent", QueueDescription(), now_ms)
        self.client = JoinedClient(front)
        self.rules = FrameRules()
        self.client.transport.seen = self.rules.take
        self.session: Session
        self.receiver: ReceiverLink
        self.sender: SenderLink
        self.held: list[int] = []
        self._sends = sends
        self._ticks = TICKS if front is broker else 5 * TICKS

    async def exchange(self) -> list[Event]:
        return await self.client.exchange(self._ticks)

    async def begin(self) -> None:
        await self.exchange()
        self.session = self.client.connection.begin()
        await self.exchange()

    def attach_all(self) -> None:
        source, here = Source(address="q"), Target(address="me")
        self.receiver = self.session.attach_receiver("in", source=source, target=here)
        if self._sends:
            target = Target(address="sent")
            self.sender = self.session.attach_sender("out", source=Source(), target=target)

    def fill(self) -> None:
        for _ in range(MESSAGES):
            self.queue.enqueue(incoming(), self.broker.now_ms())

    async def open(self) -> None:
        """Open the links and receive all messages."""
        await self.begin()
        self.attach_all()
        self.receiver.grant(MESSAGES)
        self.fill()
        seen = await self.exchange()
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
        now_ms = self.broker.now_ms()
        kept = [[each[0], *each[2:]] for each in facts(self.queue, now_ms)]
        locked = len(self.queue.states.locks)
        told = [
            (one.by_receiver, one.first, one.last, one.settled, type(one.state))
            for one in seen
            if isinstance(one, Disposed)
        ]
        left = [one.link.name for one in seen if isinstance(one, Detached)]
        return kept, locked, len(facts(self.sent, now_ms)), told, left


Action = Callable[[OneClient], None]

SETTLING = [OneClient.accept, OneClient.release, OneClient.abandon]
RECEIVING = [*SETTLING, OneClient.drain, OneClient.attach, OneClient.detach_receiver]
SENDING = [OneClient.send, OneClient.send_settled, OneClient.detach_sender]
LAST = [OneClient.end, OneClient.close]


def is_possible(first: Action, second: Action) -> bool:
    """Whether a client can do the second after the first, in its own view of the connection."""
    if first in LAST:
        return first is OneClient.end and second is OneClient.close
    if first is OneClient.detach_receiver:
        return second not in (*SETTLING, OneClient.drain, OneClient.detach_receiver)
    return first is not OneClient.detach_sender or second not in SENDING


def pairs(actions: list[Action]) -> list[tuple[Action, Action]]:
    return [(one, other) for one, other in product(actions, repeat=2) if is_possible(one, other)]


async def outcome_of(world: OneClient, actions: tuple[Action, ...], *, is_one_read: bool) -> object:
    """What becomes of everything when the client does this, in one read or one for each."""
    await world.open()
    frames = []
    for action in actions:
        action(world)
        frames.append(world.client.connection.take_output(1))
    # All in one turn of the loop, so that only the cuts between the reads differ.
    for data in [b"".join(frames)] if is_one_read else frames:
        world.client.peer.data_received(data)
    return world.outcome(await world.exchange())


# Before the answer to an ATTACH


def give_credit(world: OneClient) -> None:
    world.receiver.grant(1)


def send_early(world: OneClient) -> None:
    world.sender.credit = 1
    world.sender.send(BODY, b"e")


def send_early_settled(world: OneClient) -> None:
    world.sender.credit = 1
    world.sender.send(BODY, b"f", settled=True)


def settle_nothing(world: OneClient) -> None:
    world.session.dispose(0, 0, ACCEPTED_BYTES)


EARLY_RECEIVING: list[Action] = [
    give_credit,
    OneClient.drain,
    settle_nothing,
    OneClient.detach_receiver,
    OneClient.end,
    OneClient.close,
]
EARLY_SENDING: list[Action] = [send_early, send_early_settled, OneClient.detach_sender]


def early(actions: list[Action]) -> list[tuple[Action, ...]]:
    """Each of these alone, and each pair of them that a client can do."""
    on_receiver = (give_credit, OneClient.drain, OneClient.detach_receiver)
    on_sender = (send_early, send_early_settled, OneClient.detach_sender)
    found: list[tuple[Action, ...]] = [(one,) for one in actions]
    for one, other in product(actions, repeat=2):
        is_gone = one in LAST and (one is OneClient.close or other is not OneClient.close)
        is_gone |= one is OneClient.detach_receiver and other in on_receiver
        is_gone |= one is OneClient.detach_sender and other in on_sender
        if not is_gone:
            found.append((one, other))
    return found


async def check_before_the_answer(world: OneClient, actions: tuple[Action, ...]) -> None:
    """Do this while the attaches are not answered; then they are, and nothing is lost.

    `FrameRules` checks every frame that the client gets.
    """
    await world.begin()
    for path in ("q", "sent"):
        world.broker.faults.add(Fault(kind="delay", entity=path, delay_ms=20, count=1))
    world.fill()
    world.attach_all()
    seen = await world.exchange()
    assert not [event for event in seen if isinstance(event, Attached)]
    for action in actions:
        action(world)
    seen = await world.exchange()
    await asyncio.sleep(0.1)
    seen += await world.exchange()
    is_left = not {OneClient.detach_receiver, *LAST} & {*actions}
    wanted = int(is_left and bool({give_credit, OneClient.drain} & {*actions}))
    assert len([event for event in seen if isinstance(event, DeliveryArrived)]) == wanted
    assert len(world.queue.states.locks) == wanted
    assert len(facts(world.queue, world.broker.now_ms())) == MESSAGES
    refused = [event.error for event in seen if isinstance(event, Detached) and event.link.sends]
    if OneClient.detach_sender not in actions and {send_early, send_early_settled} & {*actions}:
        # Without credit it must not be taken, and it is not dropped without a word.
        (error,) = refused
        assert error is not None
        assert error.condition == "amqp:link:transfer-limit-exceeded"
    else:
        assert not refused
    assert not facts(world.sent, world.broker.now_ms())
