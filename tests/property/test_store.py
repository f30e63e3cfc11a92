"""The store on disk against the one in memory: any calls, commits and restarts, same answers."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twinbus.broker.journal import EntityImage, MessageState, SessionState, StoredMessage
from twinbus.broker.storage import lmdb_store
from twinbus.broker.storage.lmdb_store import LmdbStore
from twinbus.broker.storage.store import Batch, MemoryStore, flush

ENTITIES = st.integers(1, 3)
NAMES = st.sampled_from(["", "a", "b", "a" * 600])
MAP_SIZE = 2**30


def plain(images: list[EntityImage]) -> list[object]:
    """Images as values that compare."""
    return [
        (
            image.entity_id,
            image.kind,
            image.path,
            image.description,
            image.last_sequence_number,
            [[getattr(message, n) for n in StoredMessage.__slots__] for message in image.messages],
            image.session_states,
            image.message_ids,
        )
        for image in images
    ]


class TwoStores(RuleBasedStateMachine):
    """Every call goes to both; a commit on disk may be under way meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        # Two leftovers a batch: sweeping then takes several, as it does for a long queue.
        self.sweep_records, lmdb_store.SWEEP_RECORDS = lmdb_store.SWEEP_RECORDS, 2
        self.directory = Path(tempfile.mkdtemp(prefix="twinbus-"))
        self.disk = LmdbStore(self.directory / "ns", map_size=MAP_SIZE)
        self.memory = MemoryStore()
        self.batch: Batch | None = None
        self.ids = {1: 1, 2: 2, 3: 3}
        """The rules speak of three entities; one that was dropped comes back with a fresh id."""
        self.next_id = 4
        self.numbers: dict[int, int] = {}
        self.messages: dict[tuple[int, int], tuple[StoredMessage, bytes]] = {}

    def new_message(self, entity_id: int, **fields: object) -> StoredMessage:
        number = self.numbers[entity_id] = self.numbers.get(entity_id, 0) + 1
        return StoredMessage(number, enqueued_at_ms=number, size_bytes=9, **fields)  # type: ignore[arg-type]

    def some(self, data: st.DataObject) -> tuple[int, int]:
        return data.draw(st.sampled_from(sorted(self.messages)))

    @rule(entity=ENTITIES, path=NAMES)
    def put_entity(self, entity: int, path: str) -> None:
        for store in (self.disk, self.memory):
            store.put_entity(self.ids[entity], "queue", path, {"path": path})

    @rule(entity=ENTITIES)
    def drop_entity(self, entity: int) -> None:
        gone = self.ids[entity]
        for store in (self.disk, self.memory):
            store.drop_entity(gone)
        self.messages = {key: kept for key, kept in self.messages.items() if key[0] != gone}
        self.ids[entity] = self.next_id
        self.next_id += 1

    @rule(entity=ENTITIES, name=st.none() | NAMES, payload=st.binary(max_size=5000))
    def put(self, entity: int, name: str | None, payload: bytes) -> None:
        entity_id = self.ids[entity]
        message = self.new_message(entity_id, message_id=name, session_id=name)
        for store in (self.disk, self.memory):
            store.put(entity_id, message, payload)
        self.messages[entity_id, message.sequence_number] = message, payload

    @rule(
        entity=ENTITIES,
        names=st.lists(st.sampled_from(["", "a", "bb", "cc", "é"]), min_size=1, max_size=4),
        prefix=st.binary(max_size=9),
        ttl_ms=st.sampled_from([0, 9]),
    )
    def put_run(self, entity: int, names: list[str], prefix: bytes, ttl_ms: int) -> None:
        entity_id, run = self.ids[entity], []
        for name in names:
            message = self.new_message(entity_id, message_id=name, ttl_ms=ttl_ms)
            message.enqueued_at_ms = 7
            message.size_bytes = len(name) % 2
            run.append(message)
        rests = [bytes(number) for number in range(len(run))]
        for store in (self.disk, self.memory):
            store.put_run(entity_id, run, [name.encode() for name in names], prefix, rests)
        for message, rest in zip(run, rests, strict=True):
            self.messages[entity_id, message.sequence_number] = message, prefix + rest

    @precondition(lambda self: self.messages)
    @rule(
        data=st.data(), state=st.sampled_from(MessageState), count=st.integers(0, 9), reason=NAMES
    )
    def amend(self, data: st.DataObject, state: MessageState, count: int, reason: str) -> None:
        entity_id, number = self.some(data)
        message, _ = self.messages[entity_id, number]
        message.state, message.delivery_count = state, count
        message.overrides = {"DeadLetterReason": reason} if reason else None
        for store in (self.disk, self.memory):
            store.amend(entity_id, message)

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key = self.some(data)
        self.messages.pop(key)
        for store in (self.disk, self.memory):
            store.remove(*key)

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def remove_all(self, data: st.DataObject) -> None:
        entity_id, _ = self.some(data)
        held = sorted(number for held, number in self.messages if held == entity_id)
        numbers = data.draw(st.lists(st.sampled_from(held), unique=True))
        for number in numbers:
            self.messages.pop((entity_id, number))
        for store in (self.disk, self.memory):
            store.remove_all(entity_id, numbers)

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), entity=ENTITIES)
    def move(self, data: st.DataObject, entity: int) -> None:
        entity_id, number = self.some(data)
        message, payload = self.messages.pop((entity_id, number))
        target = self.ids[entity]
        moved = self.new_message(target, message_id=message.message_id, dead_letter_source="q")
        for store in (self.disk, self.memory):
            store.move(entity_id, number, target, moved)
        self.messages[target, moved.sequence_number] = moved, payload

    @rule(entity=ENTITIES, name=NAMES, state=st.none() | st.binary(max_size=20))
    def put_session_state(self, entity: int, name: str, state: bytes | None) -> None:
        for store in (self.disk, self.memory):
            kept = None if state is None else SessionState(state, len(state))
            store.put_session_state(self.ids[entity], name, kept)

    @rule(entity=ENTITIES, name=NAMES, number=st.none() | st.integers(0, 9))
    def put_rule(self, entity: int, name: str, number: int | None) -> None:
        record = None if number is None else {"name": name, "number": number}
        for store in (self.disk, self.memory):
            store.put_rule(self.ids[entity], name, record)

    @rule(entity=ENTITIES, name=NAMES, time_ms=st.none() | st.integers(0, 2**60))
    def put_message_id(self, entity: int, name: str, time_ms: int | None) -> None:
        for store in (self.disk, self.memory):
            store.put_message_id(self.ids[entity], name, time_ms)

    @precondition(lambda self: self.batch is None)
    @rule()
    def begin_commit(self) -> None:
        self.batch = self.disk.take_batch()

    @precondition(lambda self: self.batch is not None)
    @rule()
    def end_commit(self) -> None:
        assert self.batch is not None
        self.disk.write(self.batch)
        self.disk.finish(self.batch)
        self.batch = None

    @precondition(lambda self: self.batch is None)
    @rule(closed=st.booleans())
    def restart(self, closed: bool) -> None:
        flush(self.disk)
        if closed:
            self.disk.close()
            self.disk = LmdbStore(self.directory / "ns", map_size=MAP_SIZE)
        assert plain(self.disk.recover()) == plain(self.memory.recover())

    @invariant()
    def every_payload_is_there(self) -> None:
        for (entity_id, number), (_, payload) in self.messages.items():
            assert self.disk.payload(entity_id, number) == payload
            assert self.memory.payload(entity_id, number) == payload

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def read_some(self, data: st.DataObject) -> None:
        """Of one entity, some next to each other or all: nothing between two numbers may matter."""
        entity_id, first = self.some(data)
        numbers = sorted(number for held, number in self.messages if held == entity_id)
        start = numbers.index(first)
        some = numbers[start : data.draw(st.integers(start, len(numbers)))]
        expected = [self.messages[entity_id, number][1] for number in some]
        assert self.disk.payloads(entity_id, some) == expected

    def teardown(self) -> None:
        if self.batch is not None:
            self.end_commit()
        self.restart(closed=True)
        self.disk.close()
        shutil.rmtree(self.directory)
        lmdb_store.SWEEP_RECORDS = self.sweep_records


TestTwoStores = TwoStores.TestCase
TestTwoStores.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
