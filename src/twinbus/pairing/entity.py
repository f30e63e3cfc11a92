"""One entity of the primary as a pair watches it: the failover machine with its timer and pings.

The shell of `failover`: it hands in events with their time, arms the one timer, runs the one ping,
and wakes every call that waits, on any change of state and when a person freezes the entity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from twinbus.clock import TimerFired
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.classify import meaning_of
from twinbus.pairing.events import (
    Action,
    Close,
    Divert,
    Event,
    Freeze,
    Notify,
    PingAnswered,
    PingFailed,
    SendPing,
    StopPinging,
    Transition,
)
from twinbus.pairing.failover import EntityFailover

__all__ = ["EntityStatus", "WatchedEntity"]


@dataclass(frozen=True, slots=True)
class EntityStatus:
    """What is believed of one entity, for people and programs."""

    path: str
    state: str
    since_s: float | None
    """Seconds since the state was entered; None: it never changed."""
    reason: str
    last_error: str
    forced: bool
    frozen: bool
    sent: int
    diverted: int
    """Messages stored on the primary, and in backlog queues, through this pair."""


class WatchedEntity:
    """The failover state of one entity, alive: shared by all its senders in the pair."""

    def __init__(
        self,
        path: str,
        options: SendAvailabilityOptions,
        *,
        ping: Callable[[WatchedEntity], Awaitable[None]],
        changed: Callable[[WatchedEntity, Transition], None],
    ) -> None:
        """`ping` asks the entity once and raises if it was not answered."""
        self.path = path
        self.failover = EntityFailover(
            failover_interval_s=options.failover_interval_s,
            ping_interval_s=options.ping_primary_interval_s,
            healthy_pings=options.healthy_pings,
        )
        self.sent = 0
        self.diverted = 0
        self._ping = ping
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._stopped: set[asyncio.Task[None]] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        self._listeners: set[Callable[[], None]] = set()

    def tell(self, event: Event) -> None:
        """Hand in an event that happened now, and do what follows from it."""
        actions = self.failover.handle(event, self._loop.time())
        if self.failover.timer_at != self._armed_for or type(event) is TimerFired:
            self._arm()
        if actions or type(event) is Freeze or type(event) is Close:
            for action in actions:
                self._perform(action)
            self._rouse()

    async def changes(self, until: float | None) -> None:
        """Return when the entity changed, or when the time has come."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            timeout_s = None if until is None else max(0.0, until - self._loop.time())
            await asyncio.wait({waiter}, timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)
            waiter.cancel()

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called on every change; the answer ends that."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def status(self) -> EntityStatus:
        failover = self.failover
        return EntityStatus(
            path=self.path,
            state=failover.state.value,
            since_s=None if failover.since is None else self._loop.time() - failover.since,
            reason=failover.reason,
            last_error=failover.last_error,
            forced=failover.forced,
            frozen=failover.frozen,
            sent=self.sent,
            diverted=self.diverted,
        )

    async def close(self) -> None:
        """Leave no timer and no ping behind."""
        self.tell(Close())
        if self._stopped:
            await asyncio.wait(set(self._stopped))

    def _perform(self, action: Action) -> None:
        match action:
            case Divert():
                pass  # Every change wakes those who wait; they see the new route.
            case SendPing():
                assert self._pinging is None
                self._pinging = asyncio.create_task(self._run_ping())
            case StopPinging():
                self._stop_pinging()
            case Notify(transition):
                self._changed(self, transition)

    async def _run_ping(self) -> None:
        event: Event = PingAnswered()
        try:
            await self._ping(self)
        except Exception as error:  # noqa: BLE001  # every failure is an answer of a kind
            text = f"{type(error).__name__}: {error}"
            event = PingFailed(unusable=meaning_of(error).unusable, error=text)
        # Stopped meanwhile, this ping proves nothing and is not reported.
        if self._pinging is asyncio.current_task():
            self._pinging = None
            self.tell(event)

    def _stop_pinging(self) -> None:
        task, self._pinging = self._pinging, None
        if task is not None:
            self._stopped.add(task)
            task.add_done_callback(self._stopped.discard)
            task.cancel()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = self.failover.timer_at
        if self._armed_for is not None:
            self._timer = self._loop.call_at(self._armed_for, self.tell, TimerFired())

    def _rouse(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        for listener in tuple(self._listeners):
            listener()
