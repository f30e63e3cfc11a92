"""The two commits that an LMDB file holds, read from its bytes: LMDB itself shows only one. Pure.

Each commit writes its number, and where its index begins, on one of the first two pages in turn.
LMDB takes the higher number and has no checksum of it, so one changed bit can bring back the commit
before, whole and sound. Therefore the inventory names its commit too, and both must agree.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from twinbus.broker.storage.inventory import read_inventory
from twinbus.broker.storage.records import INVENTORY_KEY
from twinbus.errors import StoreDamaged

_PAGE = struct.Struct("=QHHHH")
"""Number, padding, kind, end of the places of nodes, begin of the nodes."""

_NODE = struct.Struct("=HHHH")
_COMMIT = struct.Struct("=QQQ")
"""Where the index begins, the last page, the number of the commit."""

_PAGE_SIZE_AT, _COMMIT_AT = 40, 128
_BRANCH, _LEAF = 1, 2
_NO_PAGE = 2**64 - 1
_DEPTH_MAX = 32
"""As in LMDB."""


@dataclass(frozen=True, slots=True)
class Commit:
    number: int
    inventory_number: int
    """The commit that its inventory names; 0: it has none, or one of before this was kept."""


def check_last_commits(data: memoryview) -> None:
    """Raise `StoreDamaged` unless the commits in this file follow one another, as each says."""
    (page_bytes,) = struct.unpack_from("=I", data, _PAGE_SIZE_AT)
    try:
        before, last = sorted(
            (_commit(data, page_bytes, page) for page in (0, 1)), key=lambda found: found.number
        )
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise StoreDamaged(f"the index of a commit cannot be read ({error})") from error
    if not last.inventory_number:
        return
    for each in (before, last):
        if each.inventory_number not in (0, each.number):
            raise StoreDamaged(
                f"the index is wrong: commit {each.number} shows that of {each.inventory_number}"
            )
    if before.number != last.number - 1:
        raise StoreDamaged(
            f"the index is wrong: its last two commits are {before.number} and {last.number}"
        )


def _commit(data: memoryview, page_bytes: int, page: int) -> Commit:
    root, _, number = _COMMIT.unpack_from(data, page * page_bytes + _COMMIT_AT)
    if root == _NO_PAGE:
        return Commit(number, 0)
    stored = read_inventory(_find(data, page_bytes, root, INVENTORY_KEY))
    return Commit(number, 0 if stored is None else stored.commit)


def _find(data: memoryview, page_bytes: int, page: int, key: bytes) -> memoryview | None:
    """The value of a key in the tree that begins on this page."""
    for _ in range(_DEPTH_MAX):
        at = page * page_bytes
        _, _, kind, lower, _ = _PAGE.unpack_from(data, at)
        count = (lower - _PAGE.size) // 2
        places = struct.unpack_from(f"={max(count, 0)}H", data, at + _PAGE.size)
        following = None
        for index, place in enumerate(places):
            low, high, flags, key_bytes = _NODE.unpack_from(data, at + place)
            start = at + place + _NODE.size
            found = bytes(data[start : start + key_bytes])
            if kind & _LEAF and found == key:
                return data[start + key_bytes : start + key_bytes + (low | high << 16)]
            # The first key of a branch stands for everything below.
            if kind & _BRANCH and (index == 0 or found <= key):
                following = low | high << 16 | flags << 32
        if following is None:
            return None
        page = following
    raise ValueError("it is too deep")
