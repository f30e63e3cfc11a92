"""What this process makes of a small ledger without Spark is what Spark makes of it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from pyspark.sql import functions as F

from tests.spark.kept import write_lines
from tests.spark.ledgers import EPOCH_MS, Line
from tests.spark.test_proof import PLANTED, any_ledger
from twinbus.cost.arithmetic import CountingRule
from twinbus.cost.prices import standard
from twinbus.pipeline import functions
from twinbus.pipeline.functions import NeedsSpark, in_this_process
from twinbus.pipeline.here.hashing import xxhash64_of
from twinbus.pipeline.reports import ledger_tables
from twinbus.pipeline.reports.availability import availability_report
from twinbus.pipeline.reports.charges import charges_report
from twinbus.pipeline.reports.conservation import (
    BacklogSnapshot,
    awaited_messages,
    conservation_report,
)
from twinbus.pipeline.reports.documents import ReportRequest, Sighting
from twinbus.pipeline.reports.ledger_tables import LedgerTables, batch_tables
from twinbus.pipeline.reports.outage import OutageReport, outage_report
from twinbus.pipeline.reports.reconciliation import reconciliation_report
from twinbus.pipeline.spark.few_rows import few_rows
from twinbus.pipeline.spark.session import session_for_few
from twinbus.pipeline.store import store as table_store
from twinbus.pipeline.store import stream
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.tables.schemas import DAY_MS, SIGHTINGS, day_of, schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SEEN = [
    {"destination": "Orders", "message_id": f"{number}-ä\u2028{seed}", "place": place}
    for seed in (3, 4)
    for number, place in enumerate(["waiting", "dead_lettered"] * 40)
]
REQUESTS = [
    ReportRequest(),
    ReportRequest(entity="Orders", since_ms=EPOCH_MS + 200_000, until_ms=EPOCH_MS + 6_000_000),
]


def reports_of(
    tables: LedgerTables, spark: SparkSession | None, requests: Sequence[ReportRequest] = REQUESTS
) -> list[Any]:
    sightings = [{**one, "primary_label": "contoso"} for one in SEEN]
    seen = few_rows(spark, SIGHTINGS, sightings).frame
    labels = frozenset({"contoso"})
    peeks = [
        None,
        BacklogSnapshot(seen, EPOCH_MS + 9_000_000, labels),
        BacklogSnapshot(seen, EPOCH_MS + 5_000_000, awaited=awaited_messages(tables)),
    ]
    return [
        report
        for request in requests
        for report in (
            *(conservation_report(tables, request, peek) for peek in peeks),
            availability_report(tables, request),
            charges_report(tables, request, standard(), CountingRule()),
            reconciliation_report(tables, request),
        )
    ]


def outage_lines() -> list[Line]:
    """Two processes that fail over, one of which is killed, beside the rest."""
    state: Mapping[str, Any] = {"entity": "orders", "pair": "contoso+east", "operation": "state"}
    return [
        {**any_ledger(5, 1)[0], **state, "view": "client", "process": process, "state": name,
         "at_ms": EPOCH_MS + at_s * 1000, "error": "no success for 60 s", "message_id": None}
        for process, steps in {
            "a": [(100, "suspect"), (160, "failed over"), (400, "healthy"), (500, "suspect"),
                  (560, "failed over"), (900, "closed")],
            "b": [(110, "suspect"), (170, "failed over"), (380, "healthy"), (390, "unusable")],
        }.items()
        for at_s, name in steps
    ]  # fmt: skip


@pytest.mark.parametrize("seed", [3, *(pytest.param(n, marks=pytest.mark.soak) for n in (6, 7))])
def test_every_report_of_any_ledger_is_the_same_without_spark(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    lines = [*any_ledger(seed, 400), *outage_lines()]
    write_lines(tmp_path, "p-0.jsonl", lines[::2])
    write_lines(tmp_path, "p-1.jsonl.open", lines[1::2])
    with in_this_process(), batch_tables(None, tmp_path) as tables:
        here = reports_of(tables, None)
    with batch_tables(spark, tmp_path) as tables:
        by_spark = reports_of(tables, spark)
    for one, other in zip(here, by_spark, strict=True):
        assert one == other
    assert any(report.kind == "availability" and report.windows for report in here)
    assert any(report.kind == "reconciliation" and report.differences for report in here)


def test_tables_that_grow_are_the_same_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    lines = any_ledger(4, 200)
    ledgers = {None: tmp_path / "here", spark: tmp_path / "spark"}
    by_spark = mock.patch.object(stream, "few_batch", return_value=None)
    for batch in range(2):
        for session, ledger in ledgers.items():
            write_lines(ledger, f"p-{batch}.jsonl", lines[batch::3])
            with by_spark if session else in_this_process():
                stream.update(session, ledger)
        # Each goes on with the tables that the other one wrote.
        ledgers = dict(zip(ledgers, reversed(ledgers.values()), strict=True))
    found = []
    for session, ledger in ledgers.items():
        write_lines(ledger, "q-9.jsonl.open", lines[2::3])
        with (
            nullcontext() if session else in_this_process(),
            current_tables(session, ledger) as tables,
        ):
            found.append(reports_of(tables, session, REQUESTS[:1]))
    for here, other in zip(*found, strict=True):
        scope = replace(here.scope, ledger=other.scope.ledger)
        assert replace(here, scope=scope) == other


def test_the_count_of_a_drill_is_the_same_without_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_lines(tmp_path, "p-0.jsonl", [*PLANTED, *outage_lines()])
    seen = [Sighting("orders", "7", "waiting", primary_label="contoso")]

    def count(session: SparkSession | None) -> OutageReport:
        told = {"peeked_ms": EPOCH_MS + 10**9, "ids_max": 5}
        return outage_report(session, tmp_path, standard(), seen, **told)

    with in_this_process():
        here = count(None)
    assert here == count(spark)
    assert here.conservation.total.lost
    assert here.not_received_ids


def test_columns_have_the_values_of_spark(spark: SparkSession) -> None:
    numbers, texts, truths = (None, -7, 0, 3, 4096), (None, "", "b/A"), (None, True, False)
    table = [
        {"number": number, "text": text, "truth": truth, "other": other}
        for number in numbers
        for text in texts
        for truth in truths
        for other in truths
    ]

    def made(session: SparkSession | None) -> list[list[Any]]:
        rows = few_rows(
            session, schema("long?: number", "string?: text", "boolean?: truth other"), table
        )
        number, text, truth, other = (functions.col(one) for one in rows.frame.columns)
        in_order = functions.Window.partitionBy("text").orderBy(functions.col("number").desc())
        before = in_order.rowsBetween(functions.Window.unboundedPreceding, -1)
        one = functions.lit(1)
        pair = functions.array(one, number)
        values = {
            "and": truth & other,
            "or": truth | ~other,
            "in": number.isin(3, 0),
            "in_columns": text.isin("", functions.lower("text")),
            "between": number.between(-1, functions.lit(3)),
            "chosen": functions.when(truth, text).when(other, "x").otherwise("y"),
            "open": functions.when(truth | other, number),
            "known": functions.coalesce("text", functions.lit("none")),
            "greatest": functions.greatest("number", functions.lit(1)),
            "least": functions.least("number", functions.lit(1)),
            "floor": functions.floor(number / 1000) * 1000,
            "ceil": functions.ceil(number / 1000),
            "power": functions.pow(functions.lit(2), functions.log2(number)).cast("long"),
            "bits": number.bitwiseAND(one).bitwiseOR(functions.shiftright(number, 2)),
            "upto": functions.substring_index(text, "/", 1),
            "part": functions.regexp_extract(text, "^(b|c)", 1),
            "replaced": functions.regexp_replace(text, "(?i)/a$", ""),
            "like": functions.rlike(text, functions.lit("A$")),
            "contains": functions.contains(text, functions.lit("/")),
            "holds": functions.array_contains(pair, 3),
            "place": functions.array_position(pair, number),
            "but": functions.size(
                functions.array_except(functions.array(one), functions.array(number))
            ),
            "got": functions.get(pair, number.cast("int")),
            "day": day_of(number * DAY_MS),
            "month": functions.date_format(day_of(number * DAY_MS), "yyyy-MM"),
            "peers": functions.sum("number").over(in_order),
            "rows": functions.max("number").over(before),
            "count": functions.count("truth").over(functions.Window.partitionBy("other")),
        }
        frame = rows.frame
        key = functions.coalesce("number", functions.lit(9)).alias("key")
        sums = frame.groupBy(key, "truth").agg(
            functions.count("*").alias("rows"),
            functions.count_if(other).alias("others"),
            functions.count_distinct("text").alias("texts"),
            functions.sum("number").alias("sum"),
            functions.min("text").alias("least"),
            functions.max(functions.struct("number", "text"))["text"].alias("most"),
        )
        right = sums.select(functions.col("key").alias("number"), "truth", "rows")
        frames = [
            frame.select(*(column.alias(name) for name, column in values.items())),
            sums,
            *(frame.join(right, ["number", "truth"], how) for how in ("inner", "left", "full")),
            *(frame.join(right, ["number"], how) for how in ("left_semi", "left_anti")),
            frame.orderBy("number", functions.col("text").desc(), "truth", "other").limit(40),
        ]
        return [[*map(tuple, one.collect())] for one in frames]

    with in_this_process():
        here = made(None)
    for one, other in zip(here, made(session_for_few(spark)), strict=True):
        assert sorted(map(repr, one)) == sorted(map(repr, other))
    assert len(here[0]) == len(table)


def test_texts_have_the_hash_of_spark(spark: SparkSession) -> None:
    texts = ["", "a", "orders", "ä\u2028", *("x" * size + "é" for size in range(70))]
    rows = [(one, other) for one in texts for other in (*texts[:6], None)]
    frame = spark.createDataFrame(rows, "one string, other string")
    found = frame.select(F.xxhash64("one", "other")).collect()
    assert [row[0] for row in found] == [*map(xxhash64_of, rows)]


def test_what_is_too_large_needs_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path, "p-0.jsonl", any_ledger(3, 50))
    with in_this_process():
        with current_tables(None, tmp_path) as tables:
            assert tables.records > 100
        monkeypatch.setattr(table_store, "ROWS_HERE_MAX", 100)
        with current_tables(None, tmp_path) as tables, pytest.raises(NeedsSpark):
            reconciliation_report(tables, ReportRequest())
        monkeypatch.setattr(ledger_tables, "SMALL_BYTES", 100)
        with pytest.raises(NeedsSpark), batch_tables(None, tmp_path):
            pass
        write_lines(tmp_path, "p-1.jsonl", any_ledger(4, 50))
        with pytest.raises(NeedsSpark), current_tables(None, tmp_path):
            pass
