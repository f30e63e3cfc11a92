"""Reads a ledger in a directory without Spark: its records, and what its files show (`chain`).

A file is read once, under whichever of its names (`NAME.jsonl`, `.jsonl.open`, `.jsonl.gz`) it is
there; copies are refused. What else lies below the directory and looks like a part of the ledger is
named, and not passed over in silence.
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
"""What reading a compressed file that is not whole raises."""


@dataclass(frozen=True)
class Inspection:
    """What the files of a ledger are, and what they show together."""

    files: tuple[FileFacts, ...]
    findings: LedgerFindings
    missing: MissingFiles
    alive: frozenset[str]
    """Processes of this host that are at work."""


def read(directory: Path | str) -> Reading:
    """The records of a ledger, file by file in the order of names, as an iterator that counts."""
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
    # Asked before the files are read: who ends meanwhile was alive.
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
    """Whether a file is part of a ledger, by its path below the ledger's directory."""
    return "/" not in path and path[:1] not in {"_", "."} and path.endswith(_SUFFIXES)


def is_unread(path: str) -> bool:
    """Whether a file looks like part of a ledger and is none that a reader takes.

    Hidden files are drafts of programs at work.
    """
    name = path.rpartition("/")[2]
    return FILE_SUFFIX in name and not name.startswith(".") and not is_readable(path)


class Reading(Iterator[dict[str, Any]]):
    """An iterator of records. The counts are of what was read so far."""

    def __init__(self, directory: Path) -> None:
        self.records = 0
        self.torn = 0
        """Last lines that a crash, or a writer at work, left unfinished; at most one a file."""
        self.foreign = 0
        """Other lines that are no record: damaged, not ours, or of a later version."""
        inspection = inspect(directory)
        self.findings = inspection.findings
        """What is missing, doubled or changed, and who stopped without an end."""
        self.missing = inspection.missing
        """Files that were in the ledger and are not there to be read."""
        names = (facts.name for facts in inspection.files)
        taken = [name for name in names if name not in self.findings.refused]
        self._records = self._read(directory, taken)

    def __next__(self) -> dict[str, Any]:
        return next(self._records)

    @property
    def set_aside(self) -> int:
        """All lines that were no record."""
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
    """Every file below a directory; those that are open first, so that none is missed when it is
    renamed meanwhile. Links to directories are not followed.
    """
    for folder, _, names in os.walk(home):
        for name in sorted(names, key=lambda name: not name.endswith(OPEN_SUFFIX)):
            yield Path(folder, name)


def _facts(home: Path, name: str) -> FileFacts | None:
    """The facts of a file; None: it is gone."""
    try:
        with _opened(home, name) as file:
            return facts_of(name, iter(lambda: file.read(PIECE_BYTES), b""))
    except FileNotFoundError:
        return None


def _opened(home: Path, name: str) -> BinaryIO | gzip.GzipFile:
    """The file that is called so, or was until it was ended, which can be at any moment."""
    path = home / name
    if name.endswith(GZIP_SUFFIX):
        return gzip.open(path, "rb")
    try:
        return path.open("rb")
    except FileNotFoundError:
        return path.with_name(name.removesuffix(OPEN_SUFFIX)).open("rb")
