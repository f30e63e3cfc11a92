"""What a call carries: every kind of message, its id, and the caller's objects as they were."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError

from twinbus.errors import PairingError, PartialDivertError
from twinbus.pairing.core.failover import ForceFailover
from twinbus.pairing.sdk.guards import encoded_bytes, id_of
from twinbus.pairing.sdk.outgoing import MAPPINGS_MAX, MessageIds, Outgoing, PairedMessageBatch
from twinbus.testing.fake_sdk import Behaviour, FakePair, accepts, hangs, refuses
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.virtual_time

QUEUE = "contoso/x-servicebus-transfer/"


def nameless(body: str) -> ServiceBusMessage:
    """The SDK draws an id for a message it makes; an application may take it away again."""
    message = ServiceBusMessage(body)
    message.message_id = None
    return message


class Arguments:
    """Behaves like a mapping without being one, as rows of some libraries do."""

    def __init__(self, **content: Any) -> None:
        self.content = content

    def keys(self) -> Any:
        return self.content.keys()

    def __getitem__(self, name: str) -> Any:
        return self.content[name]


def of(given: Any, ids: MessageIds | None = None) -> Outgoing:
    return Outgoing.of(given, "orders", MessageIds() if ids is None else ids)


@pytest.mark.parametrize(
    "given",
    [
        ServiceBusMessage("x", message_id="1"),
        AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": "1"}),
        AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": b"1"}),
        {"body": "x", "message_id": "1"},
        MappingProxyType({"body": "x", "message_id": "1"}),
        Arguments(body="x", message_id="1"),
        [Arguments(body="x", message_id="1")],
        [ServiceBusMessage("x", message_id="1")],
        ({"body": "x", "message_id": "1"},),
        (ServiceBusMessage("x", message_id="1") for _ in range(1)),
    ],
    ids=lambda given: type(given).__name__,
)
def test_every_kind_that_the_sdk_takes_is_taken(given: Any) -> None:
    carried = of(given)
    assert carried.ids == ("1",)
    assert list(carried.measured()) == [("1", 1)]
    assert carried.diverted(None).application_properties["x-ms-path"] == "orders"


def test_a_message_with_an_id_goes_as_it_is_and_one_without_as_a_copy() -> None:
    named, unnamed = ServiceBusMessage("a", message_id="1"), nameless("b")
    assert of(named).payload is named
    carried = of([named, unnamed])
    assert carried.messages[0] is named
    assert carried.messages[1] is not unnamed
    assert unnamed.message_id is None
    assert str(UUID(carried.ids[1])) == carried.ids[1]


@pytest.mark.parametrize("odd", ["text", b"bytes", 7, None, [1], [None], {"nobody": "x"}])
def test_what_is_no_message_is_one_clear_error(odd: Any) -> None:
    with pytest.raises(TypeError, match=r"a message is|a message's arguments"):
        of(odd)


def test_an_id_of_another_type_is_told_as_text() -> None:
    one = AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": UUID(int=7)})
    assert of(one).ids == (str(UUID(int=7)),)


def test_a_message_object_keeps_its_id_as_long_as_it_lives() -> None:
    ids = MessageIds()
    for message in (nameless("x"), AmqpAnnotatedMessage(data_body=b"x")):
        first = of(message, ids).ids
        assert of([message], ids).ids == first
    assert of(nameless("x"), ids).ids != of(nameless("x"), ids).ids
    assert len(ids.given) <= 2


def fails(world: FakePair, behaviour: Behaviour = refuses) -> None:
    world.primary.behaviour = behaviour


async def test_a_mapping_keeps_its_id_for_the_callers_own_retry() -> None:
    world = FakePair(retry_total=0, failover_interval=3600.0)
    sender = world.client.get_queue_sender("orders")
    order: dict[str, Any] = {"body": "order 1"}
    seen = []
    fails(world)
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError) as caught:
            await sender.send_messages([order, {"body": "other"}])
        seen.append(caught.value.message_ids[0])  # type: ignore[attr-defined]
    world.primary.behaviour = accepts
    await sender.send_messages(order)
    seen.append(id_of(world.primary.took[-1][1]))
    assert len(set(seen)) == 1
    assert order == {"body": "order 1"}
    # Sent: what it says next is another message, though the words may be the same.
    await sender.send_messages(order)
    assert id_of(world.primary.took[-1][1]) not in seen


def test_a_mapping_that_says_something_else_is_another_message() -> None:
    ids = MessageIds()
    form = {"body": "order 1"}
    first = of(form, ids).ids
    assert of(form, ids).ids == first
    form["body"] = "order 2"
    assert of(form, ids).ids != first


def test_mappings_are_remembered_in_a_bounded_number() -> None:
    ids = MessageIds()
    forms: list[Mapping[str, Any]] = [{"body": str(n)} for n in range(MAPPINGS_MAX + 1)]
    given = [of(form, ids).ids for form in forms]
    assert of(forms[1], ids).ids == given[1]
    assert of(forms[-1], ids).ids == given[-1]
    assert of(forms[0], ids).ids != given[0]


async def test_ids_in_an_error_can_be_put_in_by_the_caller() -> None:
    world = FakePair(retry_total=0, failover_interval=3600.0)
    sender = world.client.get_queue_sender("orders")
    fails(world, hangs)
    with pytest.raises(OperationTimeoutError) as caught:
        await sender.send_messages({"body": "x"})
    (message_id,) = caught.value.message_ids  # type: ignore[attr-defined]
    world.primary.behaviour = accepts
    await sender.send_messages({"body": "x", "message_id": message_id})
    assert id_of(world.primary.took[-1][1]) == message_id


def sdk_batch(*messages: Any, size: int = 262_144) -> ServiceBusMessageBatch:
    batch = ServiceBusMessageBatch(size)
    for message in messages:
        batch.add_message(message)
    return batch


def test_a_batch_of_the_sdk_gets_ids_before_its_first_attempt_and_keeps_them() -> None:
    ids = MessageIds()
    batch = sdk_batch(nameless("a"), ServiceBusMessage("b", message_id="b"))
    carried = of(batch, ids)
    assert isinstance(carried.payload, ServiceBusMessageBatch)
    assert of(carried.payload).ids == carried.ids
    assert carried.ids[1] == "b"
    assert of(batch, ids).ids == carried.ids
    # The caller's batch has no ids of ours: another call gives others.
    assert of(batch).ids[0] != carried.ids[0]
    named = sdk_batch(ServiceBusMessage("b", message_id="b"))
    assert of(named).payload is named


def test_a_batch_with_no_room_for_ids_goes_as_it_is_but_its_copies_have_them() -> None:
    message = nameless("x" * 500)
    room = sdk_batch(message).size_in_bytes
    batch = sdk_batch(message, size=room)
    carried = of(batch)
    assert carried.payload is batch
    assert carried.diverted(None).properties.message_id == carried.ids[0] != ""


def stored_ids(world: FakePair) -> list[tuple[str, Any, Any]]:
    """Queue, id in the backlog and original id of every copy that a backlog queue got."""
    return [
        (queue, copy.properties.message_id, copy.application_properties.get("x-twinbus-messageid"))
        for queue, sent in world.secondary.took
        for copy in (sent if isinstance(sent, list) else [sent])
    ]


@pytest.mark.parametrize("option", [{"create_backlog_queues": False}, {"accept_drift": True}])
async def test_where_a_queue_may_detect_duplicates_every_accepted_copy_has_an_id_of_its_own(
    option: dict[str, Any],
) -> None:
    world = FakePair(**option)
    for path in ("orders", "bills"):
        world.client.entity(path).tell(ForceFailover())
        sender = world.client.get_queue_sender(path)
        same = ServiceBusMessage("x", message_id="7")
        await sender.send_messages([same, same])
        await sender.send_messages(same)
        unnamed = nameless("y")
        await sender.send_messages(unnamed)
        given = world.client.state.message_ids.of(unnamed)
        originals = [original for _, _, original in stored_ids(world)[-4:]]
        assert originals == ["7", "7", "7", given]
    own = [copy_id for _, copy_id, _ in stored_ids(world)]
    assert len(set(own)) == len(own) == 8
    assert not {"7", None} & set(own)
    # The ledger counts messages by the id that the application knows.
    assert world.ledger.of("divert", "message_id")[:3] == [("7",)] * 3


async def test_with_the_descriptions_a_copy_keeps_its_id() -> None:
    world = FakePair()
    world.client.entity("orders").tell(ForceFailover())
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("x", message_id="7"))
    assert [found[1:] for found in stored_ids(world)] == [("7", None)]


async def test_every_retry_of_a_call_has_the_same_id_of_its_own_on_whatever_queue() -> None:
    world = FakePair(create_backlog_queues=False, retry_total=0)
    seen: list[tuple[str, ...]] = []

    async def take_singles_late(sent: Any) -> None:
        if sent is None:
            return
        copies = sent if isinstance(sent, list) else [sent]
        seen.append(tuple(copy.properties.message_id for copy in copies))
        if len(seen) < 3:
            raise ConnectionRefusedError("refused")
        if len(copies) > 1:
            raise MessageSizeExceededError(message="too large")

    world.secondary.behaviour = take_singles_late
    world.client.entity("orders").tell(ForceFailover())
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages([ServiceBusMessage("x", message_id="7") for _ in range(2)])
    first, second = seen[0]
    assert first != second
    assert seen == [(first, second)] * 3 + [(first,), (second,)]


async def test_a_message_that_met_the_outage_on_the_primary_has_an_id_of_its_own_too() -> None:
    world = FakePair(create_backlog_queues=False, failover_interval=0.0)
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("x", message_id="1"))
    fails(world)
    await sender.send_messages(ServiceBusMessage("x", message_id="2"))
    ((_, own, original),) = stored_ids(world)
    assert original == "2" != own


def paired_batch(
    limit: int, room: int, path: str = "orders", *, own_ids: bool = False
) -> PairedMessageBatch:
    ids = MessageIds(own_in_backlog=own_ids)
    return PairedMessageBatch(limit, room_bytes=room, path=path, ids=ids)


def fill(batch: ServiceBusMessageBatch, make: Any) -> int:
    while True:
        try:
            batch.add_message(make(len(batch)))
        except MessageSizeExceededError:
            return len(batch)


@pytest.mark.parametrize("size", [0, 10, 180, 240, 900])
@pytest.mark.parametrize("session", [None, "s" * 100])
@pytest.mark.parametrize("own_id", [None, "0" * 32])
def test_a_batch_filled_to_the_brim_fits_the_backlog_with_its_aliases(
    size: int, session: str | None, own_id: str | None
) -> None:
    def make(number: int) -> ServiceBusMessage:
        return ServiceBusMessage(
            "x" * size, session_id=session, partition_key=session, message_id="m" * 128
        )

    batch = paired_batch(20_000, 20_000, own_ids=own_id is not None)
    count = fill(batch, make)
    diverted = sdk_batch(
        *(
            to_backlog_message(message, "orders", own_id=own_id, now_ms=0)
            for message in of(batch).messages
        ),
        size=20_000,
    )
    assert len(diverted) == count > 3
    # The room that is left unused is one message, and for each what it might have had and had not:
    # both times, and the session id, which is counted where it was and where it goes.
    grown = encoded_bytes(to_backlog_message(make(0), "orders", own_id=own_id, now_ms=0)) + 300
    unused = 20_000 - diverted.size_in_bytes
    replaced = 0 if own_id is None else 40 + 128
    assert unused < grown + count * (140 + 2 * len(session or "") + 40 + replaced)
    assert of(batch).ids == ("m" * 128,) * count


def test_the_smaller_limit_of_both_sides_counts() -> None:
    assert fill(paired_batch(5_000, 1_000_000), lambda _: ServiceBusMessage("x" * 400)) == 10
    assert fill(paired_batch(1_000_000, 5_000), lambda _: ServiceBusMessage("x" * 400)) == 8


def test_a_message_that_is_refused_leaves_the_batch_as_it_was() -> None:
    batch = paired_batch(5_000, 5_000)
    batch.add_message(ServiceBusMessage("a"))
    before = (len(batch), batch.size_in_bytes, batch.max_size_in_bytes)
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage("x" * 10_000))
    with pytest.raises(TypeError):
        batch.add_message("text")
    assert (len(batch), batch.size_in_bytes, batch.max_size_in_bytes) == before


async def test_a_batch_is_diverted_whole_to_one_place() -> None:
    world = FakePair()
    world.client.entity("orders").tell(ForceFailover())
    sender = world.client.get_queue_sender("orders")
    batch = await sender.create_message_batch()
    assert isinstance(batch, PairedMessageBatch)
    for number in range(5):
        batch.add_message(ServiceBusMessage(str(number)))
    await sender.send_messages(batch)
    ((queue, stored),) = world.secondary.took
    assert queue == QUEUE + "0"
    assert [id_of(message) for message in stored] == [*of(batch).ids]


IDS = ("1", "2", "2", "4")
"""Two messages may have one id: a caller's mistake that must not make one of them disappear."""


@pytest.mark.parametrize(
    ("fails_at", "stored"),
    [(1, None), (2, ("1",)), (3, ("1", "2")), (4, ("1", "2", "2")), (5, IDS)],
)
@pytest.mark.parametrize("how", ["refused", "hangs", "message"])
async def test_a_split_batch_tells_what_is_stored_whatever_fails_when(
    fails_at: int, stored: tuple[str, ...] | None, how: str
) -> None:
    world = FakePair(retry_total=0, message_size_limit=None)
    singles = 0

    async def one_at_a_time(sent: Any) -> None:
        nonlocal singles
        if sent is None:
            return
        if isinstance(sent, list):
            raise MessageSizeExceededError(message="too large")
        singles += 1
        if singles >= fails_at:
            if how == "refused":
                raise ConnectionRefusedError("refused")
            if how == "message":
                raise ValueError("a message that nobody takes")
            await asyncio.Event().wait()

    world.secondary.behaviour = one_at_a_time
    world.client.entity("orders").tell(ForceFailover())
    sender = world.client.get_queue_sender("orders")
    messages = [ServiceBusMessage("x", message_id=name) for name in IDS]
    if stored == IDS:
        await sender.send_messages(messages, timeout=12)
        assert world.client.entity("orders").diverted == len(IDS)
    else:
        with pytest.raises((PairingError, ValueError)) as caught:
            await sender.send_messages(messages, timeout=12)
        error: Any = caught.value
        assert error.message_ids == IDS
        if stored is None:
            assert not isinstance(error, PartialDivertError)
        else:
            assert isinstance(error, PartialDivertError)
            assert error.stored_ids == stored
            assert error.not_stored_ids == IDS[len(stored) :]
    assert len(world.secondary.took) == (len(stored) if stored else 0)
    assert world.elapsed <= 12


async def test_a_split_batch_that_is_cancelled_is_cancelled() -> None:
    world = FakePair()

    async def slow_singles(sent: Any) -> None:
        if isinstance(sent, list):
            raise MessageSizeExceededError(message="too large")
        if sent is not None:
            await asyncio.sleep(1)

    world.secondary.behaviour = slow_singles
    world.client.entity("orders").tell(ForceFailover())
    sender = world.client.get_queue_sender("orders")
    messages = [ServiceBusMessage("x", message_id=name) for name in "abcd"]
    call = asyncio.create_task(sender.send_messages(messages))
    await asyncio.sleep(2.5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    outcomes = dict(world.ledger.of("divert", "message_id", "outcome"))
    assert outcomes == {"a": "ok", "b": "ok", "c": "unknown", "d": "failed"}


async def test_an_oversize_message_keeps_its_whole_batch_out_before_a_part_is_stored() -> None:
    world = FakePair(message_size_limit=2_000)
    world.client.entity("orders").tell(ForceFailover())
    sender = world.client.get_queue_sender("orders")
    batch = [ServiceBusMessage("x" * size, message_id=str(size)) for size in (10, 20, 1_990)]
    with pytest.raises(PairingError, match="2000") as caught:
        await sender.send_messages(batch)
    assert caught.value.message_ids == ("10", "20", "1990")
    assert world.secondary.took == []
