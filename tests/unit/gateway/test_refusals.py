"""Errors of a gateway as its clients get them, and the bound of pending sends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from unittest.mock import AsyncMock

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.client.connection import NamespaceConnection
from twinbus.client.request_node import ConnectionLost, DeliveryRejected, LinkEnded, RequestRefused
from twinbus.errors import BacklogGuardError, BacklogUnavailableError, EntityUnusableError
from twinbus.gateway.relay import refusal_of
from twinbus.gateway.sending import EACH_BYTES, PendingSends
from twinbus.namespace.access import Endpoint
from twinbus.servicebus.conditions import UNAUTHORIZED
from twinbus.servicebus.failures import CONDITIONS, FailureMeaning, of_error, outcome_of

if TYPE_CHECKING:
    from twinbus.broker.links.context import LinkClient


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_rejection_means_what_its_condition_says_and_reaches_the_client(condition: str) -> None:
    error = DeliveryRejected("why", condition)
    assert of_error(error) is CONDITIONS[condition].meaning
    assert refusal_of(error).condition == condition
    assert "why" in refusal_of(error).description


def test_a_lost_connection_counts_and_one_that_was_never_open_sent_nothing() -> None:
    never_open = ConnectionLost("refused")
    for error in (lost := LinkEnded("reset", was_sent=True), never_open):
        assert of_error(error) is FailureMeaning.UNREACHABLE
        assert refusal_of(error).condition == "com.microsoft:timeout"
    assert (outcome_of(lost), outcome_of(never_open)) == ("unknown", "failed")


def test_a_detach_for_a_setting_is_no_lost_connection() -> None:
    disabled = LinkEnded("off", "com.microsoft:entity-disabled")
    assert of_error(disabled) is FailureMeaning.DISABLED
    forced = LinkEnded("idle", "amqp:link:detach-forced")
    assert of_error(forced) is FailureMeaning.UNREACHABLE


def test_a_detach_says_nothing_about_what_was_in_flight() -> None:
    """The ledger must not say "failed" of a message that the primary may have stored."""
    errors = [LinkEnded("too much", "com.microsoft:server-busy", was_sent=w) for w in (True, False)]
    assert [of_error(one) for one in errors] == [FailureMeaning.BUSY] * 2
    assert [outcome_of(one) for one in errors] == ["unknown", "failed"]


def test_a_token_for_a_missing_entity_says_so() -> None:
    missing = RequestRefused("no such queue", 404, "")
    assert of_error(missing) is FailureMeaning.NOT_FOUND
    assert refusal_of(missing).condition == "amqp:not-found"
    assert of_error(RequestRefused("no", 401, "")) is FailureMeaning.UNAUTHORIZED
    full = RequestRefused("no session", 0, "amqp:resource-limit-exceeded")
    assert of_error(full) is FailureMeaning.QUOTA


async def test_a_broken_namespace_and_a_silent_token_service_count() -> None:
    assert of_error(RequestRefused("broken", 503, "")) is FailureMeaning.UNREACHABLE
    for cause, meaning, condition in (
        (TimeoutError(), FailureMeaning.UNREACHABLE, "com.microsoft:timeout"),
        (PermissionError("no such secret"), FailureMeaning.UNAUTHORIZED, UNAUTHORIZED),
    ):
        tokens = SimpleNamespace(who="the credential")
        endpoint = SimpleNamespace(
            label="east", host="east", token=AsyncMock(side_effect=cause), tokens=tokens
        )
        connection = NamespaceConnection(cast("Endpoint", endpoint), lambda _: None)
        with pytest.raises(RequestRefused) as caught:
            await connection._token("orders")
        assert of_error(caught.value) is meaning
        assert refusal_of(caught.value).condition == condition


def test_errors_of_the_pair_have_a_condition_that_clients_know() -> None:
    assert refusal_of(EntityUnusableError("gone")).condition == "amqp:not-found"
    # After this one an SDK does not retry.
    assert refusal_of(BacklogGuardError("reserved")).condition == "amqp:not-allowed"
    full = BacklogUnavailableError("none", primary_error=None, queue_errors={})
    assert refusal_of(full).condition == "com.microsoft:timeout"
    assert refusal_of(OperationTimeoutError()).condition == "com.microsoft:timeout"


class Client:
    """A connection that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause_reading(self) -> None:
        self.told.append("stop")

    def resume_reading(self) -> None:
        self.told.append("read")


async def test_small_messages_count_with_what_their_calls_take() -> None:
    """A million messages of ten bytes are ten megabytes, and gigabytes of calls."""
    client = Client()
    pending = PendingSends("gate", 60.0, bytes_max=100 * EACH_BYTES)
    for _ in range(1_000):
        pending.add(cast("LinkClient", client), 10)
        if client.told:
            break
    assert (client.told, pending.count) == (["stop"], 100)
    while pending.count:
        pending.release(10)
    assert (client.told, pending.size_bytes) == (["stop", "read"], 0)
