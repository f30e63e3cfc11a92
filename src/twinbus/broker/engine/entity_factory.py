"""Entities made from descriptions, or made again from what the store kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.engine.description_records import read_description, read_rule
from twinbus.broker.engine.directory import Entity
from twinbus.broker.engine.message_states import EngineContext
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import dead_letter_description
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.journal import EntityImage
from twinbus.servicebus.names import address_key, dead_letter_path, subscription_path

_NO_ID = 0


class EntityFactory:
    def __init__(self, context: EngineContext) -> None:
        self._context = context

    def queue(
        self, path: str, entity_id: int, description: QueueDescription, part_id: int
    ) -> Queue:
        """A queue and its dead-letter queue, which has the id `part_id`."""
        part = self._dead_letter(path, part_id, description)
        return Queue(path, entity_id, description, self._context, part)

    def topic(self, path: str, entity_id: int, description: TopicDescription) -> Topic:
        return Topic(path, entity_id, description, self._context)

    def subscription(
        self,
        topic: Topic,
        name: str,
        entity_id: int,
        description: SubscriptionDescription,
        part_id: int,
    ) -> Subscription:
        """A subscription and its dead-letter queue, which has the id `part_id`."""
        part = self._dead_letter(subscription_path(topic.path, name), part_id, description)
        found = Subscription(topic.path, name, entity_id, description, self._context, part)
        topic.attach(found)
        return found

    def empty_part(self, owner: Queue, path: str) -> Queue:
        """A queue that nothing ever comes into, to answer at a path where Azure has one."""
        description = dead_letter_description(owner.description)
        return Queue(path, _NO_ID, description, self._context)

    def _dead_letter(
        self, path: str, part_id: int, owner: QueueDescription | SubscriptionDescription
    ) -> Queue:
        path, description = dead_letter_path(path), dead_letter_description(owner)
        return Queue(path, part_id, description, self._context)

    def rebuild(self, images: Sequence[EntityImage]) -> Iterator[Entity]:
        """Every entity that the images from the store show, topics before their subscriptions."""
        parts = {address_key(each.path): each for each in images if each.kind == "dead-letter"}
        topics: dict[str, Topic] = {}
        for image in sorted(images, key=lambda each: each.kind == "subscription"):
            entity: Entity
            if image.kind == "topic":
                settings = read_description(TopicDescription, image.description)
                entity = self.topic(image.path, image.entity_id, settings)
                topics[address_key(image.path)] = entity
            elif image.kind in ("queue", "subscription"):
                part = parts[address_key(dead_letter_path(image.path))]
                entity = self._rebuilt(image, part.entity_id, topics)
                assert entity.dead_letter is not None
                entity.dead_letter.restore(part)
            else:
                continue
            entity.restore(image)
            _restore_times(entity, image)
            yield entity

    def _rebuilt(self, image: EntityImage, part_id: int, topics: dict[str, Topic]) -> Queue:
        if image.kind == "queue":
            description = read_description(QueueDescription, image.description)
            return self.queue(image.path, image.entity_id, description, part_id)
        topic_path, _, name = image.path.rsplit("/", 2)
        topic = topics[address_key(topic_path)]
        settings = read_description(SubscriptionDescription, image.description)
        subscription = self.subscription(topic, name, image.entity_id, settings, part_id)
        # Store format 1 has all rules in the subscription's record.
        shared = image.description.get("rules", [])
        assert isinstance(shared, list)
        subscription.shares_record = bool(shared)
        for record in shared or sorted(image.rules.values(), key=lambda each: each["number"]):
            rule = read_rule(record)
            subscription.put_rule(rule)
            if not shared:
                subscription.rule_numbers[rule.name.lower()] = record["number"]
        return subscription


def _restore_times(entity: Entity, image: EntityImage) -> None:
    for name in ("created_at_ms", "updated_at_ms"):
        at_ms = image.description.get(name, 0)
        assert isinstance(at_ms, int)
        setattr(entity, name, at_ms)
