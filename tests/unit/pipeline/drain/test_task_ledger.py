"""The ledger of a Spark task: straight into a directory, or in closed files to a URL."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from twinbus.ledger import LedgerError, read
from twinbus.pipeline.drain import task_ledger as ledgers
from twinbus.pipeline.drain.task_ledger import CarriedLedger, is_url, require_place, task_ledger


def test_a_directory_is_written_to_as_it_is(tmp_path: Path) -> None:
    for place in (str(tmp_path / "one"), f"file://{tmp_path}/two"):
        with task_ledger(place, "spark-1") as ledger:
            ledger.record("complete", message_id="a")
    for name in ("one", "two"):
        assert [path.name for path in (tmp_path / name).glob("*.jsonl*")] == ["spark-1-00000.jsonl"]


def test_a_url_gets_closed_files_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "ledger"
    with CarriedLedger(f"file://{target}", "spark-1", carry_s=0.05) as ledger:
        ledger.record("complete", message_id="a")
        ends = time.monotonic() + 10
        while not list(target.glob("*.jsonl")):
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert [record["message_id"] for record in read(target)] == ["a"]
        for number in range(1_000):
            ledger.record("complete", message_id=str(number))
        staging = ledger._staging
    found = [record["message_id"] for record in read(target)]
    assert sorted(found) == sorted(["a", *map(str, range(1_000))])
    assert not staging.exists()
    assert not list(target.glob("*.draft"))


def test_files_that_the_url_does_not_take_are_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledgers, "LAST_WAIT_S", 0.01)
    (tmp_path / "ledger").write_text("a file where the directory should be")
    with CarriedLedger(f"file://{tmp_path}/ledger", "spark-1") as ledger:
        ledger.record("complete", message_id="a")
    kept = list(ledger._staging.glob("*/*.jsonl"))
    assert [record["message_id"] for record in read(kept[0].parent)] == ["a"]
    assert str(ledger._staging) in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]


def test_a_file_that_is_not_there_whole_is_none_of_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "LAST_WAIT_S", 0.01)
    with CarriedLedger(f"file://{tmp_path}/ledger", "spark-1") as ledger:
        ledger._files = mock.Mock(wraps=ledger._files)
        ledger._files.move.side_effect = OSError("the store is gone")
        ledger.record("complete", message_id="a")
    assert list(tmp_path.glob("ledger/.*"))
    assert list(read(tmp_path / "ledger")) == []
    shutil.rmtree(ledger._staging)


def test_what_is_a_url() -> None:
    assert is_url("hdfs://namenode/ledger")
    assert not is_url("/mnt/ledger")
    assert not is_url("file:///mnt/ledger")


def test_a_url_that_nobody_can_write_to_is_one_line() -> None:
    with pytest.raises(LedgerError, match=r"^tasks cannot write a ledger to ftp://x/y: [^\n]+$"):
        require_place("ftp://x/y")
    require_place("/mnt/ledger")
    require_place(None)


def test_the_names_that_hadoop_gives_s3_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Files:
        @staticmethod
        def from_uri(url: str) -> tuple[Any, str]:
            asked.append(url)
            return object(), "bucket/ledger/"

    monkeypatch.setattr("pyarrow.fs.FileSystem", Files)
    require_place("s3a://bucket/ledger/")
    assert asked == ["s3://bucket/ledger/"]
