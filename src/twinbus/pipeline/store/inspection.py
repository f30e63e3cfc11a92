"""Inspects the files of a ledger before Spark reads them: which count, and what is missing.

Every file counts once, under one of its names (`ledger.facts`). A copy is refused, and files that
look like a part of the ledger but are not read are named. Findings of the chain (`ledger.chain`)
become sentences: those that make an answer unknown, and remarks.

`twinbus ledger status` shows the writers of a ledger, and `twinbus ledger close` records a person's
word that nothing is missing where one stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twinbus.ledger.chain import LedgerFindings, verify
from twinbus.ledger.facts import (
    TABLES,
    FileFacts,
    WriterNote,
    is_note,
    is_readable,
    is_unread,
    missing_files,
    note_file,
    place_of,
    stem_of,
)
from twinbus.ledger.files import process_name
from twinbus.ledger.open_file import HOST, writers_here
from twinbus.ledger.record import OPEN_SUFFIX, LedgerError
from twinbus.pipeline.store import REBUILD
from twinbus.pipeline.store.local_files import FoundFile, LedgerPlace
from twinbus.pipeline.store.writers import (
    UNCHANGED_MS,
    KnownFile,
    WriterGap,
    judged_gaps,
    read_known_file,
)

if TYPE_CHECKING:
    from twinbus.pipeline.store.place_files import PlaceFiles

READ_AT_ONCE: Final = 4
"""Files read at a time: hashing takes a core, waiting for a disk does not."""

TRIES: Final = 5
"""Tries to list a ledger while its files end."""

ENDED, AT_WORK = "ended", "at work"
STOPPED, CLOSED = "stopped without an end", "closed"
EARLIER = "of an earlier version"
"""States of a writer, as people read them."""

REASON_MAX: Final = 500
_GAP_FIELDS: Final = ("process", "from_ms", "to_ms", "closed_by", "sentence")

Known = Mapping[str, KnownFile]
"""Files by their names."""


@dataclass(frozen=True)
class InspectedLedger:
    """A ledger's files, and the findings about them."""

    files: Known
    """Files that were read now, and files that the tables have taken."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Names of files that must not be read, with the reason."""
    missing: tuple[str, ...] = ()
    """Sentences on records that are missing, or that may be."""
    remarks: tuple[str, ...] = ()
    """Sentences that make no answer unknown."""
    gaps: tuple[WriterGap, ...] = ()
    lacking: frozenset[str] = frozenset()
    """Writers with missing files."""
    torn: int = 0
    """Open files of dead writers that end inside a line."""

    def new(self, taken: Known) -> Known:
        """Return ended files that tables have not taken, in the order of names."""
        stems = set(map(stem_of, taken))
        return {
            name: file
            for name, file in sorted(self.files.items())
            if not file.facts.is_open and name not in self.refused and stem_of(name) not in stems
        }


class _Listing(NamedTuple):
    """The files at the place of a ledger."""

    found: Mapping[str, FoundFile]
    files: Known
    broken: Sequence[str]
    """Names of files that are damaged."""
    alive: frozenset[str]
    dead: frozenset[str]


class LedgerFolder:
    """The place of a ledger; it remembers the ended files that it has read."""

    def __init__(self, ledger: Path | str, place: LedgerPlace | None = None) -> None:
        """`place` is for a directory that is read without pyarrow (`local_files`)."""
        self._ledger = str(ledger)
        self._place: LedgerPlace = place or _place_of(self._ledger)
        self._known: dict[tuple[str, int], KnownFile] = {}

    def has_new(self, taken: Iterable[str]) -> bool:
        """Return whether ended files exist that tables have not taken; copies count."""
        stems = set(map(stem_of, taken))
        names = (found.name for found in self._place.found())
        return any(
            is_readable(name) and not name.endswith(OPEN_SUFFIX) and stem_of(name) not in stems
            for name in names
        )

    def inspect(self, taken: Known, *, removed_unnoted: bool = False) -> InspectedLedger:
        """Compare the files with each other and with those that tables have taken.

        `removed_unnoted`: the tables are the only copy of some files, which a note should name.
        """
        listing = self._read_unknown(taken, TRIES)
        found = listing.found
        # Tables hold the records that they took, whether or not the file still exists.
        files = {**taken, **listing.files}
        notes = [self._place.text(name) for name in found if is_note(name)]
        lacking = missing_files(files, notes).but(taken)
        if removed_unnoted and not notes:
            lacking = replace(lacking, unnoted=1)
        now_ms = time.time_ns() // 1_000_000
        facts = [*_renamed({name: one.facts for name, one in files.items()})]
        findings = verify(
            facts,
            now_ms=now_ms,
            removed=lacking.removed,
            alive=listing.alive,
            dead=listing.dead,
            unread=[*filter(is_unread, found), *self._below(), *listing.broken],
        )
        refused = findings.refused
        read = {name: file for name, file in files.items() if name not in refused}
        hashes = {one.sha256 for one in facts if one.name not in refused}
        doubtful = dict(_doubtful(files, taken, refused, hashes))
        unknown = replace(
            findings,
            gaps=(),
            old_files=(),
            changed={**findings.changed, **dict(_grown(files, taken, read))},
            refused=doubtful,
        )
        said = LedgerFindings(
            refused={name: why for name, why in refused.items() if name not in doubtful},
            old_files=findings.old_files,
        )
        # Spark, and with it the whole report, would fail at these.
        damaged = dict.fromkeys(listing.broken, "not read: it is damaged")
        places = map(place_of, findings.missing_files)
        return InspectedLedger(
            files,
            {**refused, **damaged},
            missing=(*lacking.sentences(), *unknown.sentences()),
            remarks=tuple(said.sentences()),
            gaps=judged_gaps(read.values(), findings),
            lacking=frozenset([*findings.missing_writers, *(one[0] for one in places if one)]),
            torn=sum(_is_torn_by_death(file, listing.dead, now_ms) for file in read.values()),
        )

    def _read_unknown(self, taken: Known, tries_left: int) -> _Listing:
        """Read the unknown files; again if one ended, and so was renamed, meanwhile."""
        found = {one.name: one for one in self._place.found()}
        # Before the files are read: a writer that ends meanwhile was alive.
        path = self._ledger.removeprefix("file://").removeprefix("file:")
        none = frozenset[str]()
        alive, dead = (none, none) if "://" in path else writers_here(path)
        stems = set(map(stem_of, taken))
        wanted = [
            one
            for name, one in sorted(found.items())
            if is_readable(name)
            and (
                taken[name].disk_bytes != one.size_bytes
                if name in taken
                # A taken file may have been compressed since.
                else name.endswith(OPEN_SUFFIX) or stem_of(name) not in stems
            )
        ]
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            read = list(pool.map(self._read, wanted))
        if None in read and tries_left:
            return self._read_unknown(taken, tries_left - 1)
        known = {one.name: file for one, file in zip(wanted, read, strict=True)}
        return _Listing(
            found,
            {name: one for name, one in known.items() if isinstance(one, KnownFile)},
            [name for name, one in known.items() if isinstance(one, LedgerError)],
            alive,
            dead,
        )

    def _read(self, found: FoundFile) -> KnownFile | LedgerError | None:
        key = found.name, found.size_bytes
        if key in self._known:
            return self._known[key]
        try:
            known = read_known_file(self._place, found)
        except LedgerError as error:
            return error
        if known is not None and not known.facts.is_open:
            self._known[key] = known
        return known

    def _below(self) -> Iterator[str]:
        """Yield files in directories of the ledger that look like a part of it."""
        for directory in self._place.directories():
            if directory != TABLES:
                yield from filter(is_unread, self._place.below(directory))


def _renamed(files: Mapping[str, FileFacts]) -> Iterator[FileFacts]:
    """Yield the facts, without the mark of a copy if the original is not in the ledger.

    Files of earlier versions and of other programs may have any name.
    """
    writers = {facts.process for facts in files.values() if not facts.foreign}
    for facts in files.values():
        is_copy = facts.begins or facts.foreign in writers
        yield facts if is_copy or not facts.foreign else replace(facts, foreign="")


def _doubtful(
    files: Known, taken: Known, refused: Mapping[str, str], hashes: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield refused files with content that is not read under another name."""
    for name, why in refused.items():
        facts = files[name].facts
        if name in taken:
            yield name, f"another file holds more than the tables took from it: {REBUILD}"
        elif facts.foreign and facts.sha256 not in hashes:
            yield name, why


def _grown(files: Known, taken: Known, read: Known) -> Iterator[tuple[str, str]]:
    """Yield files that changed since the tables took them."""
    rewritten = {
        (note.client, note.hash_after) for one in read.values() for note in one.facts.notes
    }
    for name, before in taken.items():
        now = files[name].facts
        if now.sha256 != before.facts.sha256 and (now.stem, now.sha256) not in rewritten:
            sizes = f"from {before.facts.size_bytes:,} to {now.size_bytes:,} bytes"
            yield name, f"changed since the tables took it, {sizes}: {REBUILD}"


def _is_torn_by_death(file: KnownFile, dead: Collection[str], now_ms: int) -> bool:
    """Return whether an open file ends inside a line that will not be finished."""
    is_dead = file.facts.process in dead or now_ms - file.modified_ms >= UNCHANGED_MS
    return file.facts.is_open and file.facts.is_torn and is_dead


def writers_document(inspected: InspectedLedger) -> dict[str, Any]:
    """Return the number of writers in each state, those that did not end, and all findings."""
    last: dict[str, FileFacts] = {}
    for name, file in inspected.files.items():
        facts = file.facts
        if name not in inspected.refused and facts.lines:
            other = last.setdefault(facts.process, facts)
            if (facts.number or 0) > (other.number or 0):
                last[facts.process] = facts
    gaps = {gap.process: gap for gap in inspected.gaps}
    states = {}
    for process, facts in last.items():
        if process in gaps:
            states[process] = STOPPED if gaps[process].closed_by is None else CLOSED
        elif not facts.begins:
            states[process] = EARLIER
        else:
            states[process] = ENDED if facts.closing == "ended" else AT_WORK
    return {
        "files": len(inspected.files) - len(inspected.refused),
        "writers": dict(sorted(Counter(states.values()).items())),
        "at_work": sorted(process for process, state in states.items() if state == AT_WORK),
        "gaps": [{name: getattr(gap, name) for name in _GAP_FIELDS} for gap in inspected.gaps],
        "missing": list(inspected.missing),
        "remarks": list(inspected.remarks),
    }


def close_writer(
    ledger: Path | str, inspected: InspectedLedger, process: str, reason: str, *, user: str
) -> str:
    """Record that nothing is missing where a process stopped; return the name of the new file.

    LedgerError if nothing is in doubt for that process: its name may be wrong.
    """
    doubted = sorted(
        {gap.process for gap in inspected.gaps if gap.closed_by is None} | inspected.lacking
    )
    if process not in doubted:
        others = ", ".join(doubted[:5]) or "none"
        raise LedgerError(
            f"nothing is in doubt for {process} in the ledger at {ledger}; processes with a gap or"
            f" a missing file: {others}"
        )
    now_ms = time.time_ns() // 1_000_000
    note = WriterNote("closed", now_ms, process, f"{reason[:REASON_MAX]} ({user})")
    name, content = note_file(process_name("close"), HOST, now_ms, [note])
    _place_of(str(ledger)).put(name, content)
    return name


def _place_of(ledger: str) -> PlaceFiles:
    # Imported late: it needs pyarrow and delta-rs.
    from twinbus.pipeline.store.place_files import PlaceFiles

    return PlaceFiles(ledger)
