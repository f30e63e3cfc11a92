"""The inventory: what all records of a store must add up to. Pure.

LMDB has no checksums of its pages: a bit changed in one can hide records or show old ones, each of
which is sound. So each commit also stores how many records there are, the sum of what they are, and
its own number.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from zlib import crc32

from twinbus.broker.storage.checksums import CHECKSUM_BYTES, Data, is_sound, seal
from twinbus.broker.storage.records import INVENTORY_KEY, MESSAGE

_INVENTORY = struct.Struct("<QQQ")
_COUNTED = struct.Struct("<QQ")
"""Without the number."""

_WRAP = 2**64


@dataclass(slots=True)
class Inventory:
    count: int = 0
    """Records, those of the format and of the inventory aside."""
    total: int = 0
    commit: int = 0
    """The number of the commit that stored it; 0: it was stored without."""

    def add(self, key: Data, sealed: Data) -> None:
        self.count += 1
        self.total = (self.total + _worth(key, sealed)) % _WRAP

    def drop(self, key: Data, sealed: Data) -> None:
        self.count -= 1
        self.total = (self.total - _worth(key, sealed)) % _WRAP

    def add_messages(self, keys: Collection[Data]) -> None:
        self.count += len(keys)
        self.total = (self.total + sum(map(crc32, keys))) % _WRAP

    def drop_messages(self, keys: Collection[Data]) -> None:
        self.count -= len(keys)
        self.total = (self.total - sum(map(crc32, keys))) % _WRAP

    def pack(self, commit: int) -> bytes:
        """The record as this commit stores it."""
        return seal(INVENTORY_KEY, _INVENTORY.pack(self.count % _WRAP, self.total, commit))


def read_inventory(sealed: Data | None) -> Inventory | None:
    """The stored inventory; None if it is missing or damaged."""
    if sealed is None or not is_sound(INVENTORY_KEY, sealed):
        return None
    layout = _COUNTED if len(sealed) == _COUNTED.size + CHECKSUM_BYTES else _INVENTORY
    return Inventory(*layout.unpack_from(sealed))


def _worth(key: Data, sealed: Data) -> int:
    # A message is written once under its key, so the key stands for it: it is removed unread.
    if key[0] == MESSAGE:
        return crc32(key)
    return int.from_bytes(sealed[-CHECKSUM_BYTES:], "little")
