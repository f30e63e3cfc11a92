"""The timeline of a pair from ledger records: spans of states, marks, sends. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from twinbus.page.core.history import UNKNOWN, Span

HELD: Final = ("forced", "frozen", "raising")
"""States of spans that the ledger does not record."""

RANKS: Final = {"unusable": 3, "failed over": 2, "suspect": 1, "healthy": 0}
CLOSED: Final = "closed"
"""The state of an entity whose pair was closed."""

BUCKETS_MAX: Final = 240
MARKS_MAX: Final = 2_000
"""Marks of one entity: more cannot be told apart on a screen."""

FAILED_MAX: Final = 50_000
"""Messages whose last attempt failed, to remember while the ledger is read."""


@dataclass(slots=True)
class SendBuckets:
    """Messages by time: stored on the primary, in the backlog, and neither."""

    begins: float
    ends: float
    bucket_s: float = field(init=False)
    _counts: dict[int, list[int]] = field(default_factory=dict)
    _failed: dict[bytes, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bucket_s = max(1.0, (self.ends - self.begins) / BUCKETS_MAX)

    def stored(self, at: float, message_id: bytes, *, in_backlog: bool) -> None:
        """Count a message that a namespace accepted."""
        self._failed.pop(message_id, None)
        self._add(at, 1 if in_backlog else 0)

    def failed(self, at: float, message_id: bytes) -> None:
        """Note a failed attempt: unless a later one succeeds, its caller got the error."""
        if len(self._failed) < FAILED_MAX:
            self._failed[message_id] = at

    def rows(self) -> list[list[float]]:
        """Return [time, primary, backlog, raised] for each bucket with messages."""
        for at in self._failed.values():
            self._add(at, 2)
        self._failed.clear()
        return [
            [self.begins + index * self.bucket_s, *counts]
            for index, counts in sorted(self._counts.items())
        ]

    def _add(self, at: float, which: int) -> None:
        if self.begins <= at < self.ends:
            counts = self._counts.setdefault(int((at - self.begins) // self.bucket_s), [0, 0, 0])
            counts[which] += 1


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A change of an entity's state, or a ping, as a process recorded it."""

    at: float
    process: str
    entity: str
    state: str
    """The new state; `ping` or `ping-failed` for a ping."""


def entity_rows(
    records: Iterable[StateRecord],
    first: dict[str, float],
    ended: dict[str, float],
    begins: float,
    ends: float,
) -> list[dict[str, Any]]:
    """Return path, spans and marks of each entity within the window.

    Several processes may send to one entity: the worst of their states is shown. `first` has the
    time of each process's first record, `ended` that of the last one if it no longer runs.
    """
    by_entity: dict[str, list[StateRecord]] = {}
    for record in sorted(records, key=lambda one: one.at):
        by_entity.setdefault(record.entity, []).append(record)
    return [
        {"path": path, **_row(found, first, ended, begins, ends)}
        for path, found in by_entity.items()
    ]


def merged_spans(
    recorded: Sequence[Span],
    observed: Sequence[Span],
    begins: float,
    ends: float,
    known_from: float | None,
) -> list[Span]:
    """Return the spans of one entity from `begins` to `ends`: the ledger's before the page's own.

    Only the page knows what a person holds and what raises. What neither saw is unknown, from
    `known_from`, the start of the process, on.
    """
    closed = [
        [[max(begins, a), ends if b is None else min(b, ends), state] for a, b, state in spans]
        for spans in (recorded, observed)
    ]
    held = [span for span in closed[1] if span[2] in HELD]
    seen = [span for span in closed[1] if span[2] not in (*HELD, UNKNOWN)]
    start = begins if known_from is None else max(begins, known_from)
    merged: list[Span] = []
    for layer in (held, closed[0], seen, [[start, ends, UNKNOWN]]):
        merged = sorted([*merged, *_uncovered(layer, merged)])
    return _joined(merged)


def _uncovered(spans: Sequence[Span], covers: Sequence[Span]) -> list[Span]:
    """Return the parts of spans that no cover covers; covers are in order and do not overlap."""
    parts = []
    for a, b, state in spans:
        at = a
        for from_, to, _ in covers:
            if to > at and from_ < b:
                parts.append([at, from_, state])
                at = to
        parts.append([at, b, state])
    return [part for part in parts if part[0] < part[1]]


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return the spans with neighbours of the same state as one."""
    joined: list[Span] = []
    for a, b, state in spans:
        if joined and joined[-1][2] == state and joined[-1][1] >= a:
            joined[-1][1] = max(b, joined[-1][1])
        else:
            joined.append([a, b, state])
    return joined


def _row(
    records: Sequence[StateRecord],
    first: dict[str, float],
    ended: dict[str, float],
    begins: float,
    ends: float,
) -> dict[str, Any]:
    changes = [one for one in records if not one.state.startswith("ping")]
    processes = {one.process for one in changes}
    last = [
        StateRecord(ended[one], one, records[0].entity, CLOSED) for one in processes & ended.keys()
    ]
    spans: list[list[Any]] = []
    marks: list[tuple[float, str]] = [
        (one.at, one.state) for one in records if one.state.startswith("ping")
    ]
    states: dict[str, str] = {}
    if changes and changes[0].state == "suspect":
        # It was healthy before, for as long as the process is known.
        spans.append([first.get(changes[0].process, changes[0].at), None, "healthy"])
    for change in sorted([*changes, *last], key=lambda one: one.at):
        before = states.get(change.process)
        if change.state == CLOSED:
            states.pop(change.process, None)
        else:
            states[change.process] = change.state
        if change.state == "failed over":
            marks.append((change.at, "failover"))
        elif change.state == "healthy" and before in ("failed over", "unusable"):
            marks.append((change.at, "restore"))
        _extend(spans, _worst(states.values()), change.at)
    inside = [
        [max(begins, from_), to, state]
        for from_, to, state in spans
        if from_ < ends and (to is None or to > begins) and from_ != to
    ]
    kept = sorted(mark for mark in marks if begins <= mark[0] < ends)
    return {"spans": inside, "marks": [list(mark) for mark in kept[-MARKS_MAX:]]}


def _extend(spans: list[list[Any]], state: str | None, at: float) -> None:
    if spans and spans[-1][1] is None:
        if spans[-1][2] == state:
            return
        spans[-1][1] = at
    if state is not None:
        spans.append([at, None, state])


def _worst(states: Collection[str]) -> str | None:
    return max(states, key=lambda state: RANKS.get(state, 0), default=None)
