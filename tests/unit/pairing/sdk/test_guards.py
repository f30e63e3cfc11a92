"""The two guards of SPEC 4: counted while healthy, refused when it matters, always if strict."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from hypothesis import given
from hypothesis import strategies as st

from twinbus.errors import BacklogGuardError, BacklogMessageTooLargeError, ReservedPropertyError
from twinbus.pairing.core.failover import ForceFailover
from twinbus.pairing.sdk import guards
from twinbus.pairing.sdk.guards import BacklogLimits, body_bytes, encoded_bytes, flaws, quick_check
from twinbus.servicebus.names import PROPERTIES_BYTES_MAX
from twinbus.testing.fake_sdk import FakePair
from twinbus.transfer.aliases import overhead_bytes
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.virtual_time

LIMIT = 262_144


def message(size: int = 10, **settings: Any) -> ServiceBusMessage:
    return ServiceBusMessage("x" * size, **{"message_id": "1", **settings})


FLAWED: dict[str, tuple[Callable[[], ServiceBusMessage], type[BacklogGuardError]]] = {
    "oversize": (lambda: message(LIMIT - 20), BacklogMessageTooLargeError),
    "reserved": (
        lambda: message(application_properties={"x-ms-path": "me"}),
        ReservedPropertyError,
    ),
}


def with_long_session() -> Any:
    # The SDK checks the length only on its own ServiceBusMessage.
    named = {"message_id": "1", "group_id": "s" * 129}
    return AmqpAnnotatedMessage(data_body=b"x", properties=named)


REFUSED: dict[str, tuple[Callable[[], Any], type[BacklogGuardError]]] = {
    **FLAWED,
    "a session id that the syphon refuses": (with_long_session, BacklogGuardError),
}
"""In a failover. While the entity is healthy the service checks session ids itself."""


@pytest.mark.parametrize("kind", FLAWED)
async def test_while_healthy_a_flaw_is_counted_and_warned_of_once_and_changes_nothing(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = FakePair(message_size_limit=LIMIT)
    sender = world.client.get_queue_sender("orders")
    make, _ = FLAWED[kind]
    given = make()
    with caplog.at_level(logging.WARNING):
        await sender.send_messages(given)
        await sender.send_messages([make(), message()])
        await sender.send_messages(message())
    assert [took is given for _, took in world.primary.took] == [True, False, False]
    assert len(caplog.records) == 1
    assert "could not be sent" in caplog.text
    status = world.client.entity("orders").status()
    assert getattr(status, kind) == 2
    assert status.oversize + status.reserved == 2
    assert status.sent == 4


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("strict", [False, True])
async def test_failed_over_a_flaw_is_refused_before_anything_is_tried(
    kind: str, strict: bool
) -> None:
    world = FakePair(message_size_limit=LIMIT, strict_guards=strict)
    world.client.entity("orders").tell(ForceFailover())
    sender = world.client.get_queue_sender("orders")
    make, error = REFUSED[kind]
    for payload in (make(), [message(), make()]):
        with pytest.raises(error) as caught:
            await sender.send_messages(payload)
        assert set(caught.value.message_ids) == {"1"}
    assert (world.primary.took, world.secondary.took) == ([], [])
    assert world.ledger.of("divert") == []
    status = world.client.entity("orders").status()
    assert (status.oversize, status.reserved) == (0, 0)
    await sender.send_messages(message())


@pytest.mark.parametrize("kind", FLAWED)
async def test_strict_guards_refuse_while_healthy_too(kind: str) -> None:
    world = FakePair(message_size_limit=LIMIT, strict_guards=True)
    sender = world.client.get_queue_sender("orders")
    make, error = FLAWED[kind]
    for payload in (make(), [message(), make()]):
        with pytest.raises(error) as caught:
            await sender.send_messages(payload)
        assert set(caught.value.message_ids) == {"1"}
    assert world.primary.took == []
    await sender.send_messages(message())
    assert len(world.primary.took) == 1


def test_the_error_says_size_limit_and_what_the_aliases_add() -> None:
    given = message(LIMIT - 60, session_id="s" * 30)
    [flaw] = flaws([given], "orders", LIMIT)
    assert isinstance(flaw, BacklogMessageTooLargeError)
    before = encoded_bytes(given.raw_amqp_message)
    assert flaw.size_bytes == before
    assert (
        flaw.overhead_bytes == encoded_bytes(to_backlog_message(given, "orders", now_ms=0)) - before
    )
    assert flaw.limit_bytes == LIMIT
    for number in (flaw.size_bytes, flaw.overhead_bytes, LIMIT):
        assert str(number) in str(flaw)


@given(st.integers(-200, 200), st.booleans(), st.booleans())
def test_the_guard_refuses_exactly_what_would_not_fit(
    distance: int, has_session: bool, has_name: bool
) -> None:
    given_message = message(
        70_000,
        session_id="session" if has_session else None,
        application_properties={"name": "value"} if has_name else None,
    )
    limit = encoded_bytes(to_backlog_message(given_message, "orders", now_ms=0)) + distance
    assert bool(flaws([given_message], "orders", limit)) == (distance < 0)


@given(
    st.sampled_from(["data", "value", "sequence", "none"]),
    st.integers(0, 400),
    st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=50), max_size=3),
    st.one_of(st.none(), st.text(min_size=1, max_size=40)),
)
def test_what_passes_at_a_glance_has_no_flaw(
    kind: str, size: int, names: dict[str, str], session: str | None
) -> None:
    one: Any
    match kind:
        case "data":
            one = message(size, application_properties=names, session_id=session)
        case "none":
            one = ServiceBusMessage(None)
            one.application_properties = names
        case "value":
            one = AmqpAnnotatedMessage(value_body="ü" * size, application_properties=names)
        case _:
            one = AmqpAnnotatedMessage(sequence_body=[["x" * size]])
    limit = PROPERTIES_BYTES_MAX + guards.ALIASES_MAX + 200
    exact = encoded_bytes(to_backlog_message(one, "orders", now_ms=0)) > limit
    assert not exact
    if kind == "data" and isinstance(one, ServiceBusMessage):
        assert (quick_check(one, limit) is None) == (size > 200)
    assert flaws([one], "orders", limit) == []


async def test_while_healthy_nothing_is_copied_and_nothing_is_sized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("a healthy send must neither copy nor size")

    world = FakePair(message_size_limit=LIMIT)
    sender = world.client.get_queue_sender("orders")
    for name in ("to_backlog_message", "encoded_bytes"):
        monkeypatch.setattr(guards, name, never)
    for size in (0, 1_000, LIMIT - PROPERTIES_BYTES_MAX - guards.ALIASES_MAX):
        await sender.send_messages(message(size, application_properties={"a": 1}))
        await sender.send_messages([message(size), message(size)])
    assert len(world.primary.took) == 6


def test_the_limit_is_learned_from_the_link_and_remembered() -> None:
    limits = BacklogLimits(None)
    limits.learn("a", None, None)
    assert {limits.smallest, limits.smallest_batch, limits.of("a")} == {None}
    limits.learn("a", 1_048_576, 1_000_000)
    limits.learn("b", 262_144, 262_144)
    assert (limits.of("a"), limits.of("b"), limits.of("c")) == (1_048_576, 262_144, None)
    assert {limits.smallest, limits.smallest_batch, limits.watched} == {262_144}
    limits.learn("b", 1_048_576, 1_000_000)
    assert [limits.smallest, limits.smallest_batch] == [1_048_576, 1_000_000]


def test_the_option_is_the_limit_whatever_a_link_says() -> None:
    limits = BacklogLimits(50_000)
    limits.learn("a", 1_048_576, 1_000_000)
    assert {limits.smallest, limits.of("a"), limits.watched, limits.smallest_batch} == {50_000}


async def test_a_large_message_has_an_unknown_limit_asked_for() -> None:
    world = FakePair()
    sender = world.client.get_queue_sender("orders")
    await sender.send_messages(message(1_000))
    assert world.secondary.opened == 0
    await sender.send_messages(message(LIMIT - 50))
    assert len(world.primary.took) == 2
    assert world.secondary.opened == 1


async def test_a_queue_that_finds_one_message_too_large_is_told_apart_by_its_limit() -> None:
    world = FakePair()

    async def too_large(sent: Any) -> None:
        if sent is not None:
            world.client.state.limits.learn("contoso/x-servicebus-transfer/0", LIMIT, LIMIT)
            raise MessageSizeExceededError(message="too large")

    world.client.entity("orders").tell(ForceFailover())
    world.secondary.behaviour = too_large
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(BacklogMessageTooLargeError, match=str(LIMIT)):
        await sender.send_messages(message(LIMIT - 20))
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(message(10))
    assert world.client.state.rotation.absences(world.now) == {}


class Uncloneable(AmqpAnnotatedMessage):
    """A message whose parts cannot be had a second time."""

    reads = 0

    @property
    def header(self) -> Any:
        type(self).reads += 1
        raise RuntimeError("no second time")

    @header.setter
    def header(self, value: Any) -> None:
        """Taken, never given."""


async def test_a_message_that_cannot_be_copied_is_an_error_that_says_so() -> None:
    world = FakePair()
    world.client.entity("orders").tell(ForceFailover())
    odd = Uncloneable(data_body=b"x", properties={"message_id": "odd"})
    with pytest.raises(BacklogGuardError, match=r"cannot be copied.*no second time") as caught:
        await world.client.get_queue_sender("orders").send_messages(odd)
    assert caught.value.message_ids == ("odd",)
    assert world.secondary.took == []


@pytest.mark.parametrize("body", [[object()], [3], [b"a", object()]])
def test_a_body_without_a_length_is_no_reason_to_fail_before_the_sdk_does(body: Any) -> None:
    odd = AmqpAnnotatedMessage(data_body=body)
    assert body_bytes(odd) is None
    assert flaws([odd], "orders", 100_000) == []


@given(st.integers(0, 600), st.one_of(st.none(), st.text(max_size=20)))
def test_a_message_is_sized_as_the_sdk_sends_it(size: int, session: str | None) -> None:
    one = message(size, session_id=session)
    batch = ServiceBusMessageBatch()
    batch.add_message(one)
    assert encoded_bytes(one.raw_amqp_message) == batch._amqp_transport.get_message_encoded_size(
        batch._messages[0]._message
    )


@given(st.integers(0, 300), st.one_of(st.none(), st.text(max_size=60)))
def test_the_aliases_add_no_more_than_they_are_said_to(size: int, session: str | None) -> None:
    one = message(size, session_id=session)
    grown = encoded_bytes(to_backlog_message(one, "orders", now_ms=0)) - encoded_bytes(
        one.raw_amqp_message
    )
    assert grown <= overhead_bytes("orders", session_id=session)
