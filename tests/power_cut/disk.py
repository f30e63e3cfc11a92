"""A disk that keeps after a power cut only what was synced, and of the rest what chance decides.

Pure: `fuse` serves it as a file system. It is stricter than most: to sync a file makes its bytes
durable, not its name; a name is durable once its directory was synced.
"""

from __future__ import annotations

import itertools
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

PAGE_BYTES = 4096
SECTOR_BYTES = 512
"""What a disk writes whole or not at all."""

ZEROS = bytes(PAGE_BYTES)
ROOT = 1


@dataclass
class Contents:
    """The bytes of a file; pages that were never written are zeros."""

    size: int = 0
    pages: dict[int, bytes] = field(default_factory=dict)

    def read(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        first, last = offset // PAGE_BYTES, (end - 1) // PAGE_BYTES
        whole = b"".join(self.pages.get(page, ZEROS) for page in range(first, last + 1))
        return whole[offset - first * PAGE_BYTES : end - first * PAGE_BYTES]

    def write(self, offset: int, data: bytes) -> None:
        self.size = max(self.size, offset + len(data))
        position = 0
        while position < len(data):
            page, start = divmod(offset + position, PAGE_BYTES)
            part = data[position : position + PAGE_BYTES - start]
            if len(part) < PAGE_BYTES:
                old = self.pages.get(page, ZEROS)
                part = old[:start] + part + old[start + len(part) :]
            self.pages[page] = part
            position += PAGE_BYTES - start

    def truncate(self, size: int) -> None:
        if size < self.size:
            last, rest = divmod(size, PAGE_BYTES)
            for page in [page for page in self.pages if page > last or (page == last and not rest)]:
                del self.pages[page]
            if rest and last in self.pages:
                self.pages[last] = self.pages[last][:rest].ljust(PAGE_BYTES, b"\0")
        self.size = size

    def copy(self) -> Contents:
        return Contents(self.size, dict(self.pages))


@dataclass
class File:
    """A file as its writers see it, as it is on the disk, and the writes between the two."""

    number: int
    mode: int
    now: Contents = field(default_factory=Contents)
    synced: Contents = field(default_factory=Contents)
    unsynced: list[tuple[int, bytes] | int] = field(default_factory=list)
    """In order: offset and data of a write, or the size that a truncation left."""

    def write(self, offset: int, data: bytes) -> None:
        self.now.write(offset, data)
        self.unsynced.append((offset, data))

    def truncate(self, size: int) -> None:
        self.now.truncate(size)
        self.unsynced.append(size)

    def sync(self) -> None:
        if self.unsynced:
            for change in self.unsynced:
                _apply(self.synced, change)
            self.unsynced.clear()

    def cut(self, chance: Random, kept_share: float) -> None:
        """Lose the power: of each unsynced write some sectors are kept, and the rest is gone."""
        for change in self.unsynced:
            for part in _sectors(change):
                if chance.random() < kept_share:
                    _apply(self.synced, part)
        self.unsynced.clear()
        self.now = self.synced.copy()


@dataclass
class Directory:
    """Names as programs see them and as they are on the disk."""

    number: int
    mode: int
    now: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)


Entry = tuple[Directory, str, int | None]
"""A name in a directory and the node that it names; None: the name is removed."""


class Disk:
    """All files and directories, by their numbers."""

    def __init__(self) -> None:
        self.nodes: dict[int, File | Directory] = {ROOT: Directory(ROOT, stat.S_IFDIR | 0o700)}
        self._numbers = itertools.count(ROOT + 1)
        self._unsynced_names: list[tuple[Entry, ...]] = []
        """In order; the entries of one operation, such as a rename, change together."""

    def directory(self, number: int) -> Directory:
        node = self.nodes[number]
        if not isinstance(node, Directory):
            raise NotADirectoryError
        return node

    def file(self, number: int) -> File:
        node = self.nodes[number]
        if not isinstance(node, File):
            raise IsADirectoryError
        return node

    def find(self, parent: int, name: str) -> File | Directory:
        number = self.directory(parent).now.get(name)
        if number is None:
            raise FileNotFoundError
        return self.nodes[number]

    def make(self, parent: int, name: str, mode: int) -> File | Directory:
        if name in self.directory(parent).now:
            raise FileExistsError
        kind = Directory if stat.S_ISDIR(mode) else File
        node = kind(next(self._numbers), mode)
        self.nodes[node.number] = node
        self._name((self.directory(parent), name, node.number))
        return node

    def remove(self, parent: int, name: str) -> None:
        node = self.find(parent, name)
        if isinstance(node, Directory) and node.now:
            raise OSError(39, "not empty")
        self._name((self.directory(parent), name, None))

    def rename(self, parent: int, name: str, new_parent: int, new_name: str) -> None:
        node = self.find(parent, name)
        self._name(
            (self.directory(parent), name, None),
            (self.directory(new_parent), new_name, node.number),
        )

    def sync_names(self, number: int) -> None:
        """Make the names of a directory durable, and with them all of each operation on it."""
        left = []
        for entries in self._unsynced_names:
            if any(directory.number == number for directory, _, _ in entries):
                _put(entries, is_synced=True)
            else:
                left.append(entries)
        self._unsynced_names = left

    def flush(self) -> None:
        """Write everything out, as an operating system does by itself after some seconds."""
        for number, node in self.nodes.items():
            if isinstance(node, File):
                node.sync()
            else:
                self.sync_names(number)

    def cut(self, chance: Random, kept_share: float, kept_names: float) -> None:
        """Lose the power; the two shares are of unsynced bytes and of unsynced names."""
        for entries in self._unsynced_names:
            if chance.random() < kept_names:
                _put(entries, is_synced=True)
        self._unsynced_names.clear()
        for node in self.nodes.values():
            if isinstance(node, Directory):
                node.now = dict(node.synced)
            else:
                node.cut(chance, kept_share)

    def _name(self, *entries: Entry) -> None:
        _put(entries, is_synced=False)
        self._unsynced_names.append(entries)


def _put(entries: tuple[Entry, ...], *, is_synced: bool) -> None:
    for directory, name, number in entries:
        names = directory.synced if is_synced else directory.now
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number


def _apply(contents: Contents, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        contents.truncate(change)
    else:
        contents.write(*change)


def _sectors(change: tuple[int, bytes] | int) -> Iterator[tuple[int, bytes] | int]:
    """A write in parts that each lie within a sector; a truncation is one part."""
    if isinstance(change, int):
        yield change
        return
    offset, data = change
    position = 0
    while position < len(data):
        room = SECTOR_BYTES - (offset + position) % SECTOR_BYTES
        yield offset + position, data[position : position + room]
        position += room
