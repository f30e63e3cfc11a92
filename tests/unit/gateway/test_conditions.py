"""AMQP conditions of a namespace become errors that the core judges, and conditions again."""

from __future__ import annotations

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.amqp.performatives import Error
from twinbus.client.request_node import RequestRefused
from twinbus.errors import BacklogGuardError, BacklogUnavailableError, EntityUnusableError
from twinbus.gateway.conditions import detached, lost, refusal_of, refused, rejection, unreachable
from twinbus.pairing.core.classify import CONDITIONS, FailureMeaning, meaning_of
from twinbus.pairing.sending.recording import outcome_of


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_rejection_means_what_its_condition_says_and_reaches_the_client(condition: str) -> None:
    error = rejection(Error(condition=condition, description="why"))
    assert meaning_of(error) is CONDITIONS[condition].meaning
    assert refusal_of(error).condition == condition
    assert "why" in refusal_of(error).description


def test_a_lost_connection_counts_and_one_that_was_never_open_sent_nothing() -> None:
    for error in (lost("reset"), unreachable("refused"), detached(None)):
        assert meaning_of(error) is FailureMeaning.UNREACHABLE
        assert refusal_of(error).condition == "com.microsoft:timeout"
    assert (outcome_of(lost("reset")), outcome_of(unreachable("x"))) == ("unknown", "failed")


def test_a_detach_for_a_setting_is_no_lost_connection() -> None:
    disabled = Error(condition="com.microsoft:entity-disabled", description="off")
    assert meaning_of(detached(disabled)) is FailureMeaning.DISABLED
    forced = Error(condition="amqp:link:detach-forced", description="idle")
    assert meaning_of(detached(forced)) is FailureMeaning.UNREACHABLE


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
