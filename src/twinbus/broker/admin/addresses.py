"""What an administration request is about: the node its path names, and the page of a list.

    /                                   the namespace's public listing, always empty
    /$namespaceinfo                     the namespace
    /$Resources/queues                  all queues; likewise topics
    /{entity}                           a queue or a topic
    /{topic}/subscriptions[/{name}]     the subscriptions of a topic, or one of them
    .../subscriptions/{name}/rules[/{rule}]

Pure. Clients write the slashes of an entity's own name as %2F or as they are; words are matched in
any letter case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote, unquote

from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange

PAGE_MAX = 1000
"""Entries of one answer; a client that asks for more gets the rest with the next page."""

PAGE_DEFAULT = 100


class AdminNode(Enum):
    """Kinds of things that have an address."""

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

    @property
    def next(self) -> ListPage:
        return ListPage(self.skip + self.top, self.top)

    def render(self) -> str:
        return f"$skip={self.skip}&$top={self.top}"


def parse_page(query: Mapping[str, str]) -> ListPage:
    """The page that `$skip` and `$top` ask for."""
    return ListPage(
        skip=_count(query, "$skip", 0), top=min(_count(query, "$top", PAGE_DEFAULT), PAGE_MAX)
    )


def _count(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        raise ArgumentInvalid(f"{name} is {text[:40]!r}, which is no whole number") from None
    if not 0 <= number < 2**31:
        raise ArgumentOutOfRange(f"{name} is 0..{2**31 - 1}, not {text[:40]}")
    return number


def _join(names: list[str]) -> str:
    return _named("/".join(names))


def _named(name: str) -> str:
    if not name:
        raise ArgumentInvalid("the name in the request's path is empty; give the entity's name")
    return name
