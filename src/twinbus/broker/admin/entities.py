"""What administration requests do to a namespace: reads, lists, creates, updates and deletes.

Pure: it works on the engine's `BrokerNamespace` and renders what it finds; the shell around it
checks the token before and waits for the disk after. The path of a request names the node:

    /                                   the namespace's public listing, always empty
    /$namespaceinfo                     the namespace
    /$Resources/queues                  all queues; likewise topics
    /{entity}                           a queue or a topic
    /{topic}/subscriptions[/{name}]     the subscriptions of a topic, or one of them
    .../subscriptions/{name}/rules[/{rule}]

Clients write the slashes of an entity's own name as %2F or as they are; words are matched in any
letter case.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote
from xml.etree.ElementTree import Element

from twinbus.broker.admin.atom import (
    CONTENT_TYPE,
    FEED_CONTENT_TYPE,
    child,
    child_text,
    local_name,
    parse_entry,
    parse_int,
    render_entry,
    render_feed,
)
from twinbus.broker.admin.atom_entities import (
    LATEST,
    RuntimeInfo,
    read_rule,
    read_settings,
    write_entity,
    write_namespace,
    write_rule,
)
from twinbus.broker.descriptions import (
    DEFAULT_RULE,
    CorrelationFilter,
    Description,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.topic import Subscription, Topic
from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange, EntityNotFound, NotAllowed

PAGE_MAX = 1000
"""Entries of one answer; a client that asks for more gets the rest with the next page."""

PAGE_DEFAULT = 100


class AdminNode(Enum):
    ROOT = "the namespace"
    NAMESPACE = "the namespace's properties"
    QUEUES = "the list of queues"
    TOPICS = "the list of topics"
    ENTITY = "an entity"
    SUBSCRIPTIONS = "the list of subscriptions"
    SUBSCRIPTION = "a subscription"
    RULES = "the list of rules"
    RULE = "a rule"


@dataclass(frozen=True, slots=True)
class Address:
    """One node; the names that its kind has no use for are empty."""

    node: AdminNode
    entity: str = ""
    subscription: str = ""
    rule: str = ""

    @property
    def path(self) -> str:
        """The path that rights are granted on; empty for the namespace as a whole."""
        if self.subscription:
            return f"{self.entity}/Subscriptions/{self.subscription}"
        return self.entity


def parse_address(raw_path: str) -> Address:
    """The node that a request's path (still percent-encoded) names."""
    # The JavaScript SDK lists with a slash at the end: /news/Subscriptions/.
    parts = raw_path.removeprefix("/").removesuffix("/").split("/")
    names = [unquote(part) for part in parts]
    words = [name.lower() for name in names]
    match words:
        case [""]:
            return Address(AdminNode.ROOT)
        case ["$namespaceinfo"]:
            return Address(AdminNode.NAMESPACE)
        case ["$resources", "queues"]:
            return Address(AdminNode.QUEUES)
        case ["$resources", "topics"]:
            return Address(AdminNode.TOPICS)
        case [*topic, "subscriptions", _, "rules", _] if topic:
            return Address(AdminNode.RULE, _join(names[:-4]), _named(names[-3]), _named(names[-1]))
        case [*topic, "subscriptions", _, "rules"] if topic:
            return Address(AdminNode.RULES, _join(names[:-3]), _named(names[-2]))
        case [*topic, "subscriptions", _] if topic:
            return Address(AdminNode.SUBSCRIPTION, _join(names[:-2]), _named(names[-1]))
        case [*topic, "subscriptions"] if topic:
            return Address(AdminNode.SUBSCRIPTIONS, _join(names[:-1]))
    if any(word.startswith("$") for word in words[1:]):
        raise ArgumentInvalid(
            f"{_join(names)!r:.280} is part of an entity and has no description of its own; name"
            " the queue or topic alone"
        )
    return Address(AdminNode.ENTITY, _join(names))


def render_path(address: Address) -> str:
    """The percent-encoded path of a node that has a name."""
    path = "/" + quote(address.entity)
    if address.subscription:
        path += "/Subscriptions/" + quote(address.subscription, safe="")
    if address.rule:
        # The JavaScript SDK takes a rule's name from this path as it is written: $Default.
        path += "/Rules/" + quote(address.rule, safe="$")
    return path


@dataclass(frozen=True, slots=True)
class ListPage:
    skip: int
    top: int

    def render(self) -> str:
        return f"$skip={self.skip}&$top={self.top}"


def parse_page(query: Mapping[str, str]) -> ListPage:
    return ListPage(
        skip=_count(query, "$skip", 0), top=min(_count(query, "$top", PAGE_DEFAULT), PAGE_MAX)
    )


def _count(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    number = parse_int(text, name)
    if not 0 <= number < 2**31:
        raise ArgumentOutOfRange(f"{name} is 0..{2**31 - 1}, not {text[:40]}")
    return number


def _join(names: list[str]) -> str:
    return _named("/".join(names))


def _named(name: str) -> str:
    if not name:
        raise ArgumentInvalid("the name in the request's path is empty; give the entity's name")
    return name


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Document:
    status: int
    body: bytes = b""
    content_type: str = CONTENT_TYPE


@dataclass(frozen=True, slots=True)
class Administration:
    """One request's view of the namespace."""

    namespace: BrokerNamespace
    authority: str
    """host:port by which the client knows the broker, for the addresses in answers."""
    now_ms: int
    may_forward_to: Callable[[str], None]
    """Raises Unauthorized unless the client may have messages sent to the entity of that path."""
    api_version: str = LATEST
    """For which version of the API to answer."""

    def get(self, address: Address, page: ListPage) -> Generator[None, None, Document]:
        """Work out the answer; each entity of a list is a step."""
        match address.node:
            case AdminNode.NAMESPACE:
                return self._namespace()
            case AdminNode.ROOT:
                return self._nothing()
            case AdminNode.QUEUES | AdminNode.TOPICS | AdminNode.SUBSCRIPTIONS | AdminNode.RULES:
                return (yield from self._list(address, page))
        try:
            return Document(200, self._entry(address).encode())
        except EntityNotFound as refusal:
            if address.node is not AdminNode.ENTITY:
                raise EntityNotFound(
                    f"Entity {render_path(address)!r} was not found. {refusal.description}"
                ) from None
            # Azure answers with an empty feed, and its SDKs turn that into their not-found error.
            return self._nothing()

    def _list(self, address: Address, page: ListPage) -> Generator[None, None, Document]:
        namespace, path = self.namespace, render_path(address)
        match address.node:
            case AdminNode.QUEUES:
                queues = namespace.queues()
                feed = self._feed("/$Resources/queues", queues, self._entity_entry, page)
            case AdminNode.TOPICS:
                topics = namespace.topics()
                feed = self._feed("/$Resources/topics", topics, self._entity_entry, page)
            case AdminNode.SUBSCRIPTIONS:
                subscriptions = namespace.subscriptions(address.entity)
                feed = self._feed(f"{path}/Subscriptions", subscriptions, self._entity_entry, page)
            case _:
                rules = namespace.rules(address.entity, address.subscription)
                feed = self._feed(f"{path}/Rules", rules, partial(self._rule_entry, address), page)
        return (yield from feed)

    def put(self, address: Address, body: bytes, *, update: bool) -> Document:
        """Create the node, or change it when `update` says that it must exist."""
        match address.node:
            case AdminNode.ENTITY | AdminNode.SUBSCRIPTION:
                self._put_entity(address, parse_entry(body), update)
            case AdminNode.RULE:
                self._put_rule(address, parse_entry(body), update)
            case _:
                raise ArgumentInvalid(
                    f"the request's path names {address.node.value}; put the entity's name into it"
                )
        return Document(200 if update else 201, self._entry(address).encode())

    def delete(self, address: Address) -> Document:
        match address.node:
            case AdminNode.ENTITY | AdminNode.SUBSCRIPTION:
                self.namespace.delete(address.path, self.now_ms)
            case AdminNode.RULE:
                self.namespace.delete_rule(
                    address.entity, address.subscription, address.rule, self.now_ms
                )
            case _:
                raise NotAllowed(f"{address.node.value} cannot be deleted")
        return Document(200)

    # Writing

    def _put_entity(self, address: Address, element: Element, update: bool) -> None:
        namespace, message_kb = self.namespace, self.namespace.profile.message_kb
        kinds: dict[str, tuple[Any, Callable[..., Any], Callable[..., object]]] = {
            "QueueDescription": (
                QueueDescription(max_message_size_kb=message_kb),
                namespace.get_queue,
                namespace.create_queue,
            ),
            "TopicDescription": (
                TopicDescription(max_message_size_kb=message_kb),
                namespace.get_topic,
                namespace.create_topic,
            ),
        }
        names = [address.entity]
        if address.node is AdminNode.SUBSCRIPTION:
            names.append(address.subscription)
            create_subscription = partial(self._create_subscription, element)
            found = SubscriptionDescription(), namespace.get_subscription, create_subscription
            kinds = {"SubscriptionDescription": found}
        fresh, find, create = kinds[_require(element, *kinds)]
        present = self._present(address, partial(find, *names)) if update else fresh
        is_premium = namespace.profile.sku == "Premium"
        wanted = read_settings(element, present, self.now_ms, is_premium=is_premium)
        self._check_forwarding(address.path, present, wanted)
        if update:
            namespace.update(address.path, wanted, self.now_ms)
        else:
            create(*names, wanted, self.now_ms)

    def _present(self, address: Address, find: Callable[[], Any]) -> Any:
        """The settings before an update, in Azure's words if there are none."""
        try:
            return find().description
        except EntityNotFound as refusal:
            if address.node is AdminNode.ENTITY:
                text = "SubCode=40400. Not Found. The Operation doesn't exist. "
                refusal.description = text + refusal.description
            raise

    def _create_subscription(
        self, element: Element, topic: str, name: str, wanted: SubscriptionDescription, now_ms: int
    ) -> None:
        """With the rule of the request, if it has one, instead of one that takes everything."""
        found = child(element, "DefaultRuleDescription")
        rule = None
        if found is not None:
            rule = read_rule(found, child_text(found, "Name") or DEFAULT_RULE, now_ms)
        self.namespace.create_subscription(topic, name, wanted, now_ms, rule=rule)

    def _put_rule(self, address: Address, element: Element, update: bool) -> None:
        _require(element, "RuleDescription")
        rule = read_rule(element, address.rule, self.now_ms)
        change = self.namespace.update_rule if update else self.namespace.create_rule
        change(address.entity, address.subscription, rule, self.now_ms)

    def _check_forwarding(self, path: str, present: Description, wanted: Description) -> None:
        for field in ("forward_to", "forward_dead_letters_to"):
            destination = getattr(wanted, field, None)
            if destination is None or destination == getattr(present, field):
                continue
            try:
                if destination.lower() != path.lower():
                    self.namespace.send_target(destination)
            except EntityNotFound:
                raise ArgumentInvalid(
                    f"messages cannot be forwarded to {destination!r}, which does not exist; "
                    "create it first"
                ) from None
            self.may_forward_to(destination)

    # Reading

    def _entry(self, address: Address) -> str:
        match address.node:
            case AdminNode.SUBSCRIPTION:
                names = address.entity, address.subscription
                return self._entity_entry(self.namespace.get_subscription(*names))
            case AdminNode.RULE:
                names = address.entity, address.subscription
                return self._rule_entry(address, self.namespace.get_rule(*names, address.rule))
        return self._entity_entry(self.namespace.send_target(address.entity))

    def _entity_entry(self, entity: Queue | Topic) -> str:
        address = Address(AdminNode.ENTITY, entity.path)
        if isinstance(entity, Subscription):
            address = Address(AdminNode.SUBSCRIPTION, entity.topic_path, entity.name)
        runtime = _topic_runtime(entity) if isinstance(entity, Topic) else _queue_runtime(entity)
        content = write_entity(entity.description, runtime, self.authority, self.api_version)
        return self._render(address.subscription or entity.path, address, runtime, content)

    def _rule_entry(self, address: Address, rule: RuleDescription) -> str:
        where = Address(AdminNode.RULE, address.entity, address.subscription, rule.name)
        return self._render(rule.name, where, _since(rule.created_at_ms), write_rule(rule))

    def _render(self, title: str, address: Address, times: RuntimeInfo, content: str) -> str:
        is_namespace = address.node is AdminNode.NAMESPACE
        return render_entry(
            title=title,
            url=self._url("/$namespaceinfo" if is_namespace else render_path(address)),
            author=self.namespace.name,
            created_at_ms=times.created_at_ms,
            updated_at_ms=times.updated_at_ms,
            content=content,
        )

    def _namespace(self) -> Document:
        name, times = self.namespace.name, self._namespace_times()
        element = write_namespace(name, self.namespace.profile.sku, times)
        entry = self._render(name, Address(AdminNode.NAMESPACE), times, element)
        return Document(200, entry.encode())

    def _namespace_times(self) -> RuntimeInfo:
        """The times of the entities: the broker does not store when a namespace was created."""
        entities: list[Queue | Topic] = [*self.namespace.queues(), *self.namespace.topics()]
        return RuntimeInfo(
            created_at_ms=min((each.created_at_ms for each in entities), default=self.now_ms),
            updated_at_ms=max((each.updated_at_ms for each in entities), default=self.now_ms),
            accessed_at_ms=self.now_ms,
        )

    def _feed(
        self, path: str, items: list[_T], render: Callable[[_T], str], page: ListPage
    ) -> Generator[None, None, Document]:
        title = path.rpartition("/")[2].capitalize()
        url, end = self._url(path), page.skip + page.top
        following = ListPage(end, page.top).render()
        more = f"{url}?{following}" if page.top > 0 and len(items) > end else None
        entries = list[str]()
        for item in items[page.skip : end]:
            entries.append(render(item))
            yield
        url = f"{url}?{page.render()}"
        return Document(200, render_feed(title, url, self.now_ms, entries, more), FEED_CONTENT_TYPE)

    def _nothing(self) -> Document:
        title, url = "Publicly Listed Services", self._url("/")
        return Document(200, render_feed(title, url, self.now_ms, []), FEED_CONTENT_TYPE)

    def _url(self, path: str) -> str:
        return f"http://{self.authority}{path}"


def _since(at_ms: int) -> RuntimeInfo:
    """The times of something that never changes."""
    return RuntimeInfo(created_at_ms=at_ms, updated_at_ms=at_ms, accessed_at_ms=at_ms)


def _accessed(entity: Queue | Topic) -> int:
    """When clients last used an entity; 0: not since it was made or changed, or started.

    Azure says so of queues and topics, and gives a subscription the time when it was made.
    """
    if isinstance(entity, Subscription):
        return max(entity.accessed_at_ms, entity.created_at_ms)
    return entity.accessed_at_ms if entity.accessed_at_ms > entity.updated_at_ms else 0


def _queue_runtime(queue: Queue) -> RuntimeInfo:
    dead_letters = queue.dead_letter
    dead_letter_count = len(dead_letters.messages) if dead_letters is not None else 0
    return RuntimeInfo(
        created_at_ms=queue.created_at_ms,
        updated_at_ms=queue.updated_at_ms,
        accessed_at_ms=_accessed(queue),
        size_bytes=queue.size_bytes + (dead_letters.size_bytes if dead_letters is not None else 0),
        message_count=len(queue.messages) + dead_letter_count,
        active_count=queue.active_count,
        dead_letter_count=dead_letter_count,
        scheduled_count=queue.scheduled_count,
    )


def _topic_runtime(topic: Topic) -> RuntimeInfo:
    subscriptions = list(topic.subscriptions.values())
    filters = [rule.filter for each in subscriptions for rule in each.rules.values()]
    correlation_count = sum(isinstance(each, CorrelationFilter) for each in filters)
    return RuntimeInfo(
        created_at_ms=topic.created_at_ms,
        updated_at_ms=topic.updated_at_ms,
        accessed_at_ms=_accessed(topic),
        size_bytes=topic.size_bytes
        + sum(_queue_runtime(each).size_bytes for each in subscriptions),
        scheduled_count=topic.scheduled_count,
        subscription_count=len(subscriptions),
        sql_filter_count=len(filters) - correlation_count,
        correlation_filter_count=correlation_count,
    )


def _require(element: Element, *names: str) -> str:
    found = local_name(element)
    if found not in names:
        wanted = " or a ".join(names)
        raise ArgumentInvalid(f"the entry holds {found[:60]!r}; a {wanted} belongs here")
    return found
