"""Traces of simulated worlds: what the world knows, as events of the model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from unittest.mock import patch

from azure.servicebus import ServiceBusMessageBatch

from tests.model.traces import PRIMARY, Event, Trace, lane
from tests.simulation.machine import PROCESS
from tests.simulation.namespace import SimNamespace
from tests.simulation.network import Wire
from tests.simulation.night.plan import draw_world
from tests.simulation.plan import Plan
from tests.simulation.programs import Application
from tests.simulation.sdk import SimLink
from tests.simulation.truth import Deed, Truth, serial_of
from tests.simulation.world import World, simulate
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import SettlementOutcome
from twinbus.pairing.observing.events import EntityChanged, PairEvent
from twinbus.pairing.sending.entity_monitor import EntityMonitor
from twinbus.servicebus.failures import of_error
from twinbus.servicebus.names import PING_CONTENT_TYPE
from twinbus.status.document import EntityState

Source = tuple[object, ...]
"""A message of the backlog: its queue, and its number and time there."""

BEYOND_THE_MODEL: Final = frozenset({"command", "delete", "disable", "late queues", "delete queue"})
"""Faults that the model leaves out."""


def is_modelled(plan: Plan) -> bool:
    """Whether the model has everything that may happen in a world."""
    restarts = any(f.kind == "crash process" and f.target.startswith("app") for f in plan.faults)
    return not (
        restarts
        or plan.embedded
        or plan.night
        or plan.backlog_is_late
        or plan.backlog_deduplicates
        or plan.credits_per_s is not None
        or plan.options.get("session_order") == "strict"
        or plan.options.get("ttl_policy") == "remaining"
        or BEYOND_THE_MODEL & {fault.kind for fault in plan.faults}
    )


def modelled_seeds(count: int) -> list[int]:
    """The first seeds whose worlds the model covers."""
    found: list[int] = []
    seed = 0
    while len(found) < count:
        if is_modelled(draw_world(Random(seed))):
            found.append(seed)
        seed += 1
    return found


@dataclass(eq=False)
class _Attempt:
    """One attempt of an application: of all messages of one call of the SDK."""

    app: str
    serials: list[int]
    end: dict[int, Event] = field(default_factory=dict)
    """How it ended without an answer, by message."""


_ATTEMPT: ContextVar[_Attempt | None] = ContextVar("ATTEMPT", default=None)


@dataclass(eq=False)
class Witness:
    """Everything that happens in one world, in order.

    The methods with a parameter `real` stand for a method of the simulation or of the product, call
    it and note what it did.
    """

    events: list[tuple[str, Event]] = field(default_factory=list)
    """Each with the path of its entity."""
    attempts: dict[Deed, _Attempt] = field(default_factory=dict)
    forwards: list[tuple[Deed, Event]] = field(default_factory=list)
    holders: dict[Source, bytes] = field(default_factory=dict)
    """The lock token of each locked message of the backlog."""
    locks: dict[bytes, tuple[str, int, Source]] = field(default_factory=dict)
    apps: dict[int, str] = field(default_factory=dict)
    """Who sends each message."""
    failing: set[tuple[str, str]] = field(default_factory=set)
    """Applications and entities with a failed attempt since the last success."""
    strays: int = 0
    """Forwards under a lock that had ended: the model has none."""

    def note(self, path: str, kind: str, *values: object) -> Event:
        event: Event = [kind, *values]
        self.events.append((path.lower(), event))
        return event

    def lane(self, serial: int) -> tuple[str, int]:
        return lane(self.apps[serial], serial)

    def trace(self, name: str, path: str) -> Trace:
        for deed, event in self.forwards:
            event[4] = deed.answered
        return Trace(name, [[event for where, event in self.events if where == path]])

    # Attempts

    async def sending(self, real: Any, link: SimLink, payload: Any) -> None:
        if isinstance(payload, ServiceBusMessageBatch):
            messages = list(payload._messages)
        else:
            messages = list(payload) if isinstance(payload, list | tuple) else [payload]
        if getattr(messages[0], "content_type", None) == PING_CONTENT_TYPE:
            await real(link, payload)
            return
        serials = [serial_of(link._world.encoded(message)) for message in messages]
        path = link._world.truth.originals[serials[0]].path
        is_primary = link._side == link._world.primary.name
        attempt = _Attempt(link._process.name, serials)
        for serial in serials:
            self.apps[serial] = attempt.app
            place = PRIMARY if is_primary else link._path.lower()
            self.note(path, "begins", self.lane(serial), place)
        token = _ATTEMPT.set(attempt)
        try:
            await real(link, payload)
        except BaseException as error:
            self._not_answered(attempt, path, error, is_primary=is_primary)
            raise
        finally:
            _ATTEMPT.reset(token)
        if is_primary:
            self.failing.discard((attempt.app, path.lower()))
        for serial in serials:
            self.note(path, "answered", self.lane(serial))

    def _not_answered(
        self, attempt: _Attempt, path: str, error: BaseException, *, is_primary: bool
    ) -> None:
        is_silent = isinstance(error, asyncio.CancelledError) or of_error(error).counts
        for serial in attempt.serials:
            own = self.lane(serial)
            if is_silent:
                attempt.end[serial] = self.note(path, "unanswered", own, False)
            else:
                self.note(path, "refused", own)
        if is_primary and is_silent:
            self.failing.add((attempt.app, path.lower()))

    def making(self, real: Any, link: SimLink, first: Any) -> Deed:
        deed: Deed = real(link, first)
        attempt = _ATTEMPT.get()
        if attempt is not None:
            self.attempts[deed] = attempt
        return deed

    def performing(
        self, real: Any, truth: Truth, namespace: SimNamespace, deed: Deed, wire: bytes
    ) -> None:
        real(truth, namespace, deed, wire)
        serial = serial_of(wire)
        path = truth.originals[serial].path
        attempt = self.attempts.get(deed)
        if deed.kind == "forward":
            self._forwarded(deed, serial, path)
        elif attempt is not None and serial in attempt.end:
            attempt.end[serial][2] = True
            place = PRIMARY if deed.kind == "send" else deed.path.lower()
            self.note(path, "arrives", self.lane(serial), place)
        elif attempt is not None:
            self.note(path, "stores", self.lane(serial))

    # The syphon

    def _forwarded(self, deed: Deed, serial: int, path: str) -> None:
        assert deed.handover is not None
        source = deed.handover.source
        token = self.holders.get(source)
        who = deed.who.rsplit(".", 1)[0]
        if token is None or self.locks[token][0] != who:
            self.strays += 1
            return
        event = self.note(path, "forwards", who, self.lane(serial), _queue(source), True)
        self.forwards.append((deed, event))

    def locking(self, real: Any, world: World, queue: Queue, delivery: Any, wire: Wire) -> None:
        real(world, queue, delivery, wire)
        source = world.handovers[delivery.lock_token].source
        number = delivery.message.sequence_number
        serial = serial_of(world.secondary.store.payload(queue.entity_id, number))
        path = world.truth.originals[serial].path
        self._unlocked(source, path)
        who = wire.process.name
        self.locks[delivery.lock_token] = (who, serial, source)
        self.holders[source] = delivery.lock_token
        self.note(path, "receives", who, self.lane(serial), _queue(source))

    def settling(self, real: Any, world: World, token: bytes, outcome: SettlementOutcome) -> None:
        real(world, token, outcome)
        who, serial, source = self.locks[token]
        path = world.truth.originals[serial].path
        if outcome is SettlementOutcome.COMPLETE:
            del self.holders[source]
            self.note(path, "completes", who, self.lane(serial), _queue(source))
        else:
            self._unlocked(source, path)

    def _unlocked(self, source: Source, path: str) -> None:
        """A lock ended without a settlement: the model has that for a pump that is cut off."""
        token = self.holders.pop(source, None)
        if token is None:
            return
        who, serial, _ = self.locks[token]
        self.note(path, "cut", who)
        self.note(path, "expires", who, self.lane(serial), _queue(source))
        self.note(path, "comes", who)

    # The entity

    def failed(
        self, real: Any, monitor: EntityMonitor, error: BaseException, *, counts: bool
    ) -> None:
        process = PROCESS.get()
        assert process is not None
        key = process.name, monitor.path.lower()
        is_watched = monitor.failover.state in (EntityState.HEALTHY, EntityState.SUSPECT)
        if counts and is_watched and key not in self.failing:
            # A link that did not open: it counts like a send that failed.
            own = lane(process.name, 0)
            self.note(monitor.path, "begins", own, PRIMARY)
            self.note(monitor.path, "unanswered", own, False)
            self.failing.add(key)
        real(monitor, error, counts=counts)

    def watching(self, real: Any, application: Application, event: PairEvent) -> None:
        real(application, event)
        if isinstance(event, EntityChanged):
            if event.after is EntityState.HEALTHY:
                self.failing.discard((application.name, event.path.lower()))
            self.note(event.path, "state", application.name, event.after.name)


def _queue(source: Source) -> str:
    return str(source[0]).lower()


_WATCHED: Final = (
    (SimLink, "send", Witness.sending),
    (SimLink, "_deed", Witness.making),
    (Truth, "performed", Witness.performing),
    (World, "note_lock", Witness.locking),
    (World, "note_settled", Witness.settling),
    (EntityMonitor, "attempt_failed", Witness.failed),
    (Application, "_watch", Witness.watching),
)


@contextmanager
def witnessing(witness: Witness) -> Iterator[None]:
    """Note what happens in the simulations of this block."""

    def watched(real: Any, note: Any) -> Any:
        def method(self: object, *given: Any, **named: Any) -> Any:
            return note(witness, real, self, *given, **named)

        return method

    with ExitStack() as stack:
        for owner, name, note in _WATCHED:
            planted = watched(getattr(owner, name), note)
            stack.enter_context(patch.object(owner, name, planted))
        yield


def traces_of(seed: int) -> list[Trace]:
    """The traces of one world: one for each entity that diverted something."""
    witness = Witness()
    with witnessing(witness):
        result = simulate(seed)
    assert not result.violations, result.violations
    if witness.strays:
        return []
    diverted = Counter(
        path for path, event in witness.events if event[0] == "begins" and event[2] != PRIMARY
    )
    return [witness.trace(f"seed {seed} {path}", path) for path in sorted(diverted)]
