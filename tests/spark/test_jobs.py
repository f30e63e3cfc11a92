"""From files to a report: golden ledgers on disk, with what a crash leaves in them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.ledgers import (
    EPOCH_MS,
    Line,
    came_out,
    completed,
    diverted,
    line,
    moved,
    received,
    sent,
)
from twinbus.cost import CountingRule, standard
from twinbus.ledger import LedgerError, LedgerWriter
from twinbus.pipeline.jobs import IDS_MAX, tables
from twinbus.pipeline.report import Depth, Duplicate, Sends, Sighting, StateChange

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SECOND = EPOCH_MS // 1000


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
    directory = written(tmp_path / "ledger", outage())
    report = tables(spark, directory, standard(), snapshot=[])
    assert report.conserved
    assert (report.accepted, report.delivered, report.received) == (4, 4, 4)
    assert (report.waiting, report.dead_lettered, report.expired, report.lost) == (0, 0, 0, 0)
    assert (report.not_received, report.not_received_ids, report.undecided) == (0, (), 0)
    assert (report.diverted, report.ambiguous, report.raised) == (2, 1, 1)
    assert report.duplicates == 1
    assert report.duplicate_windows == {"ambiguous": 1}
    assert report.duplicate_ids == (Duplicate("orders", "c", 2, "ambiguous"),)
    assert report.operations_by_cause == {
        "application": 3,
        "consumer": 5,
        "failover": 2,
        "ping": 1,
        "poll": 1,
        "syphon": 6,
    }
    bill = report.bill
    # 18 calls, of which two only settle; $0.80 a million.
    assert (bill.units, bill.settlement_units, bill.settlement_counted) == (16, 2, False)
    assert (bill.amount, bill.amount_past_free) == (Decimal(0), Decimal("0.0000128"))
    assert (bill.bytes_in, bill.bytes_out) == (3 * 100 + 2 * 150 + 2 * 100, 2 * 150 + 5 * 100)
    assert (bill.currency, bill.egress_amount) == ("USD", None)
    assert report.states == (
        StateChange(EPOCH_MS + 1_500, "orders", "failed over", "test"),
        StateChange(EPOCH_MS + 3_000, "orders", "healthy", "test"),
    )
    assert (report.drain_began_ms, report.drain_ended_ms) == (EPOCH_MS + 5_000, EPOCH_MS + 6_000)
    assert (report.forwarded, report.bucket_s) == (2, 1)
    assert report.sends == (Sends(SECOND, 1, 0), Sends(SECOND + 1, 1, 0), Sends(SECOND + 2, 0, 2))
    assert report.backlog == (Depth(SECOND + 2, 2), Depth(SECOND + 5, 1), Depth(SECOND + 6, 0))
    assert (report.records, report.set_aside, report.unrecorded) == (22, 0, 0)
    assert report.unknown == ()
    shown = json.loads(json.dumps(report.as_json()))
    assert shown["lost"] == 0
    assert shown["bill"]["amount_past_free"] == "0.0000128"
    assert shown["sends"][0] == {"at_s": SECOND, "to_primary": 1, "to_backlog": 0}


def test_lost_messages_are_named_up_to_a_bound(spark: SparkSession, tmp_path: Path) -> None:
    lost = [f"{number:04}" for number in range(IDS_MAX + 5)]
    lines = [
        *[sent("a"), received("a"), diverted("stays", 1), diverted("poison", 1)],
        *(act(name, 2) for name in lost for act in (diverted, came_out, completed)),
    ]
    seen = [Sighting("orders", "stays", "waiting"), Sighting("orders", "poison", "dead_lettered")]
    rule = CountingRule(count_settlement=True)
    report = tables(spark, written(tmp_path, lines), standard(), snapshot=seen, rule=rule)
    assert not report.conserved
    assert (report.accepted, report.delivered) == (108, 1)
    assert (report.waiting, report.dead_lettered) == (1, 1)
    assert (report.lost, report.lost_ids) == (105, tuple(lost[:IDS_MAX]))
    assert (report.not_received, len(report.not_received_ids)) == (107, IDS_MAX)
    assert report.expired is None
    assert report.duplicates == 0
    assert [text.split(":")[0] for text in report.unknown] == ["expired"]
    assert (report.bill.units, report.bill.settlement_units) == (4 + 3 * 105, 105)


def test_without_a_peek_or_a_consumer_the_unknown_is_not_zero(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = [sent("a", size_bytes=65_537), diverted("b"), sent("c", entity=None)]
    report = tables(spark, written(tmp_path, lines), standard())
    assert not report.conserved
    assert (report.lost, report.lost_at_least, report.undecided) == (None, 0, 1)
    assert (report.waiting, report.dead_lettered, report.expired) == (None, None, None)
    assert (report.received, report.not_received) == (None, None)
    assert len(report.unknown) == 4
    assert "1 diverted messages wait or are lost" in report.unknown[1]
    assert "1 accepted messages have no id or no entity" in report.unknown[3]
    # The receive of "a" is assumed, in two units, and is no recorded operation.
    assert [tuple(charge) for charge in report.charges] == [
        ("application", "send", False, 2, 3),
        ("consumer", "receive", True, 1, 2),
        ("failover", "divert", False, 1, 1),
    ]
    assert report.operations_by_cause == {"application": 2, "failover": 1}
    assert report.bill.units == 6
    assert report.assumed[1:] == ("one receive for each delivered message",)


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
    report = tables(spark, directory, standard(), snapshot=[])
    assert (report.records, report.set_aside, report.accepted) == (4, 6, 2)
    assert (report.unrecorded, report.states) == (7, ())
    assert sum(report.operations_by_cause.values()) == 2
    assert [text.split(" ", 1)[0] for text in report.unknown] == ["received,", "7", "6"]
    assert any(text.startswith("1 records of the broker") for text in report.assumed)


def test_no_ledger_is_one_clear_line(spark: SparkSession, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(LedgerError, match="there is no ledger at"):
            tables(spark, place, standard())
