"""Reads a ledger without Spark: every record of every file, and a count of what was none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twinbus.ledger.record import FILE_SUFFIX, LedgerError, decode

__all__ = ["Reading", "read"]


def read(directory: Path | str) -> Reading:
    """The records of a ledger, file by file in the order of names, as an iterator that counts."""
    return Reading(Path(directory))


class Reading(Iterator[dict[str, Any]]):
    """An iterator of records. The counts are of what was read so far."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise LedgerError(f"there is no ledger at {directory}: it is not a directory")
        self.records = 0
        self.torn = 0
        """Last lines that a crash, or a writer at work, left unfinished; at most one a file."""
        self.foreign = 0
        """Other lines that are no record: damaged, not ours, or of a later version."""
        self._lines = self._read(sorted(directory.glob(f"*{FILE_SUFFIX}")))

    def __next__(self) -> dict[str, Any]:
        return next(self._lines)

    @property
    def set_aside(self) -> int:
        """All lines that were no record."""
        return self.torn + self.foreign

    def _read(self, paths: list[Path]) -> Iterator[dict[str, Any]]:
        for path in paths:
            with path.open("rb") as file:
                for line in file:
                    record = decode(line)
                    if record is not None:
                        self.records += 1
                        yield record
                    elif not line.endswith(b"\n"):
                        self.torn += 1
                    elif line.strip():
                        self.foreign += 1
