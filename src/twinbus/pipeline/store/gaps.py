"""Writers that stopped without an end: which of them put something in doubt, and what. Pure.

    sends      the writer sent messages: it may have accepted some that no record names
    moves      the writer was a syphon: it may have forwarded messages without a record
    waiting    the writer was the broker of backlog queues: what it says waits may have ended since

A gap is closed by a person (`twinbus ledger close`) or by other evidence. The gap of a broker is
closed by its successor, which served the same namespace from what is on disk. The gap of a sender
or a syphon is closed by the brokers of both its namespaces, if their own records are whole: they
record what they store before they answer, so that no accepted message can be in the gap only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from twinbus.ledger.chain import Gap, LedgerFindings
from twinbus.pipeline.store.known_files import (
    BACKLOG,
    BROKER,
    CONSUMER,
    SENDER,
    SYPHON,
    KnownFile,
)

SENDS, MOVES, WAITING = "sends", "moves", "waiting"

UNCHANGED_MS: Final = 86_400_000
"""A living writer of an earlier version changed its file every few minutes; after a day it is
dead."""

CLOCKS_MS: Final = 5_000
"""What the clocks of a broker and of its successor may differ by: mostly they are one clock."""


class Recovery(NamedTuple):
    """What the successor of a broker found on its disk."""

    at_ms: int
    messages: int
    """In backlog queues."""


@dataclass(frozen=True, kw_only=True)
class WriterGap:
    """A writer that stopped without an end, as reports tell of it."""

    process: str
    from_ms: int
    """Its last line: records may be missing from here on."""
    to_ms: int | None
    """None: it is not known until when."""
    roles: tuple[str, ...]
    doubts: tuple[str, ...]
    """What is in doubt while the gap is open."""
    closed_by: str | None
    sentence: str
    recovery: Recovery | None = None
    """Of the gap of a broker that its successor closed."""

    @property
    def is_open(self) -> bool:
        """Whether something is in doubt."""
        return self.closed_by is None and bool(self.doubts)


def judged_gaps(
    files: Iterable[KnownFile], findings: LedgerFindings, *, alive: Collection[str], now_ms: int
) -> tuple[WriterGap, ...]:
    """The gaps of a ledger with what they put in doubt, and what else closes them."""
    of_process: dict[str, list[KnownFile]] = {}
    for file in files:
        of_process.setdefault(file.facts.process, []).append(file)
    found = [*findings.gaps, *_ends_of_old_brokers(of_process, alive, now_ms)]
    gaps = [(gap, _Writer(of_process.get(gap.process, []))) for gap in found]
    brokers = [(*_succeeded(gap, writer, of_process), writer) for gap, writer in gaps]
    open_brokers = [
        (gap, writer)
        for gap, _, writer in brokers
        if gap.closed_by is None and BROKER in writer.roles
    ]
    return tuple(
        _told(_witnessed(gap, writer, of_process, open_brokers), writer, recovery)
        for gap, recovery, writer in brokers
    )


class _Writer:
    """What all files of a process say together."""

    def __init__(self, files: Sequence[KnownFile]) -> None:
        self.roles = frozenset[str]().union(*(file.roles for file in files))
        self.pairs = frozenset[str]().union(*(file.pairs for file in files))
        self.namespaces = {state.namespace for file in files for state in file.states}
        has_lines = any(file.facts.lines for file in files)
        self.is_old = has_lines and not any(file.facts.begins for file in files)

    @property
    def doubts(self) -> tuple[str, ...]:
        # One that has not written a record yet may be about to send.
        is_silent = not self.roles & {SENDER, SYPHON, CONSUMER, BROKER}
        return tuple(
            doubt
            for doubt, holds in {
                SENDS: SENDER in self.roles or is_silent,
                MOVES: SYPHON in self.roles,
                WAITING: {BROKER, BACKLOG} <= self.roles,
            }.items()
            if holds
        )


def _ends_of_old_brokers(
    of_process: dict[str, list[KnownFile]], alive: Collection[str], now_ms: int
) -> Iterable[Gap]:
    """Brokers of earlier versions, which wrote no first lines, that began and did not stop."""
    closed = {
        note.client: note.why
        for files in of_process.values()
        for file in files
        for note in file.facts.notes
        if note.state == "closed"
    }
    for process, files in sorted(of_process.items()):
        if any(file.facts.begins for file in files) or process in alive:
            continue
        if any(file.facts.is_open and now_ms - file.modified_ms < UNCHANGED_MS for file in files):
            continue
        states = sorted(state for file in files for state in file.states)
        began = sum(state.state == "serving" for state in states)
        if began > sum(state.state == "stopped" for state in states):
            last = max(files, key=lambda file: file.facts.number or 0)
            from_ms = max([state.at_ms for state in states] + [last.facts.last_ms or 0])
            yield Gap(process, from_ms, None, last.facts.name, closed.get(process))


def _succeeded(
    gap: Gap, writer: _Writer, of_process: dict[str, list[KnownFile]]
) -> tuple[Gap, Recovery | None]:
    """The gap of a broker, closed where another one served each of its namespaces afterwards."""
    if gap.closed_by is not None or BROKER not in writer.roles or not writer.namespaces:
        return gap, None
    # Earlier versions say only that they serve, which is no word on what they found on the disk.
    proofs = {"recovered"} if BACKLOG in writer.roles else {"serving", "recovered"}
    after = sorted(
        (state, process)
        for process, files in of_process.items()
        if process != gap.process
        for file in files
        for state in file.states
        if state.state in proofs and state.at_ms >= gap.from_ms - CLOCKS_MS
    )
    # The first of each namespace: the others found what that one left.
    first = {state.namespace: (state, process) for state, process in reversed(after)}
    if not first.keys() >= writer.namespaces:
        return gap, None
    found = [first[namespace] for namespace in writer.namespaces]
    names = ", ".join(sorted({process for _, process in found}))
    recovery = Recovery(
        max(state.at_ms for state, _ in found), sum(state.lines for state, _ in found)
    )
    closed_by = f"{names} served the same namespace afterwards, from its disk"
    return replace(gap, closed_by=closed_by), recovery


def _witnessed(
    gap: Gap,
    writer: _Writer,
    of_process: dict[str, list[KnownFile]],
    open_brokers: Sequence[tuple[Gap, _Writer]],
) -> Gap:
    """The gap of a client, closed where brokers recorded all that it can have done."""
    if gap.closed_by is not None or BROKER in writer.roles or not writer.pairs:
        return gap
    sides = {side.lower() for pair in writer.pairs for side in pair.split("+")}
    is_both = all("+" in pair for pair in writer.pairs) and sides <= _serving(gap, of_process)
    # A broker of which no successor tells may have been followed by one without a ledger.
    in_doubt = [
        one
        for one, broker in open_brokers
        if broker.namespaces & sides and (gap.to_ms is None or one.from_ms <= gap.to_ms)
    ]
    if not is_both or in_doubt:
        return gap
    names = " and ".join(sorted(sides))
    return replace(gap, closed_by=f"the brokers of {names} recorded what was done then")


def _serving(gap: Gap, of_process: dict[str, list[KnownFile]]) -> set[str]:
    """The namespaces whose brokers had begun to keep records when a gap began, and not stopped."""
    states = [state for files in of_process.values() for file in files for state in file.states]
    began, stopped = dict[str, int](), dict[str, int]()
    for state in sorted(states):
        if state.state == "serving" and state.at_ms <= gap.from_ms + CLOCKS_MS:
            began[state.namespace] = state.at_ms
        elif state.state == "stopped" and state.at_ms <= gap.from_ms - CLOCKS_MS:
            stopped[state.namespace] = state.at_ms
    return {name for name, at_ms in began.items() if at_ms > stopped.get(name, at_ms - 1)}


def _told(gap: Gap, writer: _Writer, recovery: Recovery | None) -> WriterGap:
    return WriterGap(
        process=gap.process,
        from_ms=gap.from_ms,
        to_ms=gap.to_ms,
        roles=tuple(sorted(writer.roles - {BACKLOG})),
        doubts=writer.doubts,
        closed_by=gap.closed_by,
        sentence=_sentence_of_old(gap) if writer.is_old else gap.sentence(),
        recovery=recovery,
    )


def _sentence_of_old(gap: Gap) -> str:
    """What is said of a broker of an earlier version."""
    text = (
        f"{gap.process} recorded that it serves a namespace and never that it stopped: records"
        f" after its file {gap.name} may be missing"
    )
    return f"{text}; closed: {gap.closed_by}" if gap.closed_by else f"{text} (twinbus ledger close)"
