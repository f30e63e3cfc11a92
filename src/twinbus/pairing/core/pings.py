"""When the pings of a pair begin, and how long one lives. Pure."""

from __future__ import annotations

from typing import Final

PING_TIME_TO_LIVE_S: Final = 1.0
"""A service that does not know pings keeps one for this long."""

PING_SPACING_S: Final = 0.005
"""Time between the beginnings of two pings of a pair. One costs the SDK about a millisecond; a
thousand at once would delay every send by a second when all entities of a namespace are down."""

PING_JITTER: Final = 0.1
"""Part of the ping interval by which a ping may be late: processes that saw the same failure at the
same time do not ping at the same time."""


def ping_delay_s(interval_s: float, jitter: float) -> float:
    """How late a ping begins after its interval; `jitter` is a random number from 0 to 1."""
    assert 0 <= jitter <= 1
    return interval_s * PING_JITTER * jitter


class PingTurns:
    """Spreads pings over time: few begin at once, many begin one after the other."""

    def __init__(self, spacing_s: float = PING_SPACING_S) -> None:
        self._spacing_s = spacing_s
        self._free_at = 0.0

    def take(self, now: float) -> float:
        at = max(now, self._free_at)
        self._free_at = at + self._spacing_s
        return at
