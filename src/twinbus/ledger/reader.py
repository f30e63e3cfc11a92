"""Reads a ledger in a directory without Spark: its records, and findings on its files (`chain`).

A file is read once, under one of its names (`NAME.jsonl`, `.jsonl.open`, `.jsonl.gz`); copies are
refused. Other files below the directory that look like a part of the ledger are named.

A note, `removed-<id>.json`, names files that a command removes; it is written before the first
removal, and kept for ever: a file that it names and that is there was not removed yet, or was put
back. A missing file that no note names was deleted or not copied (`chain`).
"""

from __future__ import annotations

import gzip
import json
import os
import re
import time
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from twinbus.ledger.chain import LedgerFindings, verify
from twinbus.ledger.facts import GZIP_SUFFIX, FileFacts, facts_of, place_of, stem_of
from twinbus.ledger.open_file import writers_here
from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX, WRITER, LedgerError, decode

PIECE_BYTES: Final = 1 << 20

_SUFFIXES: Final = (FILE_SUFFIX, f"{FILE_SUFFIX}{OPEN_SUFFIX}", f"{FILE_SUFFIX}{GZIP_SUFFIX}")
_DAMAGED: Final = (gzip.BadGzipFile, EOFError, zlib.error)
"""Errors of reading a damaged compressed file."""

NOTE_VERSION: Final = 1

_NOTE: Final = re.compile(r"removed-[0-9a-f]+\.json")
_NUMBER_MAX: Final = 99_999
"""The highest number that a note has in a range: the ranges of a damaged note stay small."""


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


@dataclass(frozen=True)
class MissingFiles:
    """Files that a command removed from a ledger; `chain` finds the others that are missing."""

    removed: tuple[str, ...] = ()
    """Those that a note names."""
    unnoted: int = 0
    """Removals without a readable note: their files are not known."""

    def __bool__(self) -> bool:
        return bool(self.removed or self.unnoted)

    def but(self, known: Collection[str]) -> MissingFiles:
        """This without files whose records are known from elsewhere."""
        ended = set(map(_ended, known))
        removed = tuple(name for name in self.removed if _ended(name) not in ended)
        return MissingFiles(removed, self.unnoted)

    def sentences(self) -> Iterator[str]:
        """A sentence for each kind."""
        if self.removed:
            first, count = self.removed[0], len(self.removed)
            files = f"the file {first}" if count == 1 else f"{count:,} files ({first} and others)"
            yield f"records are missing: compact --remove-raw removed {files}"
        if self.unnoted:
            yield "records are missing: files of the ledger were removed, and no note says which"


def note_name() -> str:
    """A name for a note that no other note has."""
    return f"removed-{uuid.uuid4().hex[:12]}.json"


def is_note(name: str) -> bool:
    """Whether a file of a ledger is a note of removed files."""
    return _NOTE.fullmatch(name) is not None


def new_note(names: Iterable[str]) -> str:
    """The text of a note that names these files: the numbers of each writer as ranges."""
    numbers: dict[str, list[int]] = {}
    others = []
    for name in sorted(set(names)):
        writer, number = place_of(name) or ("", -1)
        if 0 <= number <= _NUMBER_MAX and name == _name(writer, number):
            numbers.setdefault(writer, []).append(number)
        else:
            others.append(name)
    writers = {writer: _ranges(found) for writer, found in numbers.items()}
    return json.dumps({"v": NOTE_VERSION, "writers": writers, "others": others})


def noted_files(text: str) -> frozenset[str] | None:
    """The names in a note; None where it is damaged or of a later version."""
    try:
        note: Any = json.loads(text)
        if note["v"] != NOTE_VERSION:
            return None
        if any(last > _NUMBER_MAX for ranges in note["writers"].values() for _, last in ranges):
            return None
        numbered = (
            _name(writer, number)
            for writer, ranges in note["writers"].items()
            for first, last in ranges
            for number in range(first, last + 1)
        )
        return frozenset([*numbered, *map(str, note["others"])])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def missing_files(names: Iterable[str], notes: Iterable[str]) -> MissingFiles:
    """What was removed from a ledger with files of these names and notes of these texts."""
    there = set(map(_ended, names))
    read = [noted_files(text) for text in notes]
    noted: set[str] = set().union(*(found for found in read if found is not None))
    removed = tuple(sorted(name for name in noted if _ended(name) not in there))
    return MissingFiles(removed, unnoted=read.count(None))


def _ended(name: str) -> str:
    """The name that a file got when it was ended: it may have been compressed since."""
    return f"{stem_of(name)}{FILE_SUFFIX}"


def _name(writer: str, number: int) -> str:
    return f"{writer}-{number:05d}{FILE_SUFFIX}"


def _ranges(numbers: list[int]) -> list[list[int]]:
    """Numbers in their order as ranges, both ends included."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
