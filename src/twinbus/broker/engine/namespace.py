"""A namespace: its queues, topics and subscriptions, and the operations on them.

Pure: the shell passes the time, and commits what the journal collected. An entity and its
dead-letter queue are created and deleted in one call, so a crash leaves both or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twinbus.broker.descriptions import (
    DEFAULT_RULE,
    CorrelationFilter,
    Description,
    QueueDescription,
    Record,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    check_change,
    check_name,
    check_path,
    check_settings,
    description_record,
    rule_record,
)
from twinbus.broker.engine.directory import Directory, Entity, EntityFactory, kind_of
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.engine.limits import MESSAGE_BYTES, rule_bytes
from twinbus.broker.engine.message_states import FAILED_RETRY_MS, EngineContext, Failed
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.runs import enqueue_run, enqueue_whole
from twinbus.broker.engine.settlement import Timetable
from twinbus.broker.engine.topic import Subscription, Topic, check_rule, check_rule_counts
from twinbus.broker.journal import EntityImage, Journal, StoredMessage
from twinbus.broker.messages.incoming import Incoming
from twinbus.broker.profile import LAPTOP, ServiceProfile
from twinbus.broker.refusals import EntityAlreadyExists, NotAllowed, check_count
from twinbus.servicebus.names import FOREVER_MS, subscription_path

if TYPE_CHECKING:
    from twinbus.broker.messages.plain import PlainRun

NAMESPACE_ID = 0
"""Entity id of the namespace's own record, which keeps the last id assigned. No id is used twice:
the store may still hold records of a deleted entity."""


class BrokerNamespace:
    def __init__(
        self,
        name: str,
        journal: Journal,
        tokens: Callable[[], bytes],
        *,
        notify: Callable[[Queue], None],
        deleted: Callable[[str], None],
        in_use: Callable[[str], bool] | None = None,
        session_lost: Callable[[object], None] = lambda _: None,
        engine_log: EngineLog | None = None,
        failed: Failed | None = None,
        profile: ServiceProfile = LAPTOP,
    ) -> None:
        self.name = name
        self.profile = profile
        self._journal = journal
        self._deleted = deleted
        self._in_use = in_use
        """Whether clients have links to the entity: then it is not idle."""
        self._timetable: Timetable[Queue] = Timetable()
        self._idle: Timetable[str] = Timetable()
        self._last_entity_id = NAMESPACE_ID
        context = EngineContext(
            journal=journal,
            tokens=tokens,
            notify=notify,
            arm=self._timetable.arm,
            resolve=self.send_target,
            session_lost=session_lost,
            engine_log=engine_log,
            failed=failed,
        )
        self._factory = EntityFactory(context)
        self._engine_log = engine_log
        self._failed = failed
        self._directory = Directory(name, self._factory.empty_part)
        self.find = self._directory.find
        self.resolve = self._directory.resolve
        self.receive_source = self._directory.receive_source
        self.get_queue = self._directory.queue
        self.get_topic = self._directory.topic
        self.get_subscription = self._directory.subscription
        self.get_rule = self._directory.rule
        self.entities = self._directory.entities
        self.queues = self._directory.queues
        self.topics = self._directory.topics
        self.subscriptions = self._directory.subscriptions

    def __repr__(self) -> str:
        return f"<namespace {self.name!r}>"

    def send_target(self, address: str) -> Entity:
        return self._directory.send_target(address)

    # Messages

    def send(self, target: Entity, batch: Sequence[Incoming], now_ms: int) -> None:
        """Take a batch whole or refuse it whole. Pings pass all checks and are dropped."""
        if len(batch) == 1:
            target.admit(batch[0], now_ms)
        else:
            self.admit_all(target, batch, now_ms)
        self.take_admitted(target, batch, now_ms)

    def send_run(self, queue: Queue, run: PlainRun, now_ms: int) -> int:
        """Take messages of one shape, up to the first that must take `send`; return how many."""
        stored = enqueue_run(queue, run, now_ms)
        if self._engine_log is not None:
            self._engine_log.note("send", queue.path, stored, now_ms)
        return len(stored)

    def send_whole(self, target: Entity, run: PlainRun, now_ms: int) -> bool:
        """Take all messages of a run, if `target` can take them together; else `send` must."""
        stored = enqueue_whole(target, run, now_ms) if type(target) is Queue else []
        if stored and self._engine_log is not None:
            self._engine_log.note("send", target.path, stored, now_ms)
        return bool(stored)

    def take_admitted(self, target: Entity, batch: Sequence[Incoming], now_ms: int) -> None:
        """Take messages that were admitted; never refuses."""
        if self._engine_log is not None:
            self._take_logged(self._engine_log, target, batch, now_ms)
            return
        for incoming in batch:
            if not incoming.is_ping:
                target.take(incoming, now_ms)

    def log_sends(self, engine_log: EngineLog) -> None:
        """Note every accepted message in `engine_log` from now on."""
        assert self._engine_log is None, "the broker writes a ledger, which needs this log"
        self._engine_log = engine_log

    def schedule(self, target: Entity, batch: Sequence[Incoming], now_ms: int) -> list[int]:
        """Like `send`; returns the sequence number of each message, 0 where nothing was kept."""
        self.admit_all(target, batch, now_ms)
        if self._engine_log is not None:
            kept = self._take_logged(self._engine_log, target, batch, now_ms)
        else:
            kept = [None if each.is_ping else target.take(each, now_ms) for each in batch]
        return [0 if message is None else message.sequence_number for message in kept]

    def _take_logged(
        self, engine_log: EngineLog, target: Entity, batch: Sequence[Incoming], now_ms: int
    ) -> list[StoredMessage | None]:
        kept = []
        for incoming in batch:
            is_ping = incoming.is_ping
            again = not is_ping and target.is_duplicate(incoming.message_id, now_ms)
            stored = None if is_ping else target.take(incoming, now_ms)
            engine_log.sent(target.path, incoming, stored, now_ms, is_duplicate=again)
            kept.append(stored)
        return kept

    def admit_all(
        self,
        target: Entity,
        batch: Sequence[Incoming],
        now_ms: int,
        reserved_memory_bytes: int = 0,
    ) -> None:
        """Raise unless `target` could take all of these now, beside what is reserved."""
        reserved_bytes = 0
        for incoming in batch:
            target.admit(
                incoming,
                now_ms,
                reserved_bytes=reserved_bytes,
                reserved_memory_bytes=reserved_memory_bytes,
            )
            if not incoming.is_ping:
                reserved_bytes += incoming.size_bytes
                reserved_memory_bytes += MESSAGE_BYTES

    # Queues, topics, subscriptions

    def create_queue(self, path: str, description: QueueDescription, now_ms: int) -> Queue:
        check_path("queue", path)
        self._check_new(path, description)
        self._check_entity_count()
        first_id = self._new_ids(2)
        queue = self._factory.queue(path, first_id, description, first_id + 1)
        self._establish(queue, now_ms)
        return queue

    def create_topic(self, path: str, description: TopicDescription, now_ms: int) -> Topic:
        check_path("topic", path)
        self._check_new(path, description)
        self._check_entity_count()
        topic = Topic(path, self._new_ids(1), description, self._factory.context)
        self._establish(topic, now_ms)
        return topic

    def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        now_ms: int,
        *,
        rule: RuleDescription | None = None,
    ) -> Subscription:
        """A new subscription with one rule: the given one, else one that takes everything."""
        check_name("subscription", name)
        owner = self.get_topic(topic)
        self._check_new(subscription_path(owner.path, name), description)
        first = rule or RuleDescription(name=DEFAULT_RULE, created_at_ms=now_ms)
        check_rule(first)
        count, limit = len(owner.subscriptions), self.profile.subscriptions_max
        check_count(f"the topic {owner.path!r}", "subscriptions", count, limit, "delete some")
        self._check_filter_count(owner, first)
        first_id = self._new_ids(2)
        subscription = self._factory.subscription(owner, name, first_id, description, first_id + 1)
        subscription.put_rule(first)
        self._establish(subscription, now_ms)
        self._write_rule(subscription, first.name.lower())
        return subscription

    def update(self, path: str, description: Description, now_ms: int) -> None:
        """Give a queue, topic or subscription new settings, in effect at once."""
        entity: Any = self.resolve(path)
        check_settings(entity.path, description)
        self.profile.check_settings(entity.path, description)
        check_change(entity.path, entity.description, description)
        entity.update(description, now_ms)
        self._write(entity)
        self._watch_idleness(entity)

    def delete(self, path: str, now_ms: int) -> None:
        entity = self.resolve(path)
        if isinstance(entity, Queue) and entity.dead_letter is None:
            raise NotAllowed(f"{entity.path!r} cannot be deleted; its messages can be received")
        self._delete(entity, now_ms)

    def _delete(self, entity: Entity, now_ms: int) -> None:
        if self._engine_log is not None:
            self._engine_log.deleted(entity.path, now_ms)
        if isinstance(entity, Topic):
            for subscription in list(entity.subscriptions.values()):
                self._delete(subscription, now_ms)
            self._drop(entity.schedule)
        elif isinstance(entity, Subscription):
            self.get_topic(entity.topic_path).subscriptions.pop(entity.name.lower())
        self._directory.remove(entity)
        self._idle.disarm(entity.path)
        if isinstance(entity, Queue):
            self._drop(entity)
            if entity.dead_letter is not None:
                self._drop(entity.dead_letter)
                self._deleted(entity.dead_letter.path)
        self._deleted(entity.path)

    def _drop(self, queue: Queue) -> None:
        queue.close()
        self._timetable.disarm(queue)
        self._journal.drop_entity(queue.entity_id)

    # Rules

    def rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        """A subscription's rules in order of their names."""
        rules = self.get_subscription(topic, subscription).rules
        return [rules[name] for name in sorted(rules)]

    def create_rule(
        self, topic: str, subscription: str, rule: RuleDescription, now_ms: int
    ) -> None:
        """Add a rule to a subscription, for messages published from now on."""
        owner = self.get_subscription(topic, subscription)
        check_rule(rule)
        if rule.name.lower() in owner.rules:
            raise EntityAlreadyExists(
                f"The messaging entity 'sb://{self.name}/{owner.path}/Rules/{rule.name}' exists"
                " already; delete it first."
            )
        check_rule_counts(owner, rule)
        self._check_filter_count(self.get_topic(topic), rule)
        self._put_rule(owner, rule, now_ms)

    def update_rule(
        self, topic: str, subscription: str, rule: RuleDescription, now_ms: int
    ) -> None:
        before = self.get_rule(topic, subscription, rule.name)
        check_rule(rule)
        owner = self.get_subscription(topic, subscription)
        check_rule_counts(owner, rule, before)
        self._put_rule(owner, rule, now_ms)

    def delete_rule(self, topic: str, subscription: str, name: str, now_ms: int) -> None:
        owner = self.get_subscription(topic, subscription)
        key = self.get_rule(topic, subscription, name).name.lower()
        owner.remove_rule(key)
        owner.accessed_at_ms = now_ms
        self._journal.put_rule(owner.entity_id, key, None)

    def _put_rule(self, owner: Subscription, rule: RuleDescription, now_ms: int) -> None:
        self.get_topic(owner.topic_path).require_memory(rule_bytes(rule))
        owner.put_rule(rule)
        owner.accessed_at_ms = now_ms
        self._write_rule(owner, rule.name.lower())

    def _write_rule(self, owner: Subscription, key: str) -> None:
        record = {**rule_record(owner.rules[key]), "number": owner.rule_numbers[key]}
        self._journal.put_rule(owner.entity_id, key, record)

    # Time

    def run_timers(self, now_ms: int) -> None:
        """Do what is due by now in every queue, and delete what has been idle for too long."""
        for queue in self._timetable.take_due(now_ms):
            queue.run_timers(now_ms)
        for path in self._idle.take_due(now_ms):
            try:
                self._end_if_idle(path, now_ms)
            except Exception as error:
                if self._failed is None:
                    raise
                self._idle.arm(path, now_ms + FAILED_RETRY_MS)
                self._failed(path, "delete an idle entity", error)

    def next_deadline_ms(self) -> int:
        """When `run_timers` has something to do, 0 if nothing waits."""
        due = [self._timetable.next_ms(), self._idle.next_ms()]
        return min((due_ms for due_ms in due if due_ms), default=0)

    def _end_if_idle(self, path: str, now_ms: int) -> None:
        entity = self.find(path)
        if entity is None or entity.description.auto_delete_on_idle_ms >= FOREVER_MS:
            return
        limit_ms = entity.description.auto_delete_on_idle_ms
        is_used = _is_busy(entity) or (self._in_use is not None and self._in_use(path))
        if is_used or not _last_access_ms(entity):
            # Not accessed yet since a restart: then idleness begins now.
            entity.accessed_at_ms = now_ms
        idle_at_ms = _last_access_ms(entity) + limit_ms
        if idle_at_ms > now_ms:
            self._idle.arm(path, idle_at_ms)
        else:
            self._delete(entity, now_ms)

    def _watch_idleness(self, entity: Entity) -> None:
        self._idle.disarm(entity.path)
        limit_ms = entity.description.auto_delete_on_idle_ms
        if limit_ms < FOREVER_MS:
            self._idle.arm(entity.path, _last_access_ms(entity) + limit_ms)

    # The store

    def restore(self, images: Sequence[EntityImage], now_ms: int = 0) -> None:
        """Restore every entity from the store after a restart; only locks are lost."""
        for image in images:
            self._last_entity_id = max(self._last_entity_id, image.entity_id)
            if image.entity_id == NAMESPACE_ID:
                kept = image.description.get("last_entity_id", 0)
                assert isinstance(kept, int)
                self._last_entity_id = max(self._last_entity_id, kept)
        for entity in self._factory.rebuild(images):
            entity.accessed_at_ms = now_ms
            self._directory.add(entity)
            self._watch_idleness(entity)

    def _new_ids(self, count: int) -> int:
        """The first of `count` unused entity ids."""
        first = self._last_entity_id + 1
        self._last_entity_id += count
        record: Record = {"last_entity_id": self._last_entity_id}
        self._journal.put_entity(NAMESPACE_ID, "namespace", self.name, record)
        return first

    def _establish(self, entity: Entity, now_ms: int) -> None:
        entity.created_at_ms = entity.updated_at_ms = entity.accessed_at_ms = now_ms
        self._directory.add(entity)
        self._write(entity)
        if isinstance(entity, Queue) and entity.dead_letter is not None:
            part = entity.dead_letter
            self._journal.put_entity(part.entity_id, "dead-letter", part.path, {})
        self._watch_idleness(entity)

    def _write(self, entity: Entity) -> None:
        record = description_record(entity.description)
        record["created_at_ms"] = entity.created_at_ms
        record["updated_at_ms"] = entity.updated_at_ms
        self._journal.put_entity(entity.entity_id, kind_of(entity), entity.path, record)

    def _check_new(self, path: str, description: Description) -> None:
        check_settings(path, description)
        self.profile.check_settings(path, description)
        self._directory.require_free(path)

    def _check_entity_count(self) -> None:
        count, limit = self._directory.entity_count, self.profile.entities_max
        owner = f"the namespace {self.name!r} ({self.profile.name})"
        check_count(owner, "queues and topics", count, limit, "delete some")

    def _check_filter_count(self, topic: Topic, rule: RuleDescription) -> None:
        limits = {
            SqlFilter: self.profile.sql_filters_max,
            CorrelationFilter: self.profile.correlation_filters_max,
        }
        kind = type(rule.filter)
        limit = limits.get(kind)
        if limit is not None:
            owners = topic.subscriptions.values()
            same = (type(each.filter) is kind for owner in owners for each in owner.rules.values())
            what = f"rules with a {kind.__name__}"
            check_count(f"the topic {topic.path!r}", what, sum(same), limit, "delete some")


def _is_busy(entity: Entity) -> bool:
    """Whether messages wait for their time or are in receivers' hands: not idle, as in Azure."""
    if isinstance(entity, Topic):
        return entity.scheduled_count > 0
    return entity.scheduled_count > 0 or entity.locked_count > 0


def _last_access_ms(entity: Entity) -> int:
    if isinstance(entity, Topic) or entity.dead_letter is None:
        return entity.accessed_at_ms
    return max(entity.accessed_at_ms, entity.dead_letter.accessed_at_ms)
