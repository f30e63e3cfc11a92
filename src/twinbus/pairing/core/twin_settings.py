"""Compares an entity of the primary with its twin in the secondary. Pure.

A difference is an error if messages of the entity could be lost, refused or hidden in the twin; any
other difference is a remark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from twinbus.servicebus.names import FOREVER_MS
from twinbus.servicebus.twins import UNFINISHED_MARK
from twinbus.wording import counted, duration

ACTIVE: Final = "Active"

WINDOW: Final = "duplicate_detection_window_ms"
"""The setting that means nothing without duplicate detection."""

UNREADABLE: Final = "of an unknown kind"
"""The text of a filter that the SDK cannot read."""


class Kind(StrEnum):
    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


@dataclass(frozen=True, slots=True)
class TwinRule:
    """A rule of a subscription, as texts that are equal if the rules do the same."""

    name: str
    filter: str
    action: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TwinSettings:
    """The settings of an entity that matter to its twin; None: its kind does not have the setting.

    Forwarding is kept as a path: the service forwards inside a namespace only.
    """

    kind: Kind
    name: str
    """The path of a queue or topic; a subscription's own name."""
    user_metadata: str = ""
    requires_session: bool | None = None
    requires_duplicate_detection: bool | None = None
    duplicate_detection_window_ms: int | None = None
    default_ttl_ms: int = FOREVER_MS
    dead_letter_on_expiration: bool | None = None
    dead_letter_on_filter_error: bool | None = None
    lock_duration_ms: int | None = None
    max_delivery_count: int | None = None
    max_size_mb: int | None = None
    max_message_size_kb: int | None = None
    enable_partitioning: bool | None = None
    auto_delete_on_idle_ms: int = FOREVER_MS
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    status: str = ACTIVE
    rules: Mapping[str, TwinRule] = field(default_factory=dict)
    """Of a subscription, by name in lower case."""
    subscriptions: Mapping[str, TwinSettings] = field(default_factory=dict)
    """Of a topic, by name in lower case."""

    @property
    def has_sessions(self) -> bool:
        """Whether receivers of the entity, or of one of its subscriptions, receive sessions."""
        return bool(self.requires_session) or any(
            one.requires_session for one in self.subscriptions.values()
        )

    @property
    def forwards_to(self) -> set[str]:
        """Paths in lower case that messages leave for, of the subscriptions too."""
        parts = (self, *self.subscriptions.values())
        return {one.forward_to.lower() for one in parts if one.forward_to}


@dataclass(frozen=True, slots=True)
class TwinDifference:
    """One difference between an entity and its twin, as a sentence."""

    says: str
    is_error: bool = True
    """Messages could be lost, refused or hidden."""
    is_added: bool = False
    """`twinbus twins create` adds what is missing, also to a twin that exists."""

    def __str__(self) -> str:
        return self.says


class _Effect(NamedTuple):
    text: str
    is_error: bool = True


class _Setting(NamedTuple):
    name: str
    words: str
    shown: Callable[[Any], str]
    less: _Effect | None
    """What happens if the twin's value is smaller, or false; None: nothing that matters."""
    more: _Effect | None


def _switch(value: bool) -> str:
    return "on" if value else "off"


def _time(value_ms: int) -> str:
    return "unlimited" if _is_forever(value_ms) else duration(value_ms / 1_000)


def _number(value: int) -> str:
    return f"{value:,}"


def _is_forever(value_ms: int) -> bool:
    # Services round the largest duration differently; past 10,000 years all of them mean never.
    return value_ms >= FOREVER_MS // 2


_SETTINGS: Final = (
    _Setting(
        "requires_session",
        "sessions",
        _switch,
        _Effect("receivers of sessions are refused"),
        _Effect("messages without a session id are refused"),
    ),
    _Setting(
        "requires_duplicate_detection",
        "duplicate detection",
        _switch,
        _Effect("duplicates that the primary would drop are delivered", False),
        _Effect("a message whose id was used before is dropped"),
    ),
    _Setting(
        WINDOW,
        "the window of duplicate detection",
        _time,
        _Effect("later duplicates are delivered", False),
        _Effect("a message whose id is used again after the primary's window is dropped"),
    ),
    _Setting(
        "default_ttl_ms",
        "the time to live",
        _time,
        _Effect("messages expire sooner"),
        _Effect("messages expire later", False),
    ),
    _Setting(
        "dead_letter_on_expiration",
        "dead-lettering of expired messages",
        _switch,
        _Effect("expired messages are deleted"),
        _Effect("expired messages are kept as dead letters", False),
    ),
    _Setting(
        "dead_letter_on_filter_error",
        "dead-lettering of messages whose filter fails",
        _switch,
        _Effect("such messages are deleted"),
        _Effect("such messages are kept as dead letters", False),
    ),
    _Setting(
        "lock_duration_ms",
        "the lock duration",
        _time,
        _Effect("a handler that takes longer gets its message again", False),
        _Effect("messages of a receiver that died come back later", False),
    ),
    _Setting(
        "max_delivery_count",
        "the maximum delivery count",
        _number,
        _Effect("messages are dead-lettered after fewer deliveries"),
        _Effect("messages are dead-lettered after more deliveries", False),
    ),
    _Setting(
        "max_size_mb",
        "the maximum size in MB",
        _number,
        _Effect("once it is full, messages go to the backlog queues", False),
        None,
    ),
    _Setting(
        "max_message_size_kb",
        "the maximum message size in KB",
        _number,
        _Effect("larger messages are refused"),
        _Effect("larger messages than the primary takes cannot be moved there", False),
    ),
    _Setting(
        "enable_partitioning",
        "partitioning",
        _switch,
        _Effect("order and transactions follow other rules", False),
        _Effect("order and transactions follow other rules", False),
    ),
)


def twin_differences(
    primary: TwinSettings, twin: TwinSettings, twins: Collection[str]
) -> list[TwinDifference]:
    """Return the differences, errors first; `twins` are the paths of all twins, in lower case."""
    found = [*_of_part(primary, twin, twins, ""), *_of_subscriptions(primary, twin, twins)]
    return sorted(found, key=lambda one: not one.is_error)


def _of_subscriptions(
    primary: TwinSettings, twin: TwinSettings, twins: Collection[str]
) -> Iterator[TwinDifference]:
    for key, wanted in primary.subscriptions.items():
        there = twin.subscriptions.get(key)
        if there is None:
            says = f"subscription {wanted.name} is missing: it gets no message sent to the twin"
            yield TwinDifference(says, is_added=True)
            continue
        place = f"subscription {there.name}: "
        if there.user_metadata.startswith(UNFINISHED_MARK):
            yield TwinDifference(f"{place}its rules are not complete", is_added=True)
            continue
        yield from _of_part(wanted, there, twins, place)
        yield from _of_rules(wanted, there, place)
    for key, extra in twin.subscriptions.items():
        if key not in primary.subscriptions:
            says = f"subscription {extra.name} is not in the primary: its messages stay in the twin"
            yield TwinDifference(says, is_error=False)


def _of_part(
    primary: TwinSettings, twin: TwinSettings, twins: Collection[str], place: str
) -> Iterator[TwinDifference]:
    for one in _SETTINGS:
        effect = _effect(one, primary, twin)
        if effect is not None:
            values = (one.shown(getattr(side, one.name)) for side in (twin, primary))
            says = "{} is {} in the twin and {} in the primary: {}"
            says = place + says.format(one.words, *values, effect.text)
            yield TwinDifference(says, effect.is_error)
    if not _is_forever(twin.auto_delete_on_idle_ms):
        idle = _time(twin.auto_delete_on_idle_ms)
        says = f"{place}the twin is deleted after {idle} without use, and a twin is idle while the"
        yield TwinDifference(f"{says} primary works")
    elif not _is_forever(primary.auto_delete_on_idle_ms):
        idle = _time(primary.auto_delete_on_idle_ms)
        says = f"{place}the primary's is deleted after {idle} without use; the twin stays"
        yield TwinDifference(says, is_error=False)
    if twin.status not in {ACTIVE, primary.status}:
        yield TwinDifference(f"{place}the status of the twin is {twin.status}, not {ACTIVE}")
    yield from _of_forwarding(primary, twin, twins, place)


def _effect(setting: _Setting, primary: TwinSettings, twin: TwinSettings) -> _Effect | None:
    wanted, there = getattr(primary, setting.name), getattr(twin, setting.name)
    if wanted is None or there is None or wanted == there:
        return None
    if setting.name.endswith("_ms") and _is_forever(wanted) and _is_forever(there):
        return None
    is_window = setting.name == WINDOW
    if is_window and not (
        primary.requires_duplicate_detection and twin.requires_duplicate_detection
    ):
        return None
    return setting.less if there < wanted else setting.more


def _of_forwarding(
    primary: TwinSettings, twin: TwinSettings, twins: Collection[str], place: str
) -> Iterator[TwinDifference]:
    wanted, there = primary.forward_to, twin.forward_to
    if (wanted or "").lower() != (there or "").lower():
        if wanted is None:
            says = f"the twin forwards to {there} and the primary's does not: receivers miss them"
        elif there is None:
            says = f"the twin does not forward to {wanted}, where the receivers are"
        else:
            says = f"the twin forwards to {there}, not to {wanted}"
        yield TwinDifference(place + says)
    elif there is not None and there.lower() not in twins:
        yield TwinDifference(f"{place}the twin forwards to {there}, which is not a twin")
    wanted, there = primary.forward_dead_letters_to, twin.forward_dead_letters_to
    if there is not None and there.lower() not in twins:
        says = f"{place}the twin forwards dead letters to {there}, which is not a twin"
        yield TwinDifference(says)
    elif (wanted or "").lower() != (there or "").lower():
        kept = "stay in the twin" if there is None else f"go to {there}"
        goes = "stay where they are" if wanted is None else f"go to {wanted}"
        says = f"{place}dead letters {kept}; in the primary they {goes}"
        yield TwinDifference(says, is_error=False)


def _of_rules(primary: TwinSettings, twin: TwinSettings, place: str) -> Iterator[TwinDifference]:
    for key, wanted in primary.rules.items():
        there = twin.rules.get(key)
        if there is None:
            says = f"{place}rule {wanted.name} is missing: messages that it selects are not stored"
            yield TwinDifference(says, is_added=True)
            continue
        if UNREADABLE in {there.filter, wanted.filter}:
            says = f"{place}rule {there.name} has a filter {UNREADABLE}, which is not compared"
            yield TwinDifference(says)
        elif there.filter != wanted.filter:
            says = f"{place}rule {there.name} has the filter {there.filter}, not {wanted.filter}"
            yield TwinDifference(says)
        if there.action != wanted.action:
            says = f"{place}rule {there.name} has the action {there.action or 'none'}, not"
            yield TwinDifference(f"{says} {wanted.action or 'none'}")
    for key, extra in twin.rules.items():
        if key not in primary.rules:
            says = f"{place}rule {extra.name} is not in the primary: it selects other messages"
            yield TwinDifference(says)


def summary(settings: TwinSettings) -> str:
    """Return kind and settings of an entity in one line, for a person who decides."""
    has_window = settings.requires_duplicate_detection
    shown = [
        f"{one.words} {one.shown(value)}"
        for one in _SETTINGS
        if (value := getattr(settings, one.name)) is not None
        and value is not False
        and (has_window or one.name != WINDOW)
    ]
    shown += [f"forwards to {settings.forward_to}"] if settings.forward_to else []
    shown += [f"status {settings.status}"] if settings.status != ACTIVE else []
    if settings.kind is Kind.TOPIC:
        shown.insert(0, counted(len(settings.subscriptions), "subscription"))
    return f"{settings.kind}: {', '.join(shown)}"
