"""What the tables know of the writers of a ledger: their files, and gaps where one stopped.

This process, not Spark, reads the first and last lines of a file for its facts: its place in the
chain, and what its writer does. It reads an ended file once, when the tables take it, and stores
the result in `sets`.

A writer that stopped without an end puts something in doubt:

    sends      the writer sent messages: it may have accepted some that no record names
    moves      the writer was a syphon: it may have forwarded messages without a record
    waiting    the writer was the broker of backlog queues: what it says waits may have ended since

A gap is closed by a person (`twinbus ledger close`) or by other evidence. The gap of a broker is
closed by its successor, which served the same namespace from what is on disk. The gap of a sender
or a syphon is closed by the brokers of both its namespaces, if their own records are whole: they
record what they store before they answer, so that no accepted message can be in the gap only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twinbus.ledger.chain import Gap, LedgerFindings
from twinbus.ledger.facts import FileFacts, WriterNote, facts_of
from twinbus.ledger.record import LedgerError
from twinbus.servicebus.names import BACKLOG_MARK

if TYPE_CHECKING:
    from twinbus.pipeline.store.local_files import FoundFile, LedgerPlace

SENDER, SYPHON, CONSUMER = "sender", "syphon", "consumer"
BROKER, BACKLOG = "broker", "backlog"
"""What a writer does. `BACKLOG`: it is a broker, and its namespace has backlog queues."""

SENDS, MOVES, WAITING = "sends", "moves", "waiting"

UNCHANGED_MS: Final = 86_400_000
"""A file unchanged for a day belongs to a dead writer, if the writer records no heartbeats."""

CLOCKS_MS: Final = 5_000
"""Allowed difference between the clocks of a broker and its successor; mostly they share one."""

_WORDS: Final = {
    # With and without a space, as other programs write JSON.
    SENDER: (b'"cause":"application"', b'"cause":"failover"', b'"cause": "application"'),
    SYPHON: (b'"cause":"syphon"', b'"cause": "syphon"'),
    CONSUMER: (b'"cause":"consumer"', b'"cause": "consumer"'),
    BROKER: (b'"view":"broker"', b'"view": "broker"'),
    BACKLOG: (BACKLOG_MARK.encode(),),
}
_PAIR: Final = re.compile(rb'"pair": ?"([^"\\]{1,300})"')
_STATE_LINE: Final = re.compile(rb'^\{[^\n]*"operation": ?"state"[^\n]*\}$', re.MULTILINE)

PAIRS_MAX: Final = 100
"""Limit of recorded pairs of one writer."""


class BrokerState(NamedTuple):
    """A line of a broker about its namespace: "serving", "stopped" or "recovered"."""

    at_ms: int
    namespace: str
    state: str
    lines: int = 0
    """Messages that it found in its backlog queues, for "recovered"."""


@dataclass(frozen=True)
class KnownFile:
    """The facts of one file of a ledger."""

    facts: FileFacts
    disk_bytes: int
    """Its stored size, compressed or not."""
    roles: frozenset[str] = frozenset()
    pairs: frozenset[str] = frozenset()
    states: tuple[BrokerState, ...] = ()
    modified_ms: int = 0
    """Time of its last change; 0 if it was read from `sets`."""

    def as_json(self) -> str:
        """Return the text for `sets`: only what differs from a plain file."""
        plain = FileFacts("")
        facts = {
            one.name: getattr(self.facts, one.name)
            for one in fields(FileFacts)
            if getattr(self.facts, one.name) != getattr(plain, one.name)
        }
        facts["notes"] = [asdict(note) for note in self.facts.notes]
        document = {
            "facts": facts,
            "disk_bytes": self.disk_bytes,
            "roles": sorted(self.roles),
            "pairs": sorted(self.pairs),
            "states": self.states,
        }
        return json.dumps(document, separators=(",", ":"))


def known_from_json(text: str) -> KnownFile:
    """Read the text of `KnownFile.as_json`; unknown fields are left out."""
    document: dict[str, Any] = json.loads(text)
    facts = _known(FileFacts, document["facts"])
    facts["notes"] = tuple(WriterNote(**_known(WriterNote, one)) for one in facts.get("notes", ()))
    facts["before"] = tuple(facts.get("before", ()))
    return KnownFile(
        FileFacts(**facts),
        document["disk_bytes"],
        frozenset(document["roles"]),
        frozenset(document["pairs"]),
        tuple(BrokerState(*one) for one in document["states"]),
    )


def _known(kind: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in document.items() if name in names}


def read_known_file(place: LedgerPlace, found: FoundFile) -> KnownFile | None:
    """Read a file; None if it is gone. LedgerError if it cannot be read."""
    traits = _WriterTraits()
    try:
        facts = facts_of(found.name, traits.pieces(place.pieces(found.name)))
    except LedgerError:
        if not place.exists(found.name):
            return None
        raise
    return KnownFile(
        facts,
        found.size_bytes,
        frozenset(traits.roles),
        frozenset(traits.pairs),
        tuple(sorted(traits.states)),
        found.modified_ms,
    )


class _WriterTraits:
    """Finds what a writer does in the first and last pieces of a file."""

    def __init__(self) -> None:
        self.roles: set[str] = set()
        self.pairs: set[str] = set()
        self.states: set[BrokerState] = set()

    def pieces(self, content: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the same pieces."""
        first, last, before = True, b"", b""
        for piece in content:
            if first:
                self._search(piece)
            first, before, last = False, last, piece
            yield piece
        if before:
            # The last piece can be short and begin inside a line.
            self._search(before + last)

    def _search(self, data: bytes) -> None:
        self.roles |= {role for role, words in _WORDS.items() if any(one in data for one in words)}
        for found in _PAIR.finditer(data):
            if len(self.pairs) < PAIRS_MAX:
                self.pairs.add(found[1].decode("ascii", "replace"))
        if BROKER in self.roles:
            self.states |= {state for line in _STATE_LINE.findall(data) for state in _state(line)}


def _state(line: bytes) -> Iterator[BrokerState]:
    try:
        record = json.loads(line)
    except ValueError:
        return
    namespace, state, lines = record.get("namespace"), record.get("state"), record.get("lines", 0)
    if record.get("view") != "broker" or record.get("entity") is not None:
        return
    is_text = isinstance(namespace, str) and isinstance(state, str)
    if is_text and isinstance(record.get("at_ms"), int) and isinstance(lines, int):
        yield BrokerState(record["at_ms"], namespace.lower(), state, lines)


class Recovery(NamedTuple):
    """The messages that the successor of a broker found on its disk."""

    at_ms: int
    messages: int
    """In backlog queues."""


@dataclass(frozen=True, kw_only=True)
class WriterGap:
    """A writer that stopped without an end, as reports show it."""

    process: str
    from_ms: int
    """Time of its last line: later records may be missing."""
    to_ms: int | None
    """None: unknown."""
    roles: tuple[str, ...]
    doubts: tuple[str, ...]
    """What the open gap puts in doubt."""
    closed_by: str | None
    sentence: str
    recovery: Recovery | None = None
    """Set if a broker's successor closed its gap."""

    @property
    def is_open(self) -> bool:
        """Whether the gap puts something in doubt."""
        return self.closed_by is None and bool(self.doubts)


def judged_gaps(files: Iterable[KnownFile], findings: LedgerFindings) -> tuple[WriterGap, ...]:
    """Return the gaps of a ledger with their doubts, closed where other evidence closes them."""
    of_process: dict[str, list[KnownFile]] = {}
    for file in files:
        of_process.setdefault(file.facts.process, []).append(file)
    gaps = [(gap, _Writer(of_process.get(gap.process, []))) for gap in findings.gaps]
    brokers = [(*_closed_by_successor(gap, writer, of_process), writer) for gap, writer in gaps]
    open_brokers = [
        (gap, writer)
        for gap, _, writer in brokers
        if gap.closed_by is None and BROKER in writer.roles
    ]
    return tuple(
        _writer_gap(_closed_by_brokers(gap, writer, of_process, open_brokers), writer, recovery)
        for gap, recovery, writer in brokers
    )


class _Writer:
    """The facts of all files of a process together."""

    def __init__(self, files: Sequence[KnownFile]) -> None:
        self.roles = frozenset[str]().union(*(file.roles for file in files))
        self.pairs = frozenset[str]().union(*(file.pairs for file in files))
        self.namespaces = {state.namespace for file in files for state in file.states}

    @property
    def doubts(self) -> tuple[str, ...]:
        # A writer without records may be about to send.
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


def _closed_by_successor(
    gap: Gap, writer: _Writer, of_process: dict[str, list[KnownFile]]
) -> tuple[Gap, Recovery | None]:
    """Close a broker's gap if another one served each of its namespaces afterwards."""
    if gap.closed_by is not None or BROKER not in writer.roles or not writer.namespaces:
        return gap, None
    # "serving" alone does not tell which messages the successor found on its disk.
    proofs = {"recovered"} if BACKLOG in writer.roles else {"serving", "recovered"}
    after = sorted(
        (state, process)
        for process, files in of_process.items()
        if process != gap.process
        for file in files
        for state in file.states
        if state.state in proofs and state.at_ms >= gap.from_ms - CLOCKS_MS
    )
    # The first successor of each namespace: later ones found what that one left.
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


def _closed_by_brokers(
    gap: Gap,
    writer: _Writer,
    of_process: dict[str, list[KnownFile]],
    open_brokers: Sequence[tuple[Gap, _Writer]],
) -> Gap:
    """Close a client's gap if brokers recorded everything that it can have done."""
    if gap.closed_by is not None or BROKER in writer.roles or not writer.pairs:
        return gap
    sides = {side.lower() for pair in writer.pairs for side in pair.split("+")}
    is_both = all("+" in pair for pair in writer.pairs) and sides <= _serving(gap, of_process)
    # A successor without a ledger may have followed a broker whose gap is open.
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
    """Return the namespaces whose brokers kept records when a gap began."""
    states = [state for files in of_process.values() for file in files for state in file.states]
    began, stopped = dict[str, int](), dict[str, int]()
    for state in sorted(states):
        if state.state == "serving" and state.at_ms <= gap.from_ms + CLOCKS_MS:
            began[state.namespace] = state.at_ms
        elif state.state == "stopped" and state.at_ms <= gap.from_ms - CLOCKS_MS:
            stopped[state.namespace] = state.at_ms
    return {name for name, at_ms in began.items() if at_ms > stopped.get(name, at_ms - 1)}


def _writer_gap(gap: Gap, writer: _Writer, recovery: Recovery | None) -> WriterGap:
    return WriterGap(
        process=gap.process,
        from_ms=gap.from_ms,
        to_ms=gap.to_ms,
        roles=tuple(sorted(writer.roles - {BACKLOG})),
        doubts=writer.doubts,
        closed_by=gap.closed_by,
        sentence=gap.sentence(),
        recovery=recovery,
    )
