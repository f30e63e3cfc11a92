"""A pair's numbers for Prometheus, read from the pair at scrape time.

    REGISTRY.register(pair.collector())

Nothing is counted twice: a send adds to the plain numbers that the status shows, and the series are
made of these on the thread that scrapes. So a healthy send pays nothing.

Entities get series of their own in the order of their first message, up to a limit; the numbers of
the others are summed under the entity `(others)`, also those of entities that the pair has
forgotten. So a counter never decreases, and ten thousand entities cost Prometheus no more than the
limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

try:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise ImportError(
        "metrics need the library prometheus-client: pip install 'twinbus[telemetry]'"
    ) from missing

from twinbus.pairing.core.events import EntityState
from twinbus.pairing.core.sides import PairSides, Side, SideState
from twinbus.pairing.core.status import QUEUE_STATES, backlog_status

if TYPE_CHECKING:
    from twinbus.pairing.core.counters import EntityTotals
    from twinbus.pairing.observing.backlog_depth import BacklogDepth
    from twinbus.pairing.sending.shared_state import SharedState
    from twinbus.pairing.sending.watched_entity import WatchedEntity

OTHERS: Final = "(others)"
"""The entity name under which entities past the limit are summed; none has parentheses."""

MOVES: Final = ("forwarded", "completed", "dead_lettered")


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """The parts of one pair that its numbers come from."""

    state: SharedState
    sides: PairSides
    syphon: Callable[[], dict[str, dict[str, Any]]]
    backlog_depth: BacklogDepth | None = None

    @property
    def name(self) -> str:
        return self.state.recorder.pair


class _Series:
    """Messages sent, diverted and raised of one entity; they stay when the pair forgets it."""

    def __init__(self) -> None:
        self.values: tuple[int, ...] = (0, 0, 0)
        self._before: tuple[int, ...] = (0, 0, 0)
        self._seen: tuple[int, ...] = (0, 0, 0)

    def update(self, numbers: tuple[int, ...]) -> None:
        """Take the numbers of now; smaller ones are those of an entity that was made again."""
        if any(now < seen for now, seen in zip(numbers, self._seen, strict=True)):
            self._before = self.values
        self._seen = numbers
        self.values = tuple(a + b for a, b in zip(self._before, numbers, strict=True))


class PairCollector(Collector):
    """The series of one pair; `also` makes one collector for several pairs."""

    def __init__(self, *pairs: MeasuredPair, entities_max: int = 1_000) -> None:
        if not entities_max >= 0:
            raise ValueError(f"entities_max is a whole number from 0; got {entities_max!r}")
        self._pairs = list(pairs)
        self._entities_max = entities_max
        self._named: dict[str, dict[str, _Series]] = {}
        """For each pair the entities that have series of their own, by path, in order."""

    def also(self, *others: PairCollector) -> PairCollector:
        """Add the pairs of other collectors, to register one for all pairs of a process."""
        for other in others:
            self._pairs += other._pairs
        return self

    def collect(self) -> Iterator[Metric]:
        """Every series with its value now; the registry calls this on any thread."""
        yield from self._entity_metrics()
        yield from self._pair_metrics()
        yield from self._syphon_metrics()
        yield from self._backlog_metrics()

    def _entity_metrics(self) -> Iterator[Metric]:
        entities = _gauge("twinbus_entities", "Entities of the primary by state", "state")
        state = _gauge(
            "twinbus_entity_state",
            "1 for the state of each entity that is not healthy",
            "entity",
            "state",
        )
        stored = _counter(
            "twinbus_messages_stored",
            "Messages stored, by where: on the primary, or in the backlog",
            "entity",
            "route",
        )
        raised = _counter(
            "twinbus_messages_raised", "Messages whose call raised or was cancelled", "entity"
        )
        for measured in self._pairs:
            pair = measured.name
            watched, forgotten = measured.state.watched.numbers()
            counts = dict.fromkeys(EntityState, 0)
            for entity in watched:
                counts[entity.failover.state] += 1
            for which, count in counts.items():
                entities.add_metric([pair, which], count)
            for path, which in self._unhealthy(watched):
                state.add_metric([pair, path, which], 1)
            for path, (sent, diverted, failed) in self._traffic(pair, watched, forgotten).items():
                stored.add_metric([pair, path, "primary"], sent)
                stored.add_metric([pair, path, "backlog"], diverted)
                raised.add_metric([pair, path], failed)
        yield from (entities, state, stored, raised)

    def _unhealthy(self, watched: Iterable[WatchedEntity]) -> list[tuple[str, EntityState]]:
        states = [(entity.path, entity.failover.state) for entity in watched]
        return [one for one in states if one[1] is not EntityState.HEALTHY][: self._entities_max]

    def _traffic(
        self, pair: str, watched: Iterable[WatchedEntity], forgotten: EntityTotals
    ) -> dict[str, tuple[int, ...]]:
        named = self._named.setdefault(pair, {})
        total = [forgotten.sent, forgotten.diverted, forgotten.raised]
        for entity in watched:
            numbers = entity.sent, entity.diverted, entity.raised
            if not any(numbers):
                continue
            total = [sum(pair) for pair in zip(total, numbers, strict=True)]
            if entity.path not in named and len(named) < self._entities_max:
                named[entity.path] = _Series()
            if entity.path in named:
                named[entity.path].update(numbers)
        result = {path: series.values for path, series in named.items()}
        shown = [sum(values) for values in zip(*result.values(), strict=True)] or [0, 0, 0]
        others = tuple(every - own for every, own in zip(total, shown, strict=True))
        return {**result, OTHERS: others} if any(others) else result

    def _pair_metrics(self) -> Iterator[Metric]:
        protected = _gauge("twinbus_protected", "1 while there is a backlog queue to divert to")
        is_open = _gauge("twinbus_side_open", "0 once a side was closed or faulted", "side")
        queues = _gauge("twinbus_backlog_queues", "Backlog queues by state", "state")
        diverts = HistogramMetricFamily(
            "twinbus_divert_seconds",
            "Time that a backlog queue took to store a call's messages",
            labels=["pair"],
        )
        pings = _counter("twinbus_pings", "Pings by how they ended", "result")
        unrecorded = _counter("twinbus_ledger_unrecorded", "Lines the ledger could not take")
        flawed = _counter(
            "twinbus_messages_unprotected",
            "Messages stored on the primary that no backlog queue would take, by guard",
            "guard",
        )
        dropped = _counter("twinbus_events_dropped", "Events dropped for slow listeners")
        for measured in self._pairs:
            pair, state, counters = measured.name, measured.state, measured.state.counters
            protected.add_metric([pair], int(state.rotation.protected))
            for side in Side:
                is_open.add_metric([pair, side], int(measured.sides.state(side) is SideState.OPEN))
            counts = dict.fromkeys(QUEUE_STATES, 0)
            for queue in backlog_status(state.rotation, state.paths, state.now).values():
                counts[queue.state] += 1
            for which, count in counts.items():
                queues.add_metric([pair, which], count)
            buckets = [(_bound(b), float(n)) for b, n in counters.diverts.cumulative()]
            diverts.add_metric([pair], buckets=buckets, sum_value=counters.diverts.sum_s)
            for result, count in counters.pings.items():
                pings.add_metric([pair, result], count)
            watched, totals = state.watched.numbers()
            for entity in watched:
                totals.add(entity)
            flawed.add_metric([pair, "oversize"], totals.oversize)
            flawed.add_metric([pair, "reserved"], totals.reserved)
            unrecorded.add_metric([pair], state.recorder.unrecorded)
            dropped.add_metric([pair], state.listeners.dropped)
        yield from (protected, is_open, queues, diverts, pings, flawed, unrecorded, dropped)

    def _syphon_metrics(self) -> Iterator[Metric]:
        moved = _counter(
            "twinbus_syphon_messages",
            "Messages of the backlog by what this syphon did with them",
            "queue",
            "outcome",
        )
        in_flight = _gauge(
            "twinbus_syphon_in_flight",
            "Messages received from the backlog and not settled",
            "queue",
        )
        for pair in self._pairs:
            for queue, status in pair.syphon().items():
                in_flight.add_metric([pair.name, queue], status["in_flight"])
                for outcome in MOVES:
                    moved.add_metric([pair.name, queue, outcome], status[outcome])
        yield from (moved, in_flight)

    def _backlog_metrics(self) -> Iterator[Metric]:
        messages = _gauge(
            "twinbus_backlog_messages",
            "Messages in a backlog queue: waiting, or dead-lettered there",
            "queue",
            "kind",
        )
        oldest = _gauge(
            "twinbus_backlog_oldest_seconds",
            "Age of the oldest message that waits in a backlog queue",
            "queue",
        )
        for pair in self._pairs:
            depths = {} if pair.backlog_depth is None else pair.backlog_depth.depths()
            for queue, depth in depths.items():
                messages.add_metric([pair.name, queue, "waiting"], depth.waiting)
                messages.add_metric([pair.name, queue, "dead-lettered"], depth.dead_lettered)
                age_s = 0.0 if depth.oldest_at is None else time.time() - depth.oldest_at
                oldest.add_metric([pair.name, queue], max(0.0, age_s))
        yield from (messages, oldest)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["pair", *labels])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=["pair", *labels])


def _bound(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else f"{seconds:g}"
