"""A clock in virtual time that drives one state machine.

clock, entity = VirtualClock(), EntityFailover(failover_interval_s=10, ping_interval_s=60)
entity.handle(SendFailed(counts=True), clock.now)
assert clock.run(entity, until=10.0) == [(10.0, Divert())]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from twinbus.timers import TimerFired

__all__ = ["Machine", "VirtualClock"]

FIRINGS_MAX = 1_000_000
"""Timers in one run. A machine that asks for more in a test has stopped making progress."""


class Machine(Protocol):
    """A state machine with time: it takes events, and says when it wants to be called next."""

    @property
    def timer_at(self) -> float | None:
        """When the machine wants a `TimerFired`; None: it waits for nothing."""

    def handle(self, event: Any, now: float) -> Sequence[object]:
        """Take one event at time `now`; return what the shell must do, in order."""


class VirtualClock:
    """A clock that moves only when told to, and fires the timers it passes."""

    __slots__ = ("now",)

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __repr__(self) -> str:
        return f"VirtualClock(now={self.now:g})"

    def advance(self, seconds: float) -> float:
        """Move on without firing anything; the new time."""
        assert seconds >= 0, f"time does not go back, not by {seconds} s"
        self.now += seconds
        return self.now

    def run(
        self, machine: Machine, until: float, *, announcements: bool = False
    ) -> list[tuple[float, object]]:
        """What `machine` wanted done on the way to `until`, and when: a timeline.

        Announcements (actions whose class has `announces = True`: there for logs and listeners,
        nothing to perform) are left out unless asked for.
        """
        assert until >= self.now, f"time does not go back, not from {self.now} to {until}"
        timeline: list[tuple[float, object]] = []
        for _ in range(FIRINGS_MAX):
            due = machine.timer_at
            if due is None or due > until:
                self.now = until
                return timeline
            # A timer armed for a moment that has passed fires now: a shell cannot do better.
            self.now = max(self.now, due)
            timeline += [
                (self.now, action)
                for action in machine.handle(TimerFired(), self.now)
                if announcements or not getattr(action, "announces", False)
            ]
        raise AssertionError(f"{machine!r} asked for {FIRINGS_MAX} timers before {until}")
