"""The question whether an entity of the primary takes messages again (SPEC 5), as data."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PING_CONTENT_TYPE", "PING_TIME_TO_LIVE_S", "PingMessage"]

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
"""What a service that knows pings tells them by, so that no receiver ever sees one."""

PING_TIME_TO_LIVE_S = 1.0
"""A service that does not know pings keeps one no longer than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PingMessage:
    """An empty message that asks an entity whether it takes messages; a shell sends it."""

    session_id: str
    """Fresh for every ping. An entity with sessions takes no message without one, and a session of
    its own never holds up a receiver of real ones."""
    content_type: str = PING_CONTENT_TYPE
    time_to_live_s: float = PING_TIME_TO_LIVE_S
    body: bytes = b""
