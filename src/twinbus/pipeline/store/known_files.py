"""One file of a ledger as the tables know it: its place in the chain, and what its writer does.

This process reads a file for that, not Spark. An ended file is read once, when the tables take it;
what was found is kept in `sets`.
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
"""Pairs of one writer that are told apart."""


class BrokerState(NamedTuple):
    """A line of a broker about its namespace: "serving", "stopped" or "recovered"."""

    at_ms: int
    namespace: str
    state: str
    lines: int = 0
    """Messages that it found in its backlog queues, if it says "recovered"."""


@dataclass(frozen=True)
class KnownFile:
    """What one file of a ledger holds."""

    facts: FileFacts
    disk_bytes: int
    """Its size where it is, compressed or not."""
    roles: frozenset[str] = frozenset()
    pairs: frozenset[str] = frozenset()
    states: tuple[BrokerState, ...] = ()
    modified_ms: int = 0
    """When it was last changed; 0 for one that `sets` told of."""

    def as_json(self) -> str:
        """For `sets`: what is not as in any other file."""
        plain = FileFacts("")
        told = {
            one.name: getattr(self.facts, one.name)
            for one in fields(FileFacts)
            if getattr(self.facts, one.name) != getattr(plain, one.name)
        }
        told["notes"] = [asdict(note) for note in self.facts.notes]
        document = {
            "facts": told,
            "disk_bytes": self.disk_bytes,
            "roles": sorted(self.roles),
            "pairs": sorted(self.pairs),
            "states": self.states,
        }
        return json.dumps(document, separators=(",", ":"))


def known_from_json(text: str) -> KnownFile:
    """What `KnownFile.as_json` gave; fields of a later version are left out."""
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


def _known(kind: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in told.items() if name in names}


def look_at(place: PlaceFiles, found: FoundFile) -> KnownFile | None:
    """Read a file; None: it is gone. LedgerError where it cannot be read."""
    looking = _WriterTraits()
    try:
        facts = facts_of(found.name, looking.pieces(place.pieces(found.name)))
    except LedgerError:
        if not place.exists(found.name):
            return None
        raise
    return KnownFile(
        facts,
        found.size_bytes,
        frozenset(looking.roles),
        frozenset(looking.pairs),
        tuple(sorted(looking.states)),
        found.modified_ms,
    )


class _WriterTraits:
    """Finds what a writer does at the beginning and at the end of a file, as it passes by."""

    def __init__(self) -> None:
        self.roles: set[str] = set()
        self.pairs: set[str] = set()
        self.states: set[BrokerState] = set()

    def pieces(self, content: Iterator[bytes]) -> Iterator[bytes]:
        """The same pieces."""
        first, last, before = True, b"", b""
        for piece in content:
            if first:
                self._look(piece)
            first, before, last = False, last, piece
            yield piece
        if before:
            # The last piece can be short, and begin inside a line.
            self._look(before + last)

    def _look(self, data: bytes) -> None:
        self.roles |= {role for role, words in _WORDS.items() if any(one in data for one in words)}
        for found in _PAIR.finditer(data):
            if len(self.pairs) < PAIRS_MAX:
                self.pairs.add(found[1].decode("ascii", "replace"))
        if BROKER in self.roles:
            self.states |= {state for line in _STATE_LINE.findall(data) for state in _state(line)}


def _state(line: bytes) -> Iterator[BrokerState]:
    try:
        told = json.loads(line)
    except ValueError:
        return
    namespace, state, lines = told.get("namespace"), told.get("state"), told.get("lines", 0)
    if told.get("view") != "broker" or told.get("entity") is not None:
        return
    is_text = isinstance(namespace, str) and isinstance(state, str)
    if is_text and isinstance(told.get("at_ms"), int) and isinstance(lines, int):
        yield BrokerState(told["at_ms"], namespace.lower(), state, lines)
