"""Two namespaces of a real broker, and `twinbus` commands typed at them, for tests of twins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleProperties,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)

from tests.official_sdk import administration
from tests.unit.console.commands import Ran, run
from twinbus import EmbeddedBroker
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.console.twins.reading import rule_text

COULD_NOT, ASKED_WRONGLY, ATTENTION = 1, 2, 3
MARK = "twinbus-twin-of:contoso"
RULES = [
    AuthorizationRule(key_name="sender", primary_key="k", rights=frozenset({"Send"})),
    AuthorizationRule(key_name="listener", primary_key="k", rights=frozenset({"Listen"})),
]

Terminal = Callable[..., Ran]


def both_strings() -> Any:
    """A fixture: the connection strings of primary and secondary."""

    @pytest.fixture
    def texts(broker: EmbeddedBroker) -> tuple[str, str]:
        return broker.connection_string("contoso"), broker.connection_string("contoso-dr")

    return texts


def terminal() -> Any:
    """A fixture: types `twinbus WORDS` in the environment of the two namespaces."""

    @pytest.fixture
    def typed(
        texts: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> Terminal:
        def in_this_process(*words: str, label: str = "contoso") -> Ran:
            for name, text in zip(("TWINBUS_PRIMARY", "TWINBUS_SECONDARY"), texts, strict=True):
                monkeypatch.setenv(name, text)
            done = run(capsys, *words, "--label", label)
            assert "Traceback" not in done.err
            return done

        return in_this_process

    return typed


@contextmanager
def both(
    texts: tuple[str, str],
) -> Iterator[tuple[ServiceBusAdministrationClient, ServiceBusAdministrationClient]]:
    with administration(texts[0]) as primary, administration(texts[1]) as secondary:
        yield primary, secondary


def states(done: Ran) -> dict[str, str]:
    return {one["path"]: one["state"] for one in json.loads(done.out)["twins"]}


def rules_of(admin: ServiceBusAdministrationClient, topic: str, name: str) -> dict[str, Any]:
    found: list[RuleProperties] = list(admin.list_rules(topic, name))
    return {rule.name: rule_text(rule) for rule in found}


def described(found: Any) -> dict[str, Any]:
    """All settings of an entity but those of its own life."""
    leave = {"_internal_qd", "_internal_td", "_internal_sd", "user_metadata", "authorization_rules"}
    return {key: value for key, value in vars(found).items() if key not in leave}


def make_topic(admin: ServiceBusAdministrationClient, name: str = "events") -> None:
    """A topic with every kind of filter, actions and parameters."""
    admin.create_topic(name, default_message_time_to_live=timedelta(days=2))
    admin.create_subscription(name, "all", max_delivery_count=3, lock_duration=timedelta(seconds=9))
    admin.create_subscription(name, "sql", dead_lettering_on_message_expiration=True)
    admin.create_rule(
        name,
        "sql",
        "red",
        filter=SqlRuleFilter("color = @c AND size > 3", parameters={"@c": "red"}),
        action=SqlRuleAction("SET seen = @s", parameters={"@s": 5}),
    )
    admin.create_rule(name, "sql", "never", filter=FalseRuleFilter())
    admin.delete_rule(name, "sql", "$Default")
    admin.create_subscription(name, "correlated")
    correlation = CorrelationRuleFilter(
        label="a", correlation_id="b", properties={"n": 7, "flag": True, "text": "7"}
    )
    admin.delete_rule(name, "correlated", "$Default")
    admin.create_rule(name, "correlated", "both", filter=correlation)
