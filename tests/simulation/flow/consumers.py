"""Consumers: programs that receive through paired receivers, settle, and may die at any time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.exceptions import ServiceBusError

from tests.simulation.programs import Program
from tests.simulation.truth import serial_of
from twinbus.ledger import NullLedger
from twinbus.pairing.observing.recording import Recorder
from twinbus.pairing.receiving.receiver import PairedReceiver
from twinbus.pairing.receiving.receivers import PairedReceivers
from twinbus.servicebus.names import subscription_path

if TYPE_CHECKING:
    from tests.simulation.flow.plan import ConsumerPlan
    from tests.simulation.flow.world import FlowWorld

WAIT_S: Final = 5.0
AGAIN_S: Final = 1.0
"""Until a receive that raised is made again."""

OUTCOMES: Final = ("complete",) * 16 + ("abandon", "defer", "dead-letter", "nothing")
"""What a handler does with its message; nothing: it fails and lets the lock end."""

HANDLING_S: Final = (0.0, 0.01, 0.01, 0.3, 2.0)
CALM_S: Final = (0.0, 0.01, 0.2)
LONG_S: Final = 14.0
"""Now and then a handler takes longer than a lock."""


class Consumer(Program):
    """A process that receives from one entity through a paired receiver."""

    def __init__(self, world: FlowWorld, plan: ConsumerPlan) -> None:
        super().__init__(world, plan.name)
        self.flow = world
        self.plan = plan
        self.receivers: PairedReceivers | None = None
        self.receiver: PairedReceiver | None = None
        self.deferred: list[int] = []
        """Numbers of messages that were put aside, as a database keeps them: a kill leaves them."""
        self._handling = 0
        self._is_closing = False

    @property
    def is_busy(self) -> bool:
        return self._handling > 0

    @property
    def path(self) -> str:
        entity = self.plan.entity
        return subscription_path(entity.path, "all") if entity.kind == "topic" else entity.path

    async def run(self) -> None:
        world = self.world
        sides = world.side("primary"), world.side("secondary")
        self.receivers = PairedReceivers(
            *sides,
            world.options,
            Recorder(NullLedger(), *sides),
            environment=world.environment,
        )
        while True:
            options = {"prefetch_count": self.plan.prefetch, "max_wait_time": WAIT_S}
            self.receiver = receiver = self.receivers.make(
                self.plan.entity.path, self.path, options
            )
            try:
                await self._receive(receiver)
            except ValueError:
                if not self._is_closing:
                    raise
                return
            except ServiceBusError as error:
                # An entity that is disabled or missing: a supervisor opens another receiver.
                world.timeline.note("receiving raised %r", error, who=self.name)
                await receiver.close()
                await asyncio.sleep(AGAIN_S)

    async def _receive(self, receiver: PairedReceiver) -> None:
        while True:
            messages = await receiver.receive_messages(self.plan.at_once)
            tokens = [self.flow.note_handed_out(self, message) for message in messages]
            pairs = zip(messages, tokens, strict=True)
            await asyncio.gather(*(self._handle(receiver, *pair) for pair in pairs))
            if self.deferred:
                await self._take_deferred(receiver)

    async def _take_deferred(self, receiver: PairedReceiver) -> None:
        number = self.deferred[0]
        try:
            [message] = await receiver.receive_deferred_messages(number, timeout=WAIT_S)
        except ServiceBusError as error:
            self.world.timeline.note("deferred %d: %r", number, error, who=self.name)
            if not self.flow.holds(self.path, number):
                self.deferred.remove(number)
        else:
            token = self.flow.note_handed_out(self, message)
            if await self._settle(receiver, message, token, "complete"):
                self.deferred.remove(number)

    async def _handle(self, receiver: PairedReceiver, message: Any, token: bytes) -> None:
        rng = self.world.rng
        outcome, seconds = rng.choice(OUTCOMES), rng.choice(HANDLING_S)
        if self.flow.plan.is_calm or self.flow.is_over:
            # Otherwise the last messages would come and go for long.
            outcome, seconds = "complete", rng.choice(CALM_S)
        elif rng.random() < 0.02:
            seconds = LONG_S
        self._handling += 1
        try:
            await asyncio.sleep(seconds)
            if outcome != "nothing":
                await self._settle(receiver, message, token, outcome)
        finally:
            self._handling -= 1

    async def _settle(
        self, receiver: PairedReceiver, message: Any, token: bytes, outcome: str
    ) -> bool:
        given = self.flow.received.given[token]
        given.asked = outcome
        settle = {
            "complete": receiver.complete_message,
            "abandon": receiver.abandon_message,
            "defer": receiver.defer_message,
            "dead-letter": receiver.dead_letter_message,
        }[outcome]
        if outcome == "defer":
            # Before the answer: one that is lost must not lose the number.
            self.deferred.append(message.sequence_number)
        try:
            await settle(message)
        except (ServiceBusError, ValueError) as error:
            # ValueError: the receiver was closed meanwhile.
            self.world.timeline.note("%s of %s: %r", outcome, given, error, who=self.name)
            return False
        given.confirmed_at = self.world.loop.time()
        return True

    async def kill(self) -> None:
        await super().kill()
        self.receivers = self.receiver = None
        self._handling = 0

    async def close(self) -> None:
        assert self.receivers is not None
        self._is_closing = True
        await self.receivers.close()
        # The receive call that was ended returns, and the next one is refused.
        await asyncio.sleep(HANDLING_S[-1])


def body_serial(message: Any) -> int | None:
    """The number of a received message; None: it is of another application."""
    body = b"".join(message.body)
    return serial_of(body) if body.startswith(b"#") else None
