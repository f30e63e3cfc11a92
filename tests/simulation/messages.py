"""Messages of many kinds, as applications make them, and whether a stored copy is the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from azure.servicebus import ServiceBusMessage

from tests.simulation.namespace import EPOCH_MS
from tests.simulation.plan import EntityPlan
from tests.simulation.truth import Original
from twinbus.amqp.message import (
    Sections,
    decode_header,
    decode_map,
    decode_properties,
    split,
)
from twinbus.amqp.types import Symbol
from twinbus.broker.journal import StoredMessage
from twinbus.broker.messages.rendering import render
from twinbus.transfer.sections import without_delivery_marks

SESSIONS: Final = ("red", "green")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

IDS: Final = 10
"""More than a call has messages, so that a raised error names each of them."""

SHORT_TTL_MS: Final = 30_000
"""Over within the simulation: kept in the entity's dead-letter queue, or the backlog's."""
LONG_TTL_MS: Final = 3_600_000
TTLS_MS: Final = (0, 0, 0, LONG_TTL_MS, SHORT_TTL_MS)
BODY_BYTES: Final = (0, 20, 300, 700)


def make_message(
    rng: Random,
    serial: int,
    number: int,
    entity: EntityPlan,
    now: float,
    sender: str,
    *,
    plain: bool = False,
) -> Original:
    """A message that was not sent yet. `plain`: with nothing that changes when it is seen.

    Its id is from its `number` among the messages to its entity. Another entity gets the same ids,
    and one that does not detect duplicates gets them again and again.
    """
    if not entity.deduplicates:
        number %= IDS
    ttl_ms = 0 if plain else rng.choice(TTLS_MS)
    now_ms = EPOCH_MS + round(now * 1000)
    scheduled_ms = 0 if plain or rng.random() < 0.8 else now_ms + rng.choice((500, 20_000))
    has_session = entity.sessions or rng.random() < 0.2
    session_id = rng.choice(SESSIONS) if has_session else None
    message_id = None if rng.random() < 0.2 else f"id-{number}"
    fields: dict[str, Any] = {"message_id": message_id, "session_id": session_id}
    if ttl_ms:
        fields["time_to_live"] = timedelta(milliseconds=ttl_ms)
    if scheduled_ms:
        fields["scheduled_enqueue_time_utc"] = EPOCH + timedelta(milliseconds=scheduled_ms)
    if rng.random() < 0.7:
        fields["application_properties"] = {"serial": serial, b"kind": rng.choice(("a", b"b"))}
    if rng.random() < 0.3:
        fields |= {"subject": "greeting", "correlation_id": f"c{serial}", "reply_to": "answers"}
        fields |= {"content_type": "text/plain", "to": "somebody", "reply_to_session_id": "r"}
    if rng.random() < 0.2:
        fields["partition_key"] = session_id or "key"
    body = b"#%d#" % serial + b"x" * rng.choice(BODY_BYTES)
    return Original(
        serial=serial,
        path=entity.path,
        message=ServiceBusMessage(body, **fields),
        message_id=message_id,
        session_id=session_id,
        ttl_ms=ttl_ms,
        scheduled_for_ms=scheduled_ms,
        sender=sender,
    )


def differences(
    original: Original, wire: bytes, stored: StoredMessage, payload: bytes, *, remaining_ttl: bool
) -> list[str]:
    """In what a copy on the primary is not the message that was sent; empty: in nothing.

    `wire` is the message as the SDK sends it to an entity.
    """
    sent = split(wire)
    got = without_delivery_marks(split(render(payload, stored)))
    found = [
        f"{name} is {is_!r}, not {was!r}"
        for name, was, is_ in (
            ("the body", sent.body, got.body),
            ("the session", original.session_id, stored.session_id),
            ("the application properties", _custom(sent), _custom(got)),
            ("the annotations", _annotations(sent), _annotations(got)),
            ("the header", _header(sent), _header(got)),
            ("the properties", _properties(sent), _properties(got)),
        )
        if was != is_
    ]
    is_shorter = remaining_ttl and 0 < stored.ttl_ms <= original.ttl_ms
    if stored.ttl_ms != original.ttl_ms and not is_shorter:
        found.append(f"the time to live is {stored.ttl_ms} ms, not {original.ttl_ms}")
    message_id = decode_properties(got.properties).message_id
    if not message_id or (original.message_id and message_id != original.message_id):
        found.append(f"the id is {message_id!r}, not {original.message_id!r}")
    return found


def _custom(sections: Sections) -> dict[object, object]:
    if not sections.application_properties:
        return {}
    # A dead-letter queue's own marks are no change of the message.
    marks = ("DeadLetterReason", "DeadLetterErrorDescription")
    found = decode_map(sections.application_properties)
    return {name: value for name, value in found.items() if name not in marks}


def _annotations(sections: Sections) -> dict[object, object]:
    found = decode_map(sections.message_annotations) if sections.message_annotations else {}
    return {str(name): v for name, v in found.items() if name != Symbol("x-opt-deadletter-source")}


def _header(sections: Sections) -> tuple[object, ...]:
    header = decode_header(sections.header)
    return header.durable, header.priority


def _properties(sections: Sections) -> object:
    """All but the id, and the expiry that is derived from the time to live."""
    found = decode_properties(sections.properties)
    return replace(found, message_id=None, absolute_expiry_time=None, creation_time=None)
