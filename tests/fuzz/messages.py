"""Messages with every integer at the edges of its type: parse, store, filter, render, recover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.engine import FuzzEngine, create_entities, facts, queues_of
from tests.fuzz.part import Part
from tests.fuzz.values import ANY_VALUE, INTEGERS, integers, scalars
from twinbus.amqp import encoding
from twinbus.amqp.message import encode_message, split
from twinbus.amqp.types import Described, Symbol, Timestamp, UByte, UInt, ULong
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import SettlementOutcome
from twinbus.broker.engine.topic import Topic
from twinbus.broker.filters.rules import matches
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.broker.messages.rendering import render
from twinbus.broker.refusals import Refusal
from twinbus.servicebus.names import DATE_MAX_MS

NOW_MS = 1_800_000_000_000
HEADER, ANNOTATIONS, PROPERTIES = 0x70, 0x72, 0x73
TARGETS = ("orders", "talks", "once", "on", "news", "news")
OVERRIDE_BYTES_MAX = 65 * 1024
"""The limit of 64 KiB, and what the broker itself adds to a dead letter."""

_annotations = st.sampled_from(
    (
        *("x-opt-scheduled-enqueue-time",) * 4,
        *("x-opt-partition-key", "x-opt-via-partition-key", "x-opt-sequence-number"),
        *("x-opt-enqueued-time", "x-opt-locked-until", "x-opt-deadletter-source", "mine"),
    )
)
_names = st.sampled_from(("n", "t", "when", "other", "x-ms-path"))
_ids = st.one_of(st.sampled_from(("m1", "m2", "m3")), scalars)


def _clipped(number: int) -> Timestamp:
    return Timestamp(max(-(2**63), min(number, 2**63 - 1)))


_times = st.one_of(st.none(), integers.map(_clipped))


@dataclass(frozen=True)
class Spec:
    """The sections of one message, as values that may be of any type."""

    header: list[Any]
    annotations: dict[Any, Any]
    properties: list[Any]
    user: dict[Any, Any]

    def wire(self) -> bytes:
        marks = {Symbol(name): value for name, value in self.annotations.items()}
        sections = ((HEADER, self.header), (ANNOTATIONS, marks), (PROPERTIES, self.properties))
        front = [encoding.encode(Described(ULong(code), value)) for code, value in sections]
        return b"".join(front) + encode_message(application_properties=self.user, data=b"x")


@st.composite
def _properties(draw: st.DrawFn) -> list[Any]:
    """Message id, to, expiry, group id; the other fields are null or of any type."""
    fields: list[Any] = [None] * 13
    fields[0] = draw(_ids) if draw(st.booleans()) else "m1"
    fields[8], fields[9] = draw(_times), draw(_times)
    fields[10] = draw(st.sampled_from((None, "s", "s2")))
    if not draw(st.integers(0, 3)):
        fields[draw(st.integers(0, 12))] = draw(ANY_VALUE)
    return fields


_uints = st.sampled_from([each for each in INTEGERS if type(each) is UInt])
_good_headers = st.tuples(
    st.sampled_from((None, True)), st.sampled_from((None, UByte(0), UByte(255))), _uints
)
_headers = st.one_of(
    *[_good_headers.map(list)] * 3, st.lists(st.one_of(st.none(), scalars), max_size=5)
)
_user = st.one_of(
    st.dictionaries(_names, ANY_VALUE, max_size=4), st.fixed_dictionaries({"when": _times})
)
# Most messages are good but for one thing: those that are wrong all over end at the first check.
_marks = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"x-opt-scheduled-enqueue-time": st.one_of(_times, integers)}),
    st.dictionaries(_annotations, ANY_VALUE, max_size=3),
)
specs = st.builds(Spec, _headers, _marks, _properties(), _user)


@dataclass(frozen=True)
class Load:
    target: str
    specs: list[Spec]
    is_scheduled: bool
    """By the management operation, which returns numbers."""
    outcome: SettlementOutcome
    overrides: dict[str, Any]


loads = st.builds(
    Load,
    st.sampled_from(TARGETS),
    st.lists(specs, min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from(SettlementOutcome),
    st.dictionaries(
        st.sampled_from(("n", "k", "DeadLetterReason")),
        st.one_of(ANY_VALUE, st.just("a" * 40_000)),
        max_size=3,
    ),
)


def check(load: Load) -> None:
    engine = FuzzEngine()
    create_entities(engine.namespace, NOW_MS)
    before = [facts(queue) for queue in queues_of(engine.namespace)]
    batch = _send(engine, load)
    if batch is None:
        assert before == [facts(queue) for queue in queues_of(engine.namespace)]
        engine.check()
        return
    _check_arrival(engine, load.target, batch)
    engine.check()
    again = engine.restarted()
    for each in (again, engine):
        _check_rendering(each)
        _check_time(each, load.target, batch)
        each.check()
    _settle_all(engine, load)
    engine.check()
    _check_rendering(engine)


def _send(engine: FuzzEngine, load: Load) -> list[Incoming] | None:
    """The batch that was taken; None: it was refused."""
    namespace = engine.namespace
    target = namespace.send_target(load.target)
    numbers = iter(range(100))
    try:
        batch = [parse(each.wire(), lambda: f"new-{next(numbers)}") for each in load.specs]
        if load.is_scheduled:
            namespace.schedule(target, batch, NOW_MS)
        else:
            namespace.send(target, batch, NOW_MS)
    except Refusal:
        return None
    return batch


def _check_arrival(engine: FuzzEngine, target: str, batch: list[Incoming]) -> None:
    """Acknowledged means stored: each message is in its entity, or where that forwards it."""
    namespace = engine.namespace
    entity = namespace.resolve(target)
    for incoming in batch:
        if incoming.is_ping:
            continue
        if isinstance(entity, Topic):
            assert incoming.scheduled_for_ms > NOW_MS or all(
                _holds(namespace.resolve(f"news/subscriptions/{name}"), incoming)
                for name in ("all", "safe", "picky")
                if name != "picky" or not _is_filtered_out(engine, incoming)
            ), f"{incoming} did not reach each subscription"
            assert incoming.scheduled_for_ms <= NOW_MS or _holds(entity.schedule, incoming)
            continue
        places = [entity, namespace.resolve("once")] if target == "on" else [entity]
        assert any(_holds(place, incoming) for place in places), f"{incoming} is nowhere"


def _is_filtered_out(engine: FuzzEngine, incoming: Incoming) -> bool:
    """Whether the picky subscription may lack it: its filter does not match."""
    subscription = engine.namespace.get_subscription("news", "picky")
    try:
        return not any(matches(rule, incoming) for rule in subscription.rules.values())
    except Refusal:
        return False  # The error sends it to the dead-letter queue.


def _holds(queue: Any, incoming: Incoming) -> bool:
    assert isinstance(queue, Queue)
    places = [queue] if queue.dead_letter is None else [queue, queue.dead_letter]
    held = (each for place in places for each in place.messages.values())
    return any(message.message_id == incoming.message_id for message in held)


def _check_rendering(engine: FuzzEngine) -> None:
    """Each stored message can be delivered and read, and a receiver could send it again."""
    for queue in queues_of(engine.namespace):
        for message in queue.messages.values():
            payload = engine.store.payload(queue.entity_id, message.sequence_number)
            for token in (None, b"t" * 16):
                wire = render(payload, message, locked_until_ms=NOW_MS, lock_token=token)
                split(wire)
                assert parse(wire, str).message_id == message.message_id
            size_bytes = len(encoding.encode(message.overrides)) if message.overrides else 0
            assert size_bytes <= OVERRIDE_BYTES_MAX


def _check_time(engine: FuzzEngine, target: str, batch: list[Incoming]) -> None:
    """A scheduled message arrives at its time, whatever its neighbours are."""
    times = {each.scheduled_for_ms for each in batch if each.scheduled_for_ms > NOW_MS}
    for at_ms in sorted({*times, DATE_MAX_MS}):
        engine.namespace.run_timers(at_ms)
        assert not engine.failures, engine.failures
        for each in batch:
            if each.scheduled_for_ms == at_ms and not each.is_ping and target != "once":
                _check_arrival(engine, target, [_due(each)])


def _due(incoming: Incoming) -> Incoming:
    """The message at its time: no longer scheduled."""
    return Incoming(
        incoming.message_id, scheduled_for_ms=0, wire=incoming.wire, payload=incoming.payload,
        properties=incoming.properties,
    )  # fmt: skip


def _settle_all(engine: FuzzEngine, load: Load) -> None:
    for queue in queues_of(engine.namespace):
        sessions = (None,) if not queue.requires_session else ("s", "s2")
        holder = object()
        for session_id in sessions:
            try:
                if session_id is not None:
                    queue.sessions.accept(session_id, holder, NOW_MS)
                taken = queue.acquire(holder, 100, NOW_MS, session_id=session_id)
            except Refusal:
                continue
            for delivery in taken:
                try:
                    queue.settle(
                        delivery.lock_token,
                        load.outcome,
                        NOW_MS,
                        overrides=load.overrides or None,
                        session_id=session_id,
                    )
                except Refusal:
                    continue


MESSAGES = Part("messages", loads, check, short=40, round=200)
