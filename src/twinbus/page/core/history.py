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

Span = list[Any]
"""[from, to or None, state]"""


def shown_state(entity: Mapping[str, Any]) -> str:
    """Return the state of an entity's span: what a person decided comes before what pings say."""
    if entity.get("frozen"):
        return "frozen"
    # The first of its states: a healthy entity whose calls raise is not drawn as healthy.
    return "forced" if entity.get("forced") else str(entity["states"][0])


class EntitySpans:
    """The states of one entity in the window, oldest first; the last one is open."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=SPANS_MAX)

    def observe(self, state: str, since: float | None, now: float) -> list[Span]:
        """Note the state at time `now`, entered at `since` if that is known; return the spans."""
        spans = self._spans
        if not spans:
            spans.append([now if since is None else since, None, state])
        elif spans[-1][2] != state:
            # A hold by hand leaves `since` as it was.
            is_known = since is not None and spans[-1][0] < since <= now
            began = since if is_known else now
            spans[-1][1] = began
            spans.append([began, None, state])
        while spans[0][1] is not None and spans[0][1] < now - WINDOW_S:
            spans.popleft()
        return [list(span) for span in spans]

    def end(self, now: float) -> list[Span]:
        """Close the last span: the pair is gone."""
        if self._spans and self._spans[-1][1] is None:
            self._spans[-1][1] = now
        return [list(span) for span in self._spans]


class SendHistory:
    """Messages of a pair in buckets of time: to the primary, to the backlog, raised."""

    def __init__(self) -> None:
        self._last: tuple[float, tuple[int, int, int]] | None = None
        self._buckets: deque[list[float]] = deque(maxlen=int(WINDOW_S / BUCKET_S))

    def observe(self, totals: tuple[int, int, int], now: float) -> list[list[float]]:
        """Note the pair's totals at time `now`; return the buckets, oldest first."""
        last, self._last = self._last, (now, totals)
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
