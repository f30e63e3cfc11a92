"""Names that nothing else has: lock tokens, and ids for messages that came without one."""

from __future__ import annotations

import os
import uuid
from itertools import count


class LockTokens:
    """Gives fresh tokens: 8 random bytes of this start, then a counter. A uuid4 would cost 2 us."""

    def __init__(self) -> None:
        self._start = os.urandom(8)
        self._numbers = count(1)

    def __call__(self) -> bytes:
        return self._start + next(self._numbers).to_bytes(8, "big")


def new_message_id() -> str:
    """An id for a message that came without one, as Azure gives it: 32 hex digits."""
    return uuid.uuid4().hex
