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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.extras import missing_package

try:
    from prometheus_client.core import HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector

    from twinbus.exposition import COUNTER, GAUGE, Families, Sample, metrics_of
except ModuleNotFoundError as missing:
    raise missing_package("pair.collector()", missing) from None

from twinbus.client.administration import QueueCounts, counts_of
from twinbus.client.peeking import BacklogMeter
from twinbus.ledger.requests import recording_to
from twinbus.namespace.access import endpoint_of
from twinbus.pairing.core.sides import PairSides, Side
from twinbus.pairing.core.status import backlog_status
from twinbus.status.document import (
    QUEUE_STATES,
    EntityState,
    PairStatus,
    SideState,
    SyphonQueueStatus,
    TwinContents,
    TwinStatus,
)
from twinbus.status.judgement import judgement_of
from twinbus.status.receiving import (
    NOT_READ,
    OPEN,
    OTHERS,
    RECONNECTING,
    WAITING,
    ReceiverStatus,
)
from twinbus.status.twins import is_fresh

if TYPE_CHECKING:
    from twinbus.pairing.sending.entity_monitor import EntityMonitor
    from twinbus.pairing.sending.shared_state import SharedState
    from twinbus.status.document import EntityTotals

OUTCOMES: Final = ("forwarded", "completed", "dead_lettered")

BACKLOG_FAMILIES: Final[Families] = {
    "twinbus_ledger_unrecorded": (COUNTER, "Lines the ledger could not take"),
    "twinbus_syphon_messages": (
        COUNTER, "Messages of the backlog by what this syphon did with them", "queue", "outcome",
    ),
    "twinbus_syphon_in_flight": (
        GAUGE, "Messages received from the backlog and not settled", "queue",
    ),
    "twinbus_backlog_messages": (
        GAUGE, "Messages in a backlog queue: waiting, or dead-lettered there", "queue", "kind",
    ),
    "twinbus_backlog_oldest_seconds": (
        GAUGE, "Age of the oldest message that waits in a backlog queue", "queue",
    ),
    "twinbus_twin_messages": (
        GAUGE, "Messages in a twin, by who empties it: consumers, or syphon too; absent: unknown",
        "entity", "emptied_by",
    ),
}  # fmt: skip
"""The series that the metrics of a syphon program have too."""

FAMILIES: Final[Families] = {
    **BACKLOG_FAMILIES,
    "twinbus_entities": (GAUGE, "Entities of the primary by state", "state"),
    "twinbus_entity_state": (
        GAUGE, "1 for the state of each entity that is not healthy", "entity", "state",
    ),
    "twinbus_entity_raising": (
        GAUGE, "Calls that raised in the last minute, of each entity that has some", "entity",
    ),
    "twinbus_safe": (GAUGE, "1 while `twinbus status` says that sends are safe"),
    "twinbus_messages_stored": (
        COUNTER, "Messages stored, by where: primary, backlog, or twin", "entity", "route",
    ),
    "twinbus_messages_raised": (COUNTER, "Messages whose call raised or was cancelled", "entity"),
    "twinbus_messages_unprotected": (
        COUNTER, "Messages stored on the primary that no backlog queue would take, by guard",
        "guard",
    ),
    "twinbus_protected": (GAUGE, "1 while a backlog queue can take over, as far as is known"),
    "twinbus_protection_verified_timestamp_seconds": (
        GAUGE, "When a backlog queue last answered; absent: not yet",
    ),
    "twinbus_side_open": (GAUGE, "0 once a side was closed or faulted", "side"),
    "twinbus_backlog_queues": (GAUGE, "Backlog queues by state", "state"),
    "twinbus_pings": (COUNTER, "Pings by how they ended", "result"),
    "twinbus_events_dropped": (COUNTER, "Events dropped for slow listeners"),
    "twinbus_receivers": (
        GAUGE, "Guarded and twin receivers by what they do at a side", "entity", "side", "state",
    ),
    "twinbus_receiver_messages": (
        COUNTER, "Messages that these receivers got from a side", "entity", "side",
    ),
    "twinbus_receiver_links_reopened": (
        COUNTER, "Links of these receivers that were opened again, by why: ended, or silent",
        "entity", "side", "why",
    ),
    "twinbus_receiver_second_copies": (
        COUNTER, "Messages that these receivers completed without handing them out", "entity",
    ),
    "twinbus_processors_running": (GAUGE, "Processors that run", "entity"),
    "twinbus_processor_messages": (
        COUNTER, "Messages of processors by how their handlers ended", "entity", "outcome",
    ),
    "twinbus_twins": (
        GAUGE, "Twins of entities with senders, by state; verified: in use, its mark was read",
        "state",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """The parts of one pair that its numbers come from."""

    state: SharedState
    sides: PairSides
    status: Callable[[], PairStatus]
    meter: BacklogMeter | None = None

    @property
    def name(self) -> str:
        return self.state.recorder.pair


NO_TRAFFIC: Final[tuple[int, ...]] = (0, 0, 0, 0)


class _Series:
    """The numbers of `_numbers_of` of one entity; they stay when the pair forgets it."""

    def __init__(self) -> None:
        self.values = self._before = self._seen = NO_TRAFFIC

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
        samples = ((pair.name, self._samples(pair)) for pair in self._pairs)
        yield from metrics_of(FAMILIES, "pair", samples)
        diverts = HistogramMetricFamily(
            "twinbus_divert_seconds",
            "Time that a backlog queue took to store a call's messages",
            labels=["pair"],
        )
        for pair in self._pairs:
            observed = pair.state.diverts
            buckets = [(_bound(bound_s), float(n)) for bound_s, n in observed.cumulative()]
            diverts.add_metric([pair.name], buckets=buckets, sum_value=observed.sum_s)
        yield diverts

    def _samples(self, pair: MeasuredPair) -> Iterator[Sample]:
        watched, totals = pair.state.monitors.numbers()
        states = Counter(entity.failover.state for entity in watched)
        for state in EntityState:
            yield "twinbus_entities", states[state], state
        unhealthy = [one for one in watched if one.failover.state is not EntityState.HEALTHY]
        for entity in unhealthy[: self._entities_max]:
            yield "twinbus_entity_state", 1, entity.path, entity.failover.state
        raising = [(one.path, count) for one in watched if (count := one.raising[0])]
        for path, count in raising[: self._entities_max]:
            yield "twinbus_entity_raising", count, path
        traffic = self._traffic(pair.name, watched, totals)
        for path, (sent, diverted, raised, twinned) in traffic.items():
            yield "twinbus_messages_stored", sent, path, "primary"
            yield "twinbus_messages_stored", diverted - twinned, path, "backlog"
            if pair.state.options.twins is not None:
                yield "twinbus_messages_stored", twinned, path, "twin"
            yield "twinbus_messages_raised", raised, path
        for entity in watched:
            totals.add(entity)
        yield "twinbus_messages_unprotected", totals.oversize, "oversize"
        yield "twinbus_messages_unprotected", totals.reserved, "reserved"
        yield from _pair_samples(pair)
        yield from depth_samples(pair.meter)

    def _traffic(
        self, pair: str, watched: Iterable[EntityMonitor], forgotten: EntityTotals
    ) -> dict[str, tuple[int, ...]]:
        named = self._named.setdefault(pair, {})
        total = [*_numbers_of(forgotten)]
        for entity in watched:
            numbers = _numbers_of(entity)
            if not any(numbers):
                continue
            total = [sum(pair) for pair in zip(total, numbers, strict=True)]
            if entity.path not in named and len(named) < self._entities_max:
                named[entity.path] = _Series()
            if entity.path in named:
                named[entity.path].update(numbers)
        result = {path: series.values for path, series in named.items()}
        shown = [sum(values) for values in zip(*result.values(), strict=True)] or [*NO_TRAFFIC]
        others = tuple(every - own for every, own in zip(total, shown, strict=True))
        return {**result, OTHERS: others} if any(others) else result


def _numbers_of(entity: EntityMonitor | EntityTotals) -> tuple[int, ...]:
    # The smaller number first: another thread counts meanwhile, and their difference is shown.
    twinned = entity.twinned
    return entity.sent, entity.diverted, entity.raised, twinned


def _pair_samples(pair: MeasuredPair) -> Iterator[Sample]:
    state = pair.state
    status = pair.status()
    judgement = judgement_of(status, time.time())
    yield "twinbus_safe", int(judgement.is_safe)
    yield "twinbus_protected", int(not judgement.exposed)
    if status.verified_at is not None:
        yield "twinbus_protection_verified_timestamp_seconds", status.verified_at
    for side in Side:
        yield "twinbus_side_open", int(pair.sides.state(side) is SideState.OPEN), side
    queues = backlog_status(state.rotation, state.paths, state.now).values()
    counts = Counter(queue.state for queue in queues)
    for which in QUEUE_STATES:
        yield "twinbus_backlog_queues", counts[which], which
    for result, count in state.pings.items():
        yield "twinbus_pings", count, result
    yield "twinbus_ledger_unrecorded", state.recorder.unrecorded
    yield "twinbus_events_dropped", state.listeners.dropped
    yield from receiver_samples(status.receivers)
    for path, processor in status.processors.items():
        yield "twinbus_processors_running", processor.running, path
        for outcome in ("handled", "failed", "dead_lettered"):
            yield "twinbus_processor_messages", getattr(processor, outcome), path, outcome
    twins = Counter(_twin_state(one.twin) for one in status.entities.values() if one.twin)
    for twin_state, count in twins.items():
        yield "twinbus_twins", count, twin_state
    yield from twin_samples(status.twins)
    yield from syphon_samples(status.syphon or {})


def receiver_samples(receivers: Mapping[str, ReceiverStatus]) -> Iterator[Sample]:
    for path, receiver in receivers.items():
        yield "twinbus_receiver_second_copies", receiver.second_copies, path
        for side, status in receiver.sides.items():
            for state in (OPEN, WAITING, RECONNECTING, NOT_READ):
                yield "twinbus_receivers", status.states.get(state, 0), path, side, state
            yield "twinbus_receiver_messages", status.delivered, path, side
            ended = status.reopened - status.silent
            yield "twinbus_receiver_links_reopened", ended, path, side, "ended"
            yield "twinbus_receiver_links_reopened", status.silent, path, side, "silent"


def _twin_state(twin: TwinStatus) -> str:
    if not twin.is_used:
        return twin.state
    return "verified" if twin.verified else "not verified"


def twin_samples(twins: Mapping[str, TwinContents]) -> Iterator[Sample]:
    """What twins hold, as far as it is known: one row for each that was listed lately."""
    for path, one in twins.items():
        if one.waiting is not None and is_fresh(one):
            emptied_by = "consumers" if one.consumers_only else "syphon"
            yield "twinbus_twin_messages", one.waiting, path, emptied_by


def syphon_samples(queues: Mapping[str, SyphonQueueStatus]) -> Iterator[Sample]:
    for queue, status in queues.items():
        yield "twinbus_syphon_in_flight", status.in_flight, queue
        for outcome in OUTCOMES:
            yield "twinbus_syphon_messages", getattr(status, outcome), queue, outcome


def depth_samples(meter: BacklogMeter | None) -> Iterator[Sample]:
    for queue, depth in ({} if meter is None else meter.depths()).items():
        yield "twinbus_backlog_messages", depth.waiting, queue, "waiting"
        yield "twinbus_backlog_messages", depth.dead_lettered, queue, "dead-lettered"
        age_s = 0.0 if depth.oldest_unix_s is None else time.time() - depth.oldest_unix_s
        yield "twinbus_backlog_oldest_seconds", max(0.0, age_s), queue


def backlog_meter(state: SharedState, every_s: float) -> BacklogMeter:
    """Measure the backlog of a pair on its loop until it is closed; for a call on any thread."""
    secondary = endpoint_of(state.secondary)

    async def counts() -> dict[str, QueueCounts]:
        return {queue: await counts_of(secondary, queue) for queue in state.rotation.queues}

    meter = BacklogMeter(secondary, counts, every_s)
    with recording_to(state.recorder.ledger):
        meter.start(state.loop)
    return meter


def _bound(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else f"{seconds:g}"
