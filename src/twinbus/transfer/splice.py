"""Changes to a raw section that leave every byte of the rest as it was.

Decoding a section and encoding it again would change encodings that mean the same, and costs more:
here the entries of a map and the fields of a list are found by skipping, and the bytes between the
changes are copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from twinbus.amqp.encoding import compound, list_of
from twinbus.amqp.message import section_at
from twinbus.amqp.types import DecodeError, decode, skip

__all__ = [
    "NULL",
    "Entry",
    "Field",
    "field_value",
    "list_fields",
    "map_entries",
    "with_entries",
    "with_fields",
]

NULL: Final = b"\x40"
_LIST_EMPTY: Final = 0x45
_COMPACT: Final = frozenset((0xC0, 0xC1))


class Entry(NamedTuple):
    """One entry of a map: its key, and where it and its value begin and end."""

    key: str | None
    """None: a key that is no text, which none of ours is."""
    start: int
    value_at: int
    end: int


class Field(NamedTuple):
    """One field of a list: where it begins and ends."""

    start: int
    end: int


def map_entries(raw: bytes) -> list[Entry]:
    """The entries of a raw map section; none of b""."""
    if not raw:
        return []
    at, end, count = _head(raw)
    if count % 2:
        raise DecodeError(f"the map has {count} items: a key without its value")
    entries = []
    for _ in range(count // 2):
        key, value_at = decode(raw, at)
        text = key if isinstance(key, str) else None
        entry = Entry(text, at, value_at, skip(raw, value_at))
        entries.append(entry)
        at = entry.end
    _require_end(at, end)
    return entries


def list_fields(raw: bytes) -> list[Field]:
    """The fields of a raw list section; none of b""."""
    if not raw:
        return []
    at, end, count = _head(raw)
    fields = []
    for _ in range(count):
        field = Field(at, skip(raw, at))
        fields.append(field)
        at = field.end
    _require_end(at, end)
    return fields


def with_entries(
    raw: bytes,
    section: int,
    entries: list[Entry],
    *,
    without: Collection[str] = (),
    added: Mapping[bytes, bytes] | None = None,
) -> bytes:
    """The map section without some keys, and with more entries (encoded) at its end.

    A map that would be empty is left out: b"".
    """
    kept = [raw[entry.start : entry.end] for entry in entries if entry.key not in without]
    new = [key + value for key, value in added.items()] if added else []
    if not kept and not new:
        return b""
    count = 2 * (len(kept) + len(new))
    return bytes((0x00, 0x53, section)) + compound(0xC1, 0xD1, count, b"".join((*kept, *new)))


def with_fields(
    raw: bytes, section: int, fields: list[Field], changes: Mapping[int, bytes]
) -> bytes:
    """The list section with the fields at some places replaced by these, encoded.

    As it is if there are no changes; longer if a place lies behind its end.
    """
    if not changes:
        return raw
    items = [raw[start:end] for start, end in fields]
    items += [NULL] * (max(changes) + 1 - len(items))
    for index, item in changes.items():
        items[index] = item
    return bytes((0x00, 0x53, section)) + list_of(items)


def field_value(raw: bytes, fields: list[Field], index: int) -> Any:
    """The decoded field at `index`; None where the list is shorter."""
    return decode(raw, fields[index].start)[0] if index < len(fields) else None


def _head(raw: bytes) -> tuple[int, int, int]:
    """Where the items of a section's list or map begin and end, and how many there are."""
    _, content = section_at(raw, 0)
    code = raw[content]
    end = skip(raw, content)
    _require_end(end, len(raw))
    if code == _LIST_EMPTY:
        return end, end, 0
    if code in _COMPACT:
        return content + 3, end, raw[content + 2]
    return content + 9, end, int.from_bytes(raw[content + 5 : content + 9], "big")


def _require_end(at: int, end: int) -> None:
    if at != end:
        raise DecodeError(f"the section's items end at byte {at}, the section at byte {end}")
