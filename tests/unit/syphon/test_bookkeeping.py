"""What a relay writes: sizes to the ledger, and to the log one warning for each outage."""

from __future__ import annotations

import logging

import pytest

from twinbus.syphon.bookkeeping import SAME_OUTAGE_S, Bookkeeper, OutageLog
from twinbus.syphon.core.actions import Complete
from twinbus.transfer.unpacking import BacklogMessage

QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(10)]


class Sizes:
    def __init__(self) -> None:
        self.by_operation: dict[str, object] = {}

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        self.by_operation[operation] = fields["size_bytes"]


def test_a_forward_has_the_size_of_what_was_sent_and_a_settlement_none() -> None:
    ledger = Sizes()
    books = Bookkeeper(ledger, "contoso", "second", "queue")
    message = BacklogMessage(b"token", 751)
    message.path, message.wire = "orders", b"x" * 519
    books.received([message], 0)
    books.forwarded([message], 1.0, 0)
    message.outcome = Complete
    books.settled([message])
    assert ledger.by_operation == {"backlog_receive": 751, "forward": 519, "complete": 0}
    books.not_forwarded(message, "no answer", is_known=False)
    assert ledger.by_operation["forward"] == 519


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "twinbus.syphon")
    return caplog


def levels(lines: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in lines.records]


def lose(outages: OutageLog, at: float, *, tries: int = 5, side: str = "primary") -> None:
    for attempt in range(tries):
        for queue in QUEUES:
            outages.lost(side, queue, "refused", at + attempt)


def test_an_outage_is_one_warning_and_its_end_one_line(lines: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    for began in (0.0, 10.0):
        lose(outages, began)
        for queue in QUEUES:
            outages.back("primary", queue, began + 8.0)
    assert levels(lines) == ["WARNING"] * 4
    assert lines.messages[1] == "the primary is back after 8 s"


def test_a_long_outage_is_not_warned_of_again(lines: pytest.LogCaptureFixture) -> None:
    outages = OutageLog()
    lose(outages, 0.0, tries=round(5 * SAME_OUTAGE_S))
    assert levels(lines) == ["WARNING"]


def test_the_sides_are_apart_and_a_later_loss_beside_a_lasting_one_is_told(
    lines: pytest.LogCaptureFixture,
) -> None:
    outages = OutageLog()
    outages.lost("secondary", "a queue that is disabled", "disabled", 0.0)
    outages.lost("primary", QUEUES[0], "refused", 1.0)
    lose(outages, SAME_OUTAGE_S + 1, side="secondary")
    assert levels(lines) == ["WARNING"] * 3
