"""The frames that one end of a connection has to send.

Sessions and links write here; the connection takes everything at once. Also the two facts that
writers need: the largest frame that the peer takes, and whether CLOSE was sent.
"""

from __future__ import annotations

from twinbus.amqp.types import AmqpError
from twinbus.servicebus import conditions

SMALLEST_MAX_FRAME_BYTES = 512
"""AMQP 1.0 part 2.8.7: no peer may ask for less."""


class ProtocolViolation(AmqpError):
    """The peer broke the protocol; the text says how, the condition goes into the CLOSE."""

    def __init__(self, description: str, condition: str = conditions.FRAMING_ERROR) -> None:
        super().__init__(description)
        self.condition = condition


class FrameOutput:
    __slots__ = ("_frames", "is_closed", "max_frame_size", "size_bytes")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self.size_bytes = 0
        """Bytes that wait; an owner that delivers limits it."""
        self.max_frame_size = SMALLEST_MAX_FRAME_BYTES
        """The largest frame that the peer takes."""
        self.is_closed = False
        """CLOSE was sent, or the connection is over: frames are dropped."""

    def put(self, frame: bytes) -> None:
        if not self.is_closed:
            self._frames.append(frame)
            self.size_bytes += len(frame)

    def put_two(self, start: bytes, rest: bytes) -> None:
        """Add one frame in two pieces, which `take` joins."""
        if not self.is_closed:
            self._frames += (start, rest)
            self.size_bytes += len(start) + len(rest)

    def take(self) -> bytes:
        data = b"".join(self._frames)
        self._frames.clear()
        self.size_bytes = 0
        return data
