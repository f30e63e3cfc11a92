"""Entities made from descriptions, or made again from what the store kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from twinbus.broker.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.description_records import read_description, read_rule
from twinbus.broker.engine.directory import Entity
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.engine.forwarding import Resolve
from twinbus.broker.engine.message_states import Failed
from twinbus.broker.engine.names import address_key, dead_letter_path, subscription_path
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import dead_letter_description
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.journal import EntityImage, Journal

_NO_ID = 0


class EntityFactory:
    """Makes the entities of one namespace, with everything that all of them need."""

    def __init__(
        self,
        journal: Journal,
        tokens: Callable[[], bytes],
        notify: Callable[[Queue], None],
        *,
        arm: Callable[[Queue, int], None],
        resolve: Resolve,
        engine_log: EngineLog | None = None,
        failed: Failed | None = None,
    ) -> None:
        self._journal = journal
        self._tokens = tokens
        self._notify = notify
        self._arm = arm
        self._resolve = resolve
        self._engine_log = engine_log
        self._failed = failed

    def queue(self, path: str, first_id: int, description: QueueDescription) -> Queue:
        """A queue and its dead-letter queue, which takes the id after the queue's."""
        dead_letter = self._dead_letter(path, first_id + 1, description)
        return self._queue(path, first_id, description, dead_letter)

    def topic(self, path: str, entity_id: int, description: TopicDescription) -> Topic:
        """A topic."""
        topic = Topic(path, entity_id, description, self._journal, arm=self._arm)
        self._wire(topic.schedule)
        return topic

    def subscription(
        self, topic: Topic, name: str, first_id: int, description: SubscriptionDescription
    ) -> Subscription:
        """A subscription and its dead-letter queue, which takes the id after the subscription's."""
        path = subscription_path(topic.path, name)
        dead_letter = self._dead_letter(path, first_id + 1, description)
        subscription = Subscription(
            topic.path, name, path, first_id, description, self._journal, self._tokens,
            self._notify, dead_letter, arm=self._arm, resolve=self._resolve,
        )  # fmt: skip
        self._wire(subscription)
        topic.attach(subscription)
        return subscription

    def empty_part(self, owner: Queue, path: str) -> Queue:
        """A queue that nothing ever comes into, to answer at a path where Azure has one."""
        description = dead_letter_description(owner.description)
        return Queue(path, _NO_ID, description, self._journal, self._tokens, self._notify)

    def _queue(
        self, path: str, entity_id: int, description: QueueDescription, dead_letter: Queue | None
    ) -> Queue:
        queue = Queue(
            path, entity_id, description, self._journal, self._tokens, self._notify, dead_letter,
            arm=self._arm, resolve=self._resolve,
        )  # fmt: skip
        self._wire(queue)
        return queue

    def _wire(self, queue: Queue) -> None:
        """Connect an entity to the engine log and the error report."""
        queue.states.engine_log = self._engine_log
        queue.states.failed = self._failed

    def _dead_letter(
        self,
        path: str,
        entity_id: int,
        description: QueueDescription | SubscriptionDescription,
    ) -> Queue:
        return self._queue(
            dead_letter_path(path), entity_id, dead_letter_description(description), None
        )

    # From the store

    def rebuild(self, images: Sequence[EntityImage]) -> Iterator[Entity]:
        """Every entity that the images show, topics before their subscriptions."""
        parts = {address_key(each.path): each for each in images if each.kind == "dead-letter"}
        topics: dict[str, Topic] = {}
        for image in images:
            if image.kind == "queue":
                yield self._rebuilt_queue(image, parts)
            elif image.kind == "topic":
                topic = topics[address_key(image.path)] = self._rebuilt_topic(image)
                yield topic
        for image in images:
            if image.kind == "subscription":
                yield self._rebuilt_subscription(image, topics, parts)

    def _rebuilt_queue(self, image: EntityImage, parts: dict[str, EntityImage]) -> Queue:
        description = read_description(QueueDescription, image.description)
        queue = self._queue(
            image.path, image.entity_id, description, self._part(image, description, parts)
        )
        queue.restore(image)
        _restore_times(queue, image)
        return queue

    def _rebuilt_topic(self, image: EntityImage) -> Topic:
        description = read_description(TopicDescription, image.description)
        topic = self.topic(image.path, image.entity_id, description)
        topic.restore(image)
        _restore_times(topic, image)
        return topic

    def _rebuilt_subscription(
        self, image: EntityImage, topics: dict[str, Topic], parts: dict[str, EntityImage]
    ) -> Subscription:
        topic_path, _, name = image.path.rsplit("/", 2)
        topic = topics[address_key(topic_path)]
        description = read_description(SubscriptionDescription, image.description)
        subscription = Subscription(
            topic.path, name, image.path, image.entity_id, description, self._journal,
            self._tokens, self._notify, self._part(image, description, parts),
            arm=self._arm, resolve=self._resolve,
        )  # fmt: skip
        self._wire(subscription)
        rules = image.description.get("rules", [])
        assert isinstance(rules, list)
        for record in rules:
            rule = read_rule(record)
            subscription.rules[rule.name.lower()] = rule
        topic.attach(subscription)
        subscription.restore(image)
        _restore_times(subscription, image)
        return subscription

    def _part(
        self,
        owner: EntityImage,
        description: QueueDescription | SubscriptionDescription,
        parts: dict[str, EntityImage],
    ) -> Queue:
        image = parts[address_key(dead_letter_path(owner.path))]
        dead_letter = self._dead_letter(owner.path, image.entity_id, description)
        dead_letter.restore(image)
        return dead_letter


def _restore_times(entity: Entity, image: EntityImage) -> None:
    for name in ("created_at_ms", "updated_at_ms"):
        at_ms = image.description.get(name, 0)
        assert isinstance(at_ms, int)
        setattr(entity, name, at_ms)
