"""The files of a ledger in a directory of this machine, with the standard library alone.

`place_files` does the same for every place that the tables can have, and needs pyarrow.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from twinbus.ledger.facts import GZIP_SUFFIX
from twinbus.ledger.record import LedgerError

PIECE_BYTES: Final = 1 << 20
TRIES: Final = 5
"""Tries to list a directory while its files are renamed."""


class FoundFile(NamedTuple):
    name: str
    size_bytes: int
    modified_ms: int


class LedgerPlace(Protocol):
    """What the inspection of a ledger asks of its place."""

    def found(self, directory: str = "") -> list[FoundFile]: ...

    def directories(self) -> list[str]: ...

    def below(self, directory: str) -> list[str]: ...

    def exists(self, name: str = "") -> bool: ...

    def text(self, name: str) -> str: ...

    def pieces(self, name: str) -> Iterator[bytes]: ...


class LocalFiles:
    """The files in a directory. Names are relative to it; LedgerError if it cannot be used."""

    def __init__(self, directory: Path | str) -> None:
        self._root = Path(directory).absolute()

    def found(self, directory: str = "") -> list[FoundFile]:
        """Return the files in a directory; [] if it does not exist."""
        for _ in range(TRIES):
            # A writer may rename a file while this lists it.
            with suppress(FileNotFoundError):
                return [
                    FoundFile(entry.name, stat.st_size, stat.st_mtime_ns // 1_000_000)
                    for entry in self._listed(directory)
                    if entry.is_file() and (stat := entry.stat())
                ]
        raise LedgerError(f"{self._root} cannot be listed: its files change all the time")

    def directories(self) -> list[str]:
        return [entry.name for entry in self._listed("") if entry.is_dir()]

    def below(self, directory: str) -> list[str]:
        """Return the files in a directory and its subdirectories, relative to the place."""
        found = []
        for folder, _, names in os.walk(self._root / directory):
            found += [os.path.relpath(os.path.join(folder, name), self._root) for name in names]
        return found

    def exists(self, name: str = "") -> bool:
        return (self._root / name).exists()

    def text(self, name: str) -> str:
        """Return the text of a small file; "" if it cannot be read."""
        try:
            return b"".join(self.pieces(name)).decode("utf-8", "replace")
        except LedgerError:
            return ""

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file in pieces, decompressed if its name ends in .gz."""
        path = self._root / name
        with (
            self._in_words(name),
            gzip.open(path) if name.endswith(GZIP_SUFFIX) else path.open("rb") as stream,
        ):
            while piece := stream.read(PIECE_BYTES):
                yield piece

    def _listed(self, directory: str) -> list[os.DirEntry[str]]:
        with self._in_words(directory):
            try:
                with os.scandir(self._root / directory) as entries:
                    return [entry for entry in entries if not entry.name.startswith(".")]
            except FileNotFoundError:
                return []

    @contextmanager
    def _in_words(self, name: str) -> Iterator[None]:
        """Raise what cannot be read as LedgerError."""
        try:
            yield
        except (OSError, EOFError, zlib.error) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise LedgerError(f"{self._root / name} cannot be read: {why}") from error
