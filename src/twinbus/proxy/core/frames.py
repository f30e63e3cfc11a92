"""Cuts a stream of AMQP into whole frames, which are passed on byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from twinbus.amqp.types import DecodeError

FRAME_BYTES_MAX: Final = 2 * 1024 * 1024
"""The largest frames that a known client asks for have 1 MiB (Qpid JMS)."""

AMQP, SASL = 0, 1
"""Types of frames."""

_HEADER: Final = b"AMQP"
_HEADER_BYTES: Final = 8
_START: Final = struct.Struct(">IBBH")


@dataclass(frozen=True, slots=True)
class WholeFrame:
    """One frame, or a protocol header."""

    raw: bytes
    """As it came."""
    body: bytes
    """The performative and its payload; empty in a protocol header and in a heartbeat."""
    kind: int = AMQP
    channel: int = 0


class FrameReader:
    """The bytes of one direction of a connection."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = b""

    def read(self, data: bytes) -> Iterator[WholeFrame]:
        """Yield each frame that is complete; DecodeError if these bytes are no AMQP."""
        data = self._buffer + data
        self._buffer = b""
        position, end = 0, len(data)
        while end - position >= _HEADER_BYTES:
            if data.startswith(_HEADER, position):
                # As a size it would be a frame of more than a gigabyte.
                after = position + _HEADER_BYTES
                yield WholeFrame(data[position:after], b"")
                position = after
                continue
            size, offset, kind, channel = _START.unpack_from(data, position)
            if not _HEADER_BYTES <= size <= FRAME_BYTES_MAX or not 8 <= offset * 4 <= size:
                raise DecodeError(
                    f"a frame of {size} bytes (data offset {offset * 4}); the proxy takes 8 to"
                    f" {FRAME_BYTES_MAX}"
                )
            if end - position < size:
                break
            after = position + size
            yield WholeFrame(
                data[position:after], data[position + offset * 4 : after], kind, channel
            )
            position = after
        self._buffer = data[position:]
