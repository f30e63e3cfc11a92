"""What was decided about received messages, told to the backlog queue until it confirms it.

A decision is made once for each message. While the queue cannot be reached it is kept, and told
when it can; a message that was only to be given back needs no telling, its lock ends by itself.
"""

from __future__ import annotations

from twinbus.syphon.core.actions import Action, Complete, DeadLetter, Defer, Release
from twinbus.syphon.core.backlog_message import BacklogMessage
from twinbus.syphon.core.intake import Intake

__all__ = ["Settlements"]


class Settlements:
    """The decisions of one pump."""

    __slots__ = ("_intake", "_opened_at", "is_open")

    def __init__(self, intake: Intake) -> None:
        self.is_open = False
        """The backlog queue can be told."""
        self._intake = intake
        self._opened_at = 0.0

    def complete(self, parcels: list[BacklogMessage], now: float) -> list[Action]:
        """These are in the primary: they leave the backlog."""
        for parcel in parcels:
            assert parcel.accepted, parcel
            parcel.outcome = Complete
            parcel.settling_at = now
            if parcel.received_at < self._opened_at:
                # It came over an earlier link, and its lock may have ended with that: then it is
                # delivered again, before the queue says that it cannot be completed.
                self._intake.remember(parcel)
        return [Complete(parcels)] if self.is_open and parcels else []

    def dead_letter(
        self, parcel: BacklogMessage, reason: str, description: str, now: float
    ) -> list[Action]:
        """This one can never be delivered."""
        return self._decide(parcel, DeadLetter(parcel, reason, description), now)

    def defer(self, parcels: list[BacklogMessage], now: float) -> list[Action]:
        """These wait in the backlog queue without being in the way of others."""
        return [a for parcel in parcels for a in self._decide(parcel, Defer(parcel), now)]

    def release(self, parcels: list[BacklogMessage], now: float) -> list[Action]:
        """These go back as if they had not been received."""
        return [a for parcel in parcels for a in self._decide(parcel, Release(parcel), now)]

    def close(self) -> None:
        """The backlog queue cannot be told any more."""
        self.is_open = False
        for parcel in [p for p in self._intake if isinstance(p.outcome, Release | Defer)]:
            self._intake.forget(parcel)

    def open(self, now: float) -> list[Action]:
        """The backlog queue can be told again: all that it did not confirm."""
        self.is_open = True
        self._opened_at = now
        actions = self.complete([p for p in self._intake if p.outcome is Complete], now)
        for parcel in self._intake:
            if isinstance(parcel.outcome, DeadLetter):
                parcel.settling_at = now
                actions.append(parcel.outcome)
        return actions

    def _decide(
        self, parcel: BacklogMessage, outcome: DeadLetter | Defer | Release, now: float
    ) -> list[Action]:
        assert parcel.outcome is None, parcel
        parcel.outcome = outcome
        parcel.settling_at = now
        if self.is_open:
            return [outcome]
        if not isinstance(outcome, DeadLetter):
            self._intake.forget(parcel)
        return []
