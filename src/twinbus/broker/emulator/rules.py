"""The rules of a subscription in a Config.json."""

from __future__ import annotations

from functools import partial
from typing import Final

from twinbus.broker.descriptions import (
    CorrelationFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
)
from twinbus.broker.emulator.values import ConfigValues, kind_of
from twinbus.broker.engine.topic import check_rule

CORRELATION: Final = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}
"""Names of properties in the file, and of fields of a filter."""


class ConfiguredRules:
    """Reads the list `Rules`."""

    def __init__(self, values: ConfigValues) -> None:
        self._values = values

    def read(self, value: object, at: str) -> tuple[RuleDescription, ...]:
        rules: dict[str, RuleDescription] = {}
        for where, one in self._values.items(value, at):
            given = self._values.mapping(one, where, "Name Properties")
            name = self._values.text(given.get("Name"), f"{where}.Name")
            if "Properties" not in given:
                self._values.wrong(f"{where}.Properties", "is missing")
                continue
            before = len(self._values.mistakes)
            made = self._filter(given["Properties"], f"{where}.Properties")
            if len(self._values.mistakes) > before or not name or made is None:
                continue
            rule = RuleDescription(name=name, filter=made[0], action=made[1])
            self._values.checked(where, partial(check_rule, rule))
            if name.lower() in rules:
                self._values.wrong(f"{where}.Name", f"the subscription has a rule {name!r} already")
            rules[name.lower()] = rule
        return tuple(rules.values())

    def _filter(self, value: object, at: str) -> tuple[Filter, SqlAction | None] | None:
        given = self._values.mapping(value, at, "FilterType CorrelationFilter SqlFilter Action")
        kind = given.get("FilterType")
        if kind not in ("Correlation", "Sql"):
            self._values.wrong(f"{at}.FilterType", f"must be Correlation or Sql, not {kind!r:.40}")
            return None
        wanted, other = "CorrelationFilter", "SqlFilter"
        if kind == "Sql":
            wanted, other = other, wanted
        if other in given:
            self._values.wrong(
                f"{at}.{other}", f"does not belong to FilterType {kind}; leave it out"
            )
        if wanted not in given:
            self._values.wrong(f"{at}.{wanted}", f"is missing; FilterType is {kind}")
            return None
        action = self._action(given.get("Action"), f"{at}.Action")
        if kind == "Correlation":
            return self._correlation(given[wanted], f"{at}.{wanted}"), action
        sql = self._values.mapping(given[wanted], f"{at}.{wanted}", "SqlExpression")
        text = self._values.text(sql.get("SqlExpression"), f"{at}.{wanted}.SqlExpression")
        return SqlFilter(expression=text), action

    def _action(self, value: object, at: str) -> SqlAction | None:
        if value is None:
            return None
        text = self._values.mapping(value, at, "SqlExpression").get("SqlExpression")
        return (
            SqlAction(expression=self._values.text(text, f"{at}.SqlExpression"))
            if text != ""
            else None
        )

    def _correlation(self, value: object, at: str) -> CorrelationFilter:
        given = self._values.mapping(value, at, f"{' '.join(CORRELATION)} Properties")
        if not given:
            self._values.wrong(at, "must name at least one property")
        fields = {
            name: self._values.text(given[key], f"{at}.{key}")
            for key, name in CORRELATION.items()
            if key in given
        }
        properties = given.get("Properties", {})
        if not isinstance(properties, dict):
            self._values.wrong(f"{at}.Properties", f"must be an object, not {kind_of(properties)}")
            properties = {}
        for key, one in properties.items():
            if not isinstance(one, str | int | float):
                self._values.wrong(
                    f"{at}.Properties.{key}",
                    f"must be a text, a number, true or false, not {kind_of(one)}",
                )
        return CorrelationFilter(**fields, properties=tuple(properties.items()))
