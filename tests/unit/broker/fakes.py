"""Stand-ins for what surrounds the engine: a journal in memory, lock tokens, a namespace to test.

The journal is strict where a disk would be silent: changing or removing what is not there, or using
a number twice, is a bug of the engine and fails the test.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from twinbus.amqp.message import Properties, encode_message
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.engine.message_index import copy_of
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.journal import (
    EncodedRun,
    EntityImage,
    MessageState,
    SessionState,
    StoredMessage,
)
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.errors import StoreError

if TYPE_CHECKING:
    from twinbus.broker.descriptions import QueueDescription
    from twinbus.broker.engine.queue import Queue


@dataclass(slots=True)
class _Kept:
    entity: tuple[str, str, dict[str, object]] | None = None
    last_sequence_number: int = 0
    messages: dict[int, tuple[StoredMessage, bytes]] = field(default_factory=dict)
    session_states: dict[str, SessionState] = field(default_factory=dict)
    message_ids: dict[str, int] = field(default_factory=dict)
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)


class FakeJournal:
    """What the disk would hold if every call were committed at once."""

    def __init__(self) -> None:
        self.kept: dict[int, _Kept] = {}
        self._dropped: set[int] = set()
        self.unreadable: set[tuple[int, int]] = set()
        """Messages, by entity id and number, whose payloads the disk does not give out."""
        self.broken: set[int] = set()
        """Entities, by id, for which a change of messages raises an unexpected error."""

    def _of(self, entity_id: int) -> _Kept:
        assert entity_id not in self._dropped, f"entity {entity_id} was dropped"
        return self.kept.setdefault(entity_id, _Kept())

    def _changed(self, entity_id: int) -> _Kept:
        if entity_id in self.broken:
            raise RuntimeError("broken")
        return self._of(entity_id)

    def put_entity(
        self, entity_id: int, kind: str, path: str, description: dict[str, object]
    ) -> None:
        self._of(entity_id).entity = (kind, path, json.loads(json.dumps(description)))

    def drop_entity(self, entity_id: int) -> None:
        assert self._of(entity_id).entity is not None
        del self.kept[entity_id]
        self._dropped.add(entity_id)

    def put(self, entity_id: int, message: StoredMessage, payload: bytes) -> None:
        kept, number = self._changed(entity_id), message.sequence_number
        assert number > kept.last_sequence_number, f"number {number} used again"
        kept.messages[number] = (_snapshot(message), payload)
        kept.last_sequence_number = number

    def put_run(
        self,
        entity_id: int,
        messages: list[StoredMessage],
        ids: list[bytes],
        prefix: bytes,
        rests: list[bytes],
    ) -> None:
        run = self.encode_run(entity_id, messages, ids, prefix, rests)
        self.put_encoded(entity_id, [run], messages[-1].sequence_number)

    def encode_run(
        self,
        entity_id: int,
        messages: list[StoredMessage],
        ids: list[bytes],
        prefix: bytes,
        rests: list[bytes],
    ) -> EncodedRun:
        run = {}
        for message, raw_id, rest in zip(messages, ids, rests, strict=True):
            assert message.message_id == raw_id.decode()
            run[message.sequence_number] = message, prefix + rest
        return EncodedRun(run)

    def put_encoded(self, entity_id: int, runs: list[EncodedRun], last_number: int) -> None:
        for run in runs:
            for message, payload in run.values():
                self.put(entity_id, message, payload)
                assert message.sequence_number <= last_number

    def amend(self, entity_id: int, message: StoredMessage) -> None:
        kept, _ = self._changed(entity_id).messages[message.sequence_number]
        kept.state, kept.delivery_count = message.state, message.delivery_count
        kept.overrides = dict(message.overrides) if message.overrides else None

    def remove(self, entity_id: int, sequence_number: int) -> None:
        del self._of(entity_id).messages[sequence_number]

    def remove_all(self, entity_id: int, sequence_numbers: list[int]) -> None:
        for number in sequence_numbers:
            self.remove(entity_id, number)

    def move(
        self, entity_id: int, sequence_number: int, to_entity_id: int, message: StoredMessage
    ) -> None:
        payload = self.payload(entity_id, sequence_number)
        self._changed(to_entity_id)
        del self._of(entity_id).messages[sequence_number]
        self.put(to_entity_id, message, payload)

    def payload(self, entity_id: int, sequence_number: int) -> bytes:
        if (entity_id, sequence_number) in self.unreadable:
            raise StoreError(f"message {sequence_number} cannot be read")
        return self._of(entity_id).messages[sequence_number][1]

    def put_session_state(
        self, entity_id: int, session_id: str, state: SessionState | None
    ) -> None:
        states = self._of(entity_id).session_states
        if state is None:
            del states[session_id]
        else:
            states[session_id] = state

    def put_rule(self, entity_id: int, name: str, record: dict[str, Any] | None) -> None:
        rules = self._of(entity_id).rules
        if record is None:
            del rules[name]
        else:
            rules[name] = json.loads(json.dumps(record))

    def put_message_id(self, entity_id: int, message_id: str, first_seen_ms: int | None) -> None:
        ids = self._of(entity_id).message_ids
        if first_seen_ms is None:
            del ids[message_id]
        else:
            ids[message_id] = first_seen_ms

    def images(self) -> list[EntityImage]:
        """What a restart would find."""
        return [
            EntityImage(
                entity_id, *kept.entity, kept.last_sequence_number,
                [_snapshot(kept.messages[number][0]) for number in sorted(kept.messages)],
                dict(kept.session_states), dict(kept.message_ids), dict(kept.rules),
            )
            for entity_id, kept in sorted(self.kept.items())
            if kept.entity is not None
        ]  # fmt: skip


def _snapshot(message: StoredMessage) -> StoredMessage:
    copy = copy_of(message)
    copy.sequence_number = message.sequence_number
    copy.enqueued_sequence_number = message.enqueued_sequence_number
    copy.overrides = dict(message.overrides) if message.overrides else None
    return copy


class World:
    """A namespace with its surroundings, and what it told them."""

    def __init__(
        self, journal: FakeJournal | None = None, engine_log: EngineLog | None = None
    ) -> None:
        self.journal = journal or FakeJournal()
        self.notified: list[str] = []
        self.deleted: list[str] = []
        self.failures: list[tuple[str, str, Exception]] = []
        """Path, what was being done, and the error of each failure that the engine reported."""
        self.in_use: set[str] = set()
        self.sessions_lost: list[object] = []
        """Holders of sessions whose locks have expired."""
        self._tokens = count(1)
        self.namespace = BrokerNamespace(
            "test",
            self.journal,
            lambda: next(self._tokens).to_bytes(16, "big"),
            notify=lambda queue: self.notified.append(queue.path),
            deleted=self.deleted.append,
            in_use=lambda path: path in self.in_use,
            session_lost=self.sessions_lost.append,
            engine_log=engine_log,
            failed=lambda *failure: self.failures.append(failure),
        )

    def queue(self, path: str, description: QueueDescription) -> Queue:
        """A new queue, created at time 0."""
        return self.namespace.create_queue(path, description, 0)

    def restarted(self, now_ms: int = 0) -> World:
        """The world after a crash at this very moment."""
        world = World(self.journal)
        world.namespace.restore(self.journal.images(), now_ms)
        return world

    def take_notified(self) -> list[str]:
        """Whom the engine announced since the last call."""
        taken, self.notified = self.notified, []
        return taken


_ids = count(1)


def incoming(
    body: bytes = b"x",
    *,
    message_id: str | None = None,
    session_id: str | None = None,
    ttl_ms: int = 0,
    scheduled_for_ms: int = 0,
    size_bytes: int = 0,
    properties: dict[str, object] | None = None,
    content_type: str | None = None,
) -> Incoming:
    """A message as a client sends it; `size_bytes` can pretend another size."""
    wire = encode_message(
        properties=Properties(
            message_id=message_id or f"id-{next(_ids)}",
            group_id=session_id,
            content_type=content_type,
        ),
        application_properties=properties,
        data=body,
    )
    message = parse(wire, lambda: "unused")
    message.ttl_ms = ttl_ms
    message.scheduled_for_ms = scheduled_for_ms
    message.size_bytes = size_bytes or message.size_bytes
    return message


def numbers(messages: list[StoredMessage]) -> list[int]:
    """The sequence numbers of messages."""
    return [message.sequence_number for message in messages]


def facts(queue: Queue, now_ms: int) -> list[tuple[int, str | None, MessageState, int]]:
    """Number, id, state and deliveries of everything in a queue: what a restart must keep."""
    return [
        (each.sequence_number, each.message_id, each.state, each.delivery_count)
        for each in queue.peek(0, 1_000_000, now_ms)
    ]
