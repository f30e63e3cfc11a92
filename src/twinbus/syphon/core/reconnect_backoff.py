"""How long a side that was lost is left alone before it is tried again."""

from __future__ import annotations

from typing import Final

__all__ = ["FIRST_RECONNECT_S", "LONGEST_RECONNECT_S", "ReconnectBackoff"]

FIRST_RECONNECT_S: Final = 0.5
LONGEST_RECONNECT_S: Final = 5.0
"""Between two attempts to connect: so long does a namespace that is back wait for its messages."""


class ReconnectBackoff:
    """Pauses that double, from the shortest again once a connection has held for a while."""

    def __init__(self) -> None:
        self._pause_s = 0.0

    def after(self, held_s: float) -> float:
        """The pause after a connection that was had, or asked for, for `held_s` seconds."""
        is_new = held_s > LONGEST_RECONNECT_S
        grown_s = FIRST_RECONNECT_S if is_new else max(FIRST_RECONNECT_S, self._pause_s * 2)
        self._pause_s = min(grown_s, LONGEST_RECONNECT_S)
        return self._pause_s
