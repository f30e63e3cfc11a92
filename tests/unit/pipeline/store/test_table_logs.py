"""Logs that are carried to a place which delta-rs does not open: the rules are the same."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable

from tests.unit.pipeline.store import test_lake
from tests.unit.pipeline.store.lake_writer import add, both, ids_at, lake_at, write_file
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.spark import classic, hadoop
from twinbus.pipeline.store import lake, place_files
from twinbus.pipeline.store.lake import CommitConflict, Snapshot, TableChange
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.table_logs import CarriedLogs, TableLogs


class Disk:
    """A place that takes files as the file systems of `hadoop` do."""

    def __init__(self, place: str) -> None:
        self._place = Path(place)

    def add(self, name: str, content: bytes) -> None:
        draft = self._place / f"{name}.draft"
        draft.write_bytes(content)
        try:
            os.link(draft, self._place / name)
        finally:
            draft.unlink()


@pytest.fixture(autouse=True)
def carried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Directories are places that delta-rs does not open: it gets copies of logs only."""

    def logs_at(place: str) -> TableLogs:
        Path(place).mkdir(parents=True, exist_ok=True)
        for table in ("records", "sums", "sets"):
            Path(place, table, "_delta_log").mkdir(parents=True, exist_ok=True)
        return CarriedLogs(place, Disk(place))

    monkeypatch.setattr(place_files, "_opened", test_lake.as_url)
    monkeypatch.setattr(lake, "logs_at", logs_at)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    add(tmp_path, Snapshot(), "0-a", ["1", "2"])
    return tmp_path


SAME: list[Any] = [
    test_lake.test_tables_are_what_the_newest_set_names,
    test_lake.test_versions_that_no_set_names_are_undone_by_the_next_batch,
    test_lake.test_of_two_that_commit_at_once_one_wins,
    test_lake.test_what_another_has_replaced_is_not_replaced_again,
    test_lake.test_what_was_removed_can_go_at_once,
    pytest.param(test_lake.test_old_log_entries_go_when_no_set_needs_them, marks=pytest.mark.soak),
    test_lake.test_streams_skip_a_change_that_keeps_all_rows,
]


@pytest.mark.parametrize("test", SAME)
def test_the_rules_are_those_of_tables_that_delta_rs_opens(
    test: Callable[..., None], place: Path
) -> None:
    test(place)


def test_both_ways_take_turns_at_the_same_tables(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = lake_at(place)
    with monkeypatch.context() as patch:
        patch.setattr(lake, "logs_at", TableLogs)
        direct = add(place, lake_at(place).latest(), "1-a", ["3"])
    assert carried.latest() == direct
    carried_again = add(place, direct, "2-a", ["4"])
    monkeypatch.setattr(lake, "logs_at", TableLogs)
    assert lake_at(place).latest() == carried_again
    found = DeltaTable(str(place / "sets")).metadata()
    assert found.configuration["delta.enableDeletionVectors"] == "false"
    assert ids_at(place) == both("1", "2", "3", "4")
    assert carried.find("records", carried.latest(), "id", "4") == [{"id": "4"}]


def test_a_commit_that_comes_second_leaves_the_place_as_it_was(place: Path) -> None:
    """The other is faster between the look at the log and the commit."""
    slow, before = lake_at(place), lake_at(place).latest()
    write = CarriedLogs.written

    def overtaken(logs: CarriedLogs, table: str) -> None:
        with mock.patch.object(CarriedLogs, "written", write):
            add(place, before, "1-a", ["3"])
        write(logs, table)

    mine = write_file(place, "records", "1-b", ["4"])
    with mock.patch.object(CarriedLogs, "written", overtaken), pytest.raises(CommitConflict):
        slow.publish(before, before, {"records": TableChange([mine])})
    assert ids_at(place) == both("1", "2", "3")
    assert slow.latest() == lake_at(place).latest()
    add(place, slow.latest(), "2-a", ["5"])
    assert ids_at(place) == both("1", "2", "3", "5")


@pytest.mark.soak  # above a second, with the next one
def test_two_that_commit_beside_each_other_lose_and_double_nothing(place: Path) -> None:
    def work(name: str) -> None:
        for number in range(4):
            for attempt in range(1000):
                try:
                    part = f"{name}-{number}-{attempt}"
                    add(place, lake_at(place).latest(), part, [f"{name}{number}"])
                    break
                except CommitConflict:
                    time.sleep(0.01)

    threads = [threading.Thread(target=work, args=(name,)) for name in "xy"]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert ids_at(place) == both(
        "1", "2", *(f"{name}{number}" for name in "xy" for number in range(4))
    )
    assert lake_at(place).latest().number == 8


@pytest.mark.soak
def test_a_sweep_removes_what_no_set_of_the_last_day_names(tmp_path: Path) -> None:
    before_s = time.time() - 3 * test_lake.DAY_S

    def replace_records(before: Snapshot, part: str) -> Snapshot:
        new, old = write_file(tmp_path, "records", part, ["1"]), lake_at(tmp_path).files
        change = TableChange([new], old("records", before))
        return lake_at(tmp_path).publish(before, before, {"records": change})

    with mock.patch.object(time, "time", return_value=before_s):
        first = replace_records(add(tmp_path, Snapshot(), "0-a", ["1"]), "0-b")
    for part in ("remains", "killed/_temporary/0"):
        write_file(tmp_path, "records", part, ["9"])
    for path in tmp_path.rglob("*.parquet"):
        os.utime(path, (before_s, before_s))
    last = replace_records(first, "0-c")
    write_file(tmp_path, "records", "being-written", ["9"])
    lake_at(tmp_path).sweep()
    # 0-a was replaced days ago; 0-b is named by the set that was current until now.
    left = {path.relative_to(tmp_path).parts[1] for path in tmp_path.glob("records/**/0.parquet")}
    assert left == {"0-b", "0-c", "being-written"}
    assert (ids_at(tmp_path, first), ids_at(tmp_path)) == (both("1"), both("1"))
    add(tmp_path, last, "1-a", ["3"])
    assert ids_at(tmp_path) == both("1", "3")


def test_a_place_that_only_spark_reaches_needs_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(classic, "running_session", lambda: None)
    with pytest.raises(LedgerError, match="only Spark reaches viewfs://, and this process has no"):
        PlaceFiles("viewfs://lake/ledger")
    for variables in ({}, {"AZURE_STORAGE_ACCOUNT_KEY": "x"}):
        with mock.patch.dict(os.environ, variables):
            assert hadoop.hadoop_files("abfss://c@a.dfs.core.windows.net/x") is None
    assert hadoop.hadoop_files("s3a://bucket/x") is None
    assert hadoop.hadoop_files("/a/directory") is None


def test_a_hadoop_that_cannot_read_refusals_is_told_in_one_line() -> None:
    lacked = "org.apache.hadoop.shaded.org.glassfish.jersey.internal.RuntimeDelegateImpl"
    refusal = Exception(
        ": java.io.IOException: host:1: Unexpected HTTP response: code=404 != 200, op=LISTSTATUS\n"
        f"Caused by: java.lang.RuntimeException: java.lang.ClassNotFoundException: {lacked}"
    )
    bridge = mock.MagicMock()
    files = bridge.jvm.org.apache.hadoop.fs.Path.return_value.getFileSystem.return_value
    files.getFileStatus.side_effect = refusal
    found = hadoop.HadoopFiles(bridge, None, "webhdfs://host:1/ledger")
    with pytest.raises(OSError, match=r"cannot read WebHDFS's refusals.*: use hdfs://"):
        found.get_file_info(["_tables"])
