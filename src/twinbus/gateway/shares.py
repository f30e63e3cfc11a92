"""How much of the gateway's memory each client may have for messages without an answer. Pure.

A client may hold as much as is free: one alone half of the bound, two a third each. So a client
whose entity hangs stops itself, the largest holders stop first, and what is free is never used up
by those that are already stopped. `EVERYONE_BYTES` is for each client, whatever the others hold.
"""

from __future__ import annotations

from typing import Final

EVERYONE_BYTES: Final = 256 * 1024
"""About fifty small messages under way, or one batch of Azure Standard: enough to go on sending to
an entity that answers."""


class Share:
    """What one client holds."""

    __slots__ = ("is_paused", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.is_paused = False
        """Nothing is read from the client."""


class Shares:
    """Divides `bytes_max` among the clients that hold something."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        """What all clients hold."""

    @property
    def allowed_bytes(self) -> int:
        """What any one client may hold now."""
        return max(self.bytes_max - self.size_bytes, EVERYONE_BYTES)

    def take(self, share: Share, size_bytes: int) -> bool:
        """Count more for a client; true: stop reading from it."""
        self.size_bytes += size_bytes
        share.size_bytes += size_bytes
        if share.is_paused or share.size_bytes <= self.allowed_bytes:
            return False
        share.is_paused = True
        return True

    def give_back(self, share: Share, size_bytes: int) -> bool:
        """Count less for a client; true: read from it again."""
        self.size_bytes -= size_bytes
        share.size_bytes -= size_bytes
        if not share.is_paused or share.size_bytes > self.allowed_bytes // 2:
            return False
        share.is_paused = False
        return True
