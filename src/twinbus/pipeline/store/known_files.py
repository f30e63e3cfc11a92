"""What the tables know of one ledger file: its place in the chain, and what its writer does.

This process, not Spark, reads the file for that. It reads an ended file once, when the tables take
it, and stores the result in `sets`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twinbus.ledger.facts import FileFacts, WriterNote, facts_of
from twinbus.ledger.record import LedgerError

if TYPE_CHECKING:
    # Not at run time: reports are printed and plans are made without pyarrow.
    from twinbus.pipeline.store.place_files import FoundFile, PlaceFiles

SENDER, SYPHON, CONSUMER = "sender", "syphon", "consumer"
BROKER, BACKLOG = "broker", "backlog"
"""What a writer does. `BACKLOG`: it is a broker, and its namespace has backlog queues."""

_WORDS: Final = {
    # With and without a space, as other programs write JSON.
    SENDER: (b'"cause":"application"', b'"cause":"failover"', b'"cause": "application"'),
    SYPHON: (b'"cause":"syphon"', b'"cause": "syphon"'),
    CONSUMER: (b'"cause":"consumer"', b'"cause": "consumer"'),
    BROKER: (b'"view":"broker"', b'"view": "broker"'),
    BACKLOG: (b"/x-servicebus-transfer/",),
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


def read_known_file(place: PlaceFiles, found: FoundFile) -> KnownFile | None:
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
