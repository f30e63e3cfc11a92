"""A pair's numbers for Prometheus, read from the pair when a scrape asks for them.

    REGISTRY.register(pair.collector())

Nothing is counted twice: a send adds to the plain numbers that the status shows, and the series are
made of these at scrape time, on the thread that scrapes. So the healthy path pays nothing.

Entities get series of their own in the order of their first message, up to a limit; what goes
through the others is summed under the entity `(others)`. So a series never goes back, and ten
thousand entities cost Prometheus no more than the limit.
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
    from twinbus.pairing.observing.backlog_depth import BacklogDepth
    from twinbus.pairing.sending.client import PairedClient
    from twinbus.pairing.sending.watched_entity import WatchedEntity

__all__ = ["OTHERS", "MeasuredPair", "PairCollector"]

OTHERS: Final = "(others)"
"""The entity under which those past the limit are summed; no entity's name has parentheses."""

MOVES: Final = ("forwarded", "completed", "dead_lettered")


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """One pair, as far as its numbers go."""

    client: PairedClient
    sides: PairSides
    syphon: Callable[[], dict[str, dict[str, Any]]]
    sounding: BacklogDepth | None = None


class PairCollector(Collector):
    """The series of one pair; `also` makes one collector of several pairs' numbers."""

    def __init__(self, *subjects: MeasuredPair, entities_max: int = 1_000) -> None:
        if not entities_max >= 0:
            raise ValueError(f"entities_max is a whole number from 0; got {entities_max!r}")
        self._subjects = list(subjects)
        self._entities_max = entities_max
        self._named: dict[str, dict[str, None]] = {}
        """For each pair the paths of entities with series of their own, in order."""

    def also(self, *others: PairCollector) -> PairCollector:
        """This collector with the pairs of others too: register one for all pairs of a process."""
        for other in others:
            self._subjects += other._subjects
        return self

    def collect(self) -> Iterator[Metric]:
        """Every series as it is now; called by the registry, on any thread."""
        yield from self._entity_metrics()
        yield from self._pair_metrics()
        yield from self._syphon_metrics()
        yield from self._backlog_metrics()

    def _entity_metrics(self) -> Iterator[Metric]:
        entities = GaugeMetricFamily(
            "twinbus_entities", "Entities of the primary by state", labels=["pair", "state"]
        )
        state = GaugeMetricFamily(
            "twinbus_entity_state",
            "1 for the state of each entity that is not healthy",
            labels=["pair", "entity", "state"],
        )
        stored = CounterMetricFamily(
            "twinbus_messages_stored",
            "Messages stored, by where: on the primary, or in the backlog",
            labels=["pair", "entity", "route"],
        )
        raised = CounterMetricFamily(
            "twinbus_messages_raised",
            "Messages whose call raised or was cancelled",
            labels=["pair", "entity"],
        )
        for subject in self._subjects:
            pair = subject.client.recorder.pair
            # A list first: the pair's own thread may add to it meanwhile.
            watched = subject.client.entities
            counts = dict.fromkeys(EntityState, 0)
            for entity in watched:
                counts[entity.failover.state] += 1
            for which, count in counts.items():
                entities.add_metric([pair, which], count)
            for path, which in self._unhealthy(watched):
                state.add_metric([pair, path, which], 1)
            for path, (sent, diverted, failed) in self._traffic(pair, watched).items():
                stored.add_metric([pair, path, "primary"], sent)
                stored.add_metric([pair, path, "backlog"], diverted)
                raised.add_metric([pair, path], failed)
        yield from (entities, state, stored, raised)

    def _unhealthy(self, watched: Iterable[WatchedEntity]) -> list[tuple[str, EntityState]]:
        states = [(entity.path, entity.failover.state) for entity in watched]
        return [one for one in states if one[1] is not EntityState.HEALTHY][: self._entities_max]

    def _traffic(
        self, pair: str, watched: Iterable[WatchedEntity]
    ) -> dict[str, tuple[int, int, int]]:
        named = self._named.setdefault(pair, {})
        result: dict[str, tuple[int, int, int]] = {}
        others = (0, 0, 0)
        for entity in watched:
            numbers = entity.sent, entity.diverted, entity.raised
            if not any(numbers):
                continue
            if entity.path not in named and len(named) < self._entities_max:
                named[entity.path] = None
            if entity.path in named:
                result[entity.path] = numbers
            else:
                a, b, c = others
                others = a + numbers[0], b + numbers[1], c + numbers[2]
        if any(others):
            result[OTHERS] = others
        return result

    def _pair_metrics(self) -> Iterator[Metric]:
        protected = GaugeMetricFamily(
            "twinbus_protected", "1 while there is a backlog queue to divert to", labels=["pair"]
        )
        is_open = GaugeMetricFamily(
            "twinbus_side_open", "0 once a side was closed or faulted", labels=["pair", "side"]
        )
        queues = GaugeMetricFamily(
            "twinbus_backlog_queues", "Backlog queues by state", labels=["pair", "state"]
        )
        diverts = HistogramMetricFamily(
            "twinbus_divert_seconds",
            "Time that a backlog queue took to store a call's messages",
            labels=["pair"],
        )
        pings = CounterMetricFamily(
            "twinbus_pings", "Pings by how they ended", labels=["pair", "result"]
        )
        unrecorded = CounterMetricFamily(
            "twinbus_ledger_unrecorded", "Lines the ledger could not take", labels=["pair"]
        )
        flawed = CounterMetricFamily(
            "twinbus_messages_unprotected",
            "Messages stored on the primary that no backlog queue would take, by guard",
            labels=["pair", "guard"],
        )
        dropped = CounterMetricFamily(
            "twinbus_events_dropped", "Events not told to slow listeners", labels=["pair"]
        )
        for subject in self._subjects:
            client = subject.client
            pair, tallies = client.recorder.pair, client.tallies
            protected.add_metric([pair], int(client.rotation.protected))
            for side in Side:
                is_open.add_metric([pair, side], int(subject.sides.state(side) is SideState.OPEN))
            counts = dict.fromkeys(QUEUE_STATES, 0)
            for queue in backlog_status(client.rotation, client.paths, client.now).values():
                counts[queue.state] += 1
            for which, count in counts.items():
                queues.add_metric([pair, which], count)
            buckets = [(_bound(b), float(n)) for b, n in tallies.diverts.cumulative()]
            diverts.add_metric([pair], buckets=buckets, sum_value=tallies.diverts.sum_s)
            for result, count in tallies.pings.items():
                pings.add_metric([pair, result], count)
            watched = client.entities
            flawed.add_metric([pair, "oversize"], sum(entity.oversize for entity in watched))
            flawed.add_metric([pair, "reserved"], sum(entity.reserved for entity in watched))
            unrecorded.add_metric([pair], client.recorder.unrecorded)
            dropped.add_metric([pair], client.listeners.dropped)
        yield from (protected, is_open, queues, diverts, pings, flawed, unrecorded, dropped)

    def _syphon_metrics(self) -> Iterator[Metric]:
        moved = CounterMetricFamily(
            "twinbus_syphon_messages",
            "Messages of the backlog by what this syphon did with them",
            labels=["pair", "queue", "outcome"],
        )
        in_flight = GaugeMetricFamily(
            "twinbus_syphon_in_flight",
            "Messages received from the backlog and not settled",
            labels=["pair", "queue"],
        )
        for subject in self._subjects:
            pair = subject.client.recorder.pair
            for queue, status in subject.syphon().items():
                in_flight.add_metric([pair, queue], status["in_flight"])
                for outcome in MOVES:
                    moved.add_metric([pair, queue, outcome], status[outcome])
        yield from (moved, in_flight)

    def _backlog_metrics(self) -> Iterator[Metric]:
        messages = GaugeMetricFamily(
            "twinbus_backlog_messages",
            "Messages in a backlog queue: waiting, or dead-lettered there",
            labels=["pair", "queue", "kind"],
        )
        oldest = GaugeMetricFamily(
            "twinbus_backlog_oldest_seconds",
            "Age of the oldest message that waits in a backlog queue",
            labels=["pair", "queue"],
        )
        for subject in self._subjects:
            if subject.sounding is None:
                continue
            pair = subject.client.recorder.pair
            for queue, depth in subject.sounding.depths().items():
                messages.add_metric([pair, queue, "waiting"], depth.waiting)
                messages.add_metric([pair, queue, "dead-lettered"], depth.dead_lettered)
                age_s = 0.0 if depth.oldest_at is None else time.time() - depth.oldest_at
                oldest.add_metric([pair, queue], max(0.0, age_s))
        yield from (messages, oldest)


def _bound(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else f"{seconds:g}"
