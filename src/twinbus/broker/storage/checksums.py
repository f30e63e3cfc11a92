"""The checksum at the end of each stored record: the CRC-32 of its key and of the record. Pure.

A changed bit is noticed, and a record that is found under another's key too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NewType, cast
from zlib import crc32

Data = bytes | memoryview

Sealed = NewType("Sealed", bytes)
"""A record with its checksum: the types refuse to store any other."""

CHECKSUM = struct.Struct("<I")
CHECKSUM_BYTES = CHECKSUM.size

_SOUND = 0x2144_DF1C
"""The CRC-32 of anything that is followed by its own CRC-32."""


def seal(key: bytes, record: bytes, rest: bytes = b"") -> Sealed:
    """The record as it is stored, with its checksum; `rest` follows the record."""
    checksum = CHECKSUM.pack(crc32(rest, crc32(record, crc32(key))))
    return Sealed(b"".join((record, rest, checksum)))


def seal_each(keys: list[bytes], heads: list[bytes], rests: list[bytes]) -> list[Sealed]:
    """What `seal` returns for each key, its head and its rest.

    No call for each, and no copy of a record without its checksum: together they would take as long
    as the checksums.
    """
    join, pack = b"".join, CHECKSUM.pack
    sealed = [
        join((head, rest, pack(crc32(rest, crc32(key + head)))))
        for key, head, rest in zip(keys, heads, rests, strict=True)
    ]
    return cast("list[Sealed]", sealed)


def is_sound(key: Data | bytearray, sealed: Data) -> bool:
    return crc32(sealed, crc32(key)) == _SOUND


def are_sound(keys: list[bytes], sealed: Sequence[Data]) -> bool:
    """Whether there is a record for each key, and all are sound."""
    if len(keys) != len(sealed):
        return False
    sums = [crc32(record, crc32(key)) for key, record in zip(keys, sealed, strict=True)]
    return sums.count(_SOUND) == len(sums)


def own_key(key: bytes, sealed: Data, is_stored: Callable[[bytes], object]) -> bytes:
    """The key of a record that is damaged under this one.

    It is another key if the record is sound under one that differs by a bit: then the key changed
    on the disk, not the record. But if something is stored under that key too, a copy of it was put
    in the place of this record.
    """
    for bit in range(8 * len(key)):
        other = bytearray(key)
        other[bit // 8] ^= 1 << bit % 8
        if is_sound(other, sealed):
            own = bytes(other)
            return key if is_stored(own) else own
    return key


def unsealed(sealed: Data) -> Data:
    """The record without its checksum."""
    return sealed[:-CHECKSUM_BYTES]


def spoiled(sealed: Sealed) -> Sealed:
    """The sealed record with a checksum that is wrong for sure."""
    return Sealed(sealed[:-1] + bytes([sealed[-1] ^ 0xFF]))
