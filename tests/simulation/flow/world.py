"""A world with twins and consumers, run by the same code as the other worlds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import UUID

from azure.servicebus import ServiceBusReceivedMessage

from tests.simulation.faults import Faults, create_entity
from tests.simulation.flow.checks import check_flow
from tests.simulation.flow.consumers import Consumer, body_serial
from tests.simulation.flow.plan import NAMESAKE, FlowPlan, draw_flow
from tests.simulation.flow.truth import FOREIGN, FOREIGN_MESSAGES, FlowTruth, Given
from tests.simulation.machine import SimLoop
from tests.simulation.namespace import EPOCH_MS
from tests.simulation.network import Wire
from tests.simulation.plan import EntityPlan, Fault
from tests.simulation.truth import serial_of
from tests.simulation.world import Result, World, simulate
from twinbus.amqp.message import decode_map, encode_message, split
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import LockedMessage, SettlementOutcome
from twinbus.broker.messages.incoming import parse
from twinbus.broker.messages.rendering import render
from twinbus.servicebus.twins import (
    DIVERTED,
    is_of_secondary,
    own_number,
    read_divert_mark,
    twin_mark,
)


class FlowFaults(Faults):
    """The faults of other worlds, and a twin that becomes the queue of another application."""

    def __init__(self, world: FlowWorld) -> None:
        super().__init__(world)
        self._flow = world

    async def _begin(self, fault: Fault) -> Any:
        if fault.kind != "replace twin":
            return await super()._begin(fault)
        self._flow.replace_twin(fault.target)
        return None


class FlowWorld(World):
    """Senders, twins, consumers and a syphon."""

    plan: FlowPlan

    def __init__(self, seed: int, loop: SimLoop) -> None:
        super().__init__(seed, loop, draw_flow)
        self.received = FlowTruth()
        self.is_over = False
        """There are no more faults: consumers complete what they get."""
        self.consumers = [Consumer(self, plan) for plan in self.plan.consumers]
        self.programs |= {consumer.name: consumer for consumer in self.consumers}
        self.faults = FlowFaults(self)
        for entity in self.plan.twins:
            create_entity(self.secondary, entity, twin_mark("primary"))
        if NAMESAKE in self.plan.entities:
            self._create_namesake(NAMESAKE)

    async def run(self) -> None:
        # The SDK compares a lock with the real clock, and this world has one of its own.
        is_expired = property(self._is_expired)
        with patch.object(ServiceBusReceivedMessage, "_lock_expired", is_expired):
            await super().run()

    def _is_expired(self, message: Any) -> bool:
        until = message.locked_until_utc
        ms = EPOCH_MS + round(self.loop.time() * 1000)
        now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
        return until is not None and until <= now

    def what_is_left(self) -> Iterator[str]:
        self.is_over = True
        yield from super().what_is_left()
        for consumer in self.consumers:
            if consumer.is_busy:
                yield f"{consumer.name} handles messages"
            if consumer.deferred:
                yield f"{consumer.name} has {len(consumer.deferred)} deferred messages"
            path = consumer.plan.entity.path
            for side in self.namespaces.values():
                is_ours = side is self.primary or path not in self.not_ours
                if is_ours and (found := side.contents(path)):
                    yield f"{len(found)} messages are in {path} of the {side.name}"

    def check(self) -> None:
        for kind, text in check_flow(self):
            self.violation(kind, text)

    def facts(self) -> dict[str, int]:
        given = list(self.received.given.values())
        completed = [one for one in given if one.performed is SettlementOutcome.COMPLETE]
        return {
            **super().facts(),
            "handed out": len(self.received.handed_out),
            "from twins": sum(one.side == "secondary" for one in self.received.handed_out),
            "second copies": sum(one.handed_out_at is None for one in completed),
        }

    # What the parts tell

    def note_lock(self, queue: Queue, delivery: LockedMessage, wire: Wire) -> None:
        super().note_lock(queue, delivery, wire)
        process = wire.process
        if process.name not in {consumer.name for consumer in self.consumers}:
            return
        message = delivery.message
        payload = wire.namespace.store.payload(queue.entity_id, message.sequence_number)
        self.received.given[delivery.lock_token] = Given(
            side=wire.namespace.name,
            path=queue.path.lower(),
            number=message.sequence_number,
            serial=None if FOREIGN in payload else serial_of(payload),
            is_ambiguous=is_ambiguous(render(payload, message)),
            who=f"{process.name}.{process.number}",
            at=self.loop.time(),
        )

    def note_settled(self, token: bytes, outcome: SettlementOutcome) -> None:
        super().note_settled(token, outcome)
        given = self.received.given.get(token)
        if given is not None:
            given.performed, given.performed_at = outcome, self.loop.time()

    def note_handed_out(self, consumer: Consumer, message: Any) -> bytes:
        """A consumer got a message; return its lock token."""
        token = message.lock_token
        assert isinstance(token, UUID)
        given = self.received.given[token.bytes_le]
        given.handed_out_at = self.loop.time()
        side = "secondary" if is_of_secondary(message.sequence_number) else "primary"
        if (side, own_number(message.sequence_number)) != (given.side, given.number):
            self.violation("number", f"{given} has number {message.sequence_number}")
        if body_serial(message) != given.serial:
            self.violation("fidelity", f"{given} was handed out as {body_serial(message)}")
        return token.bytes_le

    def holds(self, path: str, number: int) -> bool:
        """Whether the side that a number names still has the message."""
        side = self.secondary if is_of_secondary(number) else self.primary
        queue = side.engine.receive_source(path)
        return own_number(number) in queue.messages

    # Queues that are not ours

    def _create_namesake(self, entity: EntityPlan) -> None:
        create_entity(self.secondary, entity)
        engine, now_ms = self.secondary.engine, self.secondary.now_ms()
        wires = [encode_message(data=FOREIGN) for _ in range(FOREIGN_MESSAGES)]
        batch = [parse(wire, partial(str, number)) for number, wire in enumerate(wires)]
        engine.send(engine.send_target(entity.path), batch, now_ms)
        self.not_ours.add(entity.path)

    def replace_twin(self, path: str) -> None:
        """A person deletes a twin, and makes a queue of that name for something else."""
        secondary = self.secondary
        if not secondary.serves or path in self.not_ours:
            return
        self.truth.deletes(secondary, path)
        secondary.engine.delete(path, secondary.now_ms())
        self._create_namesake(next(one for one in self.plan.twins if one.path == path))
        secondary.settle()


def is_ambiguous(wire: bytes) -> bool:
    """Whether a message has the mark of a divert after an attempt without an answer."""
    custom = split(wire).application_properties
    mark = read_divert_mark(decode_map(custom).get(DIVERTED)) if custom else None
    return mark is not None and mark.unanswered_since_ms is not None


def simulate_flow(seed: int, planted: Any = None) -> Result:
    """Run one world with twins and consumers to its end."""
    return simulate(seed, kind=FlowWorld) if planted is None else simulate(seed, planted, FlowWorld)
