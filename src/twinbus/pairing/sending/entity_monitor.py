"""One entity of the primary as a pair watches it: the failover machine with its timer and pings.

The shell of `failover`: it passes in events with their time, arms the one timer, runs the one ping,
and wakes every call that waits, on any change of state and when a person freezes the entity.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from twinbus.errors import (
    BacklogGuardError,
    BacklogMessageTooLargeError,
    PairingError,
    error_text,
)
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.failover import (
    PINGED,
    Action,
    EntityFailover,
    Event,
    Freeze,
    LetOneTry,
    PingAnswered,
    PingFailed,
    PingLeftOut,
    SendFailed,
    SendPing,
    SendSucceeded,
    StartDiverting,
    StopPinging,
    StopWatching,
    TimerFired,
    Transition,
)
from twinbus.pairing.core.fleet import FleetOfPair, NoFleet, PingedElsewhere
from twinbus.pairing.core.status import CANCELLED, RecentErrors
from twinbus.servicebus.failures import MESSAGE, kind_of, of_error
from twinbus.status.document import EntityState, EntityStatus, EntityTotals, TwinStatus

log = logging.getLogger("twinbus.pairing")

UNUSED_MAX: Final = 1_000
"""Healthy entities without a sender that are kept, the latest ones: the status still shows them."""

_COUNTING: Final = threading.Lock()
"""Guards what several threads count."""

NO_FLEET: Final = NoFleet()

HEALTHY: Final = EntityState.HEALTHY
"""A name of its own: member lookup in an enum takes Python 3.11 a tenth of a microsecond."""


class EntityMonitor:
    """The failover state of one entity with its timer and pings, shared by all its senders."""

    # Slots, because a pair may have ten thousand of these.
    __slots__ = (
        "_armed_for",
        "_changed",
        "_divert_on",
        "_listeners",
        "_loop",
        "_ping",
        "_pinging",
        "_recent_errors",
        "_sent",
        "_sent_elsewhere",
        "_stopped",
        "_timer",
        "_waiters",
        "diverted",
        "failover",
        "held_at",
        "oversize",
        "path",
        "raised",
        "reserved",
        "twinned",
    )  # fmt: skip

    def __init__(
        self,
        path: str,
        options: SendAvailabilityOptions,
        *,
        ping: Callable[[EntityMonitor], Awaitable[None]],
        changed: Callable[[EntityMonitor, Transition], None],
    ) -> None:
        """`ping` pings the entity once and raises if it was not answered.

        It raises PingedElsewhere if it left that to another process.
        """
        self.path = path
        self.failover = EntityFailover(
            failover_interval_s=options.failover_interval_s,
            ping_interval_s=options.ping_primary_interval_s,
            healthy_pings=options.healthy_pings,
        )
        self._sent = self._sent_elsewhere = 0
        self.diverted = 0
        self.twinned = 0
        self.oversize = 0
        self.reserved = 0
        self.raised = 0
        self.held_at: float | None = None
        """When a person last forced, froze or released it, in unix seconds."""
        self._recent_errors: RecentErrors | None = None
        """None: no call has raised, as for nearly all of ten thousand entities."""
        self._divert_on = options.divert_on
        self._ping = ping
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._stopped: list[asyncio.Task[None]] = []
        # A dict keeps their order: fair, and the same in every run of a simulation.
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._listeners: dict[Callable[[], None], None] = {}

    def tell(self, event: Event) -> None:
        """Pass an event that happened now to the machine, and perform its actions."""
        actions = self.failover.handle(event, self._loop.time())
        if self.failover.timer_at != self._armed_for or type(event) is TimerFired:
            self._arm()
        if actions or type(event) is Freeze or type(event) is StopWatching:
            for action in actions:
                self._perform(action)
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            for listener in tuple(self._listeners):
                listener()

    def succeeded(self, count: int) -> None:
        """Count messages that the primary stored now; heal the entity if it was not healthy."""
        self._sent += count
        # Every send calls this, and a success changes nothing of a healthy entity.
        if self.failover.state is not HEALTHY:
            self.tell(SendSucceeded())

    def succeeded_elsewhere(self) -> None:
        """Count a message that another thread than the loop's sent to the primary."""
        with _COUNTING:
            self._sent_elsewhere += 1
        if self.failover.state is not HEALTHY:
            # A loop that has ended has nothing to heal.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.tell, SendSucceeded())

    def call_raised(self, messages: int, error: BaseException) -> None:
        """Count a call that raises now, and its messages. From any thread."""
        now = self._loop.time()
        with _COUNTING:
            self.raised += messages
            recent = self._recent_errors
            if recent is None:
                recent = self._recent_errors = RecentErrors()
            if not isinstance(error, Exception):
                recent.own_fault(CANCELLED, self.sent + self.diverted, now)
            elif isinstance(error, BacklogGuardError) or of_error(error) is MESSAGE:
                recent.own_fault(error_text(error), self.sent + self.diverted, now)
            else:
                recent.raised(error_text(error), now)

    @property
    def raising(self) -> tuple[int, str]:
        """The calls that raised in the last minute, and the latest error. From any thread."""
        recent = self._recent_errors
        count = 0 if recent is None else recent.count(self._loop.time())
        return (count, recent.reason) if count and recent is not None else (0, "")

    @property
    def sent(self) -> int:
        return self._sent + self._sent_elsewhere

    def could_not_divert(self, flaws: Sequence[BacklogGuardError]) -> list[BacklogGuardError]:
        """Count messages that no backlog queue would take; return the first flaw of each kind."""
        first = []
        for flaw in flaws:
            name = "oversize" if isinstance(flaw, BacklogMessageTooLargeError) else "reserved"
            count = getattr(self, name)
            if not count:
                log.warning("%s: in an outage this message could not be sent: %s", self.path, flaw)
                first.append(flaw)
            setattr(self, name, count + 1)
        return first

    async def changes(self, until: float | None) -> None:
        """Return when the entity has changed, or at the time `until`."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[waiter] = None
        try:
            timeout_s = None if until is None else max(0.0, until - self._loop.time())
            await asyncio.wait({waiter}, timeout=timeout_s)
        finally:
            self._waiters.pop(waiter, None)
            waiter.cancel()

    def on_change(self, listener: Callable[[], None]) -> Callable[[], object]:
        """Call `listener` on every change; return a function that ends that."""
        self._listeners[listener] = None
        return lambda: self._listeners.pop(listener, None)

    @property
    def is_unused(self) -> bool:
        """Whether it is healthy and no sender, call or person needs what is known of it."""
        failover = self.failover
        is_held = failover.forced or failover.frozen or self._listeners or self._waiters
        return failover.state is HEALTHY and not is_held

    def status(self, twin: TwinStatus | None = None, fleet: FleetOfPair = NO_FLEET) -> EntityStatus:
        failover, now = self.failover, self._loop.time()
        timer_at, error_at = failover.timer_at, failover.last_error_at
        left_s = None if timer_at is None else max(0.0, timer_at - now)
        is_suspect = failover.state is EntityState.SUSPECT
        raising, raising_reason = self.raising
        return EntityStatus(
            path=self.path,
            state=failover.state,
            since_s=None if failover.since is None else now - failover.since,
            reason=failover.reason,
            last_error=failover.last_error,
            forced=failover.forced,
            frozen=failover.frozen,
            sent=self.sent,
            diverted=self.diverted,
            oversize=self.oversize,
            reserved=self.reserved,
            raised=self.raised,
            answered_pings=failover.answered_pings,
            last_error_at=None if error_at is None else time.time() - (now - error_at),
            fails_over_in_s=left_s if is_suspect else None,
            next_ping_in_s=0.0 if self._pinging is not None else None if is_suspect else left_s,
            raising=raising,
            raising_reason=raising_reason,
            held_at=self.held_at,
            twinned=self.twinned,
            twin=twin,
            evidence="" if failover.state is HEALTHY else fleet.said_of(self.path),
            pinger=fleet.pinger_of(self.path) if failover.state in PINGED else "",
        )

    def attempt_failed(self, error: BaseException, *, counts: bool) -> None:
        is_missing = of_error(error).unusable
        self.tell(
            SendFailed(
                counts=counts,
                is_missing=is_missing,
                error=error_text(error),
                kind=kind_of(error) if counts else "",
            )
        )

    def known_error(self) -> PairingError | None:
        """Why the entity failed over, for a call that did not try the primary; None: forced.

        It has the text of the last failed attempt or ping. The exception itself would keep every
        frame of its traceback alive for as long as the entity is watched.
        """
        text = self.failover.last_error
        return PairingError(text) if text else None

    async def close(self) -> None:
        self.tell(StopWatching())
        if self._stopped:
            await asyncio.wait(set(self._stopped))

    def _perform(self, action: Action) -> None:
        match action:
            case StartDiverting() | LetOneTry():
                pass  # Every change wakes the calls that wait; they see what has changed.
            case SendPing():
                assert self._pinging is None
                self._pinging = asyncio.create_task(self._run_ping())
            case StopPinging():
                task, self._pinging = self._pinging, None
                if task is not None:
                    self._stopped.append(task)
                    task.add_done_callback(self._stopped.remove)
                    task.cancel()
            case Transition():
                if EntityState.FAILED_OVER in (action.before, action.after):
                    # Sends go another way from now on: errors of before say nothing about it.
                    self._recent_errors = None
                self._changed(self, action)

    async def _run_ping(self) -> None:
        event: Event = PingAnswered()
        try:
            await self._ping(self)
        except PingedElsewhere:
            event = PingLeftOut()
        except Exception as error:  # noqa: BLE001  # every failure is a result
            meaning = of_error(error)
            counts = meaning.counts or meaning.diverted_on(self._divert_on)
            event = PingFailed(
                unusable=meaning.unusable and not counts, error=error_text(error), counts=counts
            )
        # A ping that was stopped meanwhile proves nothing, and its result is dropped.
        if self._pinging is asyncio.current_task():
            self._pinging = None
            self.tell(event)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = self.failover.timer_at
        if self._armed_for is not None:
            self._timer = self._loop.call_at(self._armed_for, self.tell, TimerFired())


class EntityMonitors:
    """Finds an entity by its path, whatever the letter case; forgets unused ones in time.

    A program that answers to a reply queue per request has a sender for a moment and an entity for
    ever: without an end the pair would grow by two kilobytes a request.
    """

    def __init__(
        self, unused_max: int = UNUSED_MAX, forgotten: Callable[[str], None] = lambda path: None
    ) -> None:
        """`forgotten` is called with the path of each entity that is forgotten."""
        self._unused_max = unused_max
        self._on_forgotten = forgotten
        self._entities: dict[str, EntityMonitor] = {}
        self._unused: dict[str, None] = {}
        self.forgotten = EntityTotals()
        """The numbers of the entities that are no longer here."""

    def all(self) -> list[EntityMonitor]:
        """A copy: other threads read it."""
        return list(self._entities.values())

    def numbers(self) -> tuple[list[EntityMonitor], EntityTotals]:
        """The entities, and the totals of those forgotten before; from any thread."""
        while True:
            count = self.forgotten.entities
            entities, totals = self.all(), replace(self.forgotten)
            if self.forgotten.entities == count and totals.entities == count:
                return entities, totals

    def find(self, path: str) -> EntityMonitor | None:
        return self._entities.get(path.strip("/").lower())

    def add(self, entity: EntityMonitor) -> None:
        self._entities[entity.path.lower()] = entity

    def release(self, entity: EntityMonitor) -> None:
        """A sender of the entity was closed: forget the one that was not used for longest."""
        key = entity.path.lower()
        if self._entities.get(key) is not entity:
            return  # It was forgotten before an attempt or a ping of its own ended.
        self._unused.pop(key, None)
        self._unused[key] = None
        while len(self._unused) > self._unused_max:
            oldest = next(iter(self._unused))
            del self._unused[oldest]
            # One that is in use again, or not healthy, comes back when a sender is closed.
            if self._entities[oldest].is_unused:
                gone = self._entities.pop(oldest)
                self.forgotten.add(gone)
                self._on_forgotten(gone.path)
