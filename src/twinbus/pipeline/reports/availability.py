"""From the gold tables to an `AvailabilityReport`."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.pipeline import functions as F
from twinbus.pipeline.reports.documents import (
    AvailabilityReport,
    BacklogPoint,
    EntityAvailability,
    FailoverWindow,
    Percentiles,
    Sends,
)
from twinbus.pipeline.reports.ledger_tables import (
    by_time,
    lines_of,
    of_entity,
    scope_of,
)
from twinbus.pipeline.reports.receive_gap import with_receive_gaps, without_receive_gap
from twinbus.pipeline.reports.scope import from_sums, unread
from twinbus.pipeline.spark.few_rows import collected
from twinbus.pipeline.spark.kept_rows import kept
from twinbus.pipeline.tables.availability import (
    SILENCE_S,
    backlog_over_time,
    downtimes,
    drained,
    failover_windows,
    percentiles,
    stays,
    traffic,
)
from twinbus.pipeline.tables.journeys import judged, partial_journeys
from twinbus.pipeline.tables.records import LABEL, joined, tallied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, Row

    from twinbus.pipeline.reports.documents import ReportRequest, ReportScope
    from twinbus.pipeline.reports.ledger_tables import LedgerTables

_TABLES: Final = ("lines", "traffic", "states", "diversions", "stays", "raised")

POINTS_MAX: Final = 600
"""Maximum points of a time series. Longer windows get wider buckets."""

FINE_S: Final = (1, 5, 15)
"""Widths of points that are narrower than the buckets of the tables, for short scopes."""

FINE_RECORDS_MAX: Final = 1_000_000
"""Records of a ledger that are read again to draw a short scope by the second."""

_COUNTED: Final = ("failovers", "failed_over_ms", "saved", "raised")

ROWS_MAX: Final = 10_000
"""Maximum entities and failovers in a report."""


def availability_report(tables: LedgerTables, request: ReportRequest) -> AvailabilityReport:
    tables.bring(*_TABLES)
    lines = lines_of(tables, request)
    scope = scope_of(tables, request, lines)
    series = _series(tables, scope, lines.all_records)
    with _kept(tables, request, series) as (windows, points):
        found = collected(
            {
                **_over_time(request, windows, points),
                "took": percentiles(windows),
                "drained": _drained(points, request),
                "entities": _entities(tables, request, scope, windows),
            }
        )
    report = _report(tables, request, scope, series, found)
    took = {row["measure"]: Percentiles(*row[1:]) for row in found["took"]}
    left, drain_s = found["drained"][0]
    entities = [EntityAvailability(*row) for row in found["entities"]]
    return replace(
        report,
        entities=_with_gaps(entities, report.windows),
        detect=took.get("detect"),
        recover=took.get("recover"),
        drained=left,
        drain_ms=drain_s * 1000 if left else None,
        drain_step_s=series.step_s,
    )


def failovers_over_time(
    tables: LedgerTables, request: ReportRequest, scope: ReportScope
) -> AvailabilityReport:
    """The report's failovers, sends and backlog, without its sums and percentiles."""
    tables.bring(*_TABLES)
    series = _kept_series(tables, scope)
    with _kept(tables, request, series) as (windows, points):
        found = collected(_over_time(request, windows, points))
    return _report(tables, request, scope, series, found)


@contextmanager
def _kept(
    tables: LedgerTables, request: ReportRequest, series: _Points
) -> Iterator[tuple[DataFrame, _Points]]:
    """Yield the failovers and the points, computed once."""
    frames = {"windows": _windows(tables, request)}
    if series.is_fine:
        frames |= {"traffic": series.traffic, "stays": series.stays}
    with kept(frames, likely_few=tables.is_small) as there:
        traffic, stays = (there.get(name, getattr(series, name)) for name in ("traffic", "stays"))
        yield there["windows"], series._replace(traffic=traffic, stays=stays)


class _Points(NamedTuple):
    """What is drawn over time, and how wide a point of it is."""

    traffic: DataFrame
    stays: DataFrame
    step_s: int
    """Of the two tables."""
    bucket_s: int
    """Of the report: a multiple of it."""
    is_fine: bool
    """Whether the two tables are not those that the ledger keeps."""


def _series(tables: LedgerTables, scope: ReportScope, records: int) -> _Points:
    """Points by the length of the scope: of the tables, or narrower ones from the records.

    An outage of seconds in buckets of a minute is a triangle that begins before the first failure.
    """
    fits = (one for one in FINE_S if one < tables.bucket_s and _length_s(scope) <= one * POINTS_MAX)
    fine_s = next(fits, None)
    if fine_s is None or records > FINE_RECORDS_MAX or scope.records_from is not None:
        return _kept_series(tables, scope)
    every = tables.every_record()
    # By the second, however wide a point is: the rate of a drain of seconds comes from these too.
    sends = traffic(tallied(every, bucket_s=1), bucket_s=1)
    return _Points(sends, stays(judged(partial_journeys(every)), bucket_s=1), 1, fine_s, True)


def _kept_series(tables: LedgerTables, scope: ReportScope) -> _Points:
    step_s = tables.bucket_s
    bucket_s = step_s * max(1, -(-_length_s(scope) // (step_s * POINTS_MAX)))
    return _Points(tables.table("traffic"), tables.table("stays"), step_s, bucket_s, False)


def _length_s(scope: ReportScope) -> int:
    return ((scope.last_ms or 0) - (scope.first_ms or 0)) // 1000


def _over_time(request: ReportRequest, windows: DataFrame, series: _Points) -> dict[str, DataFrame]:
    named = windows.withColumnRenamed("saved", "sends_saved")
    ordered = named.orderBy("failed_over_ms", "entity", "process", "pair")
    return {
        "windows": ordered.limit(ROWS_MAX),
        "window_count": windows.agg(F.count("*").alias("windows")),
        "sends": _sends(series, request),
        "backlog": _backlog(series, request),
    }


def _report(
    tables: LedgerTables,
    request: ReportRequest,
    scope: ReportScope,
    series: _Points,
    found: Mapping[str, Sequence[Row]],
) -> AvailabilityReport:
    windows = [FailoverWindow(**row.asDict()) for row in found["windows"]]
    backlog = tuple(sorted(BacklogPoint(*row) for row in found["backlog"]))
    # Receives without a send are in no point: they only tell that consumers keep a ledger.
    sends = tuple(sorted(Sends(*row[:-1]) for row in found["sends"] if any(row[1:-1])))
    shown = tuple(windows)
    if any(row["received"] for row in found["sends"]):
        shown = with_receive_gaps(tables, shown, scope.last_ms or 0)
    return AvailabilityReport(
        scope=scope,
        windows=shown,
        windows_left_out=found["window_count"][0]["windows"] - len(shown),
        bucket_s=series.bucket_s,
        sends=sends,
        backlog=backlog,
        unknown=(*_unknown(backlog), *without_receive_gap(shown), *unread(scope)),
        assumed=(*_assumed(tables, request), *from_sums(scope)),
    )


def _windows(tables: LedgerTables, request: ReportRequest) -> DataFrame:
    """The failover windows that overlap the requested one."""
    found = failover_windows(
        of_entity(tables.table("states"), request, "entity"),
        of_entity(tables.table("diversions"), request, "entity"),
        of_entity(tables.table("traffic"), request, "entity"),
        bucket_s=tables.bucket_s,
    )
    if request.since_ms is not None:
        ended = F.coalesce("recovered_ms", "process_ended_ms")
        found = found.where(ended.isNull() | (ended > request.since_ms))
    if request.until_ms is not None:
        found = found.where(F.col("failed_over_ms") < request.until_ms)
    return found


def _entities(
    tables: LedgerTables, request: ReportRequest, scope: ReportScope, windows: DataFrame
) -> DataFrame:
    """Return each entity with its failovers, also those that never failed over."""
    traffic = _in_scope(tables, request, "traffic", "entity").where(F.col("entity") != "")
    keys = [LABEL, "entity"]
    counted = traffic.groupBy(*keys).agg(F.sum(F.col("diverted") + F.col("to_twin")).alias("saved"))
    # A consumer need not say which pair it is of.
    counted = joined(counted, ["entity"], F.col(LABEL) != "")
    saved = counted.groupBy(*keys).agg(F.sum("saved").alias("saved"))
    raised = (
        _in_scope(tables, request, "raised", "destination")
        .groupBy(LABEL, F.col("destination").alias("entity"))
        .agg(F.sum("messages").alias("raised"))
    )
    down = downtimes(
        windows, last_ms=scope.last_ms or 0, since_ms=request.since_ms, until_ms=request.until_ms
    )
    return (
        saved.join(raised, keys, "full")
        .join(down, keys, "full")
        .fillna({"open": False, **dict.fromkeys(_COUNTED, 0)})
        .orderBy(F.col("open").desc(), F.col("failed_over_ms").desc(), "entity", LABEL)
        .select("entity", "failovers", "failed_over_ms", "open", "saved", "raised", LABEL)
        .limit(ROWS_MAX)
    )


def _with_gaps(
    entities: Sequence[EntityAvailability], windows: Sequence[FailoverWindow]
) -> tuple[EntityAvailability, ...]:
    gaps: dict[tuple[str, str], int] = {}
    for window in windows:
        if window.receive_gap_ms is not None:
            key = window.primary_label, window.entity
            gaps[key] = max(window.receive_gap_ms, gaps.get(key, 0))
    return tuple(
        row._replace(receive_gap_ms=gaps.get((row.primary_label, row.entity))) for row in entities
    )


def _in_scope(tables: LedgerTables, request: ReportRequest, name: str, column: str) -> DataFrame:
    return of_entity(by_time(tables.table(name), request, tables.bucket_s), request, column)


def _sends(series: _Points, request: ReportRequest) -> DataFrame:
    """Return the sends over time, and whether consumers recorded receives."""
    at_s = F.floor(F.col("at_s") / series.bucket_s) * series.bucket_s
    counts = ("sent", "diverted", "to_twin", "received")
    return (
        of_entity(by_time(series.traffic, request, series.step_s), request, "entity")
        .groupBy(at_s.alias("at_s"))
        .agg(*(F.sum(name).alias(name) for name in counts))
        .where(sum((F.col(name) for name in counts), F.lit(0)) > 0)
    )


def _backlog(series: _Points, request: ReportRequest) -> DataFrame:
    bucket_s, stayed = series.bucket_s, of_entity(series.stays, request)
    if request.until_ms is not None:
        stayed = stayed.where(F.col("entered_s") * 1000 < request.until_ms)
    if request.since_ms is not None:
        # Messages that left before the window do not matter.
        there = (F.col("left_s") + series.step_s) * 1000 > request.since_ms
        stayed = stayed.where(F.col("left_s").isNull() | there)
    return by_time(backlog_over_time(stayed, bucket_s=bucket_s), request, bucket_s)


def _drained(series: _Points, request: ReportRequest) -> DataFrame:
    """Messages that left the backlog, and the seconds (whole steps) in which they did."""
    left = by_time(of_entity(series.stays, request), request, series.step_s, "left_s")
    return drained(left, bucket_s=series.step_s)


def _unknown(backlog: Sequence[BacklogPoint]) -> Iterator[str]:
    if backlog and backlog[-1].depth:
        yield (
            f"whether all {backlog[-1].depth:,} messages at the end of the backlog's curve are"
            " there: what expired, was lost or came home without a record never leaves it"
            " (`report conservation` tells)"
        )


def _assumed(tables: LedgerTables, request: ReportRequest) -> Iterator[str]:
    if request.since_ms is not None or request.until_ms is not None:
        yield f"sends are kept in steps of {tables.bucket_s} s: a step that is cut counts whole"
    yield (
        "a process that ended while failed over counts up to its last sign; one that was killed up"
        f" to the last record, until the entity takes messages {SILENCE_S // 60} minutes later"
    )
