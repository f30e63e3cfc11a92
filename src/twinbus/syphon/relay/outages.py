"""Logs one warning for each outage of a side and one for its end, for all relays together."""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger("twinbus.syphon")

SAME_OUTAGE_S: Final = 60.0
"""Losses of several relays within this time are one outage."""


class Outages:
    """The sides that the relays of one process have lost."""

    def __init__(self) -> None:
        self._lost_at: dict[str, dict[str, float]] = {"primary": {}, "secondary": {}}
        """By side and backlog queue, when it was lost."""
        self._warned_at = dict.fromkeys(self._lost_at, float("-inf"))

    def lost(self, side: str, queue: str, reason: str, now: float) -> None:
        """Note that a relay lost a side, or did not get it back."""
        lost_at = self._lost_at[side]
        level = logging.DEBUG
        if queue not in lost_at and now >= self._warned_at[side] + SAME_OUTAGE_S:
            level = logging.WARNING
            self._warned_at[side] = now
        lost_at.setdefault(queue, now)
        log.log(level, "the %s is lost, reconnecting: %s [%s]", side, reason, queue)

    def back(self, side: str, queue: str, now: float) -> None:
        """Note that a relay has a side again."""
        since = self._lost_at[side].pop(queue, None)
        if since is not None and not self._lost_at[side]:
            self._warned_at[side] = float("-inf")
            log.warning("the %s is back after %.0f s", side, now - since)
