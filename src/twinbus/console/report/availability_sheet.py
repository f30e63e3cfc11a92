"""`twinbus report availability`: how often it failed over, and what that saved. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from twinbus.console.report.scope_text import closing_sections, entity_names
from twinbus.console.sheet.sheet import Figure, Sheet, Table, Tile, clock, span, table
from twinbus.console.sheet.svg import WIDTH
from twinbus.console.sheet.timeline import Band, Bar, Marker, Timeline, timeline
from twinbus.console.terminal.table import cell, counted, visible
from twinbus.pipeline.reports.documents import AvailabilityReport, FailoverWindow, Percentiles

LABEL_LENGTH: Final = 28
"""Letters of an entity's name in the label of a marker."""
MARKED_WINDOWS_MAX: Final = 4
"""With more failovers than these the chart has bands and no labels."""


def availability_sheet(report: AvailabilityReport) -> Sheet:
    """The content of the report."""
    return Sheet(
        title="availability report",
        headline=_headline(report),
        verdict=report.verdict,
        lines=tuple(_lines(report)),
        tiles=tuple(_tiles(report)),
        tables=tuple(_tables(report)),
        charts=(
            (Figure("Sends and backlog", lambda width: over_time(report, width)),)
            if report.sends or report.backlog
            else ()
        ),
        sections=closing_sections(report),
    )


def _headline(report: AvailabilityReport) -> str:
    failovers = sum(row.failovers for row in report.entities)
    saved = sum(row.sends_saved for row in report.entities)
    raised = sum(row.sends_raised for row in report.entities)
    name = entity_names(report.entities)
    still = [name(row) for row in report.entities if row.is_failed_over]
    outcome = f"{counted(saved, 'send')} saved, {raised:,} raised"
    if still:
        more = f" and {len(still) - 1:,} more" if len(still) > 1 else ""
        return f"STILL FAILED OVER: {visible(still[0])}{more}; {outcome} so far"
    if not failovers:
        sent = sum(point.to_primary for point in report.sends)
        return f"no failover: {counted(sent, 'send')} to the primary, {raised:,} raised"
    affected = sum(1 for row in report.entities if row.failovers)
    # The ledger does not show the recovery of what ended with its process.
    is_cut = any(window.process_ended_ms is not None for window in report.windows)
    return (
        f"{counted(failovers, 'failover')} of {counted(affected, 'entity', 'entities')}:"
        f" {outcome}; {'none is failed over now' if is_cut else 'all are back'}"
    )


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
            f" {'seconds' if report.drain_step_s == 1 else 'minutes'} count whole): at least"
            f" {report.drain_per_s:,.0f} a second"
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
    yield Tile("failovers", cell(sum(row.failovers for row in report.entities)))
    yield Tile("sends saved", cell(sum(row.sends_saved for row in report.entities)))
    yield Tile("sends raised", cell(raised), is_bad=bool(raised))
    yield Tile("to detect, median", span(report.detect.p50_ms) if report.detect else "–")
    yield Tile("failed over, median", span(report.recover.p50_ms) if report.recover else "–")
    deepest = report.deepest
    yield Tile("deepest backlog", cell(deepest.depth if deepest else 0))


def _tables(report: AvailabilityReport) -> Iterator[Table]:
    name = entity_names(report.entities)
    if report.entities:
        yield table(
            "By entity",
            ("entity", ">failovers", ">failed over", ">sends saved", ">sends raised", "now"),
            report.entities,
            lambda row: (
                name(row),
                row.failovers,
                span(row.failed_over_ms) if row.failovers else "–",
                row.sends_saved,
                row.sends_raised,
                "failed over" if row.is_failed_over else "on the primary",
            ),
            is_bad=lambda row: row.is_failed_over,
            more="more entities",
        )
    if report.windows:
        yield table(
            "Failovers",
            ("entity", "from (UTC)", "to", ">detected in", ">lasted", ">saved", "process"),
            report.windows,
            lambda window: (
                name(window),
                clock(window.failed_over_ms),
                _until(window),
                span(window.detect_ms),
                "–" if window.lasted_ms is None else span(window.lasted_ms),
                window.sends_saved,
                window.process,
            ),
            is_bad=lambda window: window.ended_ms is None,
            total=len(report.windows) + report.windows_left_out,
        )


def _until(window: FailoverWindow) -> str:
    if window.recovered_ms is not None:
        return clock(window.recovered_ms)
    if window.process_ended_ms is not None:
        return f"{clock(window.process_ended_ms)}, process ended"
    return "not yet"


def over_time(report: AvailabilityReport, width: int = WIDTH) -> str:
    """Sends, depth of the backlog and its age on one clock, with the failovers as bands."""
    bucket_s, name = report.bucket_s, entity_names(report.entities or report.windows)
    starts = [*(point.at_s for point in report.sends), *(point.at_s for point in report.backlog)]
    origin_s = min(starts)
    until_s = max(starts) + bucket_s - origin_s

    def after(at_ms: int) -> float:
        return at_ms / 1000 - origin_s

    bands = [
        Band(
            after(window.failed_over_ms),
            until_s if window.ended_ms is None else after(window.ended_ms),
            f"{visible(name(window))} failed over",
        )
        for window in report.windows
    ]
    return timeline(
        Timeline(
            bucket_s=bucket_s,
            bars=[
                Bar(point.at_s - origin_s, point.to_primary, point.to_backlog)
                for point in report.sends
            ],
            depth=[(point.at_s + bucket_s - origin_s, point.depth) for point in report.backlog],
            bands=_merged(bands),
            markers=_markers(report, after) if len(report.windows) <= MARKED_WINDOWS_MAX else [],
            until_s=float(until_s),
            origin_s=origin_s,
            ages=[
                (point.at_s + bucket_s - origin_s, point.oldest_age_s or 0)
                for point in report.backlog
            ]
            if any(point.oldest_age_s is not None for point in report.backlog)
            else [],
            width=width,
        )
    )


def _markers(report: AvailabilityReport, after: Callable[[int], float]) -> list[Marker]:
    marks: list[Marker] = []
    name_of = entity_names(report.entities or report.windows)
    for window in report.windows:
        name = visible(name_of(window))[:LABEL_LENGTH]
        marks.append(Marker(after(window.failed_over_ms), f"{name} failed over"))
        if window.recovered_ms is not None:
            marks.append(Marker(after(window.recovered_ms), f"{name} back"))
    return sorted(marks, key=lambda mark: mark.at_s)


def _merged(bands: Sequence[Band]) -> list[Band]:
    """Bands that overlap as one: their shades would add up."""
    merged: list[Band] = []
    for band in sorted(bands, key=lambda band: band.from_s):
        if merged and band.from_s <= merged[-1].to_s:
            last = merged.pop()
            label = last.label if last.label == band.label else "several entities failed over"
            merged.append(Band(last.from_s, max(last.to_s, band.to_s), label))
        else:
            merged.append(band)
    return merged
