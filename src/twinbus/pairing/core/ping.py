"""The question whether an entity of the primary takes messages again (SPEC 5), as data.

And when it may be asked: `PingTurns` spreads the pings of many entities that failed over together.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PING_CONTENT_TYPE", "PING_SPACING_S", "PING_TIME_TO_LIVE_S", "PingMessage", "PingTurns"]

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
"""What a service that knows pings tells them by, so that no receiver ever sees one."""

PING_TIME_TO_LIVE_S = 1.0
"""A service that does not know pings keeps one no longer than this."""

PING_SPACING_S = 0.005
"""Between the beginnings of two pings of a pair. One costs the SDK about a millisecond; a thousand
at once would hold up every send for a second, just when all entities of a namespace are down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PingMessage:
    """An empty message that asks an entity whether it takes messages; a shell sends it."""

    session_id: str
    """Fresh for every ping. An entity with sessions takes no message without one, and a session of
    its own never holds up a receiver of real ones."""
    content_type: str = PING_CONTENT_TYPE
    time_to_live_s: float = PING_TIME_TO_LIVE_S
    body: bytes = b""


class PingTurns:
    """When each of many may begin: at once while there are few, else one after the other."""

    __slots__ = ("_free_at", "_spacing_s")

    def __init__(self, spacing_s: float = PING_SPACING_S) -> None:
        self._spacing_s = spacing_s
        self._free_at = 0.0

    def take(self, now: float) -> float:
        """The time at which whoever asks may begin."""
        at = max(now, self._free_at)
        self._free_at = at + self._spacing_s
        return at
