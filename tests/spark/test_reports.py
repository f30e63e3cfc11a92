"""Reports of a ledger whose every figure is known, over real Spark."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import outage_story as story
from tests.spark.kept import jobs_at_most
from twinbus.cost import prices
from twinbus.cost.arithmetic import CountingRule
from twinbus.ledger.record import encode
from twinbus.pipeline.reports import ledger_tables
from twinbus.pipeline.reports.availability import availability_report
from twinbus.pipeline.reports.charges import charges_report
from twinbus.pipeline.reports.conservation import BacklogSnapshot, conservation_report
from twinbus.pipeline.reports.documents import (
    Agreement,
    Balance,
    EntityAvailability,
    EntityUnits,
    FailoverWindow,
    NamedMessage,
    Percentiles,
    ReportRequest,
    ReportVerdict,
)
from twinbus.pipeline.reports.ledger_tables import (
    BatchTables,
    UnknownEntityError,
    batch_tables,
    require_entity,
)
from twinbus.pipeline.reports.reconciliation import reconciliation_report
from twinbus.pipeline.spark import few_rows
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.tables.schemas import SIGHTINGS
from twinbus.servicebus.names import board_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BEGAN_MS = story.BEGAN_S * 1000
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return story.write_story(tmp_path_factory.mktemp("story"))


@pytest.fixture(scope="module")
def tables(spark: SparkSession, ledger: Path) -> Iterator[BatchTables]:
    made = BatchTables(spark, ledger)
    yield made
    made.close()


def accepted_ms(message_id: str) -> int:
    return BEGAN_MS + int(message_id.removeprefix("o-")) * 1000


def test_conservation_by_entity_and_id(spark: SparkSession, tables: BatchTables) -> None:
    with jobs_at_most(spark, 3):
        report = conservation_report(tables, ReportRequest(), None)
    delivered = story.ORDERS_SENT + story.ORDERS_DIVERTED - 4
    orders = Balance(
        "orders",
        delivered + 4,
        delivered,
        None,
        1,
        None,
        None,
        2,
        None,
        None,
        story.RAISED,
        "contoso",
    )
    payments = Balance("payments", 90, 90, 0, 0, 0, 0, 0, None, None, 0, "contoso")
    assert report.entities == (orders, payments)
    assert report.total == orders._replace(
        entity="", accepted=delivered + 94, delivered=delivered + 90, primary_label=""
    )
    assert report.verdict is ReportVerdict.BAD
    assert report.messages == (
        NamedMessage("orders", "o-700", "lost", accepted_ms("o-700"), "contoso"),
        NamedMessage("orders", "o-701", "dead_lettered", accepted_ms("o-701"), "contoso"),
        NamedMessage("orders", "o-703", "undecided", accepted_ms("o-703"), "contoso"),
        NamedMessage("orders", "o-704", "undecided", accepted_ms("o-704"), "contoso"),
    )
    # Forwarded at second 1621: those diverted before second 1021 were older than ten minutes.
    assert [(aged.entity, aged.messages) for aged in report.aged] == [("orders", 1_021 - 660 - 4)]
    assert report.scope.records == len(list(story.story()))
    assert report.scope.rejected == {"torn": 1}


def test_a_look_decides_but_not_over_what_is_younger_than_itself(
    spark: SparkSession, tables: BatchTables
) -> None:
    seen = [
        ("Orders", "o-703", "waiting", "contoso"),
        ("orders", "of another time", "waiting", "contoso"),
    ]
    look = BacklogSnapshot(spark.createDataFrame(seen, SIGHTINGS), BEGAN_MS + 708_000)
    report = conservation_report(tables, ReportRequest(), look, ids_max=3)
    assert (report.total.waiting, report.total.undecided) == (1, 1)
    assert (report.total.lost, report.lost_at_least) == (None, 1)
    fates = [(message.message_id, message.fate) for message in report.messages]
    assert fates == [("o-700", "lost"), ("o-701", "dead_lettered"), ("o-704", "undecided")]
    assert report.messages_left_out == 1


@pytest.mark.soak
def test_a_look_that_is_late_enough_calls_lost_what_it_did_not_see(
    spark: SparkSession, tables: BatchTables
) -> None:
    look = BacklogSnapshot(spark.createDataFrame([], SIGHTINGS), BEGAN_MS + 10_000_000)
    report = conservation_report(tables, ReportRequest(), look)
    assert (report.total.lost, report.total.waiting, report.total.undecided) == (3, 0, 0)


def test_a_look_overrules_the_broker_that_says_it_waits(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines: list[bytes] = []
    for second, name in ((0, "old"), (100, "young")):
        told = {"message_id": name, "outcome": "ok", "pair": "contoso+east"}
        divert = {**told, "entity": "orders", "cause": "failover"}
        stored = {**told, "entity": story.BACKLOG, "view": "broker"}
        at_ms = BEGAN_MS + second * 1000
        lines += [encode("p", at_ms, "divert", divert), encode("b", at_ms, "send", stored)]
    # Put back among the waiting during the look, which passed it by.
    for second, operation in ((0, "divert"), (0, "send"), (1, "dead_letter"), (101, "send")):
        told = {"message_id": "replayed", "outcome": "ok", "pair": "contoso+east"}
        where = {"entity": story.BACKLOG, "view": "broker"}
        fields = {"entity": "orders"} if operation == "divert" else where
        lines.append(encode("b", BEGAN_MS + second * 1000, operation, {**told, **fields}))
    (tmp_path / "p-000001.jsonl").write_bytes(b"".join(lines))
    with batch_tables(spark, tmp_path) as tables:
        told_by_broker = conservation_report(tables, ReportRequest(), None)
        look = BacklogSnapshot(spark.createDataFrame([], SIGHTINGS), BEGAN_MS + 102_000)
        report = conservation_report(tables, ReportRequest(), look)
    assert (told_by_broker.total.waiting, told_by_broker.verdict) == (3, ReportVerdict.GOOD)
    assert (report.lost_at_least, report.total.waiting) == (1, 2)
    assert report.verdict is ReportVerdict.BAD
    assert report.messages[0] == NamedMessage("orders", "old", "lost", BEGAN_MS, "contoso")


def test_nothing_lost_is_not_known_of_a_ledger_with_holes(
    spark: SparkSession, tmp_path: Path
) -> None:
    told = {"entity": "orders", "message_id": "a", "cause": "application", "outcome": "ok"}
    lines = [
        encode("p", BEGAN_MS, "send", told),
        encode("p", BEGAN_MS, "send", {**told, "message_id": None}),
        encode("p", BEGAN_MS, "state", {"state": "unrecorded", "unrecorded": 7}),
        b'{"v":99,"at_ms":1,"operation":"send","process":"p"}\nno line of ours\n{"v":1,"at_ms":17',
    ]
    (tmp_path / "p-000001.jsonl").write_bytes(b"".join(lines))
    with batch_tables(spark, tmp_path) as tables:
        report = conservation_report(tables, ReportRequest(), None)
    assert (report.total.delivered, report.total.lost) == (1, 0)
    assert (report.nameless, report.scope.unrecorded) == (1, 7)
    assert report.scope.rejected == {"torn": 1, "newer": 1, "foreign": 1}
    assert report.verdict is ReportVerdict.UNKNOWN


def test_availability_has_the_failover_and_the_backlog(
    spark: SparkSession, tables: BatchTables
) -> None:
    with jobs_at_most(spark, 3):
        report = availability_report(tables, ReportRequest())
    at_ms = BEGAN_MS
    assert report.windows == (
        FailoverWindow(
            "orders", "contoso", "web-1", at_ms + 600_000, at_ms + 660_000, at_ms + 1_500_000,
            "no success", 840,
        ),
    )  # fmt: skip
    assert report.entities == (
        EntityAvailability("orders", 1, 840_000, False, 840, 3, "contoso"),
        EntityAvailability("payments", 0, 0, False, 0, 0, "contoso"),
    )
    assert report.detect == Percentiles(1, 60_000, 60_000, 60_000, 60_000)
    assert report.recover == Percentiles(1, 840_000, 840_000, 840_000, 840_000)
    assert report.deepest is not None
    assert (report.deepest.depth, report.drained, report.drain_ms) == (840, 838, 2_000)
    assert report.backlog[-1].depth == 2
    assert report.unknown[0].startswith("whether all 2 messages at the end of the backlog's curve")
    # Half an hour: by 5 seconds.
    assert report.bucket_s == 5
    first_minute = [point for point in report.sends if point.at_s < story.BEGAN_S + 60]
    assert (len(first_minute), sum(point.to_primary for point in first_minute)) == (12, 66)
    assert sum(point.to_backlog for point in report.sends) == 840
    assert report.verdict is ReportVerdict.GOOD


def test_a_failover_counts_as_far_as_it_is_inside_the_window(tables: BatchTables) -> None:
    asked = ReportRequest(since_ms=BEGAN_MS + 1_000_000, until_ms=BEGAN_MS + 1_200_000)
    report = availability_report(tables, asked)
    assert [row[:3] for row in report.entities] == [("orders", 1, 200_000)]
    # The failover itself is told as it was.
    assert [window.lasted_ms for window in report.windows] == [840_000]


@pytest.mark.soak
def test_a_window_and_an_entity_leave_the_rest_out(tables: BatchTables) -> None:
    asked = ReportRequest(since_ms=BEGAN_MS + 1_500_000, entity="Payments")
    report = availability_report(tables, asked)
    assert report.windows == ()
    assert report.entities == (EntityAvailability("payments", 0, 0, False, 0, 0, "contoso"),)
    assert sum(point.to_primary for point in report.sends) == 30
    elsewhere = conservation_report(tables, ReportRequest(until_ms=BEGAN_MS), None)
    assert (elsewhere.total.accepted, elsewhere.entities, elsewhere.scope.records) == (0, (), 0)
    # Nothing was read: that is no proof.
    assert (elsewhere.verdict, elsewhere.incomplete) == (
        ReportVerdict.UNKNOWN,
        ("everything: no record is in scope",),
    )


def test_an_entity_that_never_occurs_is_told_with_those_that_do(tables: BatchTables) -> None:
    with pytest.raises(
        UnknownEntityError, match="no record of the entity 'order'; it has orders and others"
    ):
        require_entity(tables, ReportRequest(entity="order"))


def test_charges_in_units_and_money_with_the_model_beside_them(
    spark: SparkSession, tables: BatchTables
) -> None:
    with jobs_at_most(spark, 3):
        report = charges_report(tables, ReportRequest(), prices.standard(), CountingRule())
    # Payments are of two units each; every delivered message is assumed to be received.
    sends, receives = 900 + 2 * 90, 1_736 + 2 * 90
    # Pings are charged whether or not they were answered.
    moved, pings = 840 + 838 + 837, 14
    assert report.units == sends + receives + moved + 838 + pings
    assert report.bill.units == sends + receives + moved + pings
    assert report.bill.settlement_units == 838
    assert report.bill.amount == 0
    assert report.bill.amount_past_free == Decimal("0.8") * report.bill.units / 1_000_000
    assert [(line.name, line.model, line.fact) for line in report.model] == [
        ("send to the backlog", 836, 840),
        ("receive from the backlog", 836, 838),
        ("send to the primary", 1_736 + 180, sends + 837),
        ("receive from the primary", 1_736 + 180, 1_736 + 180),
    ]
    orders = 900 + 1_736 + moved + 838 + pings
    assert report.by_entity == (
        EntityUnits("orders", orders, orders, "contoso"),
        EntityUnits("payments", 180, 360, "contoso"),
    )
    assert sum(line.units for line in report.lines) == report.units
    standard = [line for line in report.prices if line.tier == "standard"]
    assert [line.meter for line in standard] == ["base charge", "operations", "egress"]


def test_both_views_beside_each_other(spark: SparkSession, tmp_path: Path) -> None:
    def line(view: str | None, operation: str, message_id: str, **fields: str) -> bytes:
        told = {"entity": "orders", "message_id": message_id, "outcome": "ok", "view": view}
        return encode("p", BEGAN_MS, operation, {**told, **fields})

    lines = [
        line(None, "send", "a", cause="application"),
        line(None, "send", "b", cause="application"),
        line(None, "send", "c", cause="application", outcome="unknown"),
        line("broker", "send", "a"),
        line("broker", "send", "c"),
        # Hosts record what they do with the notice board as requests, not as messages.
        line("broker", "send", "post", entity=board_path("contoso")),
    ]
    (tmp_path / "p-000001.jsonl").write_bytes(b"".join(lines))
    both = BatchTables(spark, tmp_path)
    with jobs_at_most(spark, 4):
        report = reconciliation_report(both, ReportRequest())
    both.close()
    assert report.rows == (Agreement("orders", "send", 2, 2, 1, 0, 1),)
    assert [(one.message_id, one.ahead) for one in report.differences] == [("b", 1), ("c", -1)]
    assert (report.unexplained, report.explained) == (1, 1)
    assert report.verdict is ReportVerdict.BAD


def test_views_whose_sums_differ_do_not_agree(spark: SparkSession, tmp_path: Path) -> None:
    told: dict[str, str | None] = {"entity": "orders", "outcome": "ok", "cause": "consumer"}
    ends: list[dict[str, str | None]] = [
        {"message_id": "a"},
        {"message_id": "a", "view": "broker"},
        {"message_id": None, "view": "broker"},
    ]
    lines = [encode("p", BEGAN_MS, "receive", told | one) for one in ends]
    (tmp_path / "p-000001.jsonl").write_bytes(b"".join(lines))
    both = BatchTables(spark, tmp_path)
    report = reconciliation_report(both, ReportRequest())
    both.close()
    assert report.rows == (Agreement("orders", "receive", 1, 2, 0, 0, 0),)
    assert (report.unaccounted, report.verdict) == (1, ReportVerdict.BAD)


@pytest.mark.soak
def test_kept_tables_with_a_tail_tell_the_same(spark: SparkSession, tmp_path: Path) -> None:
    ledger = story.write_story(tmp_path / "ledger", torn=False)
    last = ledger / "web-1-000002.jsonl"
    last.rename(f"{last}.open")
    with current_tables(spark, ledger) as stored, batch_tables(spark, ledger) as batch:
        assert availability_report(stored, ReportRequest()) == availability_report(
            batch, ReportRequest()
        )
        told = conservation_report(stored, ReportRequest(), None)
        assert told == conservation_report(batch, ReportRequest(), None)


@pytest.mark.soak
def test_tables_of_many_rows_stay_in_spark_and_tell_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = story.write_story(tmp_path / "ledger", torn=False)

    def reports() -> list[object]:
        with current_tables(spark, ledger) as stored, batch_tables(spark, ledger) as batch:
            return [
                report
                for tables in (stored, batch)
                for report in (
                    availability_report(tables, ReportRequest()),
                    charges_report(tables, ReportRequest(), prices.standard(), CountingRule()),
                    conservation_report(tables, ReportRequest(), None),
                    reconciliation_report(tables, ReportRequest()),
                )
            ]

    brought = reports()
    monkeypatch.setattr(few_rows, "ROWS_MAX", 1)
    monkeypatch.setattr(ledger_tables, "SMALL_BYTES", 0)
    assert reports() == brought
