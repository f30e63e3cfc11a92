"""What counts: every exception of the SDK, by name; a class that is new to us fails a test."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import subprocess
import sys
from typing import Any

import pytest
from azure.core import exceptions as core
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp import error as pyamqp
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from twinbus.options import Verdict, classify
from twinbus.servicebus.failures import CLASSES, CONDITIONS, FailureMeaning, of_error, outcome_of

SDK_VERDICTS = {
    "AutoLockRenewFailed": Verdict.IGNORED,
    "AutoLockRenewTimeout": Verdict.IGNORED,
    "MessageAlreadySettled": Verdict.IGNORED,
    "MessageLockLostError": Verdict.IGNORED,
    "MessageNotFoundError": Verdict.IGNORED,
    "MessageSizeExceededError": Verdict.IGNORED,
    "MessagingEntityAlreadyExistsError": Verdict.IGNORED,
    "MessagingEntityDisabledError": Verdict.IGNORED,
    "MessagingEntityNotFoundError": Verdict.IGNORED,
    "OperationTimeoutError": Verdict.COUNTS,
    "ServiceBusAuthenticationError": Verdict.IGNORED,
    "ServiceBusAuthorizationError": Verdict.IGNORED,
    "ServiceBusCommunicationError": Verdict.COUNTS,
    "ServiceBusConnectionError": Verdict.COUNTS,
    "ServiceBusError": Verdict.COUNTS,
    "ServiceBusQuotaExceededError": Verdict.IGNORED,
    "ServiceBusServerBusyError": Verdict.IGNORED,
    "SessionCannotBeLockedError": Verdict.IGNORED,
    "SessionLockLostError": Verdict.IGNORED,
}


def raised(kind: type[Exception], **details: Any) -> Exception:
    """An exception as the SDK makes it."""
    if kind in (sdk.ServiceBusError, sdk.AutoLockRenewFailed, sdk.AutoLockRenewTimeout):
        return kind("failed", **details)
    return kind(**details)


def sdk_classes() -> list[type[Exception]]:
    return [
        kind
        for kind in vars(sdk).values()
        if isinstance(kind, type)
        and issubclass(kind, Exception)
        and kind.__module__ == sdk.__name__
    ]


def test_every_exception_of_the_sdk_has_a_row_of_its_own() -> None:
    names = {kind.__name__ for kind in sdk_classes()}
    assert names == set(SDK_VERDICTS)
    assert names <= set(CLASSES)


@pytest.mark.parametrize("kind", sdk_classes(), ids=lambda kind: kind.__name__)
def test_each_exception_of_the_sdk_has_its_documented_verdict(kind: type[Exception]) -> None:
    assert classify(raised(kind)) is SDK_VERDICTS[kind.__name__]


def test_every_row_has_a_reason() -> None:
    assert all(row.reason for row in (*CLASSES.values(), *CONDITIONS.values()))


def test_every_condition_that_the_sdk_knows_by_name_is_judged() -> None:
    from azure.servicebus._common import constants

    named = {
        value.decode() for name, value in vars(constants).items() if name.startswith("ERROR_CODE_")
    }
    # These the SDK turns into a class that is about receiving, creating or waiting.
    classed = {
        f"com.microsoft:{word}"
        for word in (
            "session-lock-lost message-lock-lost message-not-found timeout "
            "session-cannot-be-locked entity-already-exists"
        ).split()
    }
    assert named <= set(CONDITIONS) | classed


NO_CONFIGURATION = set(
    """amqp:resource-locked amqp:illegal-state amqp:frame-size-too-small amqp:connection:forced
    amqp:connection:framing-error amqp:connection:redirect amqp:session:window-violation
    amqp:session:errant-link amqp:session:handle-in-use amqp:session:unattached-handle
    amqp:link:detach-forced amqp:link:transfer-limit-exceeded amqp:link:redirect amqp:link:stolen
    amqp:unknown-error amqp:vendor-error amqp:socket-error""".split()
)
"""Conditions without a row, for none of them names a configuration: they count on a connection that
is lost, and do not on the plain error, where they answer what was asked (SPEC 3)."""


def test_every_condition_of_the_sdks_amqp_has_a_row_or_is_known_to_need_none() -> None:
    known = {condition.value.decode() for condition in pyamqp.ErrorCondition}
    assert known - set(CONDITIONS) == NO_CONFIGURATION
    assert not NO_CONFIGURATION & set(CONDITIONS)
    for condition in NO_CONFIGURATION:
        lost = raised(sdk.ServiceBusConnectionError, condition=condition)
        assert of_error(lost) is FailureMeaning.UNREACHABLE
        assert of_error(raised(sdk.ServiceBusError, condition=condition)) is FailureMeaning.OTHER


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (TimeoutError(), FailureMeaning.UNREACHABLE),
        (asyncio.TimeoutError(), FailureMeaning.UNREACHABLE),  # noqa: UP041
        (ConnectionRefusedError(), FailureMeaning.UNREACHABLE),
        (ConnectionResetError(), FailureMeaning.UNREACHABLE),
        (BrokenPipeError(), FailureMeaning.UNREACHABLE),
        (OSError(113, "no route to host"), FailureMeaning.UNREACHABLE),
        (socket.gaierror(-2, "unknown name"), FailureMeaning.UNREACHABLE),
        (ssl.SSLError("handshake"), FailureMeaning.UNREACHABLE),
        (asyncio.IncompleteReadError(b"", 8), FailureMeaning.UNREACHABLE),
        (FileNotFoundError("ca.pem"), FailureMeaning.OTHER),
        (PermissionError("ca.pem"), FailureMeaning.OTHER),
        (core.ServiceRequestError("no way to the token"), FailureMeaning.UNREACHABLE),
        (core.ServiceRequestTimeoutError("no way to the token"), FailureMeaning.UNREACHABLE),
        (core.ServiceResponseError("broke off"), FailureMeaning.UNREACHABLE),
        (core.ServiceResponseTimeoutError("broke off"), FailureMeaning.UNREACHABLE),
        (core.ClientAuthenticationError("expired secret"), FailureMeaning.UNAUTHORIZED),
        (core.HttpResponseError("500"), FailureMeaning.OTHER),
        (core.AzureError("odd"), FailureMeaning.OTHER),
        (TypeError("not a message"), FailureMeaning.MESSAGE),
        (ValueError("closed"), FailureMeaning.MESSAGE),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), FailureMeaning.MESSAGE),
        (KeyError("x"), FailureMeaning.OTHER),
        (asyncio.CancelledError(), FailureMeaning.OTHER),
        (KeyboardInterrupt(), FailureMeaning.OTHER),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_exceptions_are_judged_by_what_they_derive_from(
    error: BaseException, meaning: FailureMeaning
) -> None:
    assert of_error(error) is meaning
    assert (classify(error) is Verdict.COUNTS) is (meaning is FailureMeaning.UNREACHABLE)


@pytest.mark.parametrize(
    ("condition", "meaning"),
    [
        (None, FailureMeaning.UNREACHABLE),
        ("amqp:internal-error", FailureMeaning.UNREACHABLE),
        (b"amqp:internal-error", FailureMeaning.UNREACHABLE),
        (pyamqp.ErrorCondition.InternalError, FailureMeaning.UNREACHABLE),
        (pyamqp.ErrorCondition.ClientError, FailureMeaning.UNREACHABLE),
        ("amqp:not-allowed", FailureMeaning.MESSAGE),
        ("com.microsoft:argument-error", FailureMeaning.MESSAGE),
        ("amqp:not-found", FailureMeaning.NOT_FOUND),
        ("com.microsoft:entity-disabled", FailureMeaning.DISABLED),
        ("amqp:resource-limit-exceeded", FailureMeaning.QUOTA),
        ("com.microsoft:auth-failed", FailureMeaning.UNAUTHORIZED),
        ("com.microsoft:server-busy", FailureMeaning.BUSY),
        ("amqp:link:detach-forced", FailureMeaning.OTHER),
        ("com.microsoft:of-the-future", FailureMeaning.OTHER),
    ],
)
def test_a_plain_error_counts_only_with_internal_error_or_no_condition(
    condition: object, meaning: FailureMeaning
) -> None:
    assert of_error(raised(sdk.ServiceBusError, condition=condition)) is meaning


@pytest.mark.parametrize(
    ("condition", "meaning"),
    [
        ("amqp:link:detach-forced", FailureMeaning.UNREACHABLE),
        ("amqp:socket-error", FailureMeaning.UNREACHABLE),
        ("amqp:connection:forced", FailureMeaning.UNREACHABLE),
        (pyamqp.ErrorCondition.UnknownError, FailureMeaning.UNREACHABLE),
        ("amqp:unauthorized-access", FailureMeaning.UNAUTHORIZED),
        ("com.microsoft:entity-disabled", FailureMeaning.DISABLED),
        ("amqp:not-found", FailureMeaning.NOT_FOUND),
    ],
)
def test_a_detach_counts_unless_its_reason_is_a_configuration(
    condition: object, meaning: FailureMeaning
) -> None:
    assert of_error(raised(sdk.ServiceBusConnectionError, condition=condition)) is meaning


def test_a_condition_does_not_overrule_a_class_that_says_more() -> None:
    not_found = raised(sdk.ServiceBusCommunicationError, condition="amqp:not-found")
    assert of_error(not_found) is FailureMeaning.UNREACHABLE
    busy = raised(sdk.ServiceBusServerBusyError, condition="amqp:internal-error")
    assert of_error(busy) is FailureMeaning.BUSY


@pytest.mark.parametrize(
    ("inside", "meaning"),
    [
        (core.ServiceRequestError("no way to the token"), FailureMeaning.UNREACHABLE),
        (core.ClientAuthenticationError("expired secret"), FailureMeaning.UNAUTHORIZED),
        (TypeError("cannot encode"), FailureMeaning.MESSAGE),
        (AttributeError("a race in the SDK"), FailureMeaning.UNREACHABLE),
        (ConnectionResetError(), FailureMeaning.UNREACHABLE),
    ],
)
def test_a_wrapper_of_the_sdk_is_judged_by_what_it_wraps(
    inside: Exception, meaning: FailureMeaning
) -> None:
    quiet = logging.getLogger("quiet")
    quiet.disabled = True
    wrapper = PyamqpTransport.create_servicebus_exception(quiet, inside)
    assert type(wrapper) is sdk.ServiceBusError
    assert of_error(wrapper) is meaning


def test_exceptions_that_wrap_each_other_for_ever_end() -> None:
    first, second = sdk.ServiceBusError("a"), sdk.ServiceBusError("b")
    first.inner_exception, second.inner_exception = second, first
    assert of_error(first) is FailureMeaning.OTHER


@pytest.mark.parametrize("meaning", list(FailureMeaning))
def test_what_follows_from_each_meaning(meaning: FailureMeaning) -> None:
    word = meaning.name
    assert meaning.counts is (word == "UNREACHABLE")
    assert meaning.retried is (word in {"UNREACHABLE", "BUSY", "STALE"})
    assert meaning.unusable is (word in {"NOT_FOUND", "DISABLED"})
    assert meaning.pulls_queue is (word in {"UNREACHABLE", "NOT_FOUND", "DISABLED", "QUOTA"})


def test_the_option_makes_an_answer_count_that_shows_an_entity_which_takes_no_message() -> None:
    causes = {
        cause: {meaning.name for meaning in FailureMeaning if meaning.diverted_on({cause})}
        for cause in ("disabled", "full", "throttled", "")
    }
    assert causes == {
        "disabled": {"DISABLED"},
        "full": {"QUOTA"},
        "throttled": {"BUSY"},
        "": set(),
    }


def test_classifying_imports_nothing_of_azure() -> None:
    script = (
        "import sys, twinbus.servicebus.failures, twinbus.pairing.core.attempts\n"
        "import twinbus.transfer.sdk, twinbus.transfer.unpacking\n"
        "sys.exit(any(name.split('.')[0] == 'azure' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def refused(status: int, description: bytes | None) -> Exception:
    error: Exception = pyamqp.TokenAuthFailure(status, description)  # type: ignore[no-untyped-call]
    return error


@pytest.mark.parametrize("endpoint", [None, "sb://front.example.net"])
@pytest.mark.parametrize(
    ("wrapped", "meaning"),
    [
        (refused(401, b"expired"), FailureMeaning.UNAUTHORIZED),
        (refused(403, b"no"), FailureMeaning.UNAUTHORIZED),
        (refused(0, None), FailureMeaning.UNAUTHORIZED),
        (refused(404, b"The messaging entity 'x' could not be found"), FailureMeaning.NOT_FOUND),
        (refused(500, b"internal"), FailureMeaning.UNREACHABLE),
        (
            pyamqp.TokenExpired(condition=pyamqp.ErrorCondition.InternalError, description="ended"),
            FailureMeaning.STALE,
        ),
    ],
)
def test_a_token_that_was_not_taken_is_no_outage_whatever_the_sdk_wraps_it_in(
    wrapped: Exception, meaning: FailureMeaning, endpoint: str | None
) -> None:
    error = PyamqpTransport.create_servicebus_exception(
        logging.getLogger("quiet"), wrapped, custom_endpoint_address=endpoint
    )
    assert of_error(error) is meaning


class CredentialUnavailableError(core.ClientAuthenticationError):
    """As azure.identity, which is no dependency, has it."""


def of_a_chain(*attempts: str) -> Exception:
    """What DefaultAzureCredential and ChainedTokenCredential raise: texts, and no cause."""
    tried = "".join(f"\n\t{attempt}" for attempt in attempts)
    text = f"DefaultAzureCredential failed to retrieve a token.\nAttempted credentials:{tried}"
    return core.ClientAuthenticationError(message=text)


def caused(error: Exception, *causes: Exception) -> Exception:
    outer = error
    for cause in causes:
        outer.__cause__ = cause
        outer = cause
    return error


UNAVAILABLE = "EnvironmentCredential: Environment variables are not fully configured."
NO_IMDS = "ManagedIdentityCredential: no response from the IMDS endpoint."
NO_HOST = "ClientSecretCredential: Failed to resolve 'login.microsoftonline.com' ([Errno -3])"
REFUSED = "WorkloadIdentityCredential: Cannot connect to host login.microsoftonline.com:443"
ANSWERED = "ClientSecretCredential: AADSTS7000215: Invalid client secret provided."


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (of_a_chain(UNAVAILABLE, NO_HOST), True),
        (of_a_chain(UNAVAILABLE, NO_IMDS, REFUSED), True),
        (of_a_chain(UNAVAILABLE, NO_IMDS), False),
        (of_a_chain(NO_HOST, ANSWERED), False),
        (caused(CredentialUnavailableError("none"), core.ServiceRequestError("down")), True),
        (
            caused(
                core.ClientAuthenticationError("none"),
                CredentialUnavailableError("none"),
                ConnectionResetError("reset"),
            ),
            True,
        ),
        (caused(CredentialUnavailableError("none"), ValueError("no tenant")), False),
        (CredentialUnavailableError("no such file"), False),
        (core.ClientAuthenticationError("AADSTS700016: not found in the directory"), False),
    ],
    ids=range(9),
)
def test_a_credential_that_could_not_reach_the_token_service_counts(
    error: Exception, counts: bool
) -> None:
    # As it comes from the credential, and as the SDK wraps it.
    wrapped = sdk.ServiceBusError("Handler failed", error=error)
    for each in (error, wrapped):
        assert of_error(each).counts is counts
        assert of_error(each).retried is counts


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (sdk.OperationTimeoutError(), "unknown"),
        (TimeoutError(), "unknown"),
        (asyncio.CancelledError(), "unknown"),
        (
            sdk.ServiceBusConnectionError(message="Connection lost in a send"),
            "unknown",
        ),
        (ConnectionResetError(), "unknown"),
        (
            sdk.ServiceBusConnectionError(message="Failed to initiate the connection due to"),
            "failed",
        ),
        (ConnectionRefusedError(), "failed"),
        (sdk.ServiceBusServerBusyError(), "failed"),
        (sdk.MessageSizeExceededError(), "failed"),
    ],
    ids=lambda value: type(value).__name__ if value is None or value != str(value) else value,
)
def test_only_an_answer_or_no_connection_at_all_is_a_failure(
    error: BaseException | None, outcome: str
) -> None:
    assert outcome_of(error) == outcome
