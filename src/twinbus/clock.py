"""The event of a timer that is due.

Core code never reads a clock. It gets `now` with every event and stores in `timer_at` when it wants
the next one; a shell arms one timer and passes in a `TimerFired`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TimerFired"]


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time that a machine stored in `timer_at` has come."""
