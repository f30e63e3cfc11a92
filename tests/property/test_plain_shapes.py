"""A shape reads a message as `parse` does, or not at all; a run does what its messages do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.layouts import CREATED_MS, SDKS, Layout, layouts, python_message, text
from tests.unit.broker.fakes import World
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import SettlementOutcome
from twinbus.broker.journal import StoredMessage
from twinbus.broker.messages.incoming import parse
from twinbus.broker.messages.plain import LEARNING_COST, PlainRun, PlainShape, PlainShapes
from twinbus.broker.refusals import Refusal
from twinbus.servicebus.names import FOREVER_MS

NOW_MS = CREATED_MS
Message = tuple[bytes, bytes, int]
"""Encoded id, body, time of creation."""


def read_of(wires: Sequence[bytes]) -> tuple[bytes, list[tuple[bytes, int, int]]]:
    """The messages in the bytes of one read, with something between them, and their places."""
    data, spans = b"", []
    for wire in wires:
        data += b"frame"
        spans.append((b"tag", len(data), len(data) + len(wire)))
        data += wire
    return data, spans


def agrees(run: PlainRun, wires: Sequence[bytes]) -> None:
    """Check that `parse` reads the messages of a run as the run does."""
    for number, wire in enumerate(wires[: len(run)]):
        message = parse(wire, lambda: "new")
        assert (message.message_id, message.size_bytes, message.ttl_ms, message.payload) == (
            run.message_ids[number],
            run.sizes[number],
            run.ttl_ms,
            run.prefix + run.rests[number],
        )
        assert run.ids[number].decode() == message.message_id
        assert message.session_id is None
        assert not message.is_ping
        assert not message.scheduled_for_ms


def looks_plain(wire: bytes) -> bool:
    try:
        message = parse(wire, lambda: "new")
    except Refusal:
        return False
    return not (message.session_id is not None or message.is_ping or message.scheduled_for_ms)


@pytest.mark.parametrize("name", SDKS)
def test_all_messages_of_an_sdk_are_read_by_the_shape_of_the_first(name: str) -> None:
    layout = SDKS[name]
    for body_bytes in (5, 255, 1024):
        body = bytes(body_bytes)
        wires = [layout.message(text(f"id-{n:04}"), body, CREATED_MS + n) for n in range(20)]
        shape = PlainShape.of(wires[0])
        assert shape is not None
        data, spans = read_of(wires)
        run = shape.read(data, spans)
        assert len(run) == shape.count(data, spans, 4096) == 20
        agrees(run, wires)


@pytest.mark.parametrize("with_more", [False, True])
def test_all_messages_of_the_python_sdk_are_read_by_the_shape_of_the_first(with_more: bool) -> None:
    wires = [
        python_message(f"{n:04}", b"x" * 1000 + bytes(n), with_more=with_more) for n in range(20)
    ]
    shape = PlainShape.of(wires[0])
    assert shape is not None
    data, spans = read_of(wires)
    run = shape.read(data, spans)
    assert len(run) == 20
    agrees(run, wires)


_ids = st.one_of(
    st.text(st.characters(codec="ascii"), min_size=4, max_size=4).map(text),
    st.sampled_from([b"\xa1\x04\xff\xfe\xfd\xfc", b"\xa1\x04\xc3\xa9\xc3\xa9", b"\x40", text("")]),
    st.text(max_size=70).filter(lambda each: len(each.encode()) < 256).map(text),
    st.just(b"\x98" + bytes(16)),
)
_bodies = st.binary(max_size=20) | st.sampled_from([bytes(255), bytes(256), bytes(300)])
_messages = st.lists(st.tuples(_ids, _bodies, st.integers(0, 2**40)), min_size=1, max_size=6)


@given(layouts(), _messages)
def test_a_shape_reads_what_parse_reads(layout: Layout, messages: list[Message]) -> None:
    wires = [layout.message(*message) for message in messages]
    shape = PlainShape.of(wires[0])
    if shape is None:
        return
    assert looks_plain(wires[0])
    data, spans = read_of(wires)
    run = shape.read(data, spans)
    assert len(run) >= 1
    agrees(run, wires)
    assert shape.count(data, spans, max(map(len, wires))) <= len(run)


@given(layouts(), _messages, st.data())
def test_a_changed_byte_is_read_as_parse_reads_it_or_by_parse(
    layout: Layout, messages: list[Message], drawn: st.DataObject
) -> None:
    first = layout.message(*messages[0])
    shape = PlainShape.of(first)
    changed = bytearray(first)
    for _ in range(drawn.draw(st.integers(1, 3))):
        changed[drawn.draw(st.integers(0, len(changed) - 1))] = drawn.draw(st.integers(0, 255))
    wire = bytes(
        changed[: drawn.draw(st.integers(0, len(changed)))]
        if drawn.draw(st.booleans())
        else changed
    )
    other = PlainShape.of(wire)
    for known in (shape, other):
        if known is not None:
            agrees(known.read(*read_of([wire, first])), [wire, first])
            agrees(known.read(*read_of([first, wire])), [first, wire])


def test_a_link_whose_messages_never_look_alike_stops_learning_and_begins_again() -> None:
    shapes = PlainShapes()
    wires = [SDKS["Go"].message(text("x" * (1 + n % 60)), b"") for n in range(300)]
    learned = [shapes.learn(wire) is not None for wire in wires]
    assert 0 < sum(learned) < 100
    assert not learned[-1]
    shapes.brought(LEARNING_COST)
    assert shapes.learn(wires[0]) is not None


# Runs in the engine


def outcome_of(queue: Queue, world: World) -> object:
    held = [
        [getattr(each, name) for name in StoredMessage.__slots__]
        for each in queue.messages.values()
    ]
    kept = [
        (image.last_sequence_number, [each.sequence_number for each in image.messages])
        for image in world.journal.images()
    ]
    payloads = [world.journal.payload(queue.entity_id, number) for number in queue.messages]
    index = queue.states.index
    ready = [each.sequence_number for each in queue.states.ready_messages]
    sums = (index.size_bytes, index.extra_bytes, queue.next_deadline_ms(), queue.accessed_at_ms)
    return held, kept, payloads, sums, ready, queue.states.memory_bytes


_queues = st.builds(
    QueueDescription,
    default_ttl_ms=st.sampled_from([FOREVER_MS, 30_000, 90_000]),
    status=st.sampled_from(["Active", "Active", "Active", "SendDisabled", "ReceiveDisabled"]),
    requires_duplicate_detection=st.integers(0, 9).map(lambda n: n == 0),
    requires_session=st.integers(0, 9).map(lambda n: n == 0),
    forward_to=st.sampled_from([None] * 9 + ["other"]),
    dead_letter_on_expiration=st.booleans(),
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(st.integers(0, 400), min_size=1, max_size=5)),
        st.tuples(st.just("wait"), st.sampled_from([1, 20_000, 70_000])),
        st.tuples(st.just("dead-letter"), st.integers(1, 3)),
        st.tuples(st.just("peek"), st.just(1)),
    ),
    max_size=12,
)


class Sender:
    """Sends messages of one layout to a queue, as runs or one by one."""

    def __init__(self, description: QueueDescription, quota_bytes: int, *, in_runs: bool) -> None:
        self.log = EngineLog()
        self.world = World(engine_log=self.log)
        self.world.queue("other", QueueDescription())
        self.queue = self.world.queue("q", description)
        self.queue.quota_bytes, self.queue.max_message_bytes = quota_bytes, 350
        self._shapes = PlainShapes()
        self._in_runs = in_runs
        self.told: list[str] = []

    def send(self, wires: list[bytes], now_ms: int) -> None:
        taken = 0
        if self._in_runs:
            shape = PlainShape.of(wires[0])
            assert shape is not None
            run = shape.read(*read_of(wires))
            taken = self.world.namespace.send_run(self.queue, run, now_ms)
            assert taken == len(run)
        self.told += ["accepted"] * taken
        for wire in wires[taken:]:
            try:
                self.world.namespace.send(self.queue, [parse(wire, lambda: "new")], now_ms)
                self.told.append("accepted")
            except Refusal as refusal:
                self.told.append(str(refusal))

    def dead_letter(self, count: int, now_ms: int) -> None:
        try:
            found = self.queue.acquire(self, count, now_ms)
        except Refusal:
            return
        for each in found:
            self.queue.settle(each.lock_token, SettlementOutcome.DEAD_LETTER, now_ms)

    def outcome(self) -> object:
        parts: list[Queue] = [self.queue]
        if self.queue.dead_letter is not None:
            parts.append(self.queue.dead_letter)
        logged = self.log.take()
        return [outcome_of(part, self.world) for part in parts], self.told, logged


@given(
    _queues,
    st.integers(800, 8_000),
    st.sampled_from(["Go", ".NET, time to live"]),
    _steps,
)
def test_a_run_does_what_its_messages_do_one_by_one(
    description: QueueDescription, quota_bytes: int, layout: str, steps: list[tuple[str, Any]]
) -> None:
    in_runs = Sender(description, quota_bytes, in_runs=True)
    one_by_one = Sender(description, quota_bytes, in_runs=False)
    now_ms, number = NOW_MS, 0
    for kind, value in steps:
        if kind == "wait":
            now_ms += value
        wires = []
        if kind == "send":
            for body_bytes in value:
                number += 1
                wires.append(SDKS[layout].message(text(f"{number:03}"), bytes(body_bytes)))
        for sender in (in_runs, one_by_one):
            if wires:
                sender.send(wires, now_ms)
            elif kind == "dead-letter":
                sender.dead_letter(value, now_ms)
            elif kind == "peek":
                sender.queue.peek(value, 3, now_ms)
        assert in_runs.outcome() == one_by_one.outcome()


def test_a_run_that_the_disk_does_not_take_changes_nothing() -> None:
    sender = Sender(QueueDescription(), 10**9, in_runs=True)
    wires = [SDKS["Go"].message(text(f"{n}"), b"") for n in range(3)]
    sender.send(wires, NOW_MS)
    before = sender.outcome()
    sender.world.journal.broken.add(sender.queue.entity_id)
    with pytest.raises(RuntimeError):
        sender.send(wires, NOW_MS)
    assert sender.outcome() == (before[0], before[1], [])  # type: ignore[index]
