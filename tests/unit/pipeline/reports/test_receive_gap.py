"""Outages from the failovers of processes, and what is said where no consumer kept a ledger."""

from __future__ import annotations

from datetime import date
from unittest import mock

from twinbus.pipeline.reports.documents import AvailabilityReport, FailoverWindow, ReportScope
from twinbus.pipeline.reports.receive_gap import (
    EntityOutage,
    outages_of,
    with_receive_gaps,
    without_receive_gap,
)

LAST_MS = 1_000_000


def window(
    failed_over_ms: int,
    recovered_ms: int | None,
    *,
    entity: str = "orders",
    suspect_ms: int | None = None,
    pair: str = "Contoso+east",
    ended_ms: int | None = None,
) -> FailoverWindow:
    return FailoverWindow(
        entity, pair, "p", suspect_ms, failed_over_ms, recovered_ms, "no success", 0, ended_ms
    )


def test_overlapping_failovers_of_an_entity_are_one_outage() -> None:
    windows = [
        # Two processes; the second noticed it first, and was the last to return.
        window(20, 40, suspect_ms=10),
        window(12, 60, suspect_ms=5),
        window(61, 70),
        window(65, None, ended_ms=80),
        # Of other entities, and of an entity of the same name of another pair.
        window(15, 30, entity="news"),
        window(15, 30, pair="fabrikam+east"),
        # Still failed over.
        window(500, None, suspect_ms=400),
    ]
    assert outages_of(windows, LAST_MS) == [
        EntityOutage("contoso", "news", 15, 30),
        EntityOutage("contoso", "orders", 5, 60),
        EntityOutage("contoso", "orders", 61, 80),
        EntityOutage("contoso", "orders", 400, LAST_MS),
        EntityOutage("fabrikam", "orders", 15, 30),
    ]


def test_every_failover_belongs_to_one_outage() -> None:
    windows = [window(20, 40, suspect_ms=10), window(41, None), window(20, 25, entity="news")]
    outages = outages_of(windows, LAST_MS)
    assert [sum(one.has(each) for one in outages) for each in windows] == [1, 1, 1]


def test_an_outage_whose_records_were_removed_needs_no_query() -> None:
    tables = mock.Mock(records_from=date(2026, 11, 17))
    windows = (window(20, 40),)
    assert with_receive_gaps(tables, windows, LAST_MS) == windows
    tables.journeys.assert_not_called()


def test_a_report_has_the_longest_gap_and_says_which_are_unknown() -> None:
    known = [window(20, 40)._replace(receive_gap_ms=gap) for gap in (0, 7_300, 900)]
    unknown = window(20, 40, entity="news")
    report = AvailabilityReport(
        scope=ReportScope(ledger="l"), windows=(*known, unknown), bucket_s=1, sends=(), backlog=()
    )
    assert report.receive_gap_ms == 7_300
    assert report.as_json()["receive_gap_ms"] == 7_300
    assert report.as_json()["windows"][1]["receive_gap_ms"] == 7_300
    assert [*without_receive_gap(report.windows)] == [
        "the receive gap of news: no consumer of it kept a ledger during the outage"
    ]
    assert not [*without_receive_gap(known)]
