"""The order of frames that one end may write, checked for everything that it wrote.

A frame names a channel that was begun and a handle that was attached, and none that has ended:
peers that check this, such as the .NET SDK, close the connection otherwise.
"""

from __future__ import annotations

from twinbus.amqp.frames import decode_performative
from twinbus.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Transfer,
)

FRAME_TYPE_AMQP = 0


class FrameRules:
    """Takes what one end writes and asserts that each frame may follow those before it."""

    def __init__(self, largest_bytes: int = 1 << 32) -> None:
        self.largest_bytes = largest_bytes
        self.names: list[str] = []
        """The performatives that came, by name."""
        self._rest = b""
        self._is_open = self._is_closed = False
        self._channels: dict[int, set[int]] = {}
        """Attached handles by begun channel."""

    def take(self, data: bytes) -> None:
        data = self._rest + data
        while len(data) >= 8:
            if data.startswith(b"AMQP"):
                data = data[8:]
                continue
            size = int.from_bytes(data[:4])
            if len(data) < size:
                break
            assert size <= self.largest_bytes, f"a frame of {size} bytes"
            assert not self._is_closed, f"a frame after CLOSE: {data[8:size]!r:.80}"
            if size > 8 and data[5] == FRAME_TYPE_AMQP:
                performative, _ = decode_performative(data[8:size])
                self.names.append(type(performative).__name__)
                self._check(performative, int.from_bytes(data[6:8]))
            data = data[size:]
        self._rest = data

    def _check(self, frame: Performative, channel: int) -> None:
        assert self._is_open is not isinstance(frame, Open), frame
        match frame:
            case Open():
                self._is_open = True
            case Close():
                self._is_closed = True
            case Begin():
                assert channel not in self._channels, frame
                self._channels[channel] = set()
            case _:
                assert channel in self._channels, (
                    f"{frame} on channel {channel}, which is not begun"
                )
                self._check_link(frame, self._channels[channel])
        if isinstance(frame, End):
            del self._channels[channel]

    def _check_link(self, frame: Performative, handles: set[int]) -> None:
        match frame:
            case Attach():
                assert frame.handle not in handles, frame
                handles.add(frame.handle)
            case Detach():
                assert frame.handle in handles, frame
                handles.remove(frame.handle)
            case Transfer():
                assert frame.handle in handles, frame
            case Flow():
                assert frame.handle is None or frame.handle in handles, frame
            case _:
                assert isinstance(frame, Disposition | End), frame
