"""Failures of the gateway's links become errors that the core judges, and conditions again."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.client.links import DeliveryRejected, LinkEnded, LinkPool, Wire
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.errors import BacklogGuardError, BacklogUnavailableError, EntityUnusableError
from twinbus.gateway.conditions import refusal_of, refused, upstream_error
from twinbus.gateway.upstream import LinkSenders
from twinbus.pairing.core.classify import CONDITIONS, FailureMeaning, meaning_of
from twinbus.pairing.sdk.sender_pool import CutShort
from twinbus.pairing.sending.recording import outcome_of


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_rejection_means_what_its_condition_says_and_reaches_the_client(condition: str) -> None:
    error = upstream_error(DeliveryRejected("why", condition))
    assert meaning_of(error) is CONDITIONS[condition].meaning
    assert refusal_of(error).condition == condition
    assert "why" in refusal_of(error).description


def test_a_lost_connection_counts_and_one_that_was_never_open_sent_nothing() -> None:
    never_open = upstream_error(ConnectionLost("refused"))
    for error in (lost := upstream_error(LinkEnded("reset", was_sent=True)), never_open):
        assert meaning_of(error) is FailureMeaning.UNREACHABLE
        assert refusal_of(error).condition == "com.microsoft:timeout"
    assert (outcome_of(lost), outcome_of(never_open)) == ("unknown", "failed")


def test_a_detach_for_a_setting_is_no_lost_connection() -> None:
    disabled = upstream_error(LinkEnded("off", "com.microsoft:entity-disabled"))
    assert meaning_of(disabled) is FailureMeaning.DISABLED
    forced = upstream_error(LinkEnded("idle", "amqp:link:detach-forced"))
    assert meaning_of(forced) is FailureMeaning.UNREACHABLE


def test_a_detach_says_nothing_about_what_was_in_flight() -> None:
    """The ledger must not say "failed" of a message that the primary may have stored."""
    ended = [LinkEnded("too much", "com.microsoft:server-busy", was_sent=w) for w in (True, False)]
    errors = [upstream_error(one) for one in ended]
    assert [meaning_of(one) for one in errors] == [FailureMeaning.BUSY] * 2
    assert [outcome_of(one) for one in errors] == ["unknown", "failed"]


class SilentLinks:
    """An open link whose namespace does not answer."""

    limit_bytes = None

    async def open(self) -> None:
        """It is open."""

    async def send_messages(self, _: Wire) -> None:
        await asyncio.sleep(60)


@pytest.mark.parametrize(("is_late", "kind"), [(True, CutShort), (False, TimeoutError)])
@pytest.mark.virtual_time
async def test_the_last_moment_of_a_patience_is_no_evidence_against_the_primary(
    is_late: bool, kind: type[TimeoutError]
) -> None:
    """A primary that throttles would else fail over: its answer takes longer than that moment."""
    pool = LinkSenders(cast("LinkPool", SilentLinks()))
    with pytest.raises(TimeoutError) as caught:
        await pool.attempt(
            pool, lambda one: one.send_messages(Wire(b"x", 0)), 0.01, is_late=is_late
        )
    assert caught.type is kind


def test_a_token_for_a_missing_entity_says_so() -> None:
    missing = refused(RequestRefused("no such queue", 404, ""))
    assert meaning_of(missing) is FailureMeaning.NOT_FOUND
    assert refusal_of(missing).condition == "amqp:not-found"
    assert meaning_of(refused(RequestRefused("no", 401, ""))) is FailureMeaning.UNAUTHORIZED


def test_a_broken_namespace_and_a_silent_token_service_count() -> None:
    assert meaning_of(refused(RequestRefused("broken", 503, ""))) is FailureMeaning.UNREACHABLE
    for cause, meaning in (
        (TimeoutError(), FailureMeaning.UNREACHABLE),
        (PermissionError("no such secret"), FailureMeaning.UNAUTHORIZED),
    ):
        error = RequestRefused("no token", 401, "amqp:unauthorized-access")
        error.__cause__ = cause
        assert meaning_of(refused(error)) is meaning


def test_errors_of_the_pair_have_a_condition_that_clients_know() -> None:
    assert refusal_of(EntityUnusableError("gone")).condition == "amqp:not-found"
    # After this one an SDK does not retry.
    assert refusal_of(BacklogGuardError("reserved")).condition == "amqp:not-allowed"
    full = BacklogUnavailableError("none", primary_error=None, queue_errors={})
    assert refusal_of(full).condition == "com.microsoft:timeout"
    assert refusal_of(OperationTimeoutError()).condition == "com.microsoft:timeout"
