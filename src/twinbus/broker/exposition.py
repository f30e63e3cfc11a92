"""What a namespace holds and does, as Prometheus reads it: the answer to `/metrics`.

The text is written by hand. It is a dozen lines of a format that does not change, and a broker in
a test or at an edge site shall not need another library for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.broker.engine.namespace import BrokerNamespace
    from twinbus.broker.engine.queue import Queue
    from twinbus.broker.server import BrokerServer

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

ENTITIES_MAX: Final = 1_000
"""Queues and subscriptions with series of their own: Prometheus keeps every series."""

OTHERS: Final = "(others)"
"""Where those past the limit are summed."""

STATES: Final = ("active", "scheduled", "deferred", "dead-lettered")


def exposition(broker: BrokerServer) -> str:
    return "".join(f"{line}\n" for line in _lines(broker))


def _lines(broker: BrokerServer) -> Iterator[str]:
    namespace, commit = broker.namespace, broker.commit
    held = _held(namespace)
    yield from _family(
        "messages", "gauge", "Messages of an entity by state; active includes locked"
    )
    for entity, (counts, _) in held.items():
        for state, count in zip(STATES, counts, strict=True):
            yield _sample("messages", count, namespace.name, entity=entity, state=state)
    yield from _family("bytes", "gauge", "Bytes of an entity's messages, dead-lettered ones too")
    for entity, (_, size_bytes) in held.items():
        yield _sample("bytes", size_bytes, namespace.name, entity=entity)
    failed, missed = broker.engine_failures, broker.ledger_unrecorded
    busy = None if broker.credits is None else broker.credits.throttled
    for name, kind, words, value in (
        ("connections", "gauge", "AMQP connections open now", len(broker.peers)),
        ("commits_total", "counter", "Group commits that are on disk", commit.commits),
        ("commit_failures_total", "counter", "Commits that failed", commit.failures),
        ("engine_failures_total", "counter", "Unexpected errors that the engine contained", failed),
        ("pending_bytes", "gauge", "Bytes that wait for the disk", commit.pending_bytes),
        ("throttled_total", "counter", "Requests answered server-busy for lack of credits", busy),
        ("ledger_unrecorded_total", "counter", "Records that the ledger could not take", missed),
    ):
        if value is None:
            continue
        yield from _family(name, kind, words)
        yield _sample(name, value, namespace.name)


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


def _family(name: str, kind: str, words: str) -> Iterator[str]:
    # The name of a counter has `_total` in its sample, and in this format in its family too.
    yield f"# HELP twinbus_broker_{name} {words}"
    yield f"# TYPE twinbus_broker_{name} {kind}"


def _sample(name: str, value: int, namespace: str, **labels: str) -> str:
    words = ",".join(
        f'{label}="{_escaped(text)}"' for label, text in {"namespace": namespace, **labels}.items()
    )
    return f"twinbus_broker_{name}{{{words}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
