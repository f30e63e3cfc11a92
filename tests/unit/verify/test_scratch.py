"""Frames as lines of text, however the bytes are split."""

from __future__ import annotations

import pytest

from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import Begin, Close, Error, Transfer
from twinbus.amqp.types import Symbol, UInt
from twinbus.verify.scratch import FrameText

HEADER = b"AMQP\x03\x01\x00\x00"
KEEP_ALIVE = b"\x00\x00\x00\x08\x02\x00\x00\x00"
ERROR = Error(condition=Symbol("amqp:not-allowed"), description="too many")
STREAM = (
    HEADER
    + encode_frame(0, Begin(handle_max=UInt(255)))
    + KEEP_ALIVE
    + encode_frame(0, Transfer(handle=UInt(1)), b"SharedAccessSignature sig=secret")
    + encode_frame(0, Close(error=ERROR))
)


@pytest.mark.parametrize("size", [1, 7, 8, 50, len(STREAM)])
def test_each_frame_is_a_line_without_its_payload(size: int) -> None:
    text = FrameText("<-")
    parts = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    lines = [line for part in parts for line in text.lines(part)]
    header, begin, transfer, close = lines
    assert header == "<- protocol header 03010000"
    assert begin.startswith("<- Begin(")
    assert "handle_max=255" in begin
    assert transfer.startswith("<- Transfer(handle=1")
    assert transfer.endswith(" and 32 bytes")
    assert "amqp:not-allowed" in close
    assert "too many" in close
    assert not any("secret" in line for line in lines)


def test_bytes_that_are_no_frame_are_a_line_too() -> None:
    text = FrameText("<-")
    assert list(text.lines(b"\x00\x00\x00\x0c\x02\x00\x00\x00junk")) == [
        "<- a frame of 4 bytes that cannot be decoded"
    ]
    assert list(text.lines(b"\x00\x00\x00\x01HTTP/1.1")) == [
        "<- 0000000148545450, which starts no frame"
    ]
    assert list(text.lines(encode_frame(0, Close()))) == ["<- Close()"]
