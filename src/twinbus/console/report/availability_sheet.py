"""`twinbus report availability`: how often it failed over, and what that saved. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from twinbus.console.output import cell
from twinbus.console.report.charges_sheet import closing_sections, entity_names
from twinbus.console.sheet import OutageChart, Sheet, Table, Tile, clock, span, table
from twinbus.pipeline.reports.documents import AvailabilityReport, FailoverWindow, Percentiles
from twinbus.wording import counted, visible

LABEL_LENGTH: Final = 28
"""Letters of an entity's name in the label of a marker."""
MARKED_WINDOWS_MAX: Final = 4
"""With more failovers than these the chart has bands and no labels."""

Band = tuple[float, float | None, str]
"""Beginning and end of a stretch of an outage, and its label; None: it goes on."""
Moment = tuple[float, str]


def availability_sheet(report: AvailabilityReport) -> Sheet:
    return Sheet(
        title="availability report",
        headline=_headline(report),
        verdict=report.verdict,
        lines=tuple(_lines(report)),
        tiles=tuple(_tiles(report)),
        tables=tuple(_tables(report)),
        charts=(_over_time(report),) if report.sends or report.backlog else (),
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
    if report.receive_gap_ms is not None:
        yield (
            "longest receive gap (nothing received although a message was due):"
            f" {span(report.receive_gap_ms)}"
        )
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
    yield Tile("receive gap, longest", _gap(report.receive_gap_ms))
    deepest = report.deepest
    yield Tile("deepest backlog", cell(deepest.depth if deepest else 0))


def _tables(report: AvailabilityReport) -> Iterator[Table]:
    name = entity_names(report.entities)
    yield table(
        "By entity",
        (
            *("entity", ">failovers", ">failed over", ">sends saved", ">sends raised"),
            *(">receive gap", "now"),
        ),
        report.entities,
        lambda row: (
            name(row),
            row.failovers,
            span(row.failed_over_ms) if row.failovers else "–",
            row.sends_saved,
            row.sends_raised,
            _gap(row.receive_gap_ms),
            "failed over" if row.is_failed_over else "on the primary",
        ),
        is_bad=lambda row: row.is_failed_over,
        more="more entities",
    )
    yield table(
        "Failovers",
        (
            *("entity", "from (UTC)", "to", ">detected in", ">lasted", ">saved"),
            *(">receive gap", "process"),
        ),
        report.windows,
        lambda window: (
            name(window),
            clock(window.failed_over_ms),
            _until(window),
            span(window.detect_ms),
            "–" if window.lasted_ms is None else span(window.lasted_ms),
            window.sends_saved,
            _gap(window.receive_gap_ms),
            window.process,
        ),
        is_bad=lambda window: window.ended_ms is None,
        total=len(report.windows) + report.windows_left_out,
    )


def _gap(gap_ms: int | None) -> str:
    return "–" if gap_ms is None else span(gap_ms)


def _until(window: FailoverWindow) -> str:
    if window.recovered_ms is not None:
        return clock(window.recovered_ms)
    if window.process_ended_ms is not None:
        return f"{clock(window.process_ended_ms)}, process ended"
    return "not yet"


def _over_time(report: AvailabilityReport) -> OutageChart:
    """Sends, depth of the backlog and its age on one clock, with the failovers as bands."""
    name_of = entity_names(report.entities or report.windows)
    bands: list[Band] = []
    moments: list[Moment] = []
    for window in report.windows:
        words = f"{visible(name_of(window))} failed over"
        bands.append((window.failed_over_ms, window.ended_ms, words))
        name = visible(name_of(window))[:LABEL_LENGTH]
        moments.append((window.failed_over_ms, f"{name} failed over"))
        if window.recovered_ms is not None:
            moments.append((window.recovered_ms, f"{name} back"))
    shown = moments if len(report.windows) <= MARKED_WINDOWS_MAX else []
    return outage_chart("Sends and backlog", report, "failed over", bands, shown)


def outage_chart(
    title: str,
    report: AvailabilityReport,
    band_name: str,
    bands: Sequence[Band],
    moments: Sequence[Moment],
) -> OutageChart:
    """The chart of an outage, for `outage.js`; bands and moments are in unix milliseconds."""
    bucket_s = report.bucket_s
    starts = [*(point.at_s for point in report.sends), *(point.at_s for point in report.backlog)]
    begins_s = min([*starts, *(at_ms / 1000 for at_ms, _ in moments)])
    ends_s = max([*(at_s + bucket_s for at_s in starts), *(at_ms / 1000 for at_ms, _ in moments)])
    has_ages = any(point.oldest_age_s is not None for point in report.backlog)
    ends = [point.at_s + bucket_s for point in report.backlog]
    return OutageChart(
        title,
        {
            "from": begins_s,
            "to": ends_s,
            "bucket_s": bucket_s,
            "sends": [
                (one.at_s, one.to_primary, one.to_backlog + one.to_twin) for one in report.sends
            ],
            "diverted": _diverted_to(report),
            "depth": [(end, point.depth) for end, point in zip(ends, report.backlog, strict=True)],
            "ages": [
                (end, point.oldest_age_s or 0)
                for end, point in zip(ends, report.backlog, strict=True)
                if has_ages
            ],
            "band": band_name if bands else "",
            "bands": [
                (from_ms / 1000, ends_s if to_ms is None else to_ms / 1000, words)
                for from_ms, to_ms, words in bands
            ],
            "markers": sorted((at_ms / 1000, words) for at_ms, words in moments),
        },
    )


def _diverted_to(report: AvailabilityReport) -> str:
    """Return where diverted messages went, in words."""
    if not any(point.to_twin for point in report.sends):
        return "to the backlog"
    has_backlog = any(point.to_backlog for point in report.sends)
    return "to the backlog or a twin" if has_backlog else "to a twin"
