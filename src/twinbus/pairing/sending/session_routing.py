"""Routes messages by session under strict order: a bound session goes to its own backlog queue.

A call with messages of several sessions goes to the primary as it is. If one of them is bound, or
the entity has failed over, it becomes one call for each session, in order (docs/failures.md).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from twinbus.pairing.core.backlog import KeptChoice
from twinbus.pairing.core.failover import Route
from twinbus.pairing.core.session_order import Diversion, SessionKey
from twinbus.status.document import EntityState

if TYPE_CHECKING:
    from twinbus.pairing.core.backlog import Rotation
    from twinbus.pairing.sending.carrier import OutgoingMessages
    from twinbus.pairing.sending.entity_monitor import EntityMonitor
    from twinbus.pairing.sending.session_scan import SessionScan

SPLIT: Final = "one call for each session"
"""In place of a queue, for a call with messages of several sessions."""

FREE_WAIT_S: Final = 1.0
"""How long a send may wait for its session to be drained before it is diverted once more."""


class SessionRouting:
    """Routes the calls of one sender."""

    def __init__(self, entity: EntityMonitor, rotation: Rotation, scan: SessionScan) -> None:
        self.entity, self.rotation, self.scan = entity, rotation, scan

    def of(self, outgoing: OutgoingMessages, backlog: KeptChoice) -> CallSessions:
        """The sessions of one call; messages without a session use the sender's own `backlog`."""
        path = self.entity.path
        keys = [
            None if session is None else SessionKey.of(path, session)
            for session in outgoing.by_session()
        ]
        return CallSessions(self, keys, backlog)


class CallSessions(KeptChoice):
    """The sessions of one call: entity and backlog as its messages see them."""

    __slots__ = ("_backlog", "_failover", "_keys", "_order", "_scan", "key")

    def __init__(
        self, routing: SessionRouting, keys: list[SessionKey | None], backlog: KeptChoice
    ) -> None:
        """`keys` has each session once, and None for messages without one."""
        self._failover = routing.entity.failover
        self._rotation, self._scan = routing.rotation, routing.scan
        self._order = routing.scan.order
        self._keys, self._backlog = keys, backlog
        self.key = keys[0] if len(keys) == 1 else None
        """The session of all messages; None: they have none, or several."""

    @property
    def _is_bound(self) -> bool:
        return any(key is not None and self._order.is_bound(key) for key in self._keys)

    @property
    def state(self) -> EntityState:
        return self._failover.state

    @property
    def failover_at(self) -> float | None:
        return self._failover.failover_at

    @property
    def route(self) -> Route:
        """Bound sessions go to the backlog, all others where the entity's state leads."""
        route = self._failover.route
        return Route.BACKLOG if route is Route.PRIMARY and self._is_bound else route

    @property
    def protected(self) -> bool:
        """Whether there is a queue; a bound session has one, though it may not be usable."""
        return self._is_bound or self._rotation.protected

    def choose(self, now: float, tried: Collection[str] = ()) -> str | None:
        """The session's queue while it can be used, never another; `SPLIT` for several sessions."""
        if len(self._keys) > 1:
            return SPLIT
        if self.key is None:
            return self._backlog.choose(now, tried)
        queue = self._order.queue_of(self.key)
        return queue if queue not in tried and self._rotation.is_in(queue, now) else None

    def resting(self, now: float, tried: Collection[str] = ()) -> str | None:
        """Any pulled queue for messages without a session; a session uses no other queue."""
        return self._backlog.resting(now, tried) if self.key is None else None

    @property
    def outlasts_refusals(self) -> bool:
        """A session may use no other queue, so a refusal of its queue is raised."""
        return self.key is None

    def may_return(self, now: float, tried: Collection[str] = ()) -> bool:
        """A session waits for its own queue, unless the queue refuses messages."""
        if self.key is None:
            return self._backlog.may_return(now, tried)
        queue = self._order.queue_of(self.key)
        return queue not in tried and not self._rotation.is_refusing(queue, now)

    @property
    def is_lost(self) -> bool:
        """Whether the secondary is lost; a call of several sessions is split first."""
        return len(self._keys) == 1 and self._backlog.is_lost

    async def wait_until_free(self, ends_at: float) -> None:
        """Wait a moment for the session to return to the primary where that is near."""
        now = self._scan.now
        is_back = self._failover.route is Route.PRIMARY
        if self.key is not None and is_back and self._order.worth_waiting(self.key, now):
            wait_s = min(FREE_WAIT_S, (ends_at - now) / 2)
            await self._scan.wait_until_free(self.key, now + wait_s)

    def begin_divert(self) -> None:
        """A divert of the one session begins: from now on it is bound."""
        assert self.key is not None
        self._order.begin_divert(self.key)

    def end_divert(self, ended: Diversion) -> None:
        """The divert ended."""
        assert self.key is not None
        self._order.end_divert(self.key, ended, self._scan.now)
        if self._failover.route is Route.PRIMARY:
            self._scan.wake()
