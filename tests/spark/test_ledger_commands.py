"""`twinbus ledger` on the session that is there already: every verb, in text and JSON."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.ledgers import diverted, received, sent
from tests.spark.test_compaction import write
from tests.unit.console.commands import run
from twinbus.console import COULD_NOT
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS, SUMS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KINDS = (BRONZE, JOURNEYS, SUMS)


def test_a_file_system_that_is_not_there_is_one_line(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = run(capsys, "ledger", "update", "nofs://host/ledger")
    assert ran.status == COULD_NOT
    [line] = ran.err.splitlines()
    assert line.startswith("twinbus: nofs://host/ledger/_tables cannot be used: ")


def test_the_commands_from_an_update_to_a_rebuild(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = datetime.now(UTC).date()

    def asked(verb: str, *more: str) -> list[str]:
        ran = run(capsys, "ledger", verb, str(tmp_path), *more)
        assert (ran.status, ran.err) == (0, "")
        return ran.out.splitlines()

    def told(verb: str, *more: str) -> dict[str, Any]:
        [line] = asked(verb, "--output", "json", *more)
        found: dict[str, Any] = json.loads(line)
        return found

    write(tmp_path, "app-0", [sent("a"), received("a", 1), diverted("waits")])
    (tmp_path / "foreign.jsonl").write_text("no record\n")
    place = f"file:{tmp_path}/_tables"
    first, writers, old = asked("status")
    assert first == f"{place}: no tables yet; make a report, or twinbus ledger update LEDGER"
    assert writers == "2 files of 1 writer, 1 of an earlier version"
    assert old.startswith("2 files (app-0.jsonl, foreign.jsonl) of an earlier version of Twinbus")
    assert asked("update") == ["3 records, 1 lines rejected, 1 foreign", "commit 0, batch 0"]
    write(tmp_path, "app-1", [received("a", 2)])
    aside = {"rejected": {"foreign": 1}}
    assert told("rebuild") == {"commit": 0, "batch": 0, "records": 4, **aside}
    write(tmp_path, "app-2", [received("a", 3)])
    assert told("update") == {"commit": 1, "batch": 1, "records": 5, **aside}

    head, commit, titles, *kinds, writers, _ = asked("status")
    assert head == f"{place}: 5 records, 1 lines rejected, 1 foreign"
    assert (commit, titles.split()) == ("commit 1, batch 1", ["files", "size"])
    assert [line.split()[0] for line in kinds] == list(KINDS)
    assert writers == "4 files of 1 writer, 1 of an earlier version"
    *many, gone = asked("compact", "--remove-raw")
    assert many[:2] == [f"{kind}: 2 files -> 1" for kind in (BRONZE, JOURNEYS)]
    assert gone == "files of the ledger removed: 3"
    compacted = {"commit": 4, "batch": 1, "records": 5, **aside}
    again = told("compact")
    after = again.pop("files_after")
    assert again == {**compacted, "files_before": after, "raw_files_removed": None}
    assert (after[BRONZE], after[JOURNEYS]) == (1, 1)
    status = told("status")
    sizes, ledger = status.pop("kinds"), status.pop("ledger")
    assert ledger["gaps"] == []
    assert status == {**compacted, "place": place}
    assert {kind: one["files"] for kind, one in sizes.items()} == after
    assert all(one["bytes"] for one in sizes.values())

    removed, still_open = asked("retain", "--days", "1")
    assert removed.endswith(" on; removed: 5 records and 1 settled journeys")
    assert still_open == "1 older journeys are still open, and stay"
    retained = told("retain", "--days", "1")
    assert date.fromisoformat(retained.pop("first_day_kept")) >= began
    assert retained == {
        **compacted,
        "commit": 6,
        "records": 0,
        "records_removed": 0,
        "journeys_removed": 0,
        "journeys_open": 1,
    }
    # The tables hold the files that were removed, and say from which day on records are there.
    with current_tables(spark, tmp_path) as tables:
        report = conservation_report(tables, ReportRequest(), None)
    assert report.scope.missing == ()
    assert report.scope.records_from is not None
    assert report.scope.records_from >= began
    assert report.assumed[-1].startswith(f"records of before {report.scope.records_from} were")
    assert report.total.accepted == 2
    refused = run(capsys, "ledger", "rebuild", str(tmp_path))
    assert refused.status == COULD_NOT
    assert "they are the only copy of records" in refused.err
