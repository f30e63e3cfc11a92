"""Records that are missing make a report say so: no verdict rests on what nobody read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.kept import write_lines
from tests.spark.ledgers import (
    EPOCH_MS,
    Line,
    came_out,
    completed,
    diverted,
    forwarded,
    received,
    sent,
)
from twinbus.console.report.sheets import conservation_sheet
from twinbus.cost.arithmetic import CountingRule
from twinbus.cost.prices import standard
from twinbus.ledger.facts import MissingFiles, is_note, missing_files
from twinbus.ledger.record import OPEN_SUFFIX
from twinbus.pipeline.reports.availability import availability_report
from twinbus.pipeline.reports.charges import charges_report
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest, ReportVerdict
from twinbus.pipeline.reports.ledger_tables import batch_tables
from twinbus.pipeline.reports.outage import outage_report
from twinbus.pipeline.reports.reconciliation import reconciliation_report
from twinbus.pipeline.store.compaction import remove_raw
from twinbus.pipeline.store.inspection import LedgerFolder
from twinbus.pipeline.store.lake import Snapshot
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.tables.schemas import LEDGER

if TYPE_CHECKING:
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
    assert syphon.startswith("1 messages were moved out of the backlog, and no record says")
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
