"""One warning for each outage of a side, and one line when it is over."""

from __future__ import annotations

import logging

import pytest

from twinbus.syphon.relay.bookkeeping import SAME_OUTAGE_S, OutageLog

QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(10)]


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
