"""What was observed of a pair over time: the spans of its entities' states, and its sends. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

WINDOW_S: Final = 600.0
"""How far back the view shows spans and sends; the timeline reads the ledger for more."""

SPANS_MAX: Final = 60
"""Spans kept of one entity: one that flaps faster loses its oldest."""

BUCKET_S: Final = 10.0
GAP_MAX_S: Final = 30.0
"""After a longer pause between two observations the sends in it belong to no bucket."""

CLOCKS_S: Final = 3.0
"""By so much the time of a change may vary: it is computed from an answer that may come late."""

Span = list[Any]
"""[from, to or None, state]"""

HEALTHY: Final = "healthy"
UNKNOWN: Final = "unknown"
"""The state of a span that was not watched."""


def shown_state(entity: Mapping[str, Any]) -> str:
    """Return the state of an entity's span: what a person decided comes before what pings say."""
    if entity.get("frozen"):
        return "frozen"
    # The first of its states: a healthy entity whose calls raise is not drawn as healthy.
    return "forced" if entity.get("forced") else str(entity["states"][0])


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
            spans.append([now if first is None else first, None, state])
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
        while spans[0][1] is not None and spans[0][1] < now - WINDOW_S:
            spans.popleft()
        return [list(span) for span in spans]

    def end(self, now: float) -> list[Span]:
        """Close the last span: the pair is gone."""
        if self._spans and self._spans[-1][1] is None:
            self._spans[-1][1] = now
        return [list(span) for span in self._spans]

    def _enter(self, state: str, entered: float, known_until: float) -> None:
        """Close the last span, and begin one; the time between is unknown."""
        self._spans[-1][1] = known_until
        if known_until < entered:
            self._spans.append([known_until, entered, UNKNOWN])
        self._spans.append([entered, None, state])


class SendHistory:
    """Messages of a pair in buckets of time: to the primary, to the backlog, raised."""

    def __init__(self) -> None:
        self.unseen: list[list[float]] = []
        """Times [from, to] in which sends were not watched."""
        self._last: tuple[float, tuple[int, int, int]] | None = None
        self._buckets: deque[list[float]] = deque(maxlen=int(WINDOW_S / BUCKET_S))

    def observe(
        self, totals: tuple[int, int, int], now: float, began: float | None = None
    ) -> list[list[float]]:
        """Note the pair's totals at time `now`; return the buckets, oldest first.

        `began` is the start of its process.
        """
        last, self._last = self._last, (now, totals)
        if last is None:
            self.unseen = [[max(began or 0.0, now - WINDOW_S), now]]
        if last is not None and now - last[0] > GAP_MAX_S:
            self.unseen = [*self.unseen[1 - SPANS_MAX :], [last[0], now]]
        self.unseen = [gap for gap in self.unseen if gap[1] > now - WINDOW_S]
        if last is not None and now - last[0] <= GAP_MAX_S:
            added = [max(0, new - old) for new, old in zip(totals, last[1], strict=True)]
            if any(added):
                self._add(now // BUCKET_S * BUCKET_S, added)
        while self._buckets and self._buckets[0][0] < now - WINDOW_S:
            self._buckets.popleft()
        return [list(bucket) for bucket in self._buckets]

    def _add(self, begins: float, added: list[int]) -> None:
        buckets = self._buckets
        if not buckets or buckets[-1][0] != begins:
            buckets.append([begins, 0, 0, 0])
        for index, count in enumerate(added, 1):
            buckets[-1][index] += count
