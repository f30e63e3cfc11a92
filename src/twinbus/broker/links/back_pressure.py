"""When to render no more for one client, and when to stop reading from it.

A client that reads slowly, or not at all, must not make the broker keep what it cannot write: its
deliveries wait in their queue, and its own frames, which ask for answers, wait in its socket.
"""

from __future__ import annotations

import asyncio

OUTPUT_BYTES_MAX = 1024 * 1024
"""Bytes rendered for one client and not yet written; a turn's deliveries may exceed it once."""

UNWRITTEN_BYTES_MAX = 4 * OUTPUT_BYTES_MAX
"""Bytes of any kind that wait for their commit before the broker stops reading from the client."""

TURN_BYTES_MAX = 512 * 1024
"""Bytes taken from one client before the others have their turn. uvloop alone would read eight
megabytes, which is seconds of work if they are small frames."""


class BackPressure:
    __slots__ = ("_transport", "_turn_bytes", "is_writable", "unwritten_bytes", "waits_for_disk")

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._turn_bytes = 0
        self.is_writable = True
        """The transport's buffer takes more."""
        self.waits_for_disk = False
        """Too much of all clients waits for the disk."""
        self.unwritten_bytes = 0
        """Collected, and waiting for its commit."""

    def made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def takes_more(self, rendered_bytes: int) -> bool:
        """Whether to render another delivery; credit alone would not bound the memory used."""
        return self.is_writable and rendered_bytes + self.unwritten_bytes < OUTPUT_BYTES_MAX

    def received(self, size_bytes: int) -> None:
        """Count what came in this turn."""
        self._turn_bytes += size_bytes
        if self._turn_bytes >= TURN_BYTES_MAX:
            self.apply()

    def end_turn(self) -> None:
        """Let the client send again."""
        was_long, self._turn_bytes = self._turn_bytes >= TURN_BYTES_MAX, 0
        if was_long:
            self.apply()

    @property
    def may_read(self) -> bool:
        is_bounded = self.unwritten_bytes < UNWRITTEN_BYTES_MAX
        has_turn = self._turn_bytes < TURN_BYTES_MAX
        return self.is_writable and is_bounded and has_turn and not self.waits_for_disk

    def apply(self) -> None:
        """Read from the client, or stop it; call after each change."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.may_read:
            transport.resume_reading()
        else:
            transport.pause_reading()
