"""Reads a ledger in a directory without Spark: its records, and findings on its files (`chain`).

A file is read once, under one of its names (`NAME.jsonl`, `.jsonl.open`, `.jsonl.gz`); copies are
refused. Other files below the directory that look like a part of the ledger are named.
"""

from __future__ import annotations

import gzip
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from twinbus.ledger.adoption import writers_here
from twinbus.ledger.chain import LedgerFindings, verify
from twinbus.ledger.facts import GZIP_SUFFIX, FileFacts, facts_of
from twinbus.ledger.missing import MissingFiles, is_note, missing_files
from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX, WRITER, LedgerError, decode

PIECE_BYTES: Final = 1 << 20

_SUFFIXES: Final = (FILE_SUFFIX, f"{FILE_SUFFIX}{OPEN_SUFFIX}", f"{FILE_SUFFIX}{GZIP_SUFFIX}")
_DAMAGED: Final = (gzip.BadGzipFile, EOFError, zlib.error)
"""Errors of reading a damaged compressed file."""


@dataclass(frozen=True)
class Inspection:
    """The files of a ledger, and the findings on them."""

    files: tuple[FileFacts, ...]
    findings: LedgerFindings
    missing: MissingFiles
    alive: frozenset[str]
    """Processes of this host that are at work."""


def read(directory: Path | str) -> Reading:
    """Return an iterator over the records of a ledger, in the order of file names."""
    return Reading(Path(directory))


def inspect(directory: Path | str, *, known: Mapping[str, FileFacts] | None = None) -> Inspection:
    """Compare the files of a ledger in a directory; this reads all of them.

    `known` are facts of ended files by name: those are not read again, nor missed if a command
    removed them.
    """
    home = Path(directory)
    if not home.is_dir():
        raise LedgerError(f"there is no ledger at {home}: it is not a directory")
    kept = known or {}
    paths = [str(path.relative_to(home)) for path in _below(home)]
    names = sorted(path for path in paths if is_readable(path))
    # Before the files are read: a process that ends meanwhile was alive.
    alive, dead = writers_here(home)
    files, broken = [], []
    for name in names:
        try:
            facts = kept.get(name) or _facts(home, name)
        except _DAMAGED:
            broken.append(name)
        else:
            if facts is not None:
                files.append(facts)
    notes = [(home / name).read_text(errors="replace") for name in paths if is_note(name)]
    missing = missing_files([facts.name for facts in files], notes)
    findings = verify(
        [*files, *(kept[name] for name in missing.removed if name in kept)],
        now_ms=time.time_ns() // 1_000_000,
        removed=missing.removed,
        alive=alive,
        dead=dead,
        unread=[*filter(is_unread, paths), *broken],
    )
    return Inspection(tuple(files), findings, missing, alive)


def is_readable(path: str) -> bool:
    """Return whether a file is part of a ledger, by its path below the ledger's directory."""
    return "/" not in path and path[:1] not in {"_", "."} and path.endswith(_SUFFIXES)


def is_unread(path: str) -> bool:
    """Return whether a file looks like part of a ledger and is not read.

    Hidden files are drafts of running programs.
    """
    name = path.rpartition("/")[2]
    return FILE_SUFFIX in name and not name.startswith(".") and not is_readable(path)


class Reading(Iterator[dict[str, Any]]):
    """An iterator of records, with counts of the lines read so far."""

    def __init__(self, directory: Path) -> None:
        self.records = 0
        self.torn = 0
        """Incomplete last lines, of a crash or of a running writer; at most one in a file."""
        self.foreign = 0
        """Other rejected lines: damaged, not of Twinbus, or of a later version."""
        inspection = inspect(directory)
        self.findings = inspection.findings
        """Missing, doubled and changed files, and writers that stopped without an end."""
        self.missing = inspection.missing
        """Files that were in the ledger and are gone."""
        names = (facts.name for facts in inspection.files)
        taken = [name for name in names if name not in self.findings.refused]
        self._records = self._read(directory, taken)

    def __next__(self) -> dict[str, Any]:
        return next(self._records)

    @property
    def rejected(self) -> int:
        """Number of rejected lines."""
        return self.torn + self.foreign

    def _read(self, directory: Path, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        for name in sorted(names):
            with _opened(directory, name) as file:
                for line in file:
                    record = decode(line)
                    if record is None:
                        if not line.endswith(b"\n"):
                            self.torn += 1
                        elif line.strip():
                            self.foreign += 1
                    elif record["operation"] != WRITER:
                        self.records += 1
                        yield record


def _below(home: Path) -> Iterator[Path]:
    """Yield every file below a directory; open files first, so that none is missed if it is
    renamed meanwhile. Links to directories are not followed.
    """
    for folder, _, names in os.walk(home):
        for name in sorted(names, key=lambda name: not name.endswith(OPEN_SUFFIX)):
            yield Path(folder, name)


def _facts(home: Path, name: str) -> FileFacts | None:
    """Return the facts of a file; None if it is gone."""
    try:
        with _opened(home, name) as file:
            return facts_of(name, iter(lambda: file.read(PIECE_BYTES), b""))
    except FileNotFoundError:
        return None


def _opened(home: Path, name: str) -> BinaryIO | gzip.GzipFile:
    """Open a file by its name, or by its new name if it ended meanwhile."""
    path = home / name
    if name.endswith(GZIP_SUFFIX):
        return gzip.open(path, "rb")
    try:
        return path.open("rb")
    except FileNotFoundError:
        return path.with_name(name.removesuffix(OPEN_SUFFIX)).open("rb")
