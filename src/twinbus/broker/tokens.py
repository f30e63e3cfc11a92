"""Lock tokens: 16 bytes that no two locks of a broker share, before or after a restart."""

from __future__ import annotations

import os
from itertools import count


class LockTokens:
    """Gives fresh tokens: 8 random bytes of this start, then a counter. A uuid4 would cost 2 us."""

    def __init__(self) -> None:
        self._start = os.urandom(8)
        self._numbers = count(1)

    def __call__(self) -> bytes:
        return self._start + next(self._numbers).to_bytes(8, "big")
