"""A send call under strict session order: a bound session is diverted, to its own queue alone.

A call with messages of several sessions goes to the primary as it is. If one of them is bound, or
the entity has failed over, it becomes one call for each session, in order (SPEC 3).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from twinbus.pairing.core.attempts import BacklogChoice, EntityView
from twinbus.pairing.core.events import EntityState, Route
from twinbus.pairing.core.session_order import Diversion, SessionKey, SessionOrder
from twinbus.pairing.sending.calls import SendingCall, SendTarget
from twinbus.pairing.sending.recording import outcome_of

if TYPE_CHECKING:
    from twinbus.pairing.core.backlog import Rotation
    from twinbus.pairing.core.failover import EntityFailover
    from twinbus.pairing.sdk.outgoing import Outgoing
    from twinbus.pairing.sending.session_scan import SessionScan

__all__ = ["StrictSendTarget"]

FREE_WAIT_S: Final = 1.0
"""How long a send may wait for its session to be drained rather than be diverted once more."""


@dataclass(frozen=True, slots=True)
class StrictSendTarget(SendTarget):
    """Where the calls of one sender go, session by session."""

    census: SessionScan

    def call(self, outgoing: Outgoing, deadline: float | None) -> SendingCall:
        """The call that sends these messages."""
        return StrictSendingCall(self, outgoing, deadline)

    def backlog_for(self, outgoing: Outgoing) -> BacklogChoice:
        """The one queue of the messages' session; without a session the sender's own choice."""
        keys = self.keys_of(outgoing)
        if keys == [None]:
            return self.backlog
        return _SessionChoice(self.client.rotation, self.census.order, keys)

    def route_for(self, outgoing: Outgoing) -> EntityView:
        """Bound sessions go to the backlog, all others where the entity's state leads."""
        keys = [key for key in self.keys_of(outgoing) if key is not None]
        return _SessionView(self.entity.failover, self.census.order, keys)

    def keys_of(self, outgoing: Outgoing) -> list[SessionKey | None]:
        """The sessions of a call's messages, each once; None is for those without one."""
        path = self.entity.path
        return [
            None if session is None else SessionKey.of(path, session)
            for session in outgoing.by_session()
        ]


class _SessionView:
    """An entity as the messages of some sessions see it."""

    __slots__ = ("_failover", "_keys", "_order")

    def __init__(
        self, failover: EntityFailover, order: SessionOrder, keys: list[SessionKey]
    ) -> None:
        self._failover, self._order, self._keys = failover, order, keys

    @property
    def state(self) -> EntityState:
        return self._failover.state

    @property
    def failover_at(self) -> float | None:
        return self._failover.failover_at

    @property
    def route(self) -> Route:
        route = self._failover.route
        if route is Route.PRIMARY and any(map(self._order.is_bound, self._keys)):
            return Route.BACKLOG
        return route


class _SessionChoice:
    """The backlog as one session sees it: its queue, or none; or as several do, each its own."""

    __slots__ = ("_keys", "_order", "_rotation")

    def __init__(
        self, rotation: Rotation, order: SessionOrder, keys: list[SessionKey | None]
    ) -> None:
        self._rotation, self._order, self._keys = rotation, order, keys

    @property
    def protected(self) -> bool:
        """Whether there is a queue; for a bound session there is, though it may not be usable."""
        is_bound = any(key is not None and self._order.is_bound(key) for key in self._keys)
        return is_bound or self._rotation.protected

    def choose(self, now: float, tried: Collection[str]) -> str | None:
        """The session's queue while it can be used; never another."""
        key = self._keys[0]
        if len(self._keys) > 1 or key is None:
            return SPLIT
        queue = self._order.queue_of(key)
        return queue if queue not in tried and self._rotation.is_in(queue, now) else None


SPLIT: Final = "each to its own"
"""In place of a queue, for a call with messages of several sessions."""


class StrictSendingCall(SendingCall):
    """One call of `send_messages` that keeps the order of its sessions."""

    def __init__(self, place: StrictSendTarget, outgoing: Outgoing, deadline: float | None) -> None:
        super().__init__(place, outgoing, deadline)
        keys = place.keys_of(outgoing)
        self._census = place.census
        self._key = keys[0] if len(keys) == 1 else None

    async def run(self) -> Any:
        """Do it, after a moment for the session to return to the primary where that is near."""
        key, now = self._key, self.loop.time()
        is_back = self.entity.failover.route is Route.PRIMARY
        if key is not None and is_back and self._census.order.worth_waiting(key, now):
            left_s = FREE_WAIT_S if self.deadline is None else (self.deadline - now) / 2
            await self._census.freed(key, now + min(FREE_WAIT_S, left_s))
        return await super().run()

    async def _divert(self, queue: str, timeout_s: float) -> tuple[bool, Any]:
        if queue is SPLIT:
            await self._part_by_part(self.outgoing.parts())
            return True, None
        if self._key is None:
            return await super()._divert(queue, timeout_s)
        order, before = self._census.order, self.call.queue_errors.get(queue)
        order.begin(self._key)
        how = Diversion.DOUBTFUL
        try:
            done, result = await super()._divert(queue, timeout_s)
            error = self.call.queue_errors.get(queue)
            if done:
                how = Diversion.STORED
            elif error is before or outcome_of(error) == "failed":
                how = Diversion.REFUSED
        except Exception:
            # Of the attempt itself none comes here: nothing was sent, or its parts know better.
            how = Diversion.REFUSED
            raise
        finally:
            order.end(self._key, how, self.loop.time())
            if self.entity.failover.route is Route.PRIMARY:
                self._census.wake()
        return done, result
