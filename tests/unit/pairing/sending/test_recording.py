"""What the ledger says of an attempt: carried out, refused, or nobody knows."""

from __future__ import annotations

from asyncio import CancelledError

import pytest
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)

from twinbus.pairing.sending.recording import outcome_of


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (OperationTimeoutError(), "unknown"),
        (TimeoutError(), "unknown"),
        (CancelledError(), "unknown"),
        (ServiceBusConnectionError(message="Connection lost in the middle of a send"), "unknown"),
        (ConnectionResetError(), "unknown"),
        (
            ServiceBusConnectionError(message="Failed to initiate the connection due to exception"),
            "failed",
        ),
        (ConnectionRefusedError(), "failed"),
        (ServiceBusServerBusyError(), "failed"),
        (MessageSizeExceededError(), "failed"),
    ],
    ids=lambda value: type(value).__name__ if value is None or value != str(value) else value,
)
def test_only_an_answer_or_no_connection_at_all_is_a_failure(
    error: BaseException | None, outcome: str
) -> None:
    assert outcome_of(error) == outcome
