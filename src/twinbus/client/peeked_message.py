"""A message as a queue holds it, with all that can be read of it, also as JSON. Pure.

AMQP values without a JSON form become objects: bytes are {"base64": ...}, a described value is
{"described": descriptor, "value": ...}. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.decoding import decode, skip
from twinbus.amqp.message import (
    DATA,
    VALUE,
    Header,
    Properties,
    data_sections,
    decode_header,
    decode_map,
    decode_properties,
    section_at,
    split,
)
from twinbus.amqp.types import Decimal, DecodeError, Described, Timestamp
from twinbus.errors import TransferError
from twinbus.servicebus import names
from twinbus.transfer.aliases import MESSAGE_ID, REPLAYS, Aliases, replaceable_id
from twinbus.transfer.sections import aliases_of

REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ACTIVE: Final = "active"
STATES: Final = {0: ACTIVE, 1: "deferred", 2: "scheduled"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PeekedMessage:
    """One message; what cannot be read of it is left out, and `problem` says why."""

    queue: str
    sequence_number: int
    wire: bytes = field(repr=False)
    """The whole message, encoded, as the queue gave it."""
    header: Header = field(default_factory=Header)
    properties: Properties = field(default_factory=Properties)
    annotations: dict[Any, Any] = field(default_factory=dict)
    application_properties: dict[Any, Any] = field(default_factory=dict)
    body_kind: str = "none"
    """data, value, sequence, or none."""
    body: bytes | None = field(default=None, repr=False)
    """The content of its data sections, one after the other."""
    body_json: str | None = field(default=None, repr=False)
    """The value, or the sequences, as JSON."""
    aliases: Aliases | None = None
    """What it was before it was diverted, if it is a backlog message that can be read."""
    problem: str = ""
    """Why it cannot be brought anywhere, or not even be read."""
    is_readable: bool = True

    def number(self, annotation: str) -> int | None:
        value = self.annotations.get(annotation)
        return int(value) if isinstance(value, int) else None

    @property
    def enqueued_ms(self) -> int | None:
        return self.number(names.ENQUEUED_TIME)

    @property
    def state(self) -> str:
        return STATES.get(self.number(names.MESSAGE_STATE) or 0, ACTIVE)

    @property
    def message_id(self) -> str | None:
        """The message's id; of a backlog message the one it had before it was diverted."""
        original = replaceable_id(self.application_properties.get(MESSAGE_ID))
        return _text(self.properties.message_id if original is None else original)

    @property
    def path(self) -> str | None:
        """The entity of the primary where a backlog message belongs."""
        return None if self.aliases is None else self.aliases.path

    @property
    def reason(self) -> str | None:
        """Why it was dead-lettered, in a word."""
        return _text(self.application_properties.get(REASON))

    @property
    def description(self) -> str | None:
        return _text(self.application_properties.get(DESCRIPTION))

    @property
    def replays(self) -> int:
        value = self.application_properties.get(REPLAYS)
        return int(value) if isinstance(value, int) and value > 0 else 0

    def summary(self) -> dict[str, Any]:
        """What tells it from others, as JSON."""
        aliases = self.aliases
        return {
            "queue": self.queue,
            "sequence_number": self.sequence_number,
            "message_id": self.message_id,
            "path": self.path,
            "session_id": aliases.session_id if aliases else self.properties.group_id,
            "reason": self.reason,
            "description": self.description,
            "enqueued_at": None if self.enqueued_ms is None else iso_time(self.enqueued_ms),
            "delivery_count": self.header.delivery_count or 0,
            "replays": self.replays,
            "size_bytes": len(self.wire),
            "problem": self.problem or None,
        }

    def document(self) -> dict[str, Any]:
        """All of it, as JSON; `wire` is the message itself, in base64."""
        aliases = self.aliases
        body = None if self.body is None else base64.b64encode(self.body).decode()
        scheduled = aliases.scheduled_ms if aliases else self.number(names.SCHEDULED_TIME)
        return {
            **self.summary(),
            "state": self.state,
            "time_to_live_ms": aliases.time_to_live_ms if aliases else self.header.ttl,
            "scheduled_at": None if scheduled is None else iso_time(scheduled),
            "properties": {
                name: as_json(getattr(self.properties, name))
                for name in self.properties.__slots__
                if getattr(self.properties, name) is not None
            },
            "application_properties": as_json(self.application_properties),
            "annotations": as_json(self.annotations),
            "body_kind": self.body_kind,
            "body_base64": body,
            "body_value": None if self.body_json is None else json.loads(self.body_json),
            "wire_base64": base64.b64encode(self.wire).decode(),
        }


def read_peeked(queue: str, wire: bytes) -> PeekedMessage:
    number = 0
    try:
        sections = split(wire)
        annotations = decode_map(sections.message_annotations)
        # First: peeking needs it to go on, also from a message that cannot be read otherwise.
        found = annotations.get(names.SEQUENCE_NUMBER)
        number = int(found) if isinstance(found, int) else 0
        kind, body, body_json = _body(sections.body)
        aliases: Aliases | None = None
        problem = ""
        try:
            aliases = aliases_of(sections)
        except TransferError as error:
            problem = str(error)
        return PeekedMessage(
            queue=queue,
            sequence_number=number,
            wire=wire,
            header=decode_header(sections.header),
            properties=decode_properties(sections.properties),
            annotations=annotations,
            application_properties=decode_map(sections.application_properties),
            body_kind=kind,
            body=body,
            body_json=body_json,
            aliases=aliases,
            problem=problem,
        )
    except DecodeError as error:
        return PeekedMessage(
            queue=queue,
            sequence_number=number,
            wire=wire,
            problem=f"the message cannot be read: {error}",
            is_readable=False,
        )


def _body(raw: bytes) -> tuple[str, bytes | None, str | None]:
    if not raw:
        return "none", None, None
    code, content = section_at(raw, 0)
    if code == DATA:
        return "data", b"".join(data_sections(raw)), None
    values, at = [], 0
    while at < len(raw):
        _, content = section_at(raw, at)
        values.append(as_json(decode(raw, content)[0]))
        at = skip(raw, content)
    # A value is one section; sequences may be several.
    if code == VALUE:
        return "value", None, json.dumps(values[0])
    return "sequence", None, json.dumps(values)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def as_json(value: object) -> Any:
    """Return a decoded AMQP value in a form that `json.dumps` accepts."""
    match value:
        case Timestamp():
            return iso_time(int(value))
        case None | int() | str():
            return value
        case float():
            return float(value) if math.isfinite(value) else str(float(value))
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case UUID():
            return str(value)
        case Decimal():
            return {"decimal": value.data.hex()}
        case Described():
            return {"described": as_json(value.descriptor), "value": as_json(value.value)}
        case list():
            return [as_json(item) for item in value]
        case dict():
            keys = (key if isinstance(key, (str, int)) else as_json(key) for key in value)
            return {str(key): as_json(item) for key, item in zip(keys, value.values(), strict=True)}
    return repr(value)


def iso_time(unix_ms: int) -> str:
    """Return a time as text; a number out of the range of dates stays a number."""
    moment = as_time(unix_ms)
    return str(unix_ms) if moment is None else moment.isoformat(timespec="milliseconds")


def as_time(unix_ms: int | None) -> datetime | None:
    """Return a time; None for None and for a number out of the range of dates."""
    if unix_ms is None:
        return None
    try:
        return EPOCH + timedelta(milliseconds=unix_ms)
    except OverflowError:
        return None
