"""The files of a ledger before Spark reads them: which count, what is missing, what is in doubt.

Every file counts once, under one of its names (`ledger.facts`). A copy is refused, and what looks
like a part of the ledger and is not read is named. Findings of the chain (`ledger.chain`) become
sentences: those that make an answer unknown, and those that need only be said.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from twinbus.ledger.adoption import writers_here
from twinbus.ledger.chain import LedgerFindings, verify
from twinbus.ledger.facts import FileFacts, WriterNote, note_file, place_of, stem_of
from twinbus.ledger.files import HOST, process_name
from twinbus.ledger.missing import MissingFiles, is_note, missing_files
from twinbus.ledger.reader import is_readable, is_unread
from twinbus.ledger.record import OPEN_SUFFIX, LedgerError
from twinbus.pipeline.store.gaps import UNCHANGED_MS, WriterGap, judged_gaps
from twinbus.pipeline.store.known_files import KnownFile, look_at
from twinbus.pipeline.store.lake import REBUILD
from twinbus.pipeline.store.place_files import FoundFile, PlaceFiles
from twinbus.pipeline.tables.gold import TABLES

READ_AT_ONCE: Final = 4
"""Files that are read at a time: hashing takes a core, waiting for a disk does not."""

TRIES: Final = 5
"""Looks at a ledger in which files are being ended."""

ENDED, AT_WORK = "ended", "at work"
STOPPED, CLOSED = "stopped without an end", "closed"
EARLIER = "of an earlier version"
"""States of a writer, as people read them."""

REASON_MAX: Final = 500

Known = Mapping[str, KnownFile]
"""Files by their names."""


@dataclass(frozen=True)
class InspectedLedger:
    """What a ledger's files are, and what they show together."""

    files: Known
    """Those that were read now, and those that the tables have taken."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Names of files that must not be read, with the reason."""
    missing: tuple[str, ...] = ()
    """Sentences on records that are missing, or that may be."""
    said: tuple[str, ...] = ()
    """Sentences on what is only to be known."""
    gaps: tuple[WriterGap, ...] = ()
    lacking: frozenset[str] = frozenset()
    """Writers of which a file is missing, or every file."""
    torn: int = 0
    """Open files of the dead that end inside a line."""

    def new(self, taken: Known) -> Known:
        """Ended files that tables have not taken, in the order of names."""
        stems = set(map(stem_of, taken))
        return {
            name: file
            for name, file in sorted(self.files.items())
            if not file.facts.is_open and name not in self.refused and stem_of(name) not in stems
        }


class _Look(NamedTuple):
    """What was found at the place of a ledger."""

    found: Mapping[str, FoundFile]
    files: Known
    broken: Sequence[str]
    """Names of files that are damaged."""
    alive: frozenset[str]
    dead: frozenset[str]


class LedgerFolder:
    """The place of a ledger; it remembers the ended files that it has read."""

    def __init__(self, ledger: Path | str) -> None:
        self._ledger = str(ledger)
        self._place = PlaceFiles(self._ledger)
        self._looked: dict[tuple[str, int], KnownFile] = {}

    def has_new(self, taken: Iterable[str]) -> bool:
        """Whether there are ended files that tables have not taken, copies too."""
        stems = set(map(stem_of, taken))
        names = (found.name for found in self._place.found())
        return any(
            is_readable(name) and not name.endswith(OPEN_SUFFIX) and stem_of(name) not in stems
            for name in names
        )

    def inspect(self, taken: Known, *, removed_unnoted: bool = False) -> InspectedLedger:
        """Compare the files with each other and with those that tables have taken.

        `removed_unnoted`: files were removed by a version that left no note.
        """
        look = self._look_around(taken, TRIES)
        found, alive, dead = look.found, look.alive, look.dead
        # Tables hold what they took, whether or not the file is still there.
        files = {**taken, **look.files}
        notes = [self._text(name) for name in found if is_note(name)]
        lacking = missing_files(files, notes).but(taken)
        if removed_unnoted and not notes:
            lacking = replace(lacking, unnoted=1)
        now_ms = time.time_ns() // 1_000_000
        facts = [*_renamed({name: one.facts for name, one in files.items()})]
        findings = verify(
            facts,
            now_ms=now_ms,
            removed=lacking.removed,
            alive=alive,
            dead=dead,
            unread=[*filter(is_unread, found), *self._below(), *look.broken],
        )
        told = _Told(files, taken, findings, lacking)
        shown = told.inspection(facts, alive=alive, dead=dead, now_ms=now_ms)
        # Spark would fail at these, and take the whole report with it.
        damaged = dict.fromkeys(look.broken, "not read: it is damaged")
        return replace(shown, refused={**shown.refused, **damaged})

    def _writers(self) -> tuple[frozenset[str], frozenset[str]]:
        path = self._ledger.removeprefix("file://").removeprefix("file:")
        return (frozenset(), frozenset()) if "://" in path else writers_here(path)

    def _look_around(self, taken: Known, tries_left: int) -> _Look:
        """Read the files that are not known; again if one was ended, and so renamed, meanwhile."""
        found = {one.name: one for one in self._place.found()}
        # Asked before the files are read: a writer that ends meanwhile was alive.
        alive, dead = self._writers()
        stems = set(map(stem_of, taken))
        wanted = [
            one
            for name, one in sorted(found.items())
            if is_readable(name)
            and (
                taken[name].disk_bytes != one.size_bytes
                if name in taken
                # One that was taken may have been compressed since.
                else name.endswith(OPEN_SUFFIX) or stem_of(name) not in stems
            )
        ]
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            looked = list(pool.map(self._look, wanted))
        if None in looked and tries_left:
            return self._look_around(taken, tries_left - 1)
        known = {one.name: file for one, file in zip(wanted, looked, strict=True)}
        return _Look(
            found,
            {name: one for name, one in known.items() if isinstance(one, KnownFile)},
            [name for name, one in known.items() if isinstance(one, LedgerError)],
            alive,
            dead,
        )

    def _look(self, found: FoundFile) -> KnownFile | LedgerError | None:
        key = found.name, found.size_bytes
        if key in self._looked:
            return self._looked[key]
        try:
            known = look_at(self._place, found)
        except LedgerError as error:
            return error
        if known is not None and not known.facts.is_open:
            self._looked[key] = known
        return known

    def _below(self) -> Iterator[str]:
        """Files of directories in the ledger that look like a part of it."""
        for directory in self._place.directories():
            if directory != TABLES:
                yield from filter(is_unread, self._place.below(directory))

    def _text(self, name: str) -> str:
        try:
            return self._place.content(name).decode("utf-8", "replace")
        except LedgerError:
            return ""


def _renamed(files: Mapping[str, FileFacts]) -> Iterator[FileFacts]:
    """The facts, without the mark of a copy where no file is there that it can be a copy of.

    Files of earlier versions, and of other programs, may have any name.
    """
    writers = {facts.process for facts in files.values() if not facts.foreign}
    for facts in files.values():
        is_copy = facts.begins or facts.foreign in writers
        yield facts if is_copy or not facts.foreign else replace(facts, foreign="")


@dataclass(frozen=True)
class _Told:
    """The findings in sentences, by whether they make an answer unknown."""

    files: Known
    taken: Known
    findings: LedgerFindings
    lacking: MissingFiles

    def inspection(
        self,
        facts: Iterable[FileFacts],
        *,
        alive: frozenset[str],
        dead: frozenset[str],
        now_ms: int,
    ) -> InspectedLedger:
        """What all of it comes to."""
        refused = self.findings.refused
        read = {name: file for name, file in self.files.items() if name not in refused}
        doubtful = self._doubtful({one.sha256 for one in facts if one.name not in refused})
        # A person may have closed a writer whose file is missing.
        left = tuple(one for one in self.lacking.gaps if one in self.findings.missing_files)
        lacking = replace(self.lacking, gaps=left)
        named = {*lacking.gaps, *lacking.removed}
        unknown = replace(
            self.findings,
            gaps=(),
            old_files=(),
            missing_files=tuple(one for one in self.findings.missing_files if one not in named),
            changed={**self.findings.changed, **dict(self._grown(read))},
            refused=doubtful,
        )
        said = LedgerFindings(
            refused={name: why for name, why in refused.items() if name not in doubtful},
            old_files=self.findings.old_files,
        )
        return InspectedLedger(
            self.files,
            refused,
            missing=(*lacking.sentences(), *unknown.sentences()),
            said=tuple(said.sentences()),
            gaps=judged_gaps(read.values(), self.findings, alive=alive, now_ms=now_ms),
            lacking=self._lacking(),
            torn=sum(_is_torn_by_death(file, dead, now_ms) for file in read.values()),
        )

    def _lacking(self) -> frozenset[str]:
        places = map(place_of, self.findings.missing_files)
        return frozenset([*self.findings.missing_writers, *(one[0] for one in places if one)])

    def _doubtful(self, hashes: Collection[str]) -> dict[str, str]:
        """Refused files that hold something which is not read under another name."""
        found = {}
        for name, why in self.findings.refused.items():
            facts = self.files[name].facts
            if name in self.taken:
                found[name] = f"another file holds more than the tables took from it: {REBUILD}"
            elif facts.foreign and facts.sha256 not in hashes:
                found[name] = why
        return found

    def _grown(self, read: Known) -> Iterator[tuple[str, str]]:
        """Files that are not as they were when the tables took them."""
        rewritten = {
            (note.client, note.hash_after) for one in read.values() for note in one.facts.notes
        }
        for name, before in self.taken.items():
            now = self.files[name].facts
            if now.sha256 != before.facts.sha256 and (now.stem, now.sha256) not in rewritten:
                sizes = f"from {before.facts.size_bytes:,} to {now.size_bytes:,} bytes"
                yield name, f"changed since the tables took it, {sizes}: {REBUILD}"


def _is_torn_by_death(file: KnownFile, dead: Collection[str], now_ms: int) -> bool:
    """Whether an open file ends inside a line that will not be finished."""
    is_dead = file.facts.process in dead or now_ms - file.modified_ms >= UNCHANGED_MS
    return file.facts.is_open and file.facts.is_torn and is_dead


def writers_document(shown: InspectedLedger) -> dict[str, Any]:
    """How many writers there are of each state, those that did not end, and all findings."""
    last: dict[str, FileFacts] = {}
    for name, file in shown.files.items():
        facts = file.facts
        if name not in shown.refused and facts.lines:
            other = last.setdefault(facts.process, facts)
            if (facts.number or 0) > (other.number or 0):
                last[facts.process] = facts
    gaps = {gap.process: gap for gap in shown.gaps}
    states = {}
    for process, facts in last.items():
        if process in gaps:
            states[process] = STOPPED if gaps[process].closed_by is None else CLOSED
        elif not facts.begins:
            states[process] = EARLIER
        else:
            states[process] = ENDED if facts.closing == "ended" else AT_WORK
    return {
        "files": len(shown.files) - len(shown.refused),
        "writers": dict(sorted(Counter(states.values()).items())),
        "at_work": sorted(process for process, state in states.items() if state == AT_WORK),
        "gaps": [
            {
                "process": gap.process,
                "from_ms": gap.from_ms,
                "to_ms": gap.to_ms,
                "closed_by": gap.closed_by,
                "sentence": gap.sentence,
            }
            for gap in shown.gaps
        ],
        "missing": list(shown.missing),
        "remarks": list(shown.said),
    }


def close_writer(
    ledger: Path | str, shown: InspectedLedger, process: str, reason: str, *, user: str
) -> str:
    """Record that nothing is missing where a process stopped; return the name of the new file.

    LedgerError where nothing is in doubt for that process: its name may be wrong.
    """
    doubted = sorted({gap.process for gap in shown.gaps if gap.closed_by is None} | shown.lacking)
    if process not in doubted:
        others = ", ".join(doubted[:5]) or "none"
        raise LedgerError(
            f"nothing is in doubt for {process} in the ledger at {ledger}; processes with a gap or"
            f" a missing file: {others}"
        )
    now_ms = time.time_ns() // 1_000_000
    note = WriterNote("closed", now_ms, process, f"{reason[:REASON_MAX]} ({user})")
    name, content = note_file(process_name("close"), HOST, now_ms, [note])
    PlaceFiles(str(ledger)).put(name, content)
    return name
