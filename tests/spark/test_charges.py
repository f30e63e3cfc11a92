"""Lines of a ledger, and the table of charges made of them: by hand, by the model, on the page."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as fn

from tests.spark.ledgers import (
    LABEL,
    assert_rows,
    at_hand,
    diverted,
    fates,
    ledger,
    line,
    moved,
    received,
    sent,
)
from twinbus.console.page.cost import PageCost
from twinbus.cost import arithmetic, prices
from twinbus.cost.arithmetic import SETTLEMENTS, CountingRule
from twinbus.ledger import LedgerError
from twinbus.pipeline.reports.charges import charges_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.reports.ledger_tables import batch_tables
from twinbus.pipeline.reports.values import MonthlySum, bill
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.stream import update
from twinbus.pipeline.tables import charges, schemas
from twinbus.pipeline.tables.bronze import read_ledger, reason, records_of
from twinbus.pipeline.tables.records import tallied

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def charges_of(records: DataFrame) -> DataFrame:
    return charges.charges(tallied(records, bucket_s=60))


DAY, NEXT_DAY = date(2025, 10, 9), date(2025, 10, 10)
KB = 1024
HOUR_MS = 3_600_000
MIDNIGHT_MS = 1_760_054_400_000
"""2025-10-10 00:00:00 UTC."""
POLLED = "polls that found nothing"


def test_a_row_for_each_kind_of_call_with_its_stage_and_direction(spark: SparkSession) -> None:
    contoso: dict[str, Any] = {"namespace": "contoso"}
    records = ledger(
        spark,
        # A late record of yesterday, in the file of today.
        sent("late", 15.2 * 3600, **contoso),
        sent("a", **contoso),
        sent("b", **contoso, size_bytes=64 * KB + 1),
        sent("c", **contoso, outcome="failed"),
        sent("c", **contoso, outcome="unknown"),
        line("ping", None, 1, cause="ping", **contoso),
        line("ping", None, 1, cause="ping", **contoso, outcome="failed"),
        line("forward", "d", 2, cause="syphon", size_bytes=100, **contoso),
        received("a", 3, **contoso, entity="news/subscriptions/s"),
        diverted("d", 1, namespace="east", backlog_queue="contoso/x-servicebus-transfer/3"),
        line("backlog_receive", "d", 2, cause="syphon", size_bytes=150, namespace="east"),
        line("complete", "d", 2, cause="syphon", size_bytes=200 * KB, namespace="east"),
        line("defer", "d", 2, cause="syphon", namespace="east"),
        line("renew", None, 2, cause="syphon", entity=None, backlog_queue="q/3"),
        line("manage", None, 2, cause="administration", entity=None),
        line("backlog_receive", None, 2, cause="poll", entity=None, backlog_queue="q/3"),
        # What the broker saw, of which nothing is charged twice, and what is no call at all.
        sent("d", 1, view="broker", entity="contoso/x-servicebus-transfer/3", cause=None),
        received("d", 1, view="broker", cause=None),
        line("expire", "x", 1, view="broker"),
        line("state", None, state="failed over"),
    )
    poll = ("q/3", "poll", "backlog_receive", "poll", "none", "ok", "client")
    expected = [
        (NEXT_DAY, LABEL, "contoso", "orders", "application", "send", "send_primary", "in", "ok",
         "client", False, 1, 1, 100),
        (DAY, LABEL, "contoso", "orders", "application", "send", "send_primary", "in", "ok",
         "client", False, 2, 3, 100 + 64 * KB + 1),
        (DAY, LABEL, "contoso", "orders", "application", "send", "send_primary", "in", "failed",
         "client", False, 1, 1, 100),
        (DAY, LABEL, "contoso", "orders", "application", "send", "send_primary", "in", "unknown",
         "client", False, 1, 1, 100),
        (DAY, LABEL, "contoso", "orders", "ping", "ping", "ping", "in", "ok",
         "client", False, 1, 1, 0),
        (DAY, LABEL, "contoso", "orders", "ping", "ping", "ping", "in", "failed",
         "client", False, 1, 1, 0),
        (DAY, LABEL, "contoso", "orders", "syphon", "forward", "send_primary", "in", "ok",
         "client", False, 1, 1, 100),
        (DAY, LABEL, "contoso", "news/subscriptions/s", "consumer", "receive", "receive_primary",
         "out", "ok", "client", False, 1, 1, 100),
        (DAY, LABEL, "east", "orders", "failover", "divert", "send_backlog", "in", "ok",
         "client", False, 1, 1, 150),
        (DAY, LABEL, "east", "orders", "syphon", "backlog_receive", "receive_backlog", "out", "ok",
         "client", False, 1, 1, 150),
        # A settlement carries no message, whatever its line says of the message's size.
        (DAY, LABEL, "east", "orders", "syphon", "complete", "settlement", "none", "ok",
         "client", False, 1, 1, 0),
        (DAY, LABEL, "east", "orders", "syphon", "defer", "settlement", "none", "ok",
         "client", False, 1, 1, 0),
        (DAY, LABEL, "", "q/3", "syphon", "renew", "renew", "none", "ok", "client", False, 1, 1, 0),
        (DAY, "", "", "", "administration", "manage", "management", "none", "ok",
         "client", False, 1, 1, 0),
        (DAY, LABEL, "", *poll, False, 1, 1, 0),
        (DAY, LABEL, "", "contoso/x-servicebus-transfer/3", "", "send", "send_backlog", "in", "ok",
         "broker", False, 1, 1, 100),
        (DAY, "", "", "orders", "", "receive", "receive_primary", "out", "ok",
         "broker", False, 1, 1, 100),
    ]  # fmt: skip
    found = charges_of(records)
    assert_rows(found, expected, schemas.CHARGES)
    # A refused call is not charged, one without an answer is, and so is every ping; the broker's
    # view is not the bill.
    assert charges.counted(found).agg(fn.sum("operations")).first() == (15,)


def idle_polls(spark: SparkSession, *, days: int) -> DataFrame:
    """An idle syphon on ten queues: each of them polled for 15 minutes, again and again."""
    polls = spark.range(days * 96).crossJoin(spark.range(10).withColumnRenamed("id", "queue"))
    given = {
        "v": fn.lit(1),
        "at_ms": fn.lit(MIDNIGHT_MS) + fn.col("id") * 900_000,
        "operation": fn.lit("backlog_receive"),
        "process": fn.lit("syphon"),
        "cause": fn.lit("poll"),
        "backlog_queue": fn.concat(fn.lit("contoso/x-servicebus-transfer/"), "queue"),
    }
    return polls.select(
        *(
            given.get(field.name, fn.lit(None)).cast(field.dataType).alias(field.name)
            for field in schemas.LEDGER
        )
    )


def test_an_idle_syphon_is_40_960_and_28800_as_documented(spark: SparkSession) -> None:
    table = charges_of(idle_polls(spark, days=30))
    by_day = {row["day"]: row["n"] for row in _by_day(table)}
    assert set(by_day.values()) == {960}
    assert len(by_day) == 30
    assert sum(by_day.values()) == 28_800
    hour = charges_of(idle_polls(spark, days=1).where(fn.col("at_ms") < MIDNIGHT_MS + HOUR_MS))
    assert hour.agg(fn.sum("units")).first() == (40,)


@pytest.mark.soak  # 40 s of a worker in CI, which has the same month as a table above
def test_the_report_of_an_idle_month_has_the_model_beside_the_fact(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    idle_polls(spark, days=30).coalesce(1).write.json(str(ledger))
    for part in ledger.glob("*.json"):
        part.rename(ledger / "syphon-000001.jsonl")
    rule, book = CountingRule(), prices.standard()
    with batch_tables(spark, ledger) as tables:
        month = charges_report(tables, ReportRequest(), book, rule)
        # Kept by day: the window takes the whole of its first day, the model and the fact alike.
        asked = ReportRequest(since_ms=MIDNIGHT_MS + 28 * 24 * HOUR_MS + 12 * HOUR_MS)
        days = charges_report(tables, asked, book, rule)
    assert [tuple(line)[:3] for line in month.model] == [(POLLED, 28_800, 28_800)]
    assert [tuple(line)[:3] for line in days.model] == [(POLLED, 1_920, 1_920)]
    assert month.scope.first_ms == MIDNIGHT_MS
    assert month.scope.last_ms == MIDNIGHT_MS + (30 * 96 - 1) * 900_000 + 60_000


def test_spark_counts_units_as_the_arithmetic_does(spark: SparkSession) -> None:
    sizes = [0, 1, 64 * KB - 1, 64 * KB, 64 * KB + 1, 96 * KB, 256 * KB, 100 * KB * KB]
    records = ledger(spark, *(sent(str(size), entity=str(size), size_bytes=size) for size in sizes))
    counted = {row["entity"]: row["units"] for row in charges_of(records).collect()}
    assert counted == {str(size): arithmetic.units(size) for size in sizes}


def _by_day(table: DataFrame) -> list[Any]:
    return table.groupBy("day").agg(fn.sum("operations").alias("n")).collect()


def test_the_four_stages_of_a_moved_message_beside_the_model(spark: SparkSession) -> None:
    records = ledger(
        spark,
        *moved("a"),
        *moved("b"),
        sent("direct", size_bytes=65 * KB),
        # Still in the backlog: one stage so far, and no model.
        diverted("waits"),
        # Forwarded twice, which the model does not foresee.
        *moved("twice"),
        line("forward", "twice", 11, cause="syphon", size_bytes=100),
    )
    delivered = at_hand(charges.deliveries(fates(records)))
    table = at_hand(charges_of(records))
    found = charges.beside_model(charges.with_receives(table, delivered), delivered)
    assert Counter(map(tuple, found.collect())) == Counter(
        [
            ("send_backlog", 4, 0, 3),
            ("receive_backlog", 3, 0, 3),
            ("send_primary", 6, 0, 5),
            ("receive_primary", 5, 5, 5),
        ]
    )
    # As the arithmetic without Spark has it.
    assert (
        3 * arithmetic.message_units(150, moved=True) + (arithmetic.message_units(65 * KB))
        == 3 + 3 + 5 + 5
    )


def test_receives_come_from_the_broker_else_from_consumers_else_are_assumed(
    spark: SparkSession,
) -> None:
    records = ledger(
        spark,
        sent("1", entity="seen"),
        received("1", entity="seen", view="broker", cause=None),
        received("1", entity="Seen", view="broker", cause=None),
        received("1", entity="seen"),
        sent("2", entity="told"),
        received("2", entity="told/subscriptions/s"),
        sent("3", entity="silent"),
        sent("4", entity="silent", at_s=15.2 * 3600),
        diverted("5", entity="silent"),
        # In a backlog queue: no consumer's receive.
        received("5", entity="x/x-servicebus-transfer/0", view="broker", cause=None),
    )
    delivered = at_hand(charges.deliveries(fates(records)))
    table = charges.with_receives(at_hand(charges_of(records)), delivered)
    found = {
        (row["day"], row["entity"], row["view"], row["assumed"], row["operations"])
        for row in table.where("operation = 'receive'").collect()
    }
    assert found == {
        (DAY, "seen", "broker", False, 1),
        (DAY, "Seen", "broker", False, 1),
        (DAY, "told/subscriptions/s", "client", False, 1),
        (DAY, "silent", "client", True, 1),
        (NEXT_DAY, "silent", "client", True, 1),
    }


def test_a_month_of_sums_is_priced_by_its_tiers(spark: SparkSession) -> None:
    records = ledger(spark, *moved("a"), sent("b"), sent("c", 40 * 86_400))
    calls = charges.counted(charges_of(records))
    receives = charges.receives_of(charges.deliveries(fates(records)))
    table = at_hand(calls.unionByName(receives))
    sums = [MonthlySum(*row) for row in charges.monthly(table).collect()]
    by_month = {
        month: sum(row.units for row in sums if row.month == month)
        for month in ("2025-10", "2025-11")
    }
    # Four stages and a completion; send and receive of the two others.
    assert by_month == {"2025-10": 4 + 1 + 2, "2025-11": 2}
    free = bill(sums, prices.standard(), CountingRule())
    assert (free.units, free.settlement_units, free.amount) == (8, 1, Decimal(0))
    assert (free.bytes_in, free.bytes_out) == (150 + 100 + 100 + 100, 150 + 150 + 100 + 100)
    assert bill(sums, prices.standard(), CountingRule(count_settlement=True)).units == 9


BOOK = prices.standard()


def write(place: Path, name: str) -> None:
    """Write records of now, of every kind that is charged and of some that are not."""
    now_ms = int(time.time() * 1000)
    made = [
        *(sent(f"{name}-a", size_bytes=70_000), received(f"{name}-a", 1)),
        *(sent(f"{name}-raised", 2, outcome="failed"), *moved(f"{name}-b", 3)),
        line("backlog_receive", cause="poll", size_bytes=200_000),
        line("manage", cause="administration"),
        line("state", entity="orders", state="failed over"),
        line("ping", cause="ping", entity="orders", outcome="unknown"),
    ]
    dated = [{**one, "at_ms": now_ms, "pair": f"{LABEL}+{LABEL}-dr"} for one in made]
    # As the ledger writes them, and whole at once.
    draft = place.with_name(f"_{place.name}")
    draft.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in dated))
    draft.rename(place)


@pytest.mark.soak  # 80 s of a worker in CI
def test_the_page_counts_what_the_report_counts(spark: SparkSession, tmp_path: Path) -> None:
    cost = PageCost(tmp_path, BOOK)
    write(tmp_path / "app-0.jsonl", "first")
    alone = by_cause(cost)
    update(spark, tmp_path)
    assert by_cause(cost) == alone, "the tables count what the file counted"
    write(tmp_path / "app-1.jsonl", "second")
    write(tmp_path / "app-2.jsonl.open", "third")
    # The page asks first: the report takes the ended file into the tables.
    found = by_cause(cost)
    assert found == reported(spark, tmp_path)
    assert found["failover"] == 3
    assert by_cause(cost) == found, "the same after it"
    # The outage counts the pair's own records only.
    since = time.time() - 3_600
    outage = cost.document(LABEL, since, 0)["outage"]
    causes = ("failover", "ping", "syphon")
    assert outage["operations"] == sum(found[cause] for cause in causes)
    assert cost.document("fabrikam", since, 0)["outage"]["operations"] == 0


def by_cause(cost: PageCost) -> Counter[str]:
    month = cost.document(LABEL, None, 0)["month"]
    found = Counter({one["cause"]: one["operations"] for one in month["by_cause"]})
    assert month["operations"] == found.total()
    return found


def reported(spark: SparkSession, ledger: Path) -> Counter[str]:
    """Charged units by cause, without the receives that the report assumes."""
    with current_tables(spark, ledger) as tables:
        report = charges_report(tables, ReportRequest(), BOOK, CountingRule())
    found: Counter[str] = Counter()
    for one in report.by_kind:
        if not one.assumed and one.operation not in SETTLEMENTS:
            found[one.cause] += one.units
    return found


GOOD = [sent("a"), {**sent("b"), "news": "a field of a later minor version"}]

BAD = {
    "torn": [
        *[json.dumps(sent("a"), separators=(",", ":"))[:end] for end in (1, 4, 5, 30, -1)],
        # Cut inside of an id that has a brace.
        '{"v":1,"message_id":"}',
    ],
    "newer": [
        json.dumps({**sent("a"), "v": 2}),
        # In which a field of ours has another type.
        json.dumps({**sent("a"), "v": 3, "at_ms": "soon"}),
    ],
    "foreign": [
        *["not json", '["a"]', '"text"', "7", "{}", '{"v":0}', '{"v":"x"}', "\x00\x01"],
        json.dumps({**sent("a"), "at_ms": "soon"}),
        json.dumps({**sent("a"), "process": None}),
        # Numbers that no sum would survive.
        json.dumps({**sent("a"), "at_ms": -1}),
        json.dumps({**sent("a"), "at_ms": 2**62}),
        # The last moment that has a date: its minute ends in the year 10000.
        json.dumps({**sent("a"), "at_ms": 253_402_300_799_999}),
        json.dumps({**sent("a"), "size_bytes": 2**62}),
        json.dumps({**sent("a"), "size_bytes": -5}),
    ],
}


def test_a_bad_line_costs_itself_and_says_why(spark: SparkSession, tmp_path: Path) -> None:
    bad = [line for lines in BAD.values() for line in lines]
    good = [json.dumps(line) for line in GOOD]
    (tmp_path / "p-0.jsonl").write_text("\n".join([good[0], *bad, good[1], ""]))
    # Still written, by a process that was killed inside of a line.
    (tmp_path / "p-1.jsonl.open").write_text(good[0] + "\n" + good[0][:-9])
    (tmp_path / "p-2.jsonl.other").write_text("not to be read")
    lines = read_ledger(spark, tmp_path).cache()
    found = Counter(row[0] for row in lines.select(reason()).collect())
    assert found == {
        None: 3,
        "torn": len(BAD["torn"]) + 1,
        "newer": len(BAD["newer"]),
        "foreign": len(BAD["foreign"]),
    }
    assert sorted(row["message_id"] for row in records_of(lines).collect()) == ["a", "a", "b"]
    lines.unpersist()


def test_no_ledger_at_a_url_is_one_clear_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger at file:"):
        read_ledger(spark, f"file://{tmp_path}/nowhere")
