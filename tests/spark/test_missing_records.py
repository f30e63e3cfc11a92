"""Records that are missing or torn: golden reports of an outage, and verdicts that say so."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.kept import write_lines
from tests.spark.ledgers import (
    EPOCH_MS,
    LABEL,
    Line,
    came_out,
    completed,
    diverted,
    forwarded,
    line,
    moved,
    received,
    sent,
)
from twinbus.console.report.sheets import conservation_sheet
from twinbus.cost.arithmetic import CountingRule
from twinbus.cost.prices import standard
from twinbus.ledger import LedgerError, LedgerWriter
from twinbus.ledger.facts import MissingFiles, is_note, missing_files
from twinbus.ledger.record import OPEN_SUFFIX
from twinbus.pipeline.reports.availability import availability_report
from twinbus.pipeline.reports.charges import charges_report
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import (
    DuplicateMessage,
    ReportRequest,
    ReportVerdict,
    Sends,
    Sighting,
)
from twinbus.pipeline.reports.ledger_tables import batch_tables
from twinbus.pipeline.reports.outage import OutageReport, outage_report
from twinbus.pipeline.reports.reconciliation import reconciliation_report
from twinbus.pipeline.store.compaction import remove_raw
from twinbus.pipeline.store.inspection import LedgerFolder
from twinbus.pipeline.store.lake import Snapshot
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.tables.schemas import LEDGER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAY_S = 86_400
SYPHON: list[Line] = [came_out("a", 9), forwarded("a", 9), completed("a", 9)]
UNKNOWN = "not known whether anything is lost: no record of an accepted message was read"
GONE = "records are missing: compact --remove-raw removed 2 files (app-00000.jsonl and others)"


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("*.jsonl")}


def lacking(directory: Path) -> MissingFiles:
    """What a reader of the files does not see."""
    there = [*directory.iterdir()]
    notes = [path.read_text(errors="replace") for path in there if is_note(path.name)]
    return missing_files([path.name for path in there], notes)


@pytest.fixture
def taken(spark: SparkSession, tmp_path: Path) -> TableStore:
    """Tables of two batches, by what they say of themselves: the first took the senders' files."""
    write_lines(tmp_path, "app-00000.jsonl", [sent("b")])
    write_lines(tmp_path, "app-00001.jsonl", [diverted("a")])
    write_lines(tmp_path, "syphon-00000.jsonl", SYPHON)
    store = TableStore(spark, tmp_path / "_tables")
    snapshot = Snapshot()
    for batch, pattern in enumerate(["app-*", "syphon-*"]):
        took = {path.name: "" for path in tmp_path.glob(pattern)}
        snapshot = store.lake.publish(snapshot, Snapshot(batch=batch), {}, took)
    return store


def test_files_that_were_removed_make_the_verdict_unknown(
    spark: SparkSession, tmp_path: Path, taken: TableStore
) -> None:
    removed = remove_raw(taken, str(tmp_path))
    assert removed == ["app-00000.jsonl", "app-00001.jsonl"]
    with batch_tables(spark, tmp_path) as tables:
        report = conservation_report(tables, ReportRequest(), None)
        both_views = reconciliation_report(tables, ReportRequest())
    assert report.verdict is ReportVerdict.UNKNOWN
    assert conservation_sheet(report).headline == UNKNOWN
    assert report.scope.missing == (GONE,)
    for one in (report, both_views):
        assert GONE in one.unknown, one.kind


@pytest.mark.soak  # CI has the same sentence in the two reports above
def test_files_that_were_removed_are_named_in_charges_and_availability(
    spark: SparkSession, tmp_path: Path, taken: TableStore
) -> None:
    remove_raw(taken, str(tmp_path))
    with batch_tables(spark, tmp_path) as tables:
        charged = charges_report(tables, ReportRequest(), standard(), CountingRule())
        available = availability_report(tables, ReportRequest())
    assert GONE in charged.unknown
    assert GONE in available.unknown


def test_the_drills_report_does_not_call_it_conserved(
    spark: SparkSession, tmp_path: Path, taken: TableStore
) -> None:
    remove_raw(taken, str(tmp_path))
    report = outage_report(spark, tmp_path, standard(), [], peeked_ms=EPOCH_MS, ids_max=10)
    assert report.conservation.verdict is ReportVerdict.UNKNOWN
    assert GONE in report.conservation.unknown


@pytest.mark.parametrize("step", ["put", "rename", "mark_raw_removed", "first file", "second file"])
def test_a_removal_that_is_killed_is_noted_before_anything_is_missing(
    tmp_path: Path, taken: TableStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = names(tmp_path)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    remove, put = PlaceFiles.remove, PlaceFiles.put

    def removes(files: PlaceFiles, name: str) -> bool:
        was_there = remove(files, name)
        if step == "first file" or name == "app-00001.jsonl":
            raise KeyboardInterrupt
        return was_there

    def puts_a_draft(files: PlaceFiles, name: str, content: bytes) -> None:
        put(files, f"_{name}", content)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if step.endswith("file"):
            patch.setattr(PlaceFiles, "remove", removes)
        elif step == "mark_raw_removed":
            patch.setattr(TableStore, step, dies)
        else:
            patch.setattr(PlaceFiles, "put", puts_a_draft if step == "rename" else dies)
        with pytest.raises(KeyboardInterrupt):
            remove_raw(taken, str(tmp_path))
    there = names(tmp_path)
    assert before - there == set(lacking(tmp_path).removed)
    # Done again, it ends as if it had never been killed.
    remove_raw(taken, str(tmp_path))
    assert names(tmp_path) == {"syphon-00000.jsonl"}
    found = lacking(tmp_path)
    assert set(found.removed) == {"app-00000.jsonl", "app-00001.jsonl"}
    assert found.unnoted == 0
    remove_raw(taken, str(tmp_path))
    assert sum(is_note(path.name) for path in tmp_path.iterdir()) == 1


def test_a_removal_without_a_readable_note_is_unknown(tmp_path: Path, taken: TableStore) -> None:
    [sentence] = LedgerFolder(tmp_path).inspect({}, removed_unnoted=True).missing
    assert (
        sentence == "records are missing: files of the ledger were removed, and no note says which"
    )
    remove_raw(taken, str(tmp_path))
    assert lacking(tmp_path).unnoted == 0
    [note] = (path for path in tmp_path.iterdir() if is_note(path.name))
    note.write_text(note.read_text()[:-9])
    found = lacking(tmp_path)
    assert (found.unnoted, found.removed) == (1, ())


def test_what_no_sender_recorded_is_unknown(spark: SparkSession, tmp_path: Path) -> None:
    """By days: only the syphon and a consumer; sends that count; forwards of those."""
    lines = [
        *(*SYPHON, received("b")),
        *(sent("c", DAY_S), received("c", DAY_S), diverted("d", DAY_S)),
        *(came_out("d", 2 * DAY_S), forwarded("d", 2 * DAY_S), completed("d", 2 * DAY_S)),
    ]
    write_lines(tmp_path, "p-0.jsonl", lines)
    first_ms = EPOCH_MS - EPOCH_MS % (DAY_S * 1000)
    told = []
    with batch_tables(spark, tmp_path) as tables:
        for day in range(3):
            since_ms = first_ms + day * DAY_S * 1000
            asked = ReportRequest(since_ms=since_ms, until_ms=since_ms + DAY_S * 1000)
            told.append(conservation_report(tables, asked, None))
    [syphon, consumer], [], [cut_off] = (report.incomplete for report in told)
    assert syphon.startswith("1 messages were moved out of the backlog or a twin, and no record")
    assert consumer.startswith("1 messages were received, and no record says")
    assert "operations on messages are in scope, and no record in it says that one was" in cut_off
    for report in (told[0], told[2]):
        assert report.verdict is ReportVerdict.UNKNOWN
        assert conservation_sheet(report).headline == UNKNOWN
        assert report.unknown[: len(report.incomplete)] == report.incomplete
    assert (told[1].total.accepted, told[1].total.delivered) == (2, 2)
    assert told[1].verdict is ReportVerdict.GOOD


def test_a_gap_in_a_writers_files_and_a_torn_line_are_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_lines(tmp_path, "app-00001.jsonl", [sent("a")])
    being_written = tmp_path / f"app-00002.jsonl{OPEN_SUFFIX}"
    being_written.write_text('{"v":1,"at_m')
    with batch_tables(spark, tmp_path) as tables:
        [sentence] = tables.inspected.missing
        assert tables.rejected == {}
    assert sentence.startswith("records are missing: the ledger lacks 1 file (app-00000.jsonl)")
    write_lines(tmp_path, "app-00000.jsonl", [sent("b")])
    being_written.rename(tmp_path / "app-00002.jsonl")
    with batch_tables(spark, tmp_path) as tables:
        assert tables.inspected.missing == ()
        # Nobody is writing it any more.
        assert tables.rejected == {"torn": 1}
        assert tables.every_record().columns == LEDGER.fieldNames()


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
    first = {"at_s": SECOND, "to_primary": 1, "to_backlog": 0, "to_twin": 0}
    assert shown["sends"][0] == first
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
