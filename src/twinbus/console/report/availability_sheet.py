"""`twinbus report availability` in words: how often it failed over, and what that saved. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from twinbus.console.report import charts as report_charts
from twinbus.console.report.sheet import (
    ROWS_SHOWN,
    Figure,
    Sheet,
    Table,
    Tile,
    clock,
    count,
    counted,
    figures,
    read_line,
    rest,
    span,
)
from twinbus.console.terminal.table import visible

if TYPE_CHECKING:
    from twinbus.pipeline.reports.documents import AvailabilityReport, FailoverWindow, Percentiles

__all__ = ["availability_sheet"]


def availability_sheet(report: AvailabilityReport) -> Sheet:
    """The report in words."""
    return Sheet(
        title="Availability",
        headline=_headline(report),
        verdict=report.verdict,
        lines=tuple(_lines(report)),
        tiles=tuple(_tiles(report)),
        tables=tuple(_tables(report)),
        charts=tuple(_charts(report)),
        unknown=report.unknown,
        assumed=report.assumed,
        read=read_line(report.scope),
    )


def _headline(report: AvailabilityReport) -> str:
    failovers = sum(row.failovers for row in report.entities)
    saved = sum(row.sends_saved for row in report.entities)
    raised = sum(row.sends_raised for row in report.entities)
    still = [row.entity for row in report.entities if row.is_failed_over]
    outcome = f"{counted(saved, 'send')} saved, {raised:,} raised"
    if still:
        more = f" and {len(still) - 1:,} more" if len(still) > 1 else ""
        return f"STILL FAILED OVER: {visible(still[0])}{more}; {outcome} so far"
    if not failovers:
        sent = sum(point.to_primary for point in report.sends)
        return f"no failover: {counted(sent, 'send')} to the primary, {raised:,} raised"
    affected = sum(1 for row in report.entities if row.failovers)
    return (
        f"{counted(failovers, 'failover')} of {counted(affected, 'entity', 'entities')}:"
        f" {outcome}; {_back(report)}"
    )


def _back(report: AvailabilityReport) -> str:
    # Nobody saw the end of what ended with its process.
    if any(window.process_ended_ms is not None for window in report.windows):
        return "none is failed over now"
    return "all are back"


def _lines(report: AvailabilityReport) -> Iterator[str]:
    if report.detect is not None:
        yield f"time to detect (first failure to failover): {_spread(report.detect)}"
    if report.recover is not None:
        yield f"time failed over (failover to return): {_spread(report.recover)}"
    deepest = report.deepest
    if deepest is not None and deepest.depth:
        yield f"the backlog was deepest at {clock(deepest.at_s * 1000)}: {deepest.depth:,} messages"
    if report.drain_per_s is not None:
        yield (
            f"{counted(report.drained, 'message')} came home in {span(report.drain_ms)} (started"
            f" minutes count whole): at least {report.drain_per_s:,.0f} a second"
        )


def _spread(took: Percentiles) -> str:
    if took.times == 1:
        return span(took.max_ms)
    return (
        f"half within {span(took.p50_ms)}, 95 % within {span(took.p95_ms)}, 99 % within"
        f" {span(took.p99_ms)}, the longest {span(took.max_ms)} ({took.times:,} times)"
    )


def _tiles(report: AvailabilityReport) -> Iterator[Tile]:
    raised = sum(row.sends_raised for row in report.entities)
    yield Tile("failovers", count(sum(row.failovers for row in report.entities)))
    yield Tile("sends saved", count(sum(row.sends_saved for row in report.entities)))
    yield Tile("sends raised", count(raised), is_bad=bool(raised))
    yield Tile("to detect, median", span(report.detect.p50_ms) if report.detect else "–")
    yield Tile("failed over, median", span(report.recover.p50_ms) if report.recover else "–")
    deepest = report.deepest
    yield Tile("deepest backlog", count(deepest.depth if deepest else 0))


def _tables(report: AvailabilityReport) -> Iterator[Table]:
    names = ("entity", "failovers", "failed over", "sends saved", "sends raised", "now")
    shown = report.entities[:ROWS_SHOWN]
    if shown:
        yield Table(
            title="By entity",
            columns=names,
            rows=tuple(
                (
                    visible(row.entity),
                    f"{row.failovers:,}",
                    span(row.failed_over_ms) if row.failovers else "–",
                    f"{row.sends_saved:,}",
                    f"{row.sends_raised:,}",
                    "failed over" if row.is_failed_over else "on the primary",
                )
                for row in shown
            ),
            numbers=figures(*names[1:5], of=names),
            bad=frozenset(place for place, row in enumerate(shown) if row.is_failed_over),
            note=rest(len(shown), len(report.entities), "more entities"),
        )
    if report.windows:
        yield _windows(report)


def _windows(report: AvailabilityReport) -> Table:
    names = ("entity", "from (UTC)", "to", "detected in", "lasted", "saved", "process")
    shown = report.windows[:ROWS_SHOWN]
    total = len(report.windows) + report.windows_left_out
    return Table(
        title="Failovers",
        columns=names,
        rows=tuple(_window(window) for window in shown),
        numbers=figures("detected in", "lasted", "saved", of=names),
        bad=frozenset(place for place, window in enumerate(shown) if window.ended_ms is None),
        note=rest(len(shown), total),
    )


def _window(window: FailoverWindow) -> tuple[str, ...]:
    return (
        visible(window.entity),
        clock(window.failed_over_ms),
        _until(window),
        span(window.detect_ms),
        "–" if window.lasted_ms is None else span(window.lasted_ms),
        count(window.sends_saved),
        visible(window.process),
    )


def _until(window: FailoverWindow) -> str:
    if window.recovered_ms is not None:
        return clock(window.recovered_ms)
    if window.process_ended_ms is not None:
        return f"{clock(window.process_ended_ms)}, process ended"
    return "not yet"


def _charts(report: AvailabilityReport) -> Iterator[Figure]:
    if report.sends or report.backlog:
        yield Figure("Sends and backlog", lambda: report_charts.over_time(report))
