"""Reads a ledger in a directory without Spark: its records, and the findings on its files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from twinbus.ledger import LedgerFindings, facts_of, verify
from twinbus.ledger.facts import is_note, is_readable, is_unread, missing_files
from twinbus.ledger.open_file import writers_here
from twinbus.ledger.record import OPEN_SUFFIX, WRITER, decode


class Reading(Iterator[dict[str, Any]]):
    """An iterator over the records, in the order of file names, with counts of rejected lines."""

    def __init__(self, directory: Path) -> None:
        self.torn = 0
        """Incomplete last lines; at most one in a file."""
        self.foreign = 0
        # Before the files are read: a process that ends meanwhile was alive.
        alive, dead = writers_here(directory)
        names = [path.name for path in directory.iterdir()]
        # Open files first, so that none is missed if it is renamed meanwhile.
        opened = sorted(filter(is_readable, names), key=lambda name: not name.endswith(OPEN_SUFFIX))
        contents = {name: _content(directory / name) for name in opened}
        notes = [(directory / name).read_text() for name in names if is_note(name)]
        self.missing = missing_files(contents, notes)
        """Files that a command removed."""
        self.findings: LedgerFindings = verify(
            [facts_of(name, [content]) for name, content in contents.items()],
            now_ms=time.time_ns() // 1_000_000,
            removed=self.missing.removed,
            alive=alive,
            dead=dead,
            unread=filter(is_unread, names),
        )
        taken = sorted(contents.keys() - self.findings.refused.keys())
        self._records = self._read(contents[name] for name in taken)

    def __next__(self) -> dict[str, Any]:
        return next(self._records)

    def _read(self, contents: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        for line in (line for content in contents for line in content.splitlines(keepends=True)):
            record = decode(line)
            if record is None:
                is_whole = line.endswith(b"\n")
                self.torn += not is_whole
                self.foreign += is_whole and bool(line.strip())
            elif record["operation"] != WRITER:
                yield record


def open_gaps(findings: LedgerFindings) -> list[str]:
    """Return the processes whose gaps no person has closed."""
    return [gap.process for gap in findings.gaps if gap.closed_by is None]


def is_whole(findings: LedgerFindings) -> bool:
    """Nothing is missing or changed, and every gap is closed. Refused files cost nothing."""
    wrong = (findings.missing_files, findings.missing_writers, findings.changed, findings.unread)
    return not any(wrong) and not open_gaps(findings)


def read(directory: Path | str) -> Reading:
    """Return an iterator over the records of a ledger."""
    return Reading(Path(directory))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        # It ended meanwhile.
        return path.with_name(path.name.removesuffix(OPEN_SUFFIX)).read_bytes()
