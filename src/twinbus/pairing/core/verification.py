"""When a pair last saw that a backlog queue can take over, and when it looks again. Pure.

A healthy pair sends nothing to the secondary. Without a look now and then its status would claim a
protection that may have ended hours ago.
"""

from __future__ import annotations

import math
from typing import Final

from twinbus.pairing.core.secondary import jittered

FIRST_S: Final = 10.0
"""Time after pairing until the first look: a program that starts has more urgent work."""

EVERY_S: Final = 180.0
"""Time between two looks that succeed; a divert that is stored counts as one."""

AGAIN_S: Final = 30.0
"""Time after a look that failed: a connection that is refused costs nothing."""


class Verification:
    """What is known of the protection of one pair."""

    def __init__(self) -> None:
        self.verified_at: float | None = None
        """When a backlog queue last answered, in unix seconds; None: not yet."""
        self.error = ""
        """Why the last look failed; empty: it succeeded, or there was none yet."""
        self._due_at = math.inf

    def begin(self, now: float, jitter: float) -> None:
        """Look for the first time soon; `jitter` is from 0 to 1."""
        self._due_at = now + jittered(FIRST_S, jitter)

    def succeeded(self, now: float, at: float, jitter: float = 0.0) -> None:
        """A backlog queue answered at the unix time `at`, which is `now` on the pair's clock."""
        self.verified_at, self.error = at, ""
        self._due_at = now + jittered(EVERY_S, jitter)

    def failed(self, reason: str, now: float, jitter: float) -> None:
        """No backlog queue answered."""
        self.error = reason
        self._due_at = now + jittered(AGAIN_S, jitter)

    def wait_s(self, now: float) -> float:
        """Time until the next look; 0: now."""
        return max(0.0, self._due_at - now)
