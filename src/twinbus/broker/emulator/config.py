"""Config.json of Microsoft's Service Bus emulator: the entities that a broker is to begin with.

    UserConfig
      Logging.Type
      Namespaces[0]        Name, Queues[], Topics[]
        Queues[n]          Name, Properties
        Topics[n]          Name, Properties, Subscriptions[]
          Subscriptions[n] Name, Properties, Rules[]
            Rules[n]       Name, Properties: FilterType, CorrelationFilter or SqlFilter, Action

Every mistake is one line with its path in the file. A property that is left out has the emulator's
default, which is not always Azure's. Comments and trailing commas are allowed, as there. Pure:
the caller reads the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from twinbus.broker.admin.atom import parse_duration, render_duration
from twinbus.broker.descriptions import (
    RANGES,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    check_name,
    check_path,
)
from twinbus.broker.emulator.rules import ConfiguredRules
from twinbus.broker.emulator.values import ConfigValues, document_of, kind_of
from twinbus.servicebus.names import subscription_path

NAMESPACE: Final = "sbemulatorns"
"""The only name that the emulator takes."""

AMQP_PORT: Final = 5672
ADMINISTRATION_PORT: Final = 5300

DEFAULTS: Final = {
    "default_ttl_ms": 3_600_000,
    "duplicate_detection_window_ms": 20_000,
    "max_delivery_count": 3,
}
"""The emulator's, where they are not Azure's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfiguredSubscription:
    topic: str
    name: str
    description: SubscriptionDescription
    rules: tuple[RuleDescription, ...]
    """Empty: the one rule takes everything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmulatorConfig:
    namespace: str
    queues: dict[str, QueueDescription]
    topics: dict[str, TopicDescription]
    subscriptions: tuple[ConfiguredSubscription, ...]
    notes: tuple[str, ...]
    """What is in the file and has no effect here, a line for each."""


def read_config(text: str) -> EmulatorConfig:
    """Read the file's text; ConfigMistakes with every mistake in it."""
    document = document_of(text)
    values = ConfigValues()
    config = _Reading(values).whole(document)
    values.require_none()
    return config


@dataclass(slots=True)
class _Reading:
    _values: ConfigValues
    _paths: dict[str, str] = field(default_factory=dict)
    """Where each entity is, by its path in lower case."""
    _forwards: list[tuple[str, str]] = field(default_factory=list)
    """Where something is forwarded, and to which entity."""

    # The parts of the file

    def whole(self, document: object) -> EmulatorConfig:
        top = self._values.mapping(document, "", "UserConfig $schema")
        user = self._values.mapping(top.get("UserConfig", {}), "UserConfig", "Namespaces Logging")
        if "UserConfig" not in top and isinstance(document, dict):
            self._values.wrong("UserConfig", "is missing")
        notes = self._logging(user.get("Logging"))
        found = self._values.items(user.get("Namespaces"), "UserConfig.Namespaces")
        queues: dict[str, QueueDescription] = {}
        topics: dict[str, TopicDescription] = {}
        subscriptions: list[ConfiguredSubscription] = []
        name = NAMESPACE
        if len(found) != 1:
            self._values.wrong(
                "UserConfig.Namespaces", f"has {len(found)} namespaces; give exactly one"
            )
        for at, one in found[:1]:
            place = self._values.mapping(one, at, "Name Queues Topics")
            name = self._values.text(place.get("Name"), f"{at}.Name")
            for where, queue in self._values.items(place.get("Queues"), f"{at}.Queues"):
                self._queue(queue, where, queues)
            for where, topic in self._values.items(place.get("Topics"), f"{at}.Topics"):
                self._topic(topic, where, topics, subscriptions)
        for where, target in self._forwards:
            if target.lower() not in self._paths:
                self._values.wrong(where, f"{target!r} is no queue or topic of this file")
        return EmulatorConfig(
            namespace=name,
            queues=queues,
            topics=topics,
            subscriptions=tuple(subscriptions),
            notes=notes,
        )

    def _logging(self, value: object) -> tuple[str, ...]:
        if value is None:
            return ()
        at = "UserConfig.Logging"
        kind = self._values.mapping(value, at, "Type").get("Type")
        ways = str(kind).split(",")
        if not isinstance(kind, str) or not {"File", "Console"}.issuperset(ways):
            self._values.wrong(
                f"{at}.Type", f"must be File, Console or both with a comma, not {kind!r}"
            )
        elif "File" in ways:
            return (f"{at}.Type: {kind} writes no file here; the log goes to stderr",)
        return ()

    def _queue(self, value: object, at: str, queues: dict[str, QueueDescription]) -> None:
        given = self._values.mapping(value, at, "Name Properties")
        path = self._entity("queue", given, at)
        settings = self._settings(given.get("Properties", {}), f"{at}.Properties", QUEUE)
        queues[path] = QueueDescription(**settings)

    def _topic(
        self,
        value: object,
        at: str,
        topics: dict[str, TopicDescription],
        subscriptions: list[ConfiguredSubscription],
    ) -> None:
        given = self._values.mapping(value, at, "Name Properties Subscriptions")
        path = self._entity("topic", given, at)
        settings = self._settings(given.get("Properties", {}), f"{at}.Properties", TOPIC)
        topics[path] = TopicDescription(**settings)
        for where, one in self._values.items(given.get("Subscriptions"), f"{at}.Subscriptions"):
            found = self._values.mapping(one, where, "Name Properties Rules")
            name = self._values.text(found.get("Name"), f"{where}.Name")
            if name:
                self._values.checked(f"{where}.Name", partial(check_name, "subscription", name))
                self._only(subscription_path(path, name), f"{where}.Name")
            settings = self._settings(
                found.get("Properties", {}), f"{where}.Properties", SUBSCRIPTION
            )
            rules = ConfiguredRules(self._values).read(found.get("Rules"), f"{where}.Rules")
            subscriptions.append(
                ConfiguredSubscription(
                    topic=path,
                    name=name,
                    description=SubscriptionDescription(**settings),
                    rules=rules,
                )
            )

    def _entity(self, kind: str, given: dict[str, Any], at: str) -> str:
        path = self._values.text(given.get("Name"), f"{at}.Name")
        if path:
            self._values.checked(f"{at}.Name", lambda: check_path(kind, path))
            self._only(path, f"{at}.Name")
        return path

    def _only(self, path: str, at: str) -> None:
        """Note an entity; a mistake if there is one of that path already."""
        before = self._paths.setdefault(path.lower(), at)
        if before != at:
            self._values.wrong(
                at, f"{path!r} is at {before} already; letter case makes no difference"
            )

    def _settings(self, value: object, at: str, known: dict[str, str]) -> dict[str, Any]:
        """The fields of a description that an object `Properties` sets, defaults included."""
        given = self._values.mapping(value, at, " ".join(known))
        settings: dict[str, Any] = {
            name: DEFAULTS[name] for name in known.values() if name in DEFAULTS
        }
        for key, name in known.items():
            if key in given:
                read = self._setting(given[key], f"{at}.{key}", name)
                if read is not None:
                    settings[name] = read
        return settings

    def _setting(self, value: object, at: str, name: str) -> Any:
        """One value of a description; None: it is wrong, or says nothing."""
        if name.endswith("_ms"):
            if not isinstance(value, str):
                self._values.wrong(
                    at, f"must be an ISO 8601 duration such as PT1M, not {kind_of(value)}"
                )
                return None
            duration_ms = self._values.checked(at, lambda: parse_duration(value, "it"))
            if duration_ms is not None:
                low, high, _ = RANGES[name]
                if low <= duration_ms <= high:
                    return duration_ms
                lowest = "PT0.001S" if low == 1 else render_duration(low)
                self._values.wrong(
                    at, f"is {value}; this broker takes {lowest} to {render_duration(high)}"
                )
            return None
        if name.startswith("forward"):
            if value != "":
                target = self._values.text(value, at)
                if target:
                    self._forwards.append((at, target))
                    return target
            return None
        if name == "max_delivery_count":
            low, high, _ = RANGES[name]
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                self._values.wrong(
                    at, f"must be a whole number from {low} to {high}, not {value!r:.40}"
                )
                return None
            return value
        if not isinstance(value, bool):
            self._values.wrong(at, f"must be true or false, not {kind_of(value)}")
            return None
        return value


TOPIC: Final = {
    "DefaultMessageTimeToLive": "default_ttl_ms",
    "DuplicateDetectionHistoryTimeWindow": "duplicate_detection_window_ms",
    "RequiresDuplicateDetection": "requires_duplicate_detection",
}

SUBSCRIPTION: Final = {
    "DeadLetteringOnMessageExpiration": "dead_letter_on_expiration",
    "DefaultMessageTimeToLive": "default_ttl_ms",
    "LockDuration": "lock_duration_ms",
    "MaxDeliveryCount": "max_delivery_count",
    "ForwardDeadLetteredMessagesTo": "forward_dead_letters_to",
    "ForwardTo": "forward_to",
    "RequiresSession": "requires_session",
}

QUEUE: Final = {**TOPIC, **SUBSCRIPTION}
"""Names of properties in the file, and of fields in our descriptions."""
