"""A pump that keeps the order of each session (SPEC 3, strict session order).

Of each session one message at a time is under way: the next is sent when the primary has accepted
the one before it and the backlog queue has confirmed that. So a crash can duplicate one message of
a session, and its copy comes right after it. Messages without a session go as in any pump.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from twinbus.syphon.core.actions import Action, Complete, DeadLetter, PeekForOrder
from twinbus.syphon.core.backlog_message import BacklogMessage
from twinbus.syphon.core.destination import Destination
from twinbus.syphon.core.pump import ASKED, IntakeLimits, Pump
from twinbus.syphon.core.session_lanes import PeekedEntry, SessionLanes

__all__ = ["StrictPump"]

IN_HAND_SHARE: Final = 8
"""One session may have one in so many of the pump's messages in hand: a long one must not keep the
others out. What is more is deferred, and received by number when its turn comes."""

CHECK_S: Final = 2.0
"""Between two peeks for a message that a session waits for and that does not come."""


class StrictPump(Pump):
    """Decides for one backlog queue, each session in its order."""

    def __init__(
        self,
        *,
        limits: IntakeLimits | None = None,
        undeliverable_grace_s: float = 21_600.0,
        poll_s: float = 900.0,
    ) -> None:
        super().__init__(limits=limits, undeliverable_grace_s=undeliverable_grace_s, poll_s=poll_s)
        self._lanes = SessionLanes(self.limits.messages // IN_HAND_SHARE)
        self._intake.on_left = self._lanes.left
        self._surveying: int | None = None
        """Where the peek that is under way began."""
        self._survey_at = 0.0
        """No survey before that time: the last one failed."""
        self._check_at: float | None = None
        self._checked = 0

    @property
    def timer_at(self) -> float | None:
        """When `tick` is next worth calling; None: only something that happens can matter."""
        moments = [m for m in (super().timer_at, self._check_at) if m is not None]
        return min(moments, default=None)

    # Events

    def secondary_up(self, now: float) -> list[Action]:
        return super().secondary_up(now) + self._advance(now)

    def secondary_down(self, now: float) -> list[Action]:
        self._surveying = None
        actions = super().secondary_down(now)
        self._lanes.fetch_ended()
        return actions

    def resume(self, now: float, why: str = ASKED) -> list[Action]:
        return super().resume(now, why) + self._advance(now)

    def received(self, parcel: BacklogMessage, now: float) -> list[Action]:
        self._lanes.saw(parcel.sequence_number)
        return super().received(parcel, now) + self._advance(now)

    def settled(self, parcels: Iterable[BacklogMessage], now: float) -> list[Action]:
        parcels = list(parcels)
        actions = super().settled(parcels, now)
        for parcel in parcels:
            if parcel.outcome is Complete or isinstance(parcel.outcome, DeadLetter):
                actions += self._over(parcel, now)
        return actions + self._advance(now)

    def settle_failed(self, parcels: Iterable[BacklogMessage], now: float) -> list[Action]:
        parcels = list(parcels)
        actions = super().settle_failed(parcels, now)
        for parcel in parcels:
            if parcel.accepted:
                # It comes again and is then completed; the primary has it, and the next may go.
                actions += self._over(parcel, now)
                if parcel.is_deferred:
                    # Only if it is asked for by its number.
                    self._aside.add(self._destination(parcel.path), parcel.sequence_number, now)
        return actions + self._advance(now)

    def lock_lost(self, parcels: Iterable[BacklogMessage], now: float) -> list[Action]:
        return super().lock_lost(parcels, now) + self._advance(now)

    def fetched(self, numbers: list[int], now: float, *, failed: bool = False) -> list[Action]:
        self._lanes.fetch_ended(numbers)
        return super().fetched(numbers, now, failed=failed) + self._advance(now)

    def found_deferred(self, found: list[PeekedEntry], now: float, *, is_all: bool) -> list[Action]:
        return super().found_deferred(found, now, is_all=is_all) + self._advance(now)

    def surveyed(self, page: list[PeekedEntry], now: float) -> list[Action]:
        """A `PeekForOrder` ended: what the queue holds from there on, as far as the page goes."""
        if self._surveying is None:
            return []
        start, self._surveying = self._surveying, None
        # Sessions that are not served have no turn, and must not fill the memory.
        page = [s if self._is_selected(s.path) else s._replace(session=None) for s in page]
        self._checked = self._lanes.peeked(start, page)
        return self._advance(now)

    def survey_failed(self, now: float) -> list[Action]:
        """A `PeekForOrder` brought nothing; it is asked for again a little later."""
        self._surveying = None
        self._survey_at = self._check_at = now + CHECK_S
        return []

    def tick(self, now: float) -> list[Action]:
        actions = super().tick(now)
        if self._check_at is not None and now >= self._check_at:
            self._check_at = None
            if self._receives(now) and self._lanes.survey_from() is None:
                actions += self._survey(self._lanes.check_from(self._checked), now)
        return actions + self._advance(now)

    # Turns

    def _advance(self, now: float) -> list[Action]:
        """Let every session go on as far as it may."""
        if self._paused:
            return self._give_back(now)
        actions: list[Action] = []
        while lanes := self._lanes.take_stirred():
            served: dict[str, Destination] = {}
            for lane in lanes:
                destination = self._destination(lane.path)
                parcel = self._lanes.next_to_go(lane)
                if parcel is not None:
                    destination.waiting.append(parcel)
                served[lane.destination] = destination
            for destination in served.values():
                actions += self._serve(destination, now)
            for lane in lanes:
                actions += self._settlements.defer(self._lanes.out_of_turn(lane), now)
        if self._lanes.is_stuck and self._check_at is None:
            self._check_at = now + CHECK_S
        return actions + self._survey(self._lanes.survey_from(), now)

    def _give_back(self, now: float) -> list[Action]:
        return [
            action
            for key in self._destinations
            for action in self._settlements.release(self._lanes.take_behind(key), now)
        ]

    def _survey(self, start: int | None, now: float) -> list[Action]:
        """Peek at the queue from a number on, unless that cannot be done now."""
        if start is None or self._surveying is not None or not self._settlements.is_open:
            return []
        if now < self._survey_at:
            return []
        self._surveying = start
        self._lanes.peeking()
        return [PeekForOrder(start)]

    def _over(self, parcel: BacklogMessage, now: float) -> list[Action]:
        """A message needs no more sending; nor does a copy of it that came meanwhile."""
        copy = self._lanes.gone(parcel)
        if copy is None or copy not in self._intake:
            return []
        if not parcel.accepted:
            return self._settlements.release([copy], now)
        copy.accepted = True
        return self._settlements.complete([copy], now)

    # Where messages wait

    def _admit(self, parcel: BacklogMessage, destination: Destination) -> None:
        if parcel.session is None:
            super()._admit(parcel, destination)
            return
        older = self._lanes.arrived(parcel)
        if older is not None:
            self._intake.forget(older)

    def _is_waited_for(self, destination: Destination) -> bool:
        return bool(destination.waiting) or self._lanes.has_behind(destination.path.lower())

    def _take_waiting(self, destination: Destination) -> list[BacklogMessage]:
        return super()._take_waiting(destination) + self._lanes.take_behind(
            destination.path.lower()
        )

    def _withdraw(self, parcel: BacklogMessage, destination: Destination) -> bool:
        return super()._withdraw(parcel, destination) or self._lanes.withdraw(parcel)

    def _lets_go(self, parcel: BacklogMessage, destination: Destination) -> bool:
        if not self._lanes.is_behind(parcel):
            return super()._lets_go(parcel, destination)
        if self._primary and not destination.is_held:
            return False
        return self._lanes.withdraw(parcel)

    def _has_aside(self, destination: Destination) -> bool:
        return bool(destination.deferred) or self._lanes.has_aside(destination.path.lower())

    def _take_aside(self, destination: Destination, room: int) -> list[int]:
        numbers = self._lanes.take_aside(destination.path.lower(), room)
        return numbers + super()._take_aside(destination, room - len(numbers))

    def _is_aside(self, parcel: BacklogMessage, now: float) -> None:
        if parcel.session is None:
            super()._is_aside(parcel, now)
        else:
            self._lanes.set_aside(parcel)

    def _found(self, sighting: PeekedEntry, now: float) -> None:
        if sighting.session is None:
            super()._found(sighting, now)
        else:
            self._lanes.sighted(sighting)
