"""XXH64 of texts, one after the other, as Spark's `xxhash64`: the hash of a text seeds the next."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

_SEED: Final = 42
_MASK: Final = (1 << 64) - 1
_P1: Final = 0x9E3779B185EBCA87
_P2: Final = 0xC2B2AE3D27D4EB4F
_P3: Final = 0x165667B19E3779F9
_P4: Final = 0x85EBCA77C2B2AE63
_P5: Final = 0x27D4EB2F165667C5


def xxhash64_of(texts: Iterable[str | None]) -> int:
    """Return the hash of texts as a signed number; one that is null changes nothing."""
    found = _SEED
    for text in texts:
        if text is not None:
            found = _xxh64(text.encode(), found)
    return found - (1 << 64) if found >> 63 else found


def _turned(number: int, bits: int) -> int:
    number &= _MASK
    return (number << bits | number >> (64 - bits)) & _MASK


def _round(so_far: int, word: int) -> int:
    return _turned(so_far + word * _P2, 31) * _P1 & _MASK


def _xxh64(data: bytes, seed: int) -> int:
    size = len(data)
    stripes = size // 32
    words = struct.unpack_from(f"<{size // 8}Q", data)
    if stripes:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        for place in range(stripes * 4):
            lanes[place % 4] = _round(lanes[place % 4], words[place])
        found = sum(_turned(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            found = (found ^ _round(0, lane)) * _P1 + _P4
    else:
        found = seed + _P5
    found += size
    for word in words[stripes * 4 :]:
        found = _turned(found ^ _round(0, word), 27) * _P1 + _P4
    rest = data[len(words) * 8 :]
    if len(rest) >= 4:
        [word] = struct.unpack_from("<I", rest)
        found = _turned(found ^ word * _P1, 23) * _P2 + _P3
        rest = rest[4:]
    for byte in rest:
        found = _turned(found ^ byte * _P5, 11) * _P1
    found &= _MASK
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    return found ^ found >> 32
