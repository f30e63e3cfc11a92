"""One contract for every carrier of messages: senders of the SDK, and links of our own.

Links carry what a gateway's clients have encoded, or messages of the SDK.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.pairs import bodies, drain
from twinbus import EmbeddedBroker, Fault
from twinbus.amqp.message import Properties, encode_message
from twinbus.client.links import UpstreamConnection
from twinbus.errors import BacklogMessageTooLargeError, ReservedPropertyError
from twinbus.gateway.messages import EncodedMessages
from twinbus.namespace.namespace import KEEP_ALIVE_OFF, Namespace
from twinbus.pairing.sdk.outgoing import MessageIds, Outgoing
from twinbus.pairing.sdk.pooled_sender import SenderCloser
from twinbus.pairing.sdk.sender_pool import SenderPool, open_only
from twinbus.pairing.sending.carrier import Carrier, OutgoingMessages
from twinbus.pairing.sending.own_links import OwnLinks
from twinbus.servicebus.failures import CutShort, FailureMeaning, of_error, outcome_of

pytestmark = pytest.mark.contract

ANSWER_S = 10.0
LIMIT_BYTES = 256 * 1024
PATH = "orders"


@asynccontextmanager
async def sdk_senders(text: str, path: str) -> AsyncIterator[Carrier]:
    namespace, closer = Namespace.from_connection_string(text), SenderCloser(ANSWER_S)
    async with namespace.bounded_client(ANSWER_S) as client:
        make = partial(client.get_queue_sender, path, **KEEP_ALIVE_OFF)
        pool = SenderPool(make, namespace.resolve, closer)
        yield pool
        await pool.close(0.0)
        await closer.wait()


@asynccontextmanager
async def own_links(text: str, path: str) -> AsyncIterator[Carrier]:
    connection = UpstreamConnection(Namespace.from_connection_string(text), ANSWER_S)
    yield connection.pool(path, splits=True)
    await connection.close()


@asynccontextmanager
async def own_links_of_senders(text: str, path: str) -> AsyncIterator[Carrier]:
    connection = UpstreamConnection(Namespace.from_connection_string(text), ANSWER_S)
    carrier = OwnLinks(connection, path)
    yield carrier
    await carrier.close(0.0)
    await connection.close()


def sdk_messages(*parts: tuple[str, str | None], **more: Any) -> OutgoingMessages:
    made = [ServiceBusMessage("x", message_id=i, session_id=s, **more) for i, s in parts]
    return Outgoing.of(made if len(made) > 1 else made[0], PATH, MessageIds(), LIMIT_BYTES)


def encoded_messages(*parts: tuple[str, str | None], **more: Any) -> OutgoingMessages:
    made = [
        encode_message(properties=Properties(message_id=i, group_id=s), data=b"x", **more)
        for i, s in parts
    ]
    data, form = made[0], 0
    if len(made) > 1:
        data = b"".join(b"\x00\x53\x75\xb0" + len(one).to_bytes(4) + one for one in made)
        form = 0x80013700
    return EncodedMessages.of(data, form, PATH, LIMIT_BYTES, has_own_ids=False)


CARRIERS = [pytest.param(sdk_senders, sdk_messages, id="SDK")]
CARRIERS += [pytest.param(own_links, encoded_messages, id="links")]
CARRIERS += [pytest.param(own_links_of_senders, sdk_messages, id="SDK's messages on links")]
MESSAGES = [sdk_messages, encoded_messages]

Open = Callable[[str, str], Any]
Make = Callable[..., OutgoingMessages]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso") as embedded:
        embedded.create_queue(PATH)
        yield embedded


async def send(carrier: Carrier, messages: OutgoingMessages, **options: Any) -> None:
    pooled = carrier.take()
    assert pooled is not None
    timeout_s = options.pop("timeout_s", ANSWER_S)
    await carrier.attempt(
        pooled, lambda one: one.send_messages(messages.payload), timeout_s, **options
    )


@pytest.mark.parametrize(("carrying", "make"), CARRIERS)
async def test_a_carrier_sends_one_message_and_many_and_again_on_another_link(
    broker: EmbeddedBroker, carrying: Open, make: Make
) -> None:
    async with carrying(broker.connection_string(), PATH) as carrier:
        carrier.open_ahead()
        await send(carrier, make(("a", None)))
        assert carrier.limit_bytes == LIMIT_BYTES
        carrier.invalidate()
        await send(carrier, make(("b", None), ("c", None)))
        assert not carrier.closed
        await carrier.close(ANSWER_S)
        assert carrier.closed
    found = await drain(broker.connection_string(), PATH)
    assert [message.message_id for message in found] == ["a", "b", "c"]
    assert bodies(found) == ["x"] * 3


@pytest.mark.parametrize(("carrying", "make"), CARRIERS)
@pytest.mark.parametrize(
    ("fault", "meaning", "outcome"),
    [
        (Fault(kind="throttle"), FailureMeaning.BUSY, "failed"),
        (Fault(kind="refuse_send"), FailureMeaning.UNREACHABLE, "unknown"),
        (
            Fault(kind="refuse_send", condition="amqp:resource-limit-exceeded"),
            FailureMeaning.QUOTA,
            "failed",
        ),
        (
            Fault(kind="refuse_attach", entity=PATH, condition="com.microsoft:entity-disabled"),
            FailureMeaning.DISABLED,
            "failed",
        ),
        (
            Fault(kind="refuse_attach", entity=PATH, condition="amqp:unauthorized-access"),
            FailureMeaning.UNAUTHORIZED,
            "failed",
        ),
        (Fault(kind="drop_before_commit"), FailureMeaning.UNREACHABLE, "unknown"),
        (Fault(kind="drop_after_commit"), FailureMeaning.UNREACHABLE, "unknown"),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else str(value),
)
async def test_a_failure_means_the_same_whatever_carries_the_message(
    broker: EmbeddedBroker,
    carrying: Open,
    make: Make,
    fault: Fault,
    meaning: FailureMeaning,
    outcome: str,
) -> None:
    number = broker.add_fault(fault)
    async with carrying(broker.connection_string(), PATH) as carrier:
        with pytest.raises(Exception) as caught:  # noqa: PT011  # its meaning is what counts
            await send(carrier, make(("a", None)))
        assert (of_error(caught.value), outcome_of(caught.value)) == (meaning, outcome)
        broker.remove_fault(number)
        await send(carrier, make(("b", None)))


@pytest.mark.parametrize(("carrying", "make"), CARRIERS)
async def test_a_missing_entity_and_a_dead_namespace_are_told_apart(
    broker: EmbeddedBroker, carrying: Open, make: Make
) -> None:
    text = broker.connection_string()
    async with carrying(text, "missing") as carrier:
        with pytest.raises(Exception) as missing:  # noqa: PT011
            await send(carrier, make(("a", None)))
    broker.stop()
    async with carrying(text, PATH) as carrier:
        with pytest.raises(Exception) as dead:  # noqa: PT011
            await send(carrier, make(("a", None)))
    assert of_error(missing.value) is FailureMeaning.NOT_FOUND
    assert (of_error(dead.value), outcome_of(dead.value)) == (
        FailureMeaning.UNREACHABLE,
        "failed",
    )


@pytest.mark.parametrize(("carrying", "make"), CARRIERS)
@pytest.mark.parametrize("is_late", [False, True])
async def test_silence_is_a_timeout_and_no_evidence_if_the_call_was_late(
    broker: EmbeddedBroker, carrying: Open, make: Make, is_late: bool
) -> None:
    async with carrying(broker.connection_string(), PATH) as carrier:
        pooled = carrier.take()
        assert pooled is not None
        await carrier.attempt(pooled, open_only, ANSWER_S)
        broker.add_fault(Fault(kind="hang"))
        with pytest.raises(TimeoutError) as caught:
            await send(carrier, make(("a", None)), timeout_s=0.2, is_late=is_late)
        assert isinstance(caught.value, CutShort) is is_late


@pytest.mark.parametrize(("carrying", "make"), CARRIERS)
async def test_a_lease_ends_when_it_is_not_wanted_any_more(
    broker: EmbeddedBroker, carrying: Open, make: Make
) -> None:
    async with carrying(broker.connection_string(), PATH) as carrier:
        until = asyncio.get_running_loop().time() + ANSWER_S
        assert await carrier.lease(until, lambda: False) is None
        pooled = await carrier.lease(until, lambda: True)
        assert pooled is not None
        await carrier.attempt(pooled, open_only, ANSWER_S)


@pytest.mark.parametrize("make", MESSAGES)
def test_messages_are_divided_by_session_and_in_halves(make: Make) -> None:
    parts = [("a", "s"), ("b", None), ("c", "s"), ("d", "t")]
    messages = make(*parts)
    assert (len(messages), messages.ids) == (4, ("a", "b", "c", "d"))
    assert [message_id for message_id, _ in messages.measured()] == ["a", "b", "c", "d"]
    sessions = messages.by_session()
    assert {session: len(found) for session, found in sessions.items()} == {"s": 2, None: 1, "t": 1}
    assert [part.ids for part in messages.parts()] == [("a", "c"), ("b",), ("d",)]
    assert [half.ids for half in messages.halves()] == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize("make", MESSAGES)
def test_what_a_backlog_queue_would_not_take_is_found_before_it_is_sent(make: Make) -> None:
    plain, reserved = (
        make(("a", None), application_properties={name: "x"}) for name in ("mine", "x-ms-path")
    )
    assert (plain.suspects, plain.flaws(LIMIT_BYTES)) == ([], [])
    assert [type(flaw) for flaw in reserved.flaws(LIMIT_BYTES)] == [ReservedPropertyError]
    with pytest.raises(BacklogMessageTooLargeError):
        make(("a", None)).diverted(20)
    assert plain.refused_size(LIMIT_BYTES, was_sent=True) is None
