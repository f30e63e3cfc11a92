"""Limits of a subscription's rules.

A client that may only listen can add rules, so each limit bounds what such a client can make the
broker keep or compute.
"""

from __future__ import annotations

import json

from twinbus.broker.descriptions import (
    CorrelationFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    check_name,
)
from twinbus.broker.engine.description_records import rule_record
from twinbus.broker.engine.topic import Subscription
from twinbus.broker.filters.rules import validate
from twinbus.broker.refusals import ArgumentOutOfRange, QuotaExceeded

RULES_MAX = 2_000
"""Rules of one subscription, as many as Azure evaluates SQL filters of one topic."""

ACTION_RULES_MAX = 50
"""Rules with an action of one subscription: each makes a copy of a message, on disk and in memory.
"""

RULE_BYTES_MAX = 32 * 1024
"""One rule as it is stored. An expression has 1,024 characters; the rest is for the properties of a
correlation filter and for parameters."""

RULE_PROPERTIES_MAX = 100
"""Properties of a correlation filter, and parameters of a filter or an action: all are compared
for a message."""


def check_rule(rule: RuleDescription) -> None:
    """Refuse a rule that is too large or cannot be carried out."""
    check_name("rule", rule.name)
    for part in (rule.filter, rule.action):
        pairs: tuple[tuple[str, object], ...] = ()
        if isinstance(part, CorrelationFilter):
            pairs = part.properties
        elif isinstance(part, SqlFilter | SqlAction):
            pairs = part.parameters
        if len(pairs) > RULE_PROPERTIES_MAX:
            raise ArgumentOutOfRange(
                f"the rule {rule.name!r} has {len(pairs)} properties or parameters, the limit is"
                f" {RULE_PROPERTIES_MAX}; compare fewer of them"
            )
    size_bytes = len(json.dumps(rule_record(rule)))
    if size_bytes > RULE_BYTES_MAX:
        raise ArgumentOutOfRange(
            f"the rule {rule.name!r} has {size_bytes} bytes, the limit is {RULE_BYTES_MAX};"
            " shorten the values that it compares with"
        )
    validate(rule)


def check_rule_count(owner: Subscription) -> None:
    """Refuse one rule more than a subscription can have."""
    if len(owner.rules) >= RULES_MAX:
        raise QuotaExceeded(
            f"the subscription {owner.path!r} has {RULES_MAX} rules, the most it can have;"
            " delete some, or spread them over several subscriptions"
        )


def check_action_count(owner: Subscription, rule: RuleDescription) -> None:
    """Refuse one rule with an action more than a subscription can have."""
    if rule.action is None:
        return
    count = sum(each.action is not None for each in owner.rules.values())
    if count >= ACTION_RULES_MAX:
        raise QuotaExceeded(
            f"the subscription {owner.path!r} has {ACTION_RULES_MAX} rules with an action, the most"
            " it can have: each makes a copy of a message; delete some, or spread them over several"
            " subscriptions"
        )
