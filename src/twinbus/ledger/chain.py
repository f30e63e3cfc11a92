"""Compares the files of a ledger: gaps, missing, changed and doubled files. Pure.

A writer's first line lists the files that it found, each of its files names the hash of the one
before, and its last line says that it ended (`facts`). What contradicts that is a finding:

    gap        a writer stopped without an end (killed, or its machine lost), or its next file is
               not there. Records may be missing from its last line on
    missing    a file, or all files of a writer, that others name
    changed    a file whose lines are not those that its writer wrote, or not in their order
    refused    a file that holds what another one holds: it must not be read

The chain shows accidents and careless edits. It does not show a forger who may write where the
writer writes: the hashes are no signatures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from twinbus.ledger.facts import FileFacts, WriterNote, place_of
from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX

LATE_BEATS: Final = 3
"""Heartbeats that may fail to come before the writer of an open file counts as dead, where nothing
else is known of it: clocks differ, and machines are slow."""

ALIVE_BEATS: Final = 20
"""The same where its process is known to be there. Past that the file is a copy, or what the
process records is not written: it is stopped, or its disk hangs."""

FLUSH_MS: Final = 1_000
"""What a writer may be late with a heartbeat."""

INTERVAL_MAX_MS: Final = 3_600_000
"""The longest time between heartbeats that is believed: a file is foreign."""

AHEAD_MAX_MS: Final = 86_400_000
"""A last line further ahead of this machine's clock does not show whether its writer is alive."""

CLOCKS_MS: Final = 60_000
"""What the clocks of two machines may differ by: that of a person, and that of a writer."""

MISSED_MAX: Final = 10_000
"""Missing files of one writer that are named: a number in a foreign file can be any."""

OLD_NUMBER_MAX: Final = 99_999
"""The highest number of a file without a first line: earlier versions gave it five digits."""

_SHOWN_MAX: Final = 3
"""Names that a sentence shows."""


@dataclass(frozen=True)
class Gap:
    """A writer that stopped without an end: records from `from_ms` to `to_ms` may be missing."""

    process: str
    from_ms: int
    to_ms: int | None
    """None: not known, for the file in which the writer went on is not there."""
    name: str
    """Its last file that is there."""
    closed_by: str | None = None
    """Why it makes nothing unknown any more, in a person's words; None: it does."""
    is_empty: bool = False
    """The file has no line, not even the first: it is not known when it was written."""

    def sentence(self) -> str:
        """Say what is not known, and what to do."""
        begins = _time(self.from_ms)
        if self.is_empty:
            text = f"the file {self.name} is empty: records of {self.process} may be missing"
        elif self.to_ms is None:
            text = (
                f"{self.process} went on after its file {self.name}, and its next file is not"
                f" there: its records from {begins} on are missing"
            )
        else:
            text = (
                f"{self.process} stopped without an end: records from {begins} to"
                f" {_time(self.to_ms)} may be missing"
            )
        if self.closed_by is None:
            return f"{text}; if you know that none is, record it with twinbus ledger close"
        return f"{text}; closed: {self.closed_by}"


@dataclass(frozen=True)
class LedgerFindings:
    """What is wrong with the files of a ledger; each list is in the order of names."""

    gaps: tuple[Gap, ...] = ()
    missing_files: tuple[str, ...] = ()
    """Names of files that must have been there, by the numbers and lists of others."""
    missing_writers: tuple[str, ...] = ()
    """Processes without any file."""
    changed: Mapping[str, str] = field(default_factory=dict)
    """Name -> what is wrong with it."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Name -> why it must not be read: it holds what another file holds."""
    unread: tuple[str, ...] = ()
    """Files below the ledger that no reader takes."""
    old_files: tuple[str, ...] = ()
    """Files without a first line: no end of their writer and no missing last file can be seen."""

    def sentences(self) -> Iterator[str]:
        """A sentence for each finding; long lists are cut."""
        yield from (gap.sentence() for gap in self.gaps)
        if self.missing_files:
            yield f"records are missing: the ledger lacks {_listed(self.missing_files)}"
        if self.missing_writers:
            yield (
                "records are missing: other writers saw files of"
                f" {_listed(self.missing_writers, 'process', 'processes')}, and none is there"
            )
        for found in (self.changed, self.refused):
            yield from (f"{name}: {why}" for name, why in found.items())
        if self.unread:
            yield (
                f"not read: {_listed(self.unread)}; a ledger's files are NAME{FILE_SUFFIX} in its"
                " directory itself, not below it, or gzipped"
            )
        if self.old_files:
            yield (
                f"{_listed(self.old_files)} of an earlier version of Twinbus: whether their writers"
                " ended in order, or wrote later files, cannot be seen"
            )


def verify(
    files: Iterable[FileFacts],
    *,
    now_ms: int,
    removed: Collection[str] = (),
    alive: Collection[str] = (),
    dead: Collection[str] = (),
    unread: Iterable[str] = (),
) -> LedgerFindings:
    """Compare the facts of all files of a ledger, open ones too.

    `removed` are files that a command has taken away, by its notes (`facts`). `alive` and `dead`
    are processes that the caller knows to be so; heartbeats decide for the others.
    """
    kept, refused = _one_of_each_stem(files)
    notes = [note for facts in kept for note in facts.notes]
    notes.sort(key=lambda note: note.at_ms)
    closed = {note.client: note for note in notes if note.state == "closed"}
    erased = _erasures(notes)
    writers: dict[str, list[FileFacts]] = defaultdict(list)
    for facts in kept:
        if facts.number is not None:
            writers[facts.process].append(facts)
    ended = {name.removesuffix(OPEN_SUFFIX) for name in removed}
    missing_files, missing_writers = _missing(kept, writers, ended)
    changed: dict[str, str] = {}
    gaps: list[Gap] = []
    for process, mine in sorted(writers.items()):
        mine.sort(key=lambda facts: facts.number or 0)
        changed |= _changes(mine, erased)
        # A file that is missed is one finding, unless a person has said that it holds nothing.
        absent = ended if process in closed else ended | missing_files
        gaps += _gaps(process, mine, absent)
    gaps = [
        _closed(gap, closed.get(gap.process), now_ms)
        for gap in gaps
        if not _is_alive(gap, writers[gap.process], now_ms, alive, dead)
    ]
    return LedgerFindings(
        gaps=tuple(gaps),
        missing_files=tuple(sorted(n for n in missing_files if n.rpartition("-")[0] not in closed)),
        missing_writers=tuple(sorted(missing_writers - closed.keys())),
        changed=dict(sorted(changed.items())),
        refused=dict(sorted(refused.items())),
        unread=tuple(sorted(unread)),
        old_files=tuple(facts.name for facts in kept if _is_old(facts, writers)),
    )


def _one_of_each_stem(files: Iterable[FileFacts]) -> tuple[list[FileFacts], dict[str, str]]:
    """The files to read, in the order of names, and why each other one is not."""
    refused: dict[str, str] = {}
    best: dict[str, FileFacts] = {}
    for facts in files:
        if facts.foreign:
            refused[facts.name] = f"not read: it is a copy, for its lines are of {facts.foreign}"
            continue
        other = best.setdefault(facts.stem, facts)
        if other is not facts:
            worse, better = sorted((other, facts), key=_rank)
            best[facts.stem] = better
            refused[worse.name] = f"not read: {better.name} holds the same lines, or more"
    kept: list[FileFacts] = []
    contents: dict[str, str] = {}
    for facts in sorted(best.values(), key=lambda one: (one.number is None, one.name)):
        first = contents.setdefault(facts.sha256, facts.name) if facts.lines else facts.name
        if first != facts.name:
            refused[facts.name] = f"not read: it is a copy of {first}"
        else:
            kept.append(facts)
    return sorted(kept, key=lambda facts: facts.name), refused


def _rank(facts: FileFacts) -> tuple[bool, int, bool]:
    """Of two files of one stem the one that its writer closed, else the longer: both only grew."""
    is_closed = facts.closing is not None and facts.hash_matches
    return is_closed, facts.size_bytes, not facts.is_open


def _missing(
    kept: Sequence[FileFacts], writers: Mapping[str, Sequence[FileFacts]], removed: Collection[str]
) -> tuple[set[str], set[str]]:
    """Files and whole writers that must have been there."""
    last: dict[str, int] = defaultdict(lambda: -1)
    there: set[tuple[str, int]] = set()
    begun = {facts.process for facts in kept if facts.begins}
    for place in map(place_of, [*(facts.name for facts in kept), *removed]):
        # Other programs put dates into names.
        if place is not None and (place[0] in begun or place[1] <= OLD_NUMBER_MAX):
            there.add(place)
            last[place[0]] = max(last[place[0]], place[1])
    seen = set(last)
    for facts in kept:
        for process, _, number in (one.rpartition(":") for one in facts.before):
            if process and number.isdecimal() and len(number) < 10:
                last[process] = max(last[process], int(number))
    files: set[str] = set()
    for process in seen:
        absent = (one for one in range(last[process] + 1) if (process, one) not in there)
        files |= {f"{process}-{one:05d}{FILE_SUFFIX}" for one in islice(absent, MISSED_MAX)}
    return files, set(last) - seen


def _changes(
    mine: Sequence[FileFacts], erased: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, str]]:
    """Files of one writer that are not as it wrote them."""
    links = {facts.link for facts in mine}
    for facts in mine:
        rewritten = erased.get(facts.stem, {})
        links |= {before for before, after in rewritten.items() if after == facts.sha256}
    begins = any(facts.begins for facts in mine)
    by_number = {facts.number: facts for facts in mine}
    for facts in mine:
        is_known = facts.sha256 in erased.get(facts.stem, {}).values()
        if is_known:
            continue
        if begins and not facts.begins and facts.lines:
            yield facts.name, "changed: its first line is gone"
        elif facts.is_misplaced:
            yield facts.name, "changed: something was put before its first or behind its last line"
        elif not facts.hash_matches:
            yield facts.name, "changed: its lines are not those that its writer wrote"
    for facts in mine:
        earlier = by_number.get((facts.number or 0) - 1)
        if facts.previous is None or facts.previous in links or earlier is None:
            continue
        yield earlier.name, f"changed: {facts.name} names another hash for it"


def _gaps(process: str, mine: Sequence[FileFacts], absent: Collection[str]) -> Iterator[Gap]:
    """Ends of a writer's chains that are no end. Two writers of one name have two chains."""
    continued, links = {facts.previous for facts in mine}, {facts.link for facts in mine}
    by_number = {facts.number: facts for facts in mine}
    if not any(facts.lines for facts in mine):
        # A power cut leaves a file like this: its name was on the disk, its lines were not.
        yield from (
            Gap(process, 0, None, one.name, is_empty=True) for one in mine if not one.is_torn
        )
    for facts in mine:
        if not facts.begins or facts.closing == "ended" or facts.link in continued:
            continue
        number = (facts.number or 0) + 1
        following = by_number.get(number)
        if f"{process}-{number:05d}{FILE_SUFFIX}" in absent:
            continue
        if following and following.previous is not None and following.previous not in links:
            # It continues there: `_changes` reports that one of the two was changed.
            continue
        from_ms = facts.last_ms or 0
        to_ms = from_ms + _interval_ms(facts) + FLUSH_MS
        is_cut = facts.closing == "continued"
        yield Gap(process, from_ms, None if is_cut else to_ms, facts.name)


def _interval_ms(facts: FileFacts) -> int:
    return min(max(facts.interval_ms or 0, 0), INTERVAL_MAX_MS)


def _closed(gap: Gap, note: WriterNote | None, now_ms: int) -> Gap:
    """The gap as a person's word leaves it, who spoke of what had happened by then."""
    is_clock_wrong = gap.from_ms > now_ms + CLOCKS_MS
    if note is None or not (is_clock_wrong or gap.from_ms <= note.at_ms + CLOCKS_MS):
        return gap
    return replace(gap, closed_by=f"{note.why or 'no reason given'} ({_time(note.at_ms)})")


def _is_alive(
    gap: Gap,
    mine: Sequence[FileFacts],
    now_ms: int,
    alive: Collection[str],
    dead: Collection[str],
) -> bool:
    """Whether a file has no end because its writer is still at work."""
    facts = next(one for one in mine if one.name == gap.name)
    if gap.is_empty:
        return gap.process in alive
    # What was not uploaded yet (`pipeline.drain.task`) is neither here nor missing.
    if gap.process in dead or not (facts.is_open or facts.closing == "continued"):
        return False
    beats = ALIVE_BEATS if gap.process in alive else LATE_BEATS
    return -AHEAD_MAX_MS <= now_ms - gap.from_ms <= beats * _interval_ms(facts) + FLUSH_MS


def _is_old(facts: FileFacts, writers: Mapping[str, Sequence[FileFacts]]) -> bool:
    """Whether a file is of a version that wrote no first lines."""
    mine = writers.get(facts.process, ())
    return bool(facts.lines) and not facts.begins and not any(one.begins for one in mine)


def _erasures(notes: Iterable[WriterNote]) -> dict[str, dict[str, str]]:
    """Return for each stem that commands rewrote: each earlier hash -> the last one.

    The notes are in the order of their time.
    """
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for note in notes:
        if note.state == "closed":
            continue
        steps = found[note.client]
        for before, after in steps.items():
            if after == note.hash_before:
                steps[before] = note.hash_after
        steps[note.hash_before] = note.hash_after
    return found


def _time(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        # Beyond the year 9999, by a clock or a line that is wrong.
        return f"{at_ms} ms (no time of this era)"


def _listed(names: Sequence[str], noun: str = "file", plural: str = "files") -> str:
    shown = ", ".join(names[:_SHOWN_MAX])
    more = f" and {len(names) - _SHOWN_MAX:,} more" if len(names) > _SHOWN_MAX else ""
    return f"{len(names):,} {noun if len(names) == 1 else plural} ({shown}{more})"
