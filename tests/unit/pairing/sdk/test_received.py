"""Deliveries of our own links as the SDK's message objects, and failures as its errors."""

from __future__ import annotations

import pickle
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.types import Symbol, Timestamp
from twinbus.client.request_node import ConnectionLost, LinkEnded, LockLost, RequestRefused
from twinbus.pairing.core.sides import Side
from twinbus.pairing.sdk import making
from twinbus.pairing.sdk.failures import sdk_error
from twinbus.pairing.sdk.received import (
    PairedSession,
    Undecodable,
    lock_token_of,
    mark_renewed,
    mark_settled,
    origin_of,
    received_message,
    require_settleable,
    require_unexpired,
    set_origin,
)
from twinbus.servicebus import conditions
from twinbus.servicebus.names import LOCKED_UNTIL, SEQUENCE_NUMBER
from twinbus.servicebus.twins import SECONDARY_BIT
from twinbus.transfer.identity import read_head

TOKEN = UUID(int=9)


class Receiver:
    session = None
    _running = True


def wire(**annotations: Any) -> bytes:
    return encode_message(
        message_annotations={Symbol(SEQUENCE_NUMBER): 5, **annotations},
        properties=Properties(message_id="a"),
        data=b"body",
    )


def message(side: Side = Side.PRIMARY, data: bytes = wire(), **how: Any) -> Any:
    how.setdefault("tag", TOKEN.bytes_le)
    return received_message(Receiver(), side, data, number=3, **how)


def test_a_message_of_the_primary_is_as_the_sdk_decodes_it() -> None:
    one = message()
    assert (str(one), one.message_id, one.sequence_number) == ("body", "a", 5)
    assert one.lock_token == lock_token_of(one) == TOKEN


def test_a_number_of_the_secondary_has_its_bit() -> None:
    assert message(Side.SECONDARY).sequence_number == 5 | SECONDARY_BIT


def test_a_message_whose_head_was_read_before_is_the_same() -> None:
    data = wire()
    head = read_head(data)
    assert head is not None
    one, other = message(data=data, head=head), message(data=data)
    assert repr(one) == repr(other)
    assert one.raw_amqp_message.annotations is head.annotations


def test_the_constructors_of_another_sdk_make_the_message(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    assert making.is_known()
    making.is_known.cache_clear()
    request.addfinalizer(making.is_known.cache_clear)
    real = ServiceBusReceivedMessage.__init__

    def with_more(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.news = "of a later version"

    monkeypatch.setattr(ServiceBusReceivedMessage, "__init__", with_more)
    assert message().news == "of a later version"


def locked_for(seconds: float) -> Any:
    ends_at = Timestamp(int((time.time() + seconds) * 1_000))
    return message(data=wire(**{Symbol(LOCKED_UNTIL): ends_at}))


@pytest.mark.parametrize("is_read", [False, True])
def test_a_lock_has_ended_by_its_own_end_or_by_that_of_its_renewal(is_read: bool) -> None:
    held, ended = locked_for(60), locked_for(-1)
    ended._received_timestamp_utc -= timedelta(seconds=2)
    if is_read:
        assert held.locked_until_utc > ended.locked_until_utc
    require_unexpired(held)
    with pytest.raises(MessageLockLostError):
        require_unexpired(ended)
    mark_renewed(ended, datetime.now(UTC) + timedelta(seconds=60))
    require_unexpired(ended)
    mark_renewed(held, datetime.now(UTC) - timedelta(seconds=1))
    with pytest.raises(MessageLockLostError):
        require_unexpired(held)


@pytest.mark.parametrize("is_read", [False, True])
def test_the_service_judges_a_lock_that_had_ended_when_its_message_came(is_read: bool) -> None:
    one = locked_for(-300)
    if is_read:
        assert one.locked_until_utc < datetime.now(UTC)
    require_unexpired(one)
    mark_renewed(one, datetime.now(UTC) - timedelta(seconds=240))
    require_unexpired(one)


def test_a_session_whose_lock_has_ended_by_a_clock_that_is_ahead_is_not_lost() -> None:
    session = PairedSession("a", Receiver())
    session.opened("a", datetime.now(UTC) - timedelta(seconds=240))
    assert not session.is_lost
    session.locked(datetime.now(UTC) + timedelta(seconds=60))
    session._locked_until_utc = datetime.now(UTC) - timedelta(seconds=1)
    assert session.is_lost


def test_a_message_that_the_sdk_cannot_decode() -> None:
    with pytest.raises(Undecodable):
        received_message(Receiver(), Side.PRIMARY, b"\x00\x53\x75")


def test_what_a_message_came_from_is_not_pickled() -> None:
    one = message()
    set_origin(one, "a side", lambda: "cannot be pickled")
    again = pickle.loads(pickle.dumps(one))  # our own
    assert str(again) == "body"
    assert origin_of(again).side is None
    assert origin_of(one).side == "a side"


@pytest.mark.parametrize(
    ("given", "mode", "expected"),
    [
        ("no message", ServiceBusReceiveMode.PEEK_LOCK, TypeError),
        (message(is_peeked_message=True), ServiceBusReceiveMode.PEEK_LOCK, ValueError),
        (message(), ServiceBusReceiveMode.RECEIVE_AND_DELETE, ValueError),
    ],
)
def test_what_cannot_be_settled(given: Any, mode: Any, expected: type[Exception]) -> None:
    with pytest.raises(expected):
        require_settleable(given, "complete", mode)


def test_a_message_is_settled_once() -> None:
    one = message()
    require_settleable(one, "complete", ServiceBusReceiveMode.PEEK_LOCK)
    mark_settled(one)
    with pytest.raises(MessageAlreadySettled):
        require_settleable(one, "complete", ServiceBusReceiveMode.PEEK_LOCK)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(), OperationTimeoutError),
        (ConnectionLost("gone"), ServiceBusConnectionError),
        (LinkEnded("no reason"), ServiceBusConnectionError),
        (LinkEnded("idle", conditions.DETACH_FORCED), ServiceBusConnectionError),
        (LinkEnded("?", "vendor:unknown"), ServiceBusConnectionError),
        (LinkEnded("sessions", conditions.NOT_ALLOWED), ServiceBusError),
        (LinkEnded("none free", conditions.TIMEOUT), OperationTimeoutError),
        (LinkEnded("taken", conditions.SESSION_TAKEN), SessionCannotBeLockedError),
        (LinkEnded("off", conditions.ENTITY_DISABLED), MessagingEntityDisabledError),
        (LinkEnded("no", conditions.UNAUTHORIZED), ServiceBusAuthorizationError),
        (LockLost("late", conditions.MESSAGE_LOCK_LOST), MessageLockLostError),
        (LockLost("late", conditions.SESSION_LOCK_LOST), SessionLockLostError),
        (RequestRefused("?", 404, ""), MessagingEntityNotFoundError),
        (RequestRefused("?", 404, conditions.MESSAGE_NOT_FOUND), MessageNotFoundError),
        (RequestRefused("bad key", 401, ""), ServiceBusAuthenticationError),
        (RequestRefused("slow", 503, conditions.SERVER_BUSY), ServiceBusServerBusyError),
    ],
)
def test_a_failure_is_the_sdks_error_with_the_same_condition(
    error: Exception, expected: type[Exception]
) -> None:
    raised = sdk_error(error, "orders")
    assert type(raised) is expected
    assert raised.__cause__ is error
    assert (getattr(error, "condition", "") or None) == raised._condition  # type: ignore[attr-defined]


def test_another_error_stays_what_it_is() -> None:
    error = ValueError("an argument")
    assert sdk_error(error, "orders") is error
