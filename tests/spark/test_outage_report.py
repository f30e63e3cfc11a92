"""From files to the reports of a drill: golden ledgers, with what a crash leaves in them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.ledgers import (
    EPOCH_MS,
    LABEL,
    Line,
    came_out,
    completed,
    diverted,
    line,
    moved,
    received,
    sent,
)
from twinbus.cost.prices import standard
from twinbus.ledger import LedgerError, LedgerWriter
from twinbus.pipeline.reports.availability import availability_report
from twinbus.pipeline.reports.documents import DuplicateMessage, ReportRequest, Sends, Sighting
from twinbus.pipeline.reports.ledger_tables import batch_tables
from twinbus.pipeline.reports.outage import OutageReport, outage_report

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SECOND = EPOCH_MS // 1000
IDS_MAX = 100


def reported(
    spark: SparkSession, directory: Path, seen: Iterable[Sighting] = (), ids_max: int = IDS_MAX
) -> OutageReport:
    """The reports after a peek an hour later."""
    peeked_ms = EPOCH_MS + 3_600_000
    return outage_report(spark, directory, standard(), seen, peeked_ms=peeked_ms, ids_max=ids_max)


def written(directory: Path, lines: list[Line], name: str = "p-00000.jsonl") -> Path:
    directory.mkdir(exist_ok=True)
    text = "".join(json.dumps(one) + "\n" for one in lines)
    (directory / name).write_text(text)
    return directory


def outage() -> list[Line]:
    """Two messages straight, two by the backlog, one raised; all that was accepted arrives."""
    return [
        line("state", None, 1.5, state="failed over"),
        line("ping", None, 2, cause="ping", side="primary", outcome="failed"),
        line("ping", None, 3, cause="ping", side="primary"),
        line("state", None, 3, state="healthy"),
        *[sent("a", 0), sent("b", 1)],
        # No answer from the primary; the backlog took it, and the primary had it all the same.
        *[sent("c", 1.2, outcome="unknown"), *moved("c", 2, out_s=5)],
        *moved("d", 2.1, out_s=6),
        sent("e", 1.4, outcome="failed"),
        *[received(name, 8) for name in "abccd"],
        line("backlog_receive", None, 9, cause="poll", entity=None),
    ]


def test_an_outage_that_lost_nothing(spark: SparkSession, tmp_path: Path) -> None:
    report = reported(spark, written(tmp_path / "ledger", outage()))
    conservation, total = report.conservation, report.conservation.total
    assert conservation.verdict == "good"
    assert (total.accepted, total.delivered, total.received) == (4, 4, 4)
    assert (total.waiting, total.dead_lettered, total.expired, total.lost) == (0, 0, 0, 0)
    assert (report.not_received_ids, total.undecided, total.raised) == ((), 0, 1)
    assert total.duplicates == 1
    assert conservation.duplicate_windows == {"ambiguous": 1}
    assert conservation.duplicates == (DuplicateMessage("orders", "c", 2, "ambiguous", LABEL),)
    assert (conservation.scope.records, conservation.scope.rejected) == (22, {})
    assert conservation.unknown == ()
    calls: dict[str, int] = {}
    for kind in report.charges.by_kind:
        assert not kind.assumed
        calls[kind.cause] = calls.get(kind.cause, 0) + kind.operations
    assert calls == {
        "application": 3,
        "consumer": 5,
        "failover": 2,
        "ping": 2,
        "poll": 1,
        "syphon": 6,
    }
    bill = report.charges.bill
    # 19 calls, of which two only settle, and a ping that failed; $0.80 a million.
    assert (bill.units, bill.settlement_units, bill.settlement_counted) == (17, 2, False)
    assert (bill.amount, bill.amount_past_free) == (Decimal(0), Decimal("0.0000136"))
    assert (bill.bytes_in, bill.bytes_out) == (3 * 100 + 2 * 150 + 2 * 100, 2 * 150 + 5 * 100)
    assert (bill.currency, bill.egress_amount) == ("USD", None)
    assert (report.drain_began_ms, report.drain_ended_ms) == (EPOCH_MS + 5_000, EPOCH_MS + 6_000)
    assert report.forwarded == 2


def test_the_outage_is_told_by_the_second(spark: SparkSession, tmp_path: Path) -> None:
    ledger = written(tmp_path / "ledger", outage())
    availability = reported(spark, ledger).availability
    (window,) = availability.windows
    assert (window.entity, window.process) == ("orders", "test")
    assert (window.failed_over_ms, window.recovered_ms) == (EPOCH_MS + 1_500, EPOCH_MS + 3_000)
    assert availability.bucket_s == 1
    assert availability.sends == (
        Sends(SECOND, 1, 0), Sends(SECOND + 1, 1, 0), Sends(SECOND + 2, 0, 2),
    )  # fmt: skip
    depth = {point.at_s - SECOND: point.depth for point in availability.backlog}
    assert {at: depth[at] for at in (2, 5, 6)} == {2: 2, 5: 1, 6: 0}
    shown = json.loads(json.dumps(availability.as_json()))
    assert shown["sends"][0] == {"at_s": SECOND, "to_primary": 1, "to_backlog": 0}
    # The tables are kept by the minute, in which the backlog would be deepest before it began.
    with batch_tables(spark, ledger) as tables:
        report = availability_report(tables, ReportRequest())
    assert (tables.bucket_s, report.bucket_s) == (60, 1)
    assert (report.sends, report.backlog) == (availability.sends, availability.backlog)


def test_lost_messages_are_named_up_to_a_bound(spark: SparkSession, tmp_path: Path) -> None:
    lost = [f"{number:04}" for number in range(IDS_MAX + 5)]
    lines = [
        *[sent("a"), received("a"), diverted("stays", 1), diverted("poison", 1)],
        *(act(name, 2) for name in lost for act in (diverted, came_out, completed)),
    ]
    seen = [
        Sighting("orders", "stays", "waiting", LABEL),
        Sighting("orders", "poison", "dead_lettered", LABEL),
    ]
    report = reported(spark, written(tmp_path, lines), seen)
    conservation, total = report.conservation, report.conservation.total
    assert conservation.verdict == "bad"
    assert (total.accepted, total.delivered) == (108, 1)
    assert (total.waiting, total.dead_lettered) == (1, 1)
    assert (total.lost, total.expired, total.duplicates) == (105, None, 0)
    assert [one.message_id for one in conservation.messages] == lost[:IDS_MAX]
    assert conservation.messages_left_out == 7
    assert report.not_received_ids == tuple(lost[:IDS_MAX])
    assert [text.split(":")[0] for text in conservation.unknown] == ["expired"]
    assert report.charges.bill.settlement_units == 105


@pytest.mark.soak  # other tests of tests/spark have this table by table
def test_without_a_consumer_the_unknown_is_not_zero(spark: SparkSession, tmp_path: Path) -> None:
    lines = [sent("a", size_bytes=65_537), diverted("b"), sent("c", entity=None)]
    report = reported(spark, written(tmp_path, lines), [Sighting("orders", "b", "waiting", LABEL)])
    conservation = report.conservation
    assert (conservation.total.waiting, conservation.total.received) == (1, None)
    assert (conservation.verdict, conservation.nameless) == ("unknown", 1)
    assert report.not_received_ids == ("a", "b")
    # The receive of "a" is assumed, in two units, and is no recorded operation.
    assert [tuple(charge) for charge in report.charges.by_kind] == [
        ("application", "send", False, 2, 3),
        ("consumer", "receive", True, 1, 2),
        ("failover", "divert", False, 1, 1),
    ]
    assert report.charges.bill.units == 6


@pytest.mark.soak  # other tests of tests/spark have this table by table
def test_lines_that_are_no_record_of_a_client_are_told_and_not_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    # A name that would be a pattern to Hadoop, were it not escaped.
    directory = tmp_path / "a ledger [1] {x,y}*"
    with LedgerWriter(directory, process="me") as ledger:
        ledger.record("send", entity="orders", message_id="ä\u2028", outcome="ok", at_ms=EPOCH_MS)
    whole = (directory / "me-00000.jsonl").read_bytes()
    other: list[dict[str, Any]] = [
        sent("b"),
        # The broker's own view of the same send.
        sent("b", view="broker"),
        line("state", None, entity=None, state="unrecorded", unrecorded=7),
        {**sent("later version"), "v": 2},
        {**sent("wrong type"), "at_ms": "soon"},
        {"v": 1},
    ]
    written(directory, other, "other.jsonl")
    with (directory / "other.jsonl").open("ab") as file:
        file.write(b"not json\n\xff\xfe\n" + whole[:-7])
    (directory / "notes.txt").write_text("no part of the ledger")
    report = reported(spark, directory)
    scope, total = report.conservation.scope, report.conservation.total
    assert (scope.records, sum(scope.rejected.values()), total.accepted) == (4, 6, 2)
    assert (scope.unrecorded, report.availability.windows) == (7, ())
    assert sum(kind.operations for kind in report.charges.by_kind if not kind.assumed) == 2
    assert [text.split(" ", 1)[0] for text in report.conservation.unknown] == ["received", "7", "6"]


def test_no_ledger_is_one_clear_line(spark: SparkSession, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(LedgerError, match="there is no ledger at"):
            reported(spark, place)
