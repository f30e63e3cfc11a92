"""Reads a ledger without Spark: every record of every file, and a count of what was none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from twinbus.ledger.missing import is_note, missing_files
from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX, LedgerError, decode


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
        names = [path.name for path in directory.iterdir()]
        notes = [(directory / name).read_text(errors="replace") for name in names if is_note(name)]
        self.missing = missing_files(names, notes)
        """Files that were in the ledger and are not there to be read."""
        self._lines = self._read(directory)

    def __next__(self) -> dict[str, Any]:
        return next(self._lines)

    @property
    def set_aside(self) -> int:
        """All lines that were no record."""
        return self.torn + self.foreign

    def _read(self, directory: Path) -> Iterator[dict[str, Any]]:
        # Listed first, the open ones are not missed when they are renamed meanwhile.
        paths = {*directory.glob(f"*{FILE_SUFFIX}{OPEN_SUFFIX}")}
        paths = {_ended(path) for path in paths} | {*directory.glob(f"*{FILE_SUFFIX}")}
        for path in sorted(paths):
            with _opened(path) as file:
                for line in file:
                    record = decode(line)
                    if record is not None:
                        self.records += 1
                        yield record
                    elif not line.endswith(b"\n"):
                        self.torn += 1
                    elif line.strip():
                        self.foreign += 1


def _ended(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(OPEN_SUFFIX))


def _opened(path: Path) -> BinaryIO:
    """The file that is called so, or will be once it is ended, which can be at any moment."""
    try:
        return Path(f"{path}{OPEN_SUFFIX}").open("rb")
    except FileNotFoundError:
        return path.open("rb")
