"""Whether a supervisor should restart a syphon, and what the syphon waits for. Pure.

A restart cures a failed pump and a pump that is stuck. It does not cure an outage: a syphon without
its primary, its secondary or its lease reconnects by itself, and would be no further after a
restart. Such a syphon is healthy and waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from twinbus.status.document import SyphonQueueStatus
from twinbus.status.judgement import no_pump_text

STUCK_S: Final = 300.0
"""Time without a settled message before a pump that nothing blocks counts as stuck: five times the
lock duration of a backlog queue, and longer than every timeout of the syphon."""

QUEUES_MAX: Final = 100
"""The most backlog queues of a pair."""

PUMP: Final = "pump"
"""The problem of a relay whose pump failed."""

SETTLED: Final = ("forwarded", "completed", "dead_lettered", "deferred")
"""Counters that grow while a pump works."""

QueueStates = Mapping[str, SyphonQueueStatus]
"""`SyphonGroup.status()`: the state of each backlog queue by path."""


@dataclass(frozen=True, slots=True)
class SyphonHealth:
    """The answer to a supervisor."""

    failures: tuple[str, ...]
    """What a restart may cure; empty: do not restart."""
    waits_for: tuple[str, ...]
    """What blocks messages and ends without a restart."""

    @property
    def word(self) -> str:
        return "failed" if self.failures else "waiting" if self.waits_for else "ok"


class StallDetector:
    """Follows the counters of the pumps, to find one that is stuck."""

    def __init__(self, rate_per_s: float | None = None) -> None:
        """`rate_per_s` limits all queues together: at a low rate a queue waits for its turn."""
        turn_s = 0.0 if rate_per_s is None else QUEUES_MAX / rate_per_s
        self._stuck_s = max(STUCK_S, turn_s)
        self._moved: dict[str, tuple[int, float]] = {}
        """By queue, the sum of the counters, and when the queue last moved or was blocked."""

    def observe(self, queues: QueueStates, now: float) -> None:
        """Take the state of now. Call it at least every few seconds."""
        for queue, state in queues.items():
            settled = sum(getattr(state, counter) for counter in SETTLED)
            before, since = self._moved.get(queue, (-1, now))
            if settled != before or not state.in_flight or _blocks(state):
                since = now
            self._moved[queue] = settled, since

    def health(
        self, queues: QueueStates, now: float, without_pump: Sequence[str] = ()
    ) -> SyphonHealth:
        """Return the verdict about the queues, which were observed before."""
        failures = [state.problems[PUMP] for state in queues.values() if PUMP in state.problems]
        for queue, state in queues.items():
            still_s = now - self._moved.get(queue, (0, now))[1]
            if still_s >= self._stuck_s:
                failures.append(
                    f"{queue}: stuck: {state.in_flight:,} messages in flight, none settled for"
                    f" {still_s:.0f} s although nothing blocks them"
                )
        blocks = [block for state in queues.values() for block in _blocks(state)]
        blocks += [no_pump_text(without_pump)] if without_pump else []
        waits_for = dict.fromkeys(blocks) if queues else ["no backlog queue was found yet"]
        return SyphonHealth(tuple(failures), tuple(waits_for))


def _blocks(state: SyphonQueueStatus) -> list[str]:
    named = [f"{what}: {why}" for what, why in state.obstacles.items() if what != PUMP]
    return ["paused by an operator", *named] if state.paused else named
