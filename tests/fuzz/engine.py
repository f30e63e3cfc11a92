"""The engine on a store that keeps real records, and what must hold between the two."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count

from twinbus.amqp.encoding import encode
from twinbus.broker.descriptions import (
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import Subscription
from twinbus.broker.journal import EntityImage
from twinbus.broker.storage.checksums import Data
from twinbus.broker.storage.record_journal import RecordJournal
from twinbus.broker.storage.store import Batch, Store

READS = "n = 5 OR t LIKE 'x%' OR when + '' <> 'x' OR sys.ScheduledEnqueueTimeUtc + '' = 'y'"
"""A filter that reads what messages carry: numbers, texts and times."""


class RecordedStore(RecordJournal, Store):
    """A store whose disk is a dict: the records of the real one, without its waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.disk: dict[bytes, bytes] = {}
        self.gone: str | None = None
        """Why the disk is gone."""

    def _read(self, keys: list[bytes]) -> Sequence[Data]:
        return [self.disk[key] for key in keys if key in self.disk]

    def _read_row(self, first: bytes, count: int) -> Sequence[Data]:
        if first not in self.disk:
            return []
        row = heapq.nsmallest(count, (key for key in self.disk if key >= first))
        return [self.disk[key] for key in row]

    def recover(self) -> list[EntityImage]:
        disk = self.disk

        def scan(kind: int) -> Iterator[tuple[Data, Data]]:
            return ((key, disk[key]) for key in sorted(disk) if key[0] == kind)

        return self._restore(scan)

    def take_batch(self) -> Batch | None:
        """Write at once: a writer's thread would make each example wait, and none like the last."""
        for key, record in self._take_pending().items():
            if record is None:
                self.disk.pop(key, None)
            else:
                self.disk[key] = record
        self._landed()
        return None

    def write(self, batch: Batch) -> None:
        raise AssertionError("nothing is left to write")

    finish = write

    def discard(self) -> None:
        self._forget_all()

    def low_on_space(self) -> str | None:
        return None

    def lost(self) -> str | None:
        return self.gone

    def close(self) -> None:
        """Nothing to close."""

    def copy(self) -> RecordedStore:
        """The disk as a restart finds it now."""
        store = RecordedStore()
        store.disk = dict(self.disk)
        return store


class FuzzEngine:
    """A namespace without connections, its store, and the errors that it contained."""

    def __init__(self, store: RecordedStore | None = None) -> None:
        self.store = store or RecordedStore()
        self.failures: list[str] = []
        tokens = count(1)
        self.namespace = BrokerNamespace(
            "b",
            self.store,
            lambda: next(tokens).to_bytes(16, "big"),
            notify=lambda _: None,
            deleted=lambda _: None,
            failed=lambda *failure: self.failures.append(repr(failure)),
        )
        if store is not None:
            self.namespace.restore(store.recover())

    def restarted(self) -> FuzzEngine:
        """The engine as it would be after a crash now, with all noted changes on disk."""
        self.store.take_batch()
        return FuzzEngine(self.store.copy())

    def check(self) -> None:
        """No error was contained, and a restart finds what is in memory."""
        assert not self.failures, self.failures
        check_same(self.namespace, self.restarted().namespace)


def check_same(live: BrokerNamespace, found: BrokerNamespace) -> None:
    """Nothing is half done: what is in memory is what a restart finds."""
    for queue, kept in zip(queues_of(live), queues_of(found), strict=True):
        assert facts(queue) == facts(kept), queue.path


def create_entities(namespace: BrokerNamespace, now_ms: int) -> None:
    """One entity of each kind, with a filter that reads what messages carry."""
    namespace.create_queue("orders", QueueDescription(), now_ms)
    namespace.create_queue("talks", QueueDescription(requires_session=True), now_ms)
    once = QueueDescription(requires_duplicate_detection=True, dead_letter_on_expiration=True)
    namespace.create_queue("once", once, now_ms)
    namespace.create_queue("on", QueueDescription(forward_to="once"), now_ms)
    namespace.create_topic("news", TopicDescription(), now_ms)
    for name in ("all", "safe"):
        namespace.create_subscription("news", name, SubscriptionDescription(), now_ms)
    rule = RuleDescription(name="reads", filter=SqlFilter(expression=READS))
    picky = SubscriptionDescription(dead_letter_on_filter_error=True)
    namespace.create_subscription("news", "picky", picky, now_ms, rule=rule)


def queues_of(namespace: BrokerNamespace) -> list[Queue]:
    """Every queue, subscription and dead-letter queue."""
    found: list[Queue] = list(namespace.queues())
    for topic in namespace.topics():
        found += [topic.schedule, *namespace.subscriptions(topic.path)]
    return found + [queue.dead_letter for queue in found if queue.dead_letter is not None]


def facts(queue: Queue) -> object:
    """What a restart must keep of a queue."""
    sessions = queue.states.sessions
    return (
        [
            (
                *(m.sequence_number, m.message_id, m.session_id, m.state, m.delivery_count),
                *(m.ttl_ms, m.expires_at_ms, m.scheduled_for_ms, m.size_bytes, _wire(m.overrides)),
            )
            for m in queue.messages.values()
        ],
        {} if sessions is None else {name: each.content for name, each in sessions.states.items()},
        queue.states.last_sequence_number,
        queue.rules if isinstance(queue, Subscription) else None,
    )


def _wire(overrides: dict[str, object] | None) -> bytes:
    """As bytes: a NaN is not equal to itself, and an empty array to one of another type is."""
    return b"" if overrides is None else encode(overrides)
