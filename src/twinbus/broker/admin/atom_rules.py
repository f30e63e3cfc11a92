"""Rules of a subscription as XML: filters, actions and their typed parameters.

Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.admin.atom import (
    SCHEMA,
    child,
    child_text,
    described,
    instance_type,
    parse_typed,
    render_time,
    render_typed,
    tag,
    text_of,
)
from twinbus.broker.descriptions import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

EXPRESSION_LENGTH_MAX = 1024
"""Characters of a SQL filter or action, as in Azure."""

_COMPATIBILITY_LEVEL = "20"

_CORRELATION_ELEMENTS = [(field.title().replace("_", ""), field) for field in CORRELATION_FIELDS]
"""Name of the element and field: `CorrelationId` for `correlation_id`."""


def read_rule(element: Element, name: str, now_ms: int) -> RuleDescription:
    """The rule that a RuleDescription element asks for, under the name its address gave."""
    return RuleDescription(
        name=name,
        filter=_read_filter(child(element, "Filter")),
        action=_read_action(child(element, "Action")),
        created_at_ms=now_ms,
    )


def write_rule(rule: RuleDescription) -> str:
    return described(
        "RuleDescription",
        _write_filter(rule.filter)
        + _write_action(rule.action)
        + tag("CreatedAt", render_time(rule.created_at_ms))
        + tag("Name", rule.name),
    )


def _read_filter(element: Element | None) -> Filter:
    if element is None:
        return TrueFilter()
    match instance_type(element):
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(
                expression=_read_expression(element, "SQL filter"),
                parameters=_read_pairs(child(element, "Parameters")),
            )
        case "CorrelationFilter":
            fields = {field: child_text(element, name) for name, field in _CORRELATION_ELEMENTS}
            return CorrelationFilter(**fields, properties=_read_pairs(child(element, "Properties")))
        case other:
            raise ArgumentInvalid(
                f"the filter type {other[:60]!r} is unknown; use SqlFilter, CorrelationFilter, "
                "TrueFilter or FalseFilter"
            )


def _read_action(element: Element | None) -> SqlAction | None:
    if element is None:
        return None
    match instance_type(element):
        case "" | "EmptyRuleAction":
            return None
        case "SqlRuleAction":
            return SqlAction(
                expression=_read_expression(element, "SQL action"),
                parameters=_read_pairs(child(element, "Parameters")),
            )
        case other:
            raise ArgumentInvalid(
                f"the action type {other[:60]!r} is unknown; use SqlRuleAction or EmptyRuleAction"
            )


def _read_expression(element: Element, what: str) -> str:
    expression = child_text(element, "SqlExpression") or ""
    if not expression.strip():
        raise ArgumentInvalid(f"a {what} without an expression; give SqlExpression")
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise ArgumentOutOfRange(
            f"a {what} has at most {EXPRESSION_LENGTH_MAX} characters, not {len(expression)}"
        )
    return expression


def _read_pairs(element: Element | None) -> tuple[tuple[str, object], ...]:
    """Key and typed value of each pair, whatever the pairs are called: SDKs differ in that."""
    if element is None:
        return ()
    pairs: dict[str, object] = {}
    for pair in element:
        key, value = child_text(pair, "Key"), child(pair, "Value")
        if key is None or value is None:
            raise ArgumentInvalid("a parameter of a rule needs both Key and Value")
        if key in pairs:
            raise ArgumentInvalid(f"the parameter {key!r} of a rule is given twice")
        pairs[key] = parse_typed(
            instance_type(value) or "string", value.text or "", f"parameter {key!r}"
        )
    return tuple(pairs.items())


def _write_filter(rule_filter: Filter) -> str:
    match rule_filter:
        case TrueFilter():
            return _sql("Filter", "TrueFilter", "1=1", ())
        case FalseFilter():
            return _sql("Filter", "FalseFilter", "1=0", ())
        case SqlFilter():
            return _sql("Filter", "SqlFilter", rule_filter.expression, rule_filter.parameters)
        case CorrelationFilter():
            named = "".join(
                tag(name, value)
                for name, field in _CORRELATION_ELEMENTS
                if (value := getattr(rule_filter, field)) is not None
            )
            pairs = _write_pairs("Properties", rule_filter.properties)
            return f'<Filter i:type="CorrelationFilter">{named}{pairs}</Filter>'


def _write_action(action: SqlAction | None) -> str:
    if action is None:
        # SDKs read the action without checking that there is one.
        return '<Action i:type="EmptyRuleAction"/>'
    return _sql("Action", "SqlRuleAction", action.expression, action.parameters)


def _sql(
    name: str, schema_type: str, expression: str, parameters: tuple[tuple[str, object], ...]
) -> str:
    return (
        f'<{name} i:type="{schema_type}">{tag("SqlExpression", expression)}'
        f"{tag('CompatibilityLevel', _COMPATIBILITY_LEVEL)}"
        f"{_write_pairs('Parameters', parameters)}</{name}>"
    )


def _write_pairs(name: str, pairs: tuple[tuple[str, object], ...]) -> str:
    if not pairs:
        return ""
    return f"<{name}>{''.join(_write_pair(key, value) for key, value in pairs)}</{name}>"


def _write_pair(key: str, value: object) -> str:
    schema_type, text = render_typed(value)
    return (
        f"<KeyValueOfstringanyType>{tag('Key', key)}"
        f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:{schema_type}">{text_of(text)}</Value>'
        "</KeyValueOfstringanyType>"
    )
