"""The event of a timer that has come due.

Core code never reads a clock. It gets `now` with every event and returns in `timer_at` when it
wants to be called next; its shell arms one timer and hands in a `TimerFired`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time that a machine asked for in `timer_at` has come."""
