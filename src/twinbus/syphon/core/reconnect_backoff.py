"""The delay before a lost connection is made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FIRST_RECONNECT_S: Final = 0.5
LONGEST_RECONNECT_S: Final = 5.0
"""Maximum reconnect delay after recovery."""

LONGEST_MISSING_S: Final = 60.0
"""The same while the namespace answers that the backlog queue does not exist: it may be gone for
good, and a queue that is made again is served within this time."""

JITTER: Final = 0.5
"""Up to this share of a delay is left out by chance, so that clients do not come back together."""


class ReconnectBackoff:
    """Delays that double, and start over once a connection has lasted for a while."""

    def __init__(self, draw: Callable[[], float]) -> None:
        """`draw` returns random numbers from 0 to 1."""
        self._draw = draw
        self._pause_s = 0.0

    def after(self, held_s: float, *, is_missing: bool = False) -> float:
        """Return the delay after a connection (or an attempt) that lasted `held_s` seconds.

        `is_missing`: it ended because the queue does not exist.
        """
        is_new = held_s > LONGEST_RECONNECT_S
        grown_s = FIRST_RECONNECT_S if is_new else max(FIRST_RECONNECT_S, self._pause_s * 2)
        self._pause_s = min(grown_s, LONGEST_MISSING_S if is_missing else LONGEST_RECONNECT_S)
        return self._pause_s * (1 - JITTER * self._draw())
