"""Frames to bytes and back, with shortcuts for the frames that come and go with every message.

The shortcuts know the shapes that pyamqp, rhea and our own writers give these three frames, and
return None for any other, which the general decoder then reads. What follows the numbers of such a
frame (flags and the delivery state) is one of a few byte strings: read once and cached.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from twinbus.amqp import encoding
from twinbus.amqp.composites import LAYOUTS, read_composite, write_composite
from twinbus.amqp.decoding import MALFORMED, Wire, malformed
from twinbus.amqp.performatives import (
    Disposition,
    Flow,
    Modified,
    Performative,
    TransactionalState,
    Transfer,
)
from twinbus.amqp.types import AmqpError, DecodeError
from twinbus.servicebus import conditions

_PERFORMATIVES: Final = frozenset(Performative.__args__)
_FRAME_HEAD: Final = struct.Struct(">IBBH").pack
_U32 = struct.Struct(">I").unpack_from

_TAIL_BYTES_MAX: Final = 32
"""Longest cached rest of a frame. Flags and a state without an error need at most 20."""

_TAILS_CACHED: Final = 256


def encode_frame(
    channel: int, performative: Performative, payload: bytes = b"", *, frame_type: int = 0
) -> bytes:
    """A whole frame: header, performative with every field, payload. `frame_type` 1 is SASL."""
    body = write_composite(performative)
    return _FRAME_HEAD(8 + len(body) + len(payload), 2, frame_type, channel) + body + payload


def decode_performative(body: Wire) -> tuple[Performative, int]:
    """The performative a frame body begins with, and the offset where its payload starts."""
    try:
        if body[1] == 0x53 and body[2] in _SHORTCUTS and body[0] == 0x00:
            found = _SHORTCUTS[body[2]](body)
            if found is not None:
                return found
        performative, offset = read_composite(body, 0)
    except MALFORMED as error:
        raise malformed(error, body) from None
    if type(performative) not in _PERFORMATIVES:
        raise DecodeError(f"{performative!r:.80} is not a performative")
    return performative, offset


def _wide_head(body: Wire) -> tuple[int, int, int]:
    """Field count, offset of the first field and end of a performative that is no list8.

    A count of 0 if it is no list32 either.
    """
    if body[3] != 0xD0:
        return 0, 0, 0
    return _U32(body, 8)[0], 12, 8 + _U32(body, 4)[0]


def decode_transfer(body: Wire) -> tuple[Transfer, int] | None:
    """The transfer of a body that begins with 00 53 14."""
    fields = transfer_fields(body)
    if fields is None:
        return None
    handle, delivery_id, tag, flags, end = fields
    return Transfer(handle, delivery_id, tag, *flags), end


TransferFields = tuple[int, int | None, bytes | None, tuple[Any, ...], int]


def transfer_fields(body: Wire) -> TransferFields | None:
    """Handle, delivery id and tag of a transfer, the fields after them, and where it ends."""
    if body[3] == 0xC0:
        count, offset, end = body[5], 6, 5 + body[4]
    else:
        count, offset, end = _wide_head(body)
    if count < 4 or end > len(body):
        return None
    code = body[offset]
    if code == 0x43:
        handle = 0
        offset += 1
    elif code == 0x52:
        handle = body[offset + 1]
        offset += 2
    elif code == 0x70:
        (handle,) = _U32(body, offset + 1)
        offset += 5
    else:
        return None
    code = body[offset]
    delivery_id: int | None
    if code == 0x52:
        delivery_id = body[offset + 1]
        offset += 2
    elif code == 0x70:
        (delivery_id,) = _U32(body, offset + 1)
        offset += 5
    elif code == 0x43:
        delivery_id = 0
        offset += 1
    elif code == 0x40:
        delivery_id = None
        offset += 1
    else:
        return None
    tag: bytes | None = None
    if body[offset] == 0xA0:
        start = offset + 2
        offset = start + body[offset + 1]
        tag = bytes(body[start:offset])
    elif body[offset] == 0x40:
        offset += 1
    else:
        return None
    tail = bytes(body[offset:end])
    if offset >= end or len(tail) > _TAIL_BYTES_MAX:
        return None
    flags = _transfer_tail(tail, count)
    if flags is None:
        return None
    return handle, delivery_id, tag, flags, end


DISPOSITION_LIST: Final = b"\x00\x53\x15\xc0"
"""First bytes of a disposition whose fields have a size of one byte."""

DispositionFields = tuple[bool, int, int | None, tuple[Any, ...], int]

_WIDE_DISPOSITION: Final = struct.Struct(">IBBBBIBI").unpack_from
_WIDE_DISPOSITION_BYTES: Final = 17


def decode_disposition(body: Wire) -> tuple[Disposition, int] | None:
    """The disposition of a body that begins with 00 53 15."""
    fields = disposition_fields(body)
    if fields is None:
        return None
    role, first, last, flags, end = fields
    return Disposition(role, first, last, *flags), end


def disposition_fields(body: Wire) -> DispositionFields | None:
    """Role, first and last of a disposition, the fields after them, and where it ends.

    Of a body that begins with 00 53 15.
    """
    # Nearly all have both numbers in their widest form: one struct reads them.
    if len(body) > _WIDE_DISPOSITION_BYTES:
        start, size, count, code, first_form, first, last_form, last = _WIDE_DISPOSITION(body)
        if (
            start == 0x005315C0
            and first_form == 0x70
            and last_form == 0x70
            and code in (0x41, 0x42)
            and count >= 3
            and _WIDE_DISPOSITION_BYTES <= size + 5 <= len(body)
        ):
            end = size + 5
            tail = bytes(body[_WIDE_DISPOSITION_BYTES:end])
            flags = _disposition_tail(tail, count) if len(tail) <= _TAIL_BYTES_MAX else None
            return None if flags is None else (code == 0x41, first, last, flags, end)
    return _disposition_fields(body)


def _disposition_fields(body: Wire) -> DispositionFields | None:
    """The same, for every other form of the numbers."""
    if body[3] == 0xC0:
        count, offset, end = body[5], 6, 5 + body[4]
    else:
        count, offset, end = _wide_head(body)
    if count < 3 or end > len(body):
        return None
    code = body[offset]
    if code == 0x56:
        offset += 1
        code = 0x42 - body[offset]
    if code not in (0x41, 0x42):
        return None
    role = code == 0x41
    offset += 1
    code = body[offset]
    if code == 0x52:
        first = body[offset + 1]
        offset += 2
    elif code == 0x70:
        (first,) = _U32(body, offset + 1)
        offset += 5
    elif code == 0x43:
        first = 0
        offset += 1
    else:
        return None
    code = body[offset]
    last: int | None
    if code == 0x52:
        last = body[offset + 1]
        offset += 2
    elif code == 0x70:
        (last,) = _U32(body, offset + 1)
        offset += 5
    elif code == 0x40:
        last = None
        offset += 1
    elif code == 0x43:
        last = 0
        offset += 1
    else:
        return None
    tail = bytes(body[offset:end])
    if offset > end or len(tail) > _TAIL_BYTES_MAX:
        return None
    flags = _disposition_tail(tail, count)
    if flags is None:
        return None
    return role, first, last, flags, end


def decode_flow(body: Wire) -> tuple[Flow, int] | None:
    """The flow of a body that begins with 00 53 13."""
    if body[3] == 0xC0:
        count, offset, end = body[5], 6, 5 + body[4]
    else:
        count, offset, end = _wide_head(body)
    if count < 8 or end > len(body):
        return None
    numbers: list[Any] = []
    for _ in range(8):
        code = body[offset]
        if code == 0x70:
            numbers.append(_U32(body, offset + 1)[0])
            offset += 5
        elif code == 0x52:
            numbers.append(body[offset + 1])
            offset += 2
        elif code == 0x43:
            numbers.append(0)
            offset += 1
        elif code == 0x40:
            numbers.append(None)
            offset += 1
        else:
            return None
    tail = bytes(body[offset:end])
    if offset > end or len(tail) > _TAIL_BYTES_MAX or None in numbers[1:4]:
        return None
    flags = _flow_tail(tail, count)
    if flags is None:
        return None
    return Flow(*numbers, *flags), end


def _cached_reader(cls: type, known: int) -> Callable[[bytes, int], tuple[Any, ...] | None]:
    """A cached reader of the fields of `cls` after the first `known`.

    It returns None for a malformed tail: the general decoder reports the error.
    """
    fields = LAYOUTS[cls].fields

    @lru_cache(maxsize=_TAILS_CACHED)
    def read(tail: bytes, count: int) -> tuple[Any, ...] | None:
        values: list[Any] = []
        offset = 0
        try:
            for index in range(known, len(fields)):
                value = None
                if index < count:
                    value, offset = fields[index].kind.read(tail, offset)
                values.append(fields[index].default if value is None else value)
        except (DecodeError, *MALFORMED):
            return None
        whole = offset == len(tail) and count <= len(fields)
        return tuple(values) if whole and not any(map(_is_mutable, values)) else None

    return read


def _is_mutable(value: object) -> bool:
    """Whether a value must not be handed out twice, or is that of one transaction."""
    return isinstance(value, dict | TransactionalState) or (
        isinstance(value, Modified) and value.message_annotations is not None
    )


_transfer_tail: Final = _cached_reader(Transfer, 3)
_disposition_tail: Final = _cached_reader(Disposition, 3)
_flow_tail: Final = _cached_reader(Flow, 8)

_SHORTCUTS: Final[dict[int, Callable[[Wire], tuple[Any, int] | None]]] = {
    0x13: decode_flow,
    0x14: decode_transfer,
    0x15: decode_disposition,
}


TRANSFER_FLAGS: Final = {
    (settled, more): bytes((0x42 - settled, 0x42 - more, 0x40, 0x40, 0x42, 0x42, 0x42))
    for settled in (False, True)
    for more in (False, True)
}


class TransferPrefix:
    """The start of a link's outgoing transfers.

    Numbers are written in their widest form, so that one struct packs the frame up to its payload.
    """

    __slots__ = ("_flags", "_head", "_mark", "_pack", "_size")

    def __init__(
        self,
        channel: int,
        handle: int,
        tag_size: int,
        settled: bool,
        message_format: int,
        more: bool = False,
    ) -> None:
        form = struct.pack(">BI", 0x70, message_format) if message_format else b"\x43"
        self._flags = form + TRANSFER_FLAGS[settled, more]
        layout = struct.Struct(f">I16sI2s{tag_size}s{len(self._flags)}s")
        self._pack: Callable[..., bytes] = layout.pack
        self._size = layout.size
        self._mark = bytes((0xA0, tag_size))
        head = struct.pack(">BBH4sBB", 2, 0, channel, b"\x00\x53\x14\xc0", layout.size - 13, 11)
        self._head = head + struct.pack(">BIB", 0x70, handle, 0x70)

    def before(self, payload_size: int, delivery_id: int, tag: bytes) -> bytes:
        """The frame up to its payload."""
        return self._pack(
            self._size + payload_size, self._head, delivery_id, self._mark, tag, self._flags
        )

    def frames(
        self,
        first_id: int,
        tags: list[bytes],
        heads: Iterable[bytes],
        rests: Iterable[Wire],
        most_bytes: int,
    ) -> list[Wire]:
        """Frames of deliveries with consecutive ids, three pieces each, up to a larger one.

        A payload is a head and a rest, at most `most_bytes` together.
        """
        pack, least, start, mark, flags = (
            self._pack, self._size, self._head, self._mark, self._flags,
        )  # fmt: skip
        pieces: list[Wire] = []
        number = first_id
        for tag, head, rest in zip(tags, heads, rests, strict=False):
            size = len(head) + len(rest)
            if size > most_bytes:
                break
            pieces += (pack(least + size, start, number, mark, tag, flags), head, rest)
            number += 1
        return pieces


_prefix = lru_cache(maxsize=_TAILS_CACHED)(TransferPrefix)


def encode_transfer_frame(
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    message_format: int,
    settled: bool,
    payload: bytes,
    more: bool = False,
) -> bytes:
    prefix = _prefix(channel, handle, len(tag), settled, message_format, more)
    return prefix.before(len(payload), delivery_id, tag) + payload


_DISPOSITION: Final = struct.Struct(">IBBH4sBBBBIBIB").pack
_STATE_BYTES_MAX: Final = 255 - 14
"""Longest state for which the fields of a disposition still fit a list with a size of one byte."""


def encode_disposition_frame(
    channel: int, role: bool, first: int, last: int, settled: bool, state_bytes: bytes
) -> bytes:
    state_size = len(state_bytes)
    if state_size > _STATE_BYTES_MAX:
        fields = [encoding.write(role), encoding.uint(first), encoding.uint(last)]
        fields += [encoding.write(settled), state_bytes, b"\x42"]
        body = b"\x00\x53\x15" + encoding.list_of(fields)
        return _FRAME_HEAD(8 + len(body), 2, 0, channel) + body
    head = _DISPOSITION(
        27 + state_size,
        2,
        0,
        channel,
        b"\x00\x53\x15\xc0",
        14 + state_size,
        6,
        0x41 if role else 0x42,
        0x70,
        first,
        0x70,
        last,
        0x41 if settled else 0x42,
    )
    return head + state_bytes + b"\x42"


SMALLEST_MAX_FRAME_BYTES = 512
"""AMQP 1.0 part 2.8.7: no peer may ask for less."""


class ProtocolViolation(AmqpError):
    """The peer broke the protocol; the text says how, the condition goes into the CLOSE."""

    def __init__(self, description: str, condition: str = conditions.FRAMING_ERROR) -> None:
        super().__init__(description)
        self.condition = condition


class FrameOutput:
    """The frames that one end of a connection has to send, and two facts that writers need.

    Sessions and links write here; the connection takes everything at once.
    """

    __slots__ = ("_frames", "blocked_bytes", "is_closed", "max_frame_size", "size_bytes")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self.size_bytes = 0
        """Bytes that wait; an owner that delivers limits it."""
        self.blocked_bytes = 0
        """Bytes of frames that wait in sessions for the peer's window."""
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
        frames = self._frames
        if not frames:
            return b""
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        frames.clear()
        self.size_bytes = 0
        return data
