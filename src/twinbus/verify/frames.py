"""The frames of a namespace under test as text: of the SDK's clients, and of raw connections."""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Final

from twinbus.amqp.connection import Connection
from twinbus.amqp.events import Closed, Ended, Event
from twinbus.amqp.frames import decode_performative
from twinbus.amqp.types import DecodeError

FRAMES_MAX: Final = 400
HEADER_BYTES: Final = 8
_SIZE_AND_OFFSET: Final = struct.Struct(">IB")


class FrameLog(logging.Handler):
    """Keeps the last frames: what the SDK logs, and what other connections hand over."""

    _FRAMES: Final = logging.getLogger("azure.servicebus")

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._lines: deque[str] = deque(maxlen=FRAMES_MAX)
        self._before = logging.NOTSET

    def start(self) -> None:
        self._before = self._FRAMES.level
        self._FRAMES.setLevel(logging.DEBUG)
        self._FRAMES.addHandler(self)

    def stop(self) -> None:
        self._FRAMES.removeHandler(self)
        self._FRAMES.setLevel(self._before)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(("->", "<-")):
            self.keep(text)

    def keep(self, text: str) -> None:
        """Keep a frame."""
        self._lines.append(text)

    def take(self) -> tuple[str, ...]:
        """The frames since the last call."""
        lines = tuple(self._lines)
        self._lines.clear()
        return lines


class TracedConnection(Connection):
    """Hands each frame of both directions to `keep`, and the end of the connection to `on_end`."""

    def __init__(
        self,
        *given: Any,
        keep: Callable[[str], None],
        on_end: Callable[[Event], None],
        **options: Any,
    ) -> None:
        super().__init__(*given, **options)
        self._keep = keep
        self._on_end = on_end
        self._sent, self._heard = FrameText("->"), FrameText("<-")

    def receive(self, data: bytes, now_ms: int) -> Iterator[list[Event]]:
        """Take bytes from the peer, as `Connection` does."""
        for line in self._heard.lines(data):
            self._keep(line)
        for events in super().receive(data, now_ms):
            for event in events:
                if isinstance(event, Closed | Ended):
                    self._on_end(event)
            yield events

    def take_output(self, now_ms: int) -> bytes:
        """Everything to send since the last call, as `Connection` does."""
        data = super().take_output(now_ms)
        for line in self._sent.lines(data):
            self._keep(line)
        return data


class FrameText:
    """Splits the bytes of one direction into frames, and says in a line what each is.

    Payloads are left out, because that of a token is a secret.
    """

    def __init__(self, arrow: str) -> None:
        self._arrow = arrow
        self._rest = b""

    def lines(self, data: bytes) -> Iterator[str]:
        """The frames that these bytes complete; keep-alive frames are left out."""
        data = self._rest + data
        while len(data) >= HEADER_BYTES:
            if data.startswith(b"AMQP"):
                size = offset = HEADER_BYTES
                yield f"{self._arrow} protocol header {data[4:HEADER_BYTES].hex()}"
            else:
                size, words = _SIZE_AND_OFFSET.unpack_from(data)
                offset = words * 4
                if size < HEADER_BYTES:
                    # No frame. The connection ends for the same reason.
                    yield f"{self._arrow} {data[:HEADER_BYTES].hex()}, which starts no frame"
                    size = len(data)
                elif len(data) < size:
                    break
                elif offset < size:
                    yield f"{self._arrow} {_text(data[offset:size])}"
            data = data[size:]
        self._rest = data


def _text(body: bytes) -> str:
    try:
        performative, end = decode_performative(body)
    except DecodeError:
        return f"a frame of {len(body)} bytes that cannot be decoded"
    given = ((one.name, getattr(performative, one.name)) for one in fields(performative))
    named = ", ".join(f"{name}={value!r}" for name, value in given if value is not None)
    payload = f" and {len(body) - end} bytes" if end < len(body) else ""
    return f"{type(performative).__name__}({named}){payload}"
