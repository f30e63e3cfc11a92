"""Changes parts of a raw section and keeps every other byte.

Decoding and encoding again would change equivalent encodings, and is slower. Here the entries of a
map and the fields of a list are found by skipping, and the bytes between changes are copied. Every
message of a drained backlog comes through here twice, so the loops are written for speed: plain
tuples, and a table of widths instead of a call for each value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from twinbus.amqp.decoding import SIZE_OF_1, WIDTHS, decode, skip
from twinbus.amqp.encoding import compound
from twinbus.amqp.message import section_at
from twinbus.amqp.types import DecodeError

NULL: Final = b"\x40"

Entry = tuple[bytes, int, int, int]
"""One entry of a map: the text of its key, its start, the start of its value, its end. The text is
b"" if the key is not a string or symbol."""

_SHORT_TEXT: Final = frozenset((0xA1, 0xA3))
_LONG_TEXT: Final = frozenset((0xB1, 0xB3))
_LIST_EMPTY: Final = 0x45
_COMPACT: Final = frozenset((0xC0, 0xC1))


def entries_of(raw: bytes) -> list[Entry]:
    """Return the entries of a raw map section; none for b""."""
    if not raw:
        return []
    at, end, count = _head(raw)
    if count & 1:
        raise DecodeError(f"the map has {count} items: a key without its value")
    entries = []
    try:
        for _ in range(count >> 1):
            start = at
            at, key = _key(raw, at)
            value_at = at
            width = WIDTHS[raw[at]]
            if width > 0:
                at += width
            elif width == SIZE_OF_1:
                at += 2 + raw[at + 1]
            else:
                at = skip(raw, at)
            entries.append((key, start, value_at, at))
    except IndexError:
        at = len(raw) + 1
    _require_end(at, end)
    return entries


def fields_of(raw: bytes) -> list[int]:
    """Return the start of each field of a raw list section, and the last end; none for b""."""
    if not raw:
        return []
    at, end, count = _head(raw)
    bounds = [at]
    try:
        for _ in range(count):
            width = WIDTHS[raw[at]]
            if width > 0:
                at += width
            elif width == SIZE_OF_1:
                at += 2 + raw[at + 1]
            else:
                at = skip(raw, at)
            bounds.append(at)
    except IndexError:
        at = len(raw) + 1
    _require_end(at, end)
    return bounds


def field_value(raw: bytes, bounds: list[int], index: int) -> Any:
    """Return the decoded field at `index`; None if it is null or the list is shorter."""
    if index + 1 >= len(bounds) or raw[bounds[index]] == 0x40:
        return None
    return decode(raw, bounds[index])[0]


def with_entries(
    raw: bytes,
    section: int,
    entries: list[Entry],
    *,
    without: Collection[bytes] = (),
    added: Collection[bytes] = (),
) -> bytes:
    """Return the map section without some keys, and with encoded entries added at its end.

    An empty map is left out: b"".
    """
    kept = [raw[entry[1] : entry[3]] for entry in entries if entry[0] not in without]
    count = 2 * (len(kept) + len(added))
    if not count:
        return b""
    return bytes((0x00, 0x53, section)) + compound(0xC1, 0xD1, count, b"".join((*kept, *added)))


def with_fields(raw: bytes, section: int, bounds: list[int], changes: Mapping[int, bytes]) -> bytes:
    """Return the list section with the fields at some indexes replaced by encoded ones.

    It becomes longer if an index is beyond its end.
    """
    if not changes:
        return raw
    count = max(len(bounds) - 1, 0)
    items = [raw[bounds[i] : bounds[i + 1]] for i in range(count)]
    items += [NULL] * (max(changes) + 1 - count)
    for index, item in changes.items():
        items[index] = item
    return bytes((0x00, 0x53, section)) + compound(0xC0, 0xD0, len(items), b"".join(items))


def _key(raw: bytes, at: int) -> tuple[int, bytes]:
    """Return where the key at `at` ends, and its text."""
    code = raw[at]
    if code in _SHORT_TEXT:
        end = at + 2 + raw[at + 1]
        return end, raw[at + 2 : end]
    end = skip(raw, at)
    return end, raw[at + 5 : end] if code in _LONG_TEXT else b""


def _head(raw: bytes) -> tuple[int, int, int]:
    """Return where the items of a list or map section begin and end, and their number."""
    _, content = section_at(raw, 0)
    code = raw[content]
    end = skip(raw, content)
    _require_end(end, len(raw))
    if code == _LIST_EMPTY:
        return end, end, 0
    # A code, then the size and the count, each of one byte or of four.
    count_at, at = (content + 2, content + 3) if code in _COMPACT else (content + 5, content + 9)
    if at > end:
        raise DecodeError(f"the section of {len(raw)} bytes has no room for the count of its items")
    return at, end, int.from_bytes(raw[count_at:at], "big")


def _require_end(at: int, end: int) -> None:
    if at != end:
        raise DecodeError(f"the section's items end at byte {at}, the section at byte {end}")
