"""Messages of one sender that look alike, read together.

Most senders give every message the same header, annotations and properties, and another id and
body. `PlainShape` is what such messages have in common, learned from one that `parse` read. Of the
next ones all bytes but the id, the body and two times that decide nothing are compared, none is
decoded. For a message that matches, `parse` would return what was learned, with another id and
body; tests/property/test_plain_shapes.py holds the two to each other.

A plain message has an id that is a short string, no session, no scheduled time, one data section
and no footer. All others take the general path, which also reports errors.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from twinbus.amqp.decoding import MALFORMED, skip
from twinbus.amqp.message import decode_header, outline
from twinbus.amqp.types import DecodeError
from twinbus.broker.messages.incoming import parse
from twinbus.broker.messages.rendering import ABSOLUTE_EXPIRY_TIME, CREATION_TIME, UINT_MAX
from twinbus.broker.refusals import Refusal

ID_BYTES_MAX: Final = 64
"""Longest id of a plain message: `MESSAGE_BYTES` covers its memory, whatever its characters."""

FIXED_BYTES_MAX: Final = 4 * 1024
"""Longest part that is compared: each link keeps one."""

LEARNING_COST: Final = 32
"""Messages that a link must bring before another shape is learned. Learning takes as long as the
general path of two or three messages, so senders whose messages never look alike lose a tenth."""

CREDIT_MAX: Final = 64 * LEARNING_COST

_U32: Final = struct.Struct(">I")
_SHORT_STRING, _TIMESTAMP = 0xA1, 0x83
_SHORT_BINARY, _SHORT_LIST = 0xA0, 0xC0
_TIME_BYTES: Final = 8

Spans = Sequence[tuple[bytes, int, int]]
"""Tag, start and end of each message in the bytes of its read (`amqp.events.Span`)."""


class PlainRun:
    """Messages of one shape; each list has an entry for each of them."""

    __slots__ = ("ahead", "ids", "message_ids", "prefix", "rests", "sizes", "ttl_ms")

    def __init__(self, prefix: bytes, ttl_ms: int) -> None:
        self.prefix = prefix
        """The start of each stored payload; the rest of it is the sender's bytes as they came."""
        self.ttl_ms = ttl_ms
        self.ids: list[bytes] = []
        self.message_ids: list[str] = []
        self.rests: list[bytes] = []
        self.sizes: list[int] = []
        self.ahead: object = None
        """What was worked out before the run is stored (`engine.runs`)."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, first: int, last: int) -> PlainRun:
        """The messages from `first` on and before `last`."""
        part = PlainRun(self.prefix, self.ttl_ms)
        part.ids, part.message_ids = self.ids[first:last], self.message_ids[first:last]
        part.rests, part.sizes = self.rests[first:last], self.sizes[first:last]
        return part

    def cut(self, count: int) -> None:
        """Keep the first `count` messages."""
        for each in (self.ids, self.message_ids, self.rests, self.sizes):
            del each[count:]


class PlainShape:
    """What the messages of one sender have in common.

        head | id | first | time | second | time | third, size of the body | body

    Without times `first` and `second` are empty.
    """

    __slots__ = (
        "_first",
        "_fixed_bytes",
        "_head",
        "_is_wide",
        "_rest_at",
        "_second",
        "_third",
        "_unpack",
        "body_at",
        "fixed",
        "id_at",
        "id_end",
        "prefix",
        "ttl_ms",
    )

    def __init__(
        self, wire: bytes, id_at: int, id_end: int, times: list[int], body_at: int, rest_at: int
    ) -> None:
        """`times`: offsets of one or two times that may differ. `body_at`: of the data section."""
        self._is_wide = wire[body_at + 3] != _SHORT_BINARY
        size_at = body_at + 4
        content_at = size_at + (4 if self._is_wide else 1)
        bounds = [id_end, *(bound for time in times for bound in (time, time + _TIME_BYTES))]
        bounds = [id_end, id_end] * (2 - len(times)) + bounds
        start_1, end_1, start_2, end_2, start_3 = bounds
        self._head = wire[:id_at]
        self._first, self._second = wire[start_1:end_1], wire[start_2:end_2]
        self._third = wire[start_3:size_at]
        layout = struct.Struct(
            f">{id_at}s{id_end - id_at}s{end_1 - start_1}s{start_2 - end_1}x{end_2 - start_2}s"
            f"{start_3 - end_2}x{content_at - start_3}s"
        )
        assert layout.size == content_at, layout.format
        self._unpack = layout.unpack_from
        self._fixed_bytes = content_at
        self._rest_at = rest_at
        self.id_at, self.id_end, self.body_at = id_at, id_end, body_at
        self.fixed = wire[id_end:body_at]
        """The sample's bytes between the id and the body."""
        self.prefix = b""
        self.ttl_ms = 0

    @classmethod
    def of(cls, wire: bytes) -> PlainShape | None:
        """The shape of that message; None if it is not plain."""
        try:
            offsets = outline(wire)
            if offsets is None or offsets[4] > FIXED_BYTES_MAX:
                return None
            incoming = parse(wire, lambda: "")
            delivery_at, _, properties_at, application_at, body_at = offsets
            found = _id_and_times(wire, properties_at, application_at)
            if found is None:
                return None
            id_at, id_end, times = found
            ttl_ms = decode_header(wire[:delivery_at]).ttl or 0
        except (DecodeError, Refusal, *MALFORMED):
            return None  # The general path says what is wrong.
        if incoming.session_id is not None or incoming.is_ping or incoming.scheduled_for_ms:
            return None
        rest = wire[properties_at:]
        if not incoming.payload.endswith(rest):
            return None
        if len(times) == 2 and ttl_ms in (0, UINT_MAX):
            times = []  # They are the time to live.
        shape = cls(wire, id_at, id_end, times, body_at, properties_at)
        shape.prefix = incoming.payload[: -len(rest)]
        shape.ttl_ms = incoming.ttl_ms
        return shape

    def read(self, data: bytes, spans: Spans) -> PlainRun:
        """The messages, from the first on, that have this shape."""
        run = PlainRun(self.prefix, self.ttl_ms)
        add_id, add_text = run.ids.append, run.message_ids.append
        add_rest, add_size = run.rests.append, run.sizes.append
        unpack, head, rest_at = self._unpack, self._head, self._rest_at
        first, second, third = self._first, self._second, b""
        last_size = -1
        for _, start, stop in spans:
            size = stop - start
            if size != last_size:
                third, last_size = self._third_of(size), size
                if not third:
                    break
            found, raw_id, found_1, found_2, found_3 = unpack(data, start)
            if found != head or found_3 != third or found_1 != first or found_2 != second:
                break
            try:
                add_text(raw_id.decode())
            except UnicodeDecodeError:
                break
            add_id(raw_id)
            add_rest(data[start + rest_at : stop])
            add_size(size)
        return run

    def count(self, data: bytes, spans: Spans, most_bytes: int) -> int:
        """How many messages, from the first on, have this shape and at most that size."""
        unpack, head = self._unpack, self._head
        first, second, third = self._first, self._second, b""
        last_size, count = -1, 0
        for _, start, stop in spans:
            size = stop - start
            if size != last_size:
                third, last_size = self._third_of(size), size
                if not third or size > most_bytes:
                    break
            found, raw_id, found_1, found_2, found_3 = unpack(data, start)
            if found != head or found_3 != third or found_1 != first or found_2 != second:
                break
            # Other ids are read one by one: they may not be UTF-8.
            if not raw_id.isascii():
                break
            count += 1
        return count

    def _third_of(self, size: int) -> bytes:
        """The last compared part of a message of that size; empty if none can have it."""
        body_bytes = size - self._fixed_bytes
        if body_bytes < 0 or (body_bytes > 0xFF and not self._is_wide):
            return b""
        return self._third + (_U32.pack(body_bytes) if self._is_wide else bytes((body_bytes,)))


def _id_and_times(wire: bytes, at: int, end: int) -> tuple[int, int, list[int]] | None:
    """Where the id starts and ends, and where the two times start, in the properties at `at`.

    None if the id is not a short string.
    """
    code = wire[at + 3 : at + 4]
    if end == at or code not in (b"\xc0", b"\xd0"):
        return None
    count, offset = (
        (wire[at + 5], at + 6) if code == b"\xc0" else (_U32.unpack_from(wire, at + 8)[0], at + 12)
    )
    if not count or wire[offset] != _SHORT_STRING or not 0 < wire[offset + 1] <= ID_BYTES_MAX:
        return None
    id_at = offset + 2
    offset = id_end = id_at + wire[offset + 1]
    times = []
    for index in range(1, min(count, CREATION_TIME + 1)):
        if index in (ABSOLUTE_EXPIRY_TIME, CREATION_TIME) and wire[offset] == _TIMESTAMP:
            times.append(offset + 1)
        offset = skip(wire, offset)
    return id_at, id_end, times


class PlainShapes:
    """The shape of the messages that one link brings, learned again when they change."""

    __slots__ = ("_credit", "shape")

    def __init__(self) -> None:
        self.shape: PlainShape | None = None
        self._credit = CREDIT_MAX

    def brought(self, count: int) -> None:
        """Note that the link brought so many messages."""
        self._credit = min(CREDIT_MAX, self._credit + count)

    def learn(self, wire: bytes) -> PlainShape | None:
        """Learn the shape of that message; None if it is not plain, or it is too early to learn."""
        if self._credit < LEARNING_COST:
            return None
        self._credit -= LEARNING_COST
        self.shape = PlainShape.of(wire)
        return self.shape
