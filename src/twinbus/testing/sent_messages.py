"""What a broker in this process accepted, kept for the assertions of a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from twinbus.amqp.decoding import decode
from twinbus.amqp.message import (
    DATA,
    data_sections,
    decode_map,
    decode_properties,
    section_at,
)
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.journal import StoredMessage
from twinbus.broker.messages.incoming import Incoming


@dataclass(frozen=True, slots=True)
class SentMessage:
    """One message as its sender sent it; `str()` is its body as text."""

    entity: str
    body: Any
    """Bytes, or the value of a message with an AMQP value or sequence."""
    message_id: str | None
    session_id: str | None = None
    subject: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    application_properties: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        body = self.body
        return body.decode(errors="replace") if isinstance(body, bytes) else str(body)


class SentLog(EngineLog):
    """Keeps every accepted message, in order, also after a receiver has taken it."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[tuple[str, Incoming]] = []
        self._changed = threading.Condition()

    def sent(
        self,
        entity: str,
        incoming: Incoming,
        stored: StoredMessage | None,
        now_ms: int,
        *,
        is_duplicate: bool,
    ) -> None:
        """Keep a message, unless it is a ping or duplicate detection drops it."""
        if incoming.is_ping or is_duplicate:
            return
        with self._changed:
            self._kept.append((entity, incoming))
            self._changed.notify_all()

    def deleted(self, entity: str, now_ms: int) -> None:
        """Keep what was sent to an entity that is gone."""

    def messages(
        self, accepts: Callable[[str], bool], count: int, timeout_s: float
    ) -> list[SentMessage]:
        """Return the messages of these entities; wait until there are `count` of them.

        AssertionError if there are fewer after `timeout_s`.
        """
        ends = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = [kept for kept in self._kept if accepts(kept[0].lower())]
                left_s = ends - time.monotonic()
                if len(found) >= count or left_s <= 0:
                    break
                self._changed.wait(left_s)
        messages = [_message(*kept) for kept in found]
        if len(messages) < count:
            texts = ", ".join(repr(str(message)[:60]) for message in messages[:10])
            raise AssertionError(
                f"{len(messages)} of {count} messages were sent within {timeout_s:g} s: {texts}"
            )
        return messages


def _message(entity: str, incoming: Incoming) -> SentMessage:
    sections = incoming.sections
    properties = decode_properties(sections.properties)
    correlation_id = properties.correlation_id
    return SentMessage(
        entity=entity,
        body=_body(sections.body),
        message_id=incoming.message_id,
        session_id=incoming.session_id,
        subject=properties.subject,
        correlation_id=None if correlation_id is None else str(correlation_id),
        content_type=incoming.content_type,
        application_properties=decode_map(sections.application_properties),
    )


def _body(raw: bytes) -> Any:
    if not raw:
        return b""
    code, content = section_at(raw, 0)
    return b"".join(data_sections(raw)) if code == DATA else decode(raw, content)[0]
