"""What the page shows, as typed documents that travel as JSON, and the table of them. Pure.

`/api/view`, the stream and `twinbus top` have these; a page also reads them from its peers. A
document is replaced as a whole, never changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Final, Literal, cast

from twinbus.status.document import BacklogQueueStatus, EntityStatus
from twinbus.status.judgement import STATES
from twinbus.status.reading import StatusUnreadable, read
from twinbus.wording import counted

PAIRS_MAX: Final = 200
"""Pairs of one peer to show."""

Span = tuple[float, float | None, str]
"""From, to (None: it lasts) and the state."""

LEVELS: Final = ("unprotected", "failed-over", "attention", "healthy", "none")
"""How urgent a pair or a headline is, most urgent first."""

WORST: Final = {"unusable": "unprotected", "failed over": "failed-over"}
"""The level of a pair whose worst entity is in this state; of others: attention."""

SendBucket = tuple[float, int, int, int]
"""When it begins, and the messages to the primary, to the backlog, and raised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownEntity(EntityStatus):
    """One entity of a pair, with texts for people and without `since_s`, which always changes."""

    states: list[str]
    """The words for its state, and for what holds it."""
    since: float | None
    spans: list[Span]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What stops messages on their way home."""

    what: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownSyphon:
    """What a syphon does, summed over its queues."""

    paused: bool
    completed: int
    in_flight: int
    dead_lettered: int
    rate: float
    forecast_s: float | None
    limit: str
    obstacles: list[Obstacle]
    twins: str = ""
    """How many messages wait in twins; empty: none, or it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownReceiver:
    """The receivers and processors of one queue or subscription, and the twin that they read."""

    path: str
    level: str
    """One of LEVELS; healthy: every link is open, and a twin's mark was read."""
    receivers: int = 0
    primary: str = ""
    secondary: str = ""
    """What the receivers do at a side; empty: they do not read it."""
    since: float | None = None
    """When the receiver that reconnects for the longest lost its link."""
    reason: str = ""
    handed_out: int = 0
    second_copies: int = 0
    reopened: int = 0
    silent: int = 0
    processor: str = ""
    """How many handlers run, and what they did; empty: no processor was started."""
    twin: str = ""
    """The state of the twin; empty: there is none, as far as is known."""
    twin_reason: str = ""
    """Why the twin is not in use."""
    waiting: int | None = None
    """Messages in the twin; None: not known."""
    contents: str = ""
    """Which of these are active, scheduled and deferred."""
    emptied_by: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownPair:
    """One pair, or one syphon that is a program of its own."""

    id: str
    kind: Literal["pair", "syphon", ""]
    """Empty: it has never answered."""
    name: str
    pid: int
    host: str
    program: str
    started_at: float | None
    state: Literal["running", "gone", "silent"]
    state_since: float
    why: str
    read_only: bool = False
    """Whether it runs on another host, whose page alone can steer it."""
    primary: str = ""
    secondary: str = ""
    protected: bool = True
    verified_at: float | None = None
    safe: bool | None = None
    """None: not known, or a syphon, which sends nothing of its own."""
    safety: str = ""
    attention: list[str] = field(default_factory=list)
    waiting: int | None = None
    syphon: ShownSyphon | None = None
    entities: list[ShownEntity] = field(default_factory=list)
    queues: list[BacklogQueueStatus] = field(default_factory=list)
    sends: list[SendBucket] = field(default_factory=list)
    unseen: list[tuple[float, float]] = field(default_factory=list)
    """Times in which sends were not watched."""
    receiving: list[ShownReceiver] = field(default_factory=list)
    """What is received from, what is handled, and what twins hold; worst first."""
    fleet: str = ""
    """Which other processes and hosts it hears; empty: none, or it is not known."""

    DERIVED: ClassVar = ("level", "word")

    @property
    def level(self) -> str:
        """One of LEVELS."""
        return self._condition[0]

    @property
    def word(self) -> str:
        """Its condition in a word or two."""
        return self._condition[1]

    @property
    def _condition(self) -> tuple[str, str]:
        if self.state == "gone":
            return "none", "no longer running"
        if self.state == "silent":
            return "attention", "does not answer"
        if self.kind == "syphon" and not self.attention:
            return "healthy", "syphon"
        if not self.protected:
            return "unprotected", "unprotected"
        states = {state for entity in self.entities for state in entity.states}
        worst = next((state for state in STATES if state in states), "healthy")
        if worst != "healthy":
            return WORST.get(worst, "attention"), worst
        return ("attention", "attention") if self.attention else ("healthy", "healthy")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownEvent:
    """Something that happened."""

    number: int = 0
    """Goes up by 1 with each event that this page observed; 0: it is from the ledger."""
    t: float
    pair: str
    host: str = ""
    kind: str
    path: str | None = None
    text: str
    level: str = "info"
    who: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownProof:
    """The verdict of the last conservation report."""

    made_at: float | None = None
    verdict: Literal["nothing lost", "lost", "unknown", "none"] = "none"
    text: str = "no report yet"
    unknown: list[str] = field(default_factory=list)
    making: bool = False
    """Whether another one is being made."""


@dataclass(frozen=True, slots=True)
class Headline:
    """One sentence and one level about all pairs."""

    level: str
    text: str
    since: float | None = None


def as_json(document: Any) -> dict[str, Any]:
    """Return a document as JSON data, one level deep: the `default` of `json.dumps`."""
    return {name: getattr(document, name) for name in _names(cast("Any", type(document)))}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return (*(one.name for one in fields(kind)), *getattr(kind, "DERIVED", ()))


def foreign_pairs(document: object, place: str) -> tuple[list[ShownPair], str]:
    """Return the pairs of a peer's view, and what is left out; ValueError: it is no view.

    Their ids begin with `place`. A pair that does not fit is left out: a peer that lies can show
    wrong figures of its own pairs and nothing else. So are, without a word, those that the peer
    shows for its own peers: two may show each other.
    """
    found = document.get("pairs") if isinstance(document, dict) else None
    if type(found) is not list:
        raise ValueError("its answer is no view of a page")
    pairs, misfits = [], []
    for one in found[:PAIRS_MAX]:
        try:
            pair = read(ShownPair, one)
        except StatusUnreadable as error:
            misfits.append(str(error))
            continue
        if not pair.read_only:
            pairs.append(replace(pair, id=f"{place}/{pair.id}", read_only=True))
    left_out = [f"{counted(len(misfits), 'pair')} not shown: {misfits[0]}"] if misfits else []
    if len(found) > PAIRS_MAX:
        left_out.append(f"only the first {PAIRS_MAX} of {len(found):,} pairs are shown")
    return pairs, "; ".join(left_out)


class PairTable:
    """The pairs that are shown, each with a version, so that a reader can take what changed."""

    def __init__(self) -> None:
        self.pairs: dict[str, ShownPair] = {}
        self.versions: dict[str, int] = {}
        """Goes up with each change of a pair's document."""
        self.version = 0
        """The highest version so far."""
        self.removals = 0
        """How many pairs were removed so far."""

    def put(self, pair: ShownPair) -> None:
        if self.pairs.get(pair.id) != pair:
            self.version += 1
            self.pairs[pair.id], self.versions[pair.id] = pair, self.version

    def remove(self, id_: str) -> None:
        if self.pairs.pop(id_, None) is not None:
            self.removals += 1
            del self.versions[id_]
