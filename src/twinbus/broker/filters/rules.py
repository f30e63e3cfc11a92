"""Rules against messages: whether a rule takes a message, and what its action makes of it.

Expressions are compiled once (see sql.py); here is what they see of a message, decoded only as far
as a rule asks for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b

from twinbus.amqp.message import (
    APPLICATION_PROPERTIES,
    Properties,
    decode_map,
    decode_properties,
    encode_map_section,
    encode_properties,
    join,
)
from twinbus.amqp.types import DecodeError, EncodeError
from twinbus.broker.descriptions import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    TrueFilter,
)
from twinbus.broker.filters.closures import PROPERTY_FIELDS, Property
from twinbus.broker.filters.sql import (
    CompiledAction,
    CompiledFilter,
    compile_action,
    compile_filter,
)
from twinbus.broker.filters.values import (
    Duration,
    FilterError,
    Instant,
    RuleWork,
    Value,
    same,
    to_amqp,
    to_text,
    to_value,
)
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.broker.refusals import ArgumentInvalid

_NEW_ID_SPACE = uuid.UUID("5b0c7d5e-4b2f-4a3f-9d0c-6f1d8e9a7b21")


def compiled_parts(rule: RuleDescription) -> tuple[object, ...]:
    """The compiled expressions of a rule; they are compiled again once nothing holds them."""
    parts: list[object] = []
    if isinstance(rule.filter, SqlFilter):
        parts.append(compile_filter(rule.filter.expression))
    if rule.action is not None:
        parts.append(compile_action(rule.action.expression))
    return tuple(parts)


def begin_rules(incoming: Incoming) -> MessageSeen:
    """Count the work from here on: the rules of another subscription begin.

    Returns what they see of the message, for those that are evaluated later.
    """
    seen = _seen(incoming)
    seen.work = RuleWork()
    return seen


def matches(rule: RuleDescription, incoming: Incoming, seen: MessageSeen | None = None) -> bool:
    """Whether the rule's filter takes the message; `FilterError` if it cannot be evaluated."""
    match rule.filter:
        case TrueFilter():
            return True
        case FalseFilter():
            return False
        case CorrelationFilter() as correlation:
            return _correlates(correlation, seen or _seen(incoming))
        case SqlFilter(expression=expression, parameters=parameters):
            compiled = compile_filter(expression)
            scope = _RuleScope(seen or _seen(incoming), parameters, rule.name)
            return compiled.test(scope) is True


def apply_action(
    rule: RuleDescription, incoming: Incoming, seen: MessageSeen | None = None
) -> Incoming:
    """The message as the rule's action leaves it: itself if there is none, else a changed copy."""
    if rule.action is None:
        return incoming
    compiled = compile_action(rule.action.expression)
    message = (seen or _seen(incoming)).copy()
    scope = _RuleScope(message, rule.action.parameters, rule.name)
    for statement in compiled.statements:
        if statement.value is None:
            message.remove(statement.target)
        else:
            message.assign(statement.target, statement.value(scope))
    return message.rebuilt()


def validate(rule: RuleDescription) -> None:
    """Refuse, with `ArgumentInvalid`, a rule whose filter or action cannot be carried out."""
    match rule.filter:
        case SqlFilter(expression=expression, parameters=parameters):
            _require_parameters("filter", compile_filter(expression), parameters)
        case CorrelationFilter() as correlation:
            named = (getattr(correlation, field) for field in CORRELATION_FIELDS)
            if not correlation.properties and all(value is None for value in named):
                raise ArgumentInvalid(
                    f"The correlation filter of rule {rule.name!r} is empty; name at least one "
                    "property, or use a true filter."
                )
    if rule.action is not None:
        compiled = compile_action(rule.action.expression)
        _require_parameters("action", compiled, rule.action.parameters)


def _require_parameters(
    part: str, compiled: CompiledFilter | CompiledAction, parameters: Iterable[tuple[str, object]]
) -> None:
    missing = compiled.parameters - {_parameter_name(name) for name, _ in parameters}
    if missing:
        names = ", ".join("@" + name for name in sorted(missing))
        raise ArgumentInvalid(f"The {part}'s expression uses {names}, which has no value.")


def _parameter_name(name: str) -> str:
    return name.removeprefix("@").lower()


def _correlates(wanted: CorrelationFilter, message: MessageSeen) -> bool:
    for field in CORRELATION_FIELDS:
        value = getattr(wanted, field)
        if value is not None and message.system(field.replace("_", "")) != value:
            return False
    for name, value in wanted.properties:
        exists, actual = message.user(name)
        if not exists or not same(actual, to_value(value)):
            return False
    return True


class MessageSeen:
    """The properties of one message, decoded on first use; an action's working copy."""

    __slots__ = (
        "_annotations",
        "_digest",
        "_folded",
        "_original",
        "_properties",
        "_user",
        "incoming",
        "work",
    )

    def __init__(self, incoming: Incoming) -> None:
        self.incoming = incoming
        self.work = RuleWork()
        self._original = self
        self._digest = ""
        self._user: dict[str, object] | None = None
        self._folded: dict[str, str] = {}
        self._properties: Properties | None = None
        self._annotations: dict[str, object] | None = None

    def copy(self) -> MessageSeen:
        """A copy to change; it shares the count of work, and what is decoded already."""
        copied = MessageSeen(self.incoming)
        copied.work = self.work
        copied._original = self._original
        copied._user = dict(self._application_properties())
        copied._folded = dict(self._folded)
        return copied

    @property
    def digest(self) -> str:
        """Tells payloads apart; a payload is hashed once, however many ids come of it."""
        original = self._original
        if not original._digest:
            original._digest = blake2b(self.incoming.payload, digest_size=16).hexdigest()
        return original._digest

    @property
    def properties(self) -> Properties:
        if self._properties is None:
            with _readable():
                self._properties = decode_properties(self.incoming.sections.properties)
        return self._properties

    def _application_properties(self) -> dict[str, object]:
        if self._user is None:
            with _readable():
                self._user = _text_keyed(self.incoming.sections.application_properties)
            self._folded = {name.lower(): name for name in self._user}
        return self._user

    def user(self, name: str) -> tuple[bool, Value]:
        held = self._application_properties()
        key = name if name in held else self._folded.get(name.lower())
        if key is None:
            return False, None
        value = to_value(held[key])
        self.work.read(value)
        return True, value

    def system(self, name: str) -> Value:
        incoming = self.incoming
        match name:
            case "size":
                return incoming.size_bytes
            case "timetolive":
                return Duration(incoming.ttl_ms) if incoming.ttl_ms else None
            case "scheduledenqueuetimeutc":
                return Instant(incoming.scheduled_for_ms) if incoming.scheduled_for_ms else None
            case "partitionkey":
                return incoming.partition_key
            case "viapartitionkey":
                return self._annotation("x-opt-via-partition-key")
        value = to_value(getattr(self.properties, PROPERTY_FIELDS[name]))
        if value is None and name == "messageid":
            return incoming.message_id
        if value is None:
            return None
        self.work.read(value)
        return _id_text(value)

    def _annotation(self, name: str) -> Value:
        if self._annotations is None:
            with _readable():
                self._annotations = _text_keyed(self.incoming.sections.message_annotations)
        return to_value(self._annotations.get(name))

    def assign(self, target: Property, value: Value) -> None:
        """SET."""
        if target.is_system:
            text = None if value is None else to_text(value)
            setattr(self.properties, PROPERTY_FIELDS[target.name], text)
            return
        held = self._application_properties()
        key = self._folded.setdefault(target.name.lower(), target.name)
        held[key] = to_amqp(_converted(to_value(held.get(key)), value))

    def remove(self, target: Property) -> None:
        """REMOVE; a property that is not there is no error."""
        if target.is_system:
            setattr(self.properties, PROPERTY_FIELDS[target.name], None)
            return
        held = self._application_properties()
        key = self._folded.pop(target.name.lower(), None)
        if key is not None:
            del held[key]

    def rebuilt(self) -> Incoming:
        """A new message with these properties and everything else as it was."""
        before, sections = self.incoming, self.incoming.sections
        if self.properties.message_id is None:
            self.properties.message_id = before.message_id
        user = self._application_properties()
        try:
            properties = encode_properties(self.properties)
            application = encode_map_section(APPLICATION_PROPERTIES, user) if user else b""
        except EncodeError as error:
            raise FilterError(f"What the action set cannot be sent: {error}") from error
        changed = replace(sections, properties=properties, application_properties=application)
        after = parse(join(changed), lambda: before.message_id or "")
        # The action does not change how long a message lives, nor does it schedule one again.
        after.scheduled_for_ms, after.ttl_ms = before.scheduled_for_ms, before.ttl_ms
        return after


class _RuleScope:
    """What the expressions of one rule see: a message, and the rule's parameters."""

    __slots__ = ("_ids", "_message", "_parameters", "_rule_name", "system", "user", "work")

    def __init__(
        self, message: MessageSeen, parameters: Iterable[tuple[str, object]], rule_name: str
    ) -> None:
        self._message = message
        self._parameters = parameters
        self._rule_name = rule_name
        self._ids = 0
        self.user = message.user
        self.system = message.system
        self.work = message.work

    def parameter(self, name: str) -> Value:
        for key, value in self._parameters:
            if _parameter_name(key) == name:
                return to_value(value)
        raise FilterError(f"The parameter @{name} has no value.")

    def new_id(self) -> uuid.UUID:
        """A fresh id. It follows from the message and the rule, so that a replay gives it again."""
        self._ids += 1
        message = self._message
        name = f"{message.incoming.message_id}\n{self._rule_name}\n{self._ids}\n{message.digest}"
        return uuid.uuid5(_NEW_ID_SPACE, name)


_seen = lru_cache(maxsize=1)(MessageSeen)
"""The last message is kept: a topic evaluates many rules on the same message in a row."""


def _text_keyed(section: bytes) -> dict[str, object]:
    return {str(key): value for key, value in decode_map(section).items()}


@contextmanager
def _readable() -> Iterator[None]:
    """Let bytes that are no AMQP be an error of this message, not of the sender's whole batch."""
    try:
        yield
    except DecodeError as error:
        raise FilterError(f"A property of the message cannot be read: {error}") from error


def _id_text(value: Value) -> str:
    """Message and correlation ids may be numbers, guids or binary on the wire."""
    return value.hex() if isinstance(value, bytes) else to_text(value)


def _converted(old: Value, new: Value) -> Value:
    """SET keeps the kind of a property that is text or a fraction already."""
    if isinstance(old, str) and new is not None and not isinstance(new, bytes):
        return to_text(new)
    if isinstance(old, float) and isinstance(new, int) and not isinstance(new, bool):
        return float(new)
    return new
