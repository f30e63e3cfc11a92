"""Entities by name: every address that means something in a namespace, and what it means.

Also makes entities from descriptions, and again from what the store kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from twinbus.broker.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    read_description,
    rule_of_record,
)
from twinbus.broker.engine.message_states import EngineContext
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import dead_letter_description
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.journal import EntityImage
from twinbus.broker.refusals import EntityAlreadyExists, EntityNotFound, NotAllowed
from twinbus.servicebus.names import (
    address_key,
    dead_letter_path,
    subscription_path,
    transfer_dead_letter_path,
)

Entity = Queue | Topic

_TRANSFER_SUFFIX = transfer_dead_letter_path("").lower()


class Directory:
    """What each address of one namespace names; upper and lower case do not differ."""

    def __init__(self, namespace: str, make_empty: Callable[[Queue, str], Queue]) -> None:
        self._namespace = namespace
        self._make_empty = make_empty
        """Makes the queue, always empty, under an entity's transfer dead-letter path."""
        self._entities: dict[str, Entity] = {}
        """Queues, topics and subscriptions by address."""
        self._parts: dict[str, Queue] = {}
        """Dead-letter queues by address."""
        self.entity_count = 0
        """Queues and topics."""

    def require_free(self, path: str) -> None:
        present = self._entities.get(address_key(path))
        if present is not None:
            raise _already_there(present, self._namespace)

    def add(self, entity: Entity) -> None:
        """List a new entity, and its dead-letter queue with it."""
        self._entities[address_key(entity.path)] = entity
        self.entity_count += not isinstance(entity, Subscription)
        if isinstance(entity, Queue) and entity.dead_letter is not None:
            self._parts[address_key(entity.dead_letter.path)] = entity.dead_letter

    def remove(self, entity: Entity) -> None:
        del self._entities[address_key(entity.path)]
        self.entity_count -= not isinstance(entity, Subscription)
        if isinstance(entity, Queue) and entity.dead_letter is not None:
            del self._parts[address_key(entity.dead_letter.path)]
            self._parts.pop(address_key(transfer_dead_letter_path(entity.path)), None)

    def find(self, path: str) -> Entity | None:
        return self._entities.get(address_key(path))

    def resolve(self, address: str) -> Entity:
        """What is at the address: an entity or a dead-letter queue."""
        key = address_key(address)
        found = self._entities.get(key) or self._parts.get(key) or self._transfer_part(key)
        if found is None:
            raise self._missing("entity", address)
        return found

    def _transfer_part(self, key: str) -> Queue | None:
        # The one address of this part: each other spelling would be a part of its own for ever.
        owner = self._entities.get(key.removesuffix(_TRANSFER_SUFFIX))
        if not key.endswith(_TRANSFER_SUFFIX) or not isinstance(owner, Queue):
            return None
        part = self._make_empty(owner, transfer_dead_letter_path(owner.path))
        self._parts[key] = part
        return part

    def send_target(self, address: str) -> Entity:
        found = self.resolve(address)
        if isinstance(found, Subscription):
            raise NotAllowed(
                f"{found.path!r} is a subscription; send to its topic {found.topic_path!r}"
            )
        if isinstance(found, Queue) and found.dead_letter is None:
            raise NotAllowed(f"{found.path!r} is a dead-letter queue; send to its entity instead")
        return found

    def receive_source(self, address: str) -> Queue:
        """The queue, subscription or dead-letter queue that gives messages out at the address."""
        found = self.resolve(address)
        if isinstance(found, Topic):
            raise NotAllowed(
                f"{found.path!r} is a topic; receive from one of its subscriptions, which has the"
                f" address '{found.path}/Subscriptions/NAME' (in JMS the name of a queue)"
            )
        return found

    def queue(self, path: str) -> Queue:
        """The queue at a path, or `EntityNotFound`."""
        found = self.find(path)
        if not isinstance(found, Queue) or isinstance(found, Subscription):
            raise self._missing("queue", path)
        return found

    def topic(self, path: str) -> Topic:
        """The topic at a path, or `EntityNotFound`."""
        found = self.find(path)
        if not isinstance(found, Topic):
            raise self._missing("topic", path)
        return found

    def subscription(self, topic: str, name: str) -> Subscription:
        """A topic's subscription, or `EntityNotFound`."""
        found = self.topic(topic).subscriptions.get(name.lower())
        if found is None:
            raise self._missing("subscription", subscription_path(topic, name))
        return found

    def rule(self, topic: str, subscription: str, name: str) -> RuleDescription:
        """A subscription's rule, or `EntityNotFound`."""
        owner = self.subscription(topic, subscription)
        found = owner.rules.get(name.lower())
        if found is None:
            raise self._missing("rule", f"{owner.path}/Rules/{name}")
        return found

    def _missing(self, kind: str, path: str) -> EntityNotFound:
        address = f"sb://{self._namespace}/{path}"
        return EntityNotFound.of(address, f"this {kind} does not exist; create it first")

    def entities(self) -> Iterable[Entity]:
        """All queues, topics and subscriptions."""
        return self._entities.values()

    def queues(self) -> list[Queue]:
        """All queues in order of their names, subscriptions and dead-letter queues left out."""
        entities = self._sorted()
        return [each for each in entities if isinstance(each, Queue) and kind_of(each) == "queue"]

    def topics(self) -> list[Topic]:
        return [each for each in self._sorted() if isinstance(each, Topic)]

    def subscriptions(self, topic: str) -> list[Subscription]:
        found = self.topic(topic).subscriptions
        return [found[name] for name in sorted(found)]

    def _sorted(self) -> list[Entity]:
        return [self._entities[key] for key in sorted(self._entities)]


def _already_there(present: Entity, namespace: str) -> EntityAlreadyExists:
    """In Azure's words: the tests of the JavaScript SDK compare how they begin."""
    kind, advice = kind_of(present), "update it, or choose another name"
    if kind == "subscription":
        address = f"sb://{namespace}/{present.path}"
        return EntityAlreadyExists(f"The messaging entity {address!r} exists already; {advice}.")
    return EntityAlreadyExists(
        "SubCode=40900. Conflict. You're requesting an operation that isn't allowed in the"
        f" resource's current state: the {kind} {present.path!r} exists already in namespace"
        f" {namespace!r}; {advice}."
    )


def kind_of(entity: Entity) -> str:
    if isinstance(entity, Topic):
        return "topic"
    return "subscription" if isinstance(entity, Subscription) else "queue"


_NO_ID = 0


class EntityFactory:
    def __init__(self, context: EngineContext) -> None:
        self.context = context

    def queue(
        self, path: str, entity_id: int, description: QueueDescription, part_id: int
    ) -> Queue:
        """A queue and its dead-letter queue, which has the id `part_id`."""
        part = self._dead_letter(path, part_id, description)
        return Queue(path, entity_id, description, self.context, part)

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
        found = Subscription(topic.path, name, entity_id, description, self.context, part)
        topic.attach(found)
        return found

    def empty_part(self, owner: Queue, path: str) -> Queue:
        """A queue that nothing ever comes into, to answer at a path where Azure has one."""
        description = dead_letter_description(owner.description)
        return Queue(path, _NO_ID, description, self.context)

    def _dead_letter(
        self, path: str, part_id: int, owner: QueueDescription | SubscriptionDescription
    ) -> Queue:
        path, description = dead_letter_path(path), dead_letter_description(owner)
        return Queue(path, part_id, description, self.context)

    def rebuild(self, images: Sequence[EntityImage]) -> Iterator[Entity]:
        """Every entity that the images from the store show, topics before their subscriptions."""
        parts = {address_key(each.path): each for each in images if each.kind == "dead-letter"}
        topics: dict[str, Topic] = {}
        for image in sorted(images, key=lambda each: each.kind == "subscription"):
            entity: Entity
            if image.kind == "topic":
                settings = read_description(TopicDescription, image.description)
                entity = Topic(image.path, image.entity_id, settings, self.context)
                topics[address_key(image.path)] = entity
            elif image.kind in ("queue", "subscription"):
                part = parts[address_key(dead_letter_path(image.path))]
                entity = self._rebuilt(image, part.entity_id, topics)
                assert entity.dead_letter is not None
                entity.dead_letter.restore(part)
            else:
                continue
            entity.restore(image)
            for name in ("created_at_ms", "updated_at_ms"):
                setattr(entity, name, image.description[name])
            yield entity

    def _rebuilt(self, image: EntityImage, part_id: int, topics: dict[str, Topic]) -> Queue:
        if image.kind == "queue":
            description = read_description(QueueDescription, image.description)
            return self.queue(image.path, image.entity_id, description, part_id)
        topic_path, _, name = image.path.rsplit("/", 2)
        topic = topics[address_key(topic_path)]
        settings = read_description(SubscriptionDescription, image.description)
        subscription = self.subscription(topic, name, image.entity_id, settings, part_id)
        for record in sorted(image.rules.values(), key=lambda each: each["number"]):
            rule = rule_of_record(record)
            subscription.put_rule(rule)
            subscription.rule_numbers[rule.name.lower()] = record["number"]
        return subscription
