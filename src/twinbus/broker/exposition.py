"""What a namespace holds and does, as Prometheus reads it: the answer to `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from twinbus.exposition import COUNTER, GAUGE, Families, Sample, metrics_of, text_of

if TYPE_CHECKING:
    from twinbus.broker.engine.namespace import BrokerNamespace
    from twinbus.broker.engine.queue import Queue
    from twinbus.broker.server import BrokerServer

ENTITIES_MAX: Final = 1_000
"""Queues and subscriptions with series of their own: Prometheus keeps every series."""

OTHERS: Final = "(others)"
"""Where those past the limit are summed."""

STATES: Final = ("active", "scheduled", "deferred", "dead-lettered")

FAMILIES: Final[Families] = {
    "twinbus_broker_messages": (
        GAUGE, "Messages of an entity by state; active includes locked", "entity", "state",
    ),
    "twinbus_broker_bytes": (
        GAUGE, "Bytes of an entity's messages, dead-lettered ones too", "entity",
    ),
    "twinbus_broker_connections": (GAUGE, "AMQP connections open now"),
    "twinbus_broker_commits": (COUNTER, "Group commits that are on disk"),
    "twinbus_broker_commit_failures": (COUNTER, "Commits that failed"),
    "twinbus_broker_engine_failures": (COUNTER, "Unexpected errors that the engine contained"),
    "twinbus_broker_damaged": (GAUGE, "Records found damaged on the disk and set aside"),
    "twinbus_broker_pending_bytes": (GAUGE, "Bytes that wait for the disk"),
    "twinbus_broker_throttled": (COUNTER, "Requests answered server-busy for lack of credits"),
    "twinbus_broker_ledger_unrecorded": (COUNTER, "Records that the ledger could not take"),
}  # fmt: skip


def exposition(broker: BrokerServer) -> bytes:
    return text_of(metrics_of(FAMILIES, "namespace", [(broker.namespace.name, _samples(broker))]))


def _samples(broker: BrokerServer) -> Iterator[Sample]:
    commit = broker.commit
    for entity, (counts, size_bytes) in _held(broker.namespace).items():
        for state, count in zip(STATES, counts, strict=True):
            yield "twinbus_broker_messages", count, entity, state
        yield "twinbus_broker_bytes", size_bytes, entity
    yield "twinbus_broker_connections", len(broker.peers)
    yield "twinbus_broker_commits", commit.commits
    yield "twinbus_broker_commit_failures", commit.failures
    yield "twinbus_broker_engine_failures", broker.engine_failures
    yield "twinbus_broker_damaged", len(broker.damage.lines(broker.namespace))
    yield "twinbus_broker_pending_bytes", commit.pending_bytes
    if broker.credits is not None:
        yield "twinbus_broker_throttled", broker.credits.throttled
    if broker.view is not None:
        yield "twinbus_broker_ledger_unrecorded", broker.view.unrecorded


def _held(namespace: BrokerNamespace) -> dict[str, tuple[list[int], int]]:
    """By path: messages in each of the states, and bytes."""
    result: dict[str, tuple[list[int], int]] = {}
    for queue in _queues(namespace):
        entity = queue.path if len(result) < ENTITIES_MAX else OTHERS
        dead, before = queue.dead_letter, result.get(entity, ([0] * len(STATES), 0))
        counts = [queue.active_count, queue.scheduled_count, queue.deferred_count]
        counts.append(0 if dead is None else len(dead.messages))
        size_bytes = queue.size_bytes + (0 if dead is None else dead.size_bytes)
        added = [a + b for a, b in zip(before[0], counts, strict=True)]
        result[entity] = added, before[1] + size_bytes
    return result


def _queues(namespace: BrokerNamespace) -> Iterable[Queue]:
    yield from namespace.queues()
    for topic in namespace.topics():
        yield from topic.subscriptions.values()
