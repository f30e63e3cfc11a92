"""The states and sends of a pair over time: as the page saw them, and by the ledger. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from twinbus.page.core.model import SendBucket, ShownEntity, Span
from twinbus.status.document import EntityStatus
from twinbus.status.judgement import rank

WINDOW_S: Final = 600.0
"""How far back the view shows spans and sends; the timeline reads the ledger for more."""

SPANS_MAX: Final = 60
"""Spans kept of one entity: one that flaps faster loses its oldest."""

BUCKET_S: Final = 10.0
GAP_MAX_S: Final = 30.0
"""After a longer pause between two observations the sends in it belong to no bucket."""

CLOCKS_S: Final = 3.0
"""By so much the time of a change may vary: it is computed from an answer that may come late."""

HEALTHY: Final = "healthy"
UNKNOWN: Final = "unknown"
"""The state of a span that was not watched."""


HELD: Final = ("forced", "frozen", "raising")
"""States of spans that the ledger does not record."""

EndedSpan = tuple[float, float, str]
CLOSED: Final = "closed"
"""The state of an entity whose pair was closed."""

BUCKETS_MAX: Final = 240
MARKS_MAX: Final = 2_000
"""Marks of one entity: more cannot be told apart on a screen."""

FAILED_MAX: Final = 50_000
"""Messages whose last attempt failed, to remember while the ledger is read."""


def shown_state(entity: ShownEntity | EntityStatus, states: Sequence[str]) -> str:
    """Return the state of an entity's span: what a person decided comes before what pings say."""
    if entity.frozen:
        return "frozen"
    # The first of its states: a healthy entity whose calls raise is not drawn as healthy.
    return "forced" if entity.forced else states[0]


class EntitySpans:
    """The states of one entity in the window, oldest first; the last one is open.

    A change that was not seen leaves a span of its own: what was between is unknown.
    """

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=SPANS_MAX)
        self._seen_at = 0.0

    def observe(
        self, state: str, since: float | None, now: float, began: float | None = None
    ) -> list[Span]:
        """Note the state at time `now`, entered at `since`; return the spans.

        Without `since` a healthy entity never had another state, from `began` on if that is known.
        """
        spans, seen_at = self._spans, self._seen_at
        if not spans:
            first = began if state == HEALTHY and since is None else since
            spans.append((now if first is None else first, None, state))
        elif spans[-1][2] != state:
            is_known = since is not None and spans[-1][0] < since <= now
            entered = since if is_known and since is not None else now
            is_watched = now - seen_at <= GAP_MAX_S
            self._enter(state, entered, entered if is_watched else min(entered, seen_at))
        elif since is not None and since > seen_at + CLOCKS_S:
            self._enter(state, since, seen_at)
        elif since is None and state != HEALTHY and now - seen_at > GAP_MAX_S:
            self._enter(state, now, seen_at)
        self._seen_at = now
        while (ended := spans[0][1]) is not None and ended < now - WINDOW_S:
            spans.popleft()
        return list(spans)

    def end(self, now: float) -> list[Span]:
        if self._spans and self._spans[-1][1] is None:
            self._spans[-1] = _until(self._spans[-1], now)
        return list(self._spans)

    def _enter(self, state: str, entered: float, known_until: float) -> None:
        """Close the last span, and begin one; the time between is unknown."""
        self._spans[-1] = _until(self._spans[-1], known_until)
        if known_until < entered:
            self._spans.append((known_until, entered, UNKNOWN))
        self._spans.append((entered, None, state))


def _until(span: Span, ends: float) -> Span:
    return span[0], ends, span[2]


class SendHistory:
    """Messages of a pair in buckets of time: to the primary, to the backlog, raised."""

    def __init__(self) -> None:
        self.unseen: list[tuple[float, float]] = []
        """Times in which sends were not watched: from, to."""
        self._last: tuple[float, tuple[int, int, int]] | None = None
        self._buckets: deque[SendBucket] = deque(maxlen=int(WINDOW_S / BUCKET_S))

    def observe(
        self, totals: tuple[int, int, int], now: float, began: float | None = None
    ) -> list[SendBucket]:
        """Note the pair's totals at time `now`; return the buckets, oldest first.

        `began` is the start of its process.
        """
        last, self._last = self._last, (now, totals)
        if last is None:
            self.unseen = [(max(began or 0.0, now - WINDOW_S), now)]
        if last is not None and now - last[0] > GAP_MAX_S:
            self.unseen = [*self.unseen[1 - SPANS_MAX :], (last[0], now)]
        self.unseen = [gap for gap in self.unseen if gap[1] > now - WINDOW_S]
        if last is not None and now - last[0] <= GAP_MAX_S:
            added = [max(0, new - old) for new, old in zip(totals, last[1], strict=True)]
            if any(added):
                self._add(now // BUCKET_S * BUCKET_S, added)
        while self._buckets and self._buckets[0][0] < now - WINDOW_S:
            self._buckets.popleft()
        return list(self._buckets)

    def _add(self, begins: float, added: list[int]) -> None:
        buckets, counts = self._buckets, (0, 0, 0)
        if buckets and buckets[-1][0] == begins:
            counts = buckets.pop()[1:]
        primary, backlog, raised = (a + b for a, b in zip(counts, added, strict=True))
        buckets.append((begins, primary, backlog, raised))


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
        self._failed.pop(message_id, None)
        self._add(at, 1 if in_backlog else 0)

    def failed(self, at: float, message_id: bytes) -> None:
        """Note a failed attempt: unless a later one succeeds, its caller got the error."""
        if len(self._failed) < FAILED_MAX:
            self._failed[message_id] = at

    def rows(self) -> list[SendBucket]:
        for at in self._failed.values():
            self._add(at, 2)
        self._failed.clear()
        return [
            (self.begins + index * self.bucket_s, counts[0], counts[1], counts[2])
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
        [(max(begins, a), ends if b is None else min(b, ends), state) for a, b, state in spans]
        for spans in (recorded, observed)
    ]
    held = [span for span in closed[1] if span[2] in HELD]
    seen = [span for span in closed[1] if span[2] not in (*HELD, UNKNOWN)]
    start = begins if known_from is None else max(begins, known_from)
    merged: list[EndedSpan] = []
    for layer in (held, closed[0], seen, [(start, ends, UNKNOWN)]):
        merged = sorted([*merged, *_uncovered(layer, merged)])
    return _joined(merged)


def _uncovered(spans: Sequence[EndedSpan], covers: Sequence[EndedSpan]) -> list[EndedSpan]:
    """Return the parts of spans that no cover covers; covers are in order and do not overlap."""
    parts = []
    for a, b, state in spans:
        at = a
        for from_, to, _ in covers:
            if to > at and from_ < b:
                parts.append((at, from_, state))
                at = to
        parts.append((at, b, state))
    return [part for part in parts if part[0] < part[1]]


def _joined(spans: Sequence[EndedSpan]) -> list[Span]:
    """Return the spans with neighbours of the same state as one."""
    joined: list[EndedSpan] = []
    for a, b, state in spans:
        if joined and joined[-1][2] == state and joined[-1][1] >= a:
            before = joined.pop()
            joined.append((before[0], max(b, before[1]), state))
        else:
            joined.append((a, b, state))
    return [*joined]


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
    spans: list[Span] = []
    marks: list[tuple[float, str]] = [
        (one.at, one.state) for one in records if one.state.startswith("ping")
    ]
    states: dict[str, str] = {}
    if changes and changes[0].state == "suspect":
        # It was healthy before, for as long as the process is known.
        spans.append((first.get(changes[0].process, changes[0].at), None, "healthy"))
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
        worst = min(states.values(), key=lambda state: rank([state]), default=None)
        _extend(spans, worst, change.at)
    inside = [
        (max(begins, from_), to, state)
        for from_, to, state in spans
        if from_ < ends and (to is None or to > begins) and from_ != to
    ]
    kept = sorted(mark for mark in marks if begins <= mark[0] < ends)
    return {"spans": inside, "marks": [list(mark) for mark in kept[-MARKS_MAX:]]}


def _extend(spans: list[Span], state: str | None, at: float) -> None:
    if spans and spans[-1][1] is None:
        if spans[-1][2] == state:
            return
        spans[-1] = _until(spans[-1], at)
    if state is not None:
        spans.append((at, None, state))
