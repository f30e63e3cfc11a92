"""The writer and the reader: groups, rotation, limits, forks, kill -9, and a full disk."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ledger_reading import read
from twinbus.ledger import (
    LedgerError,
    LedgerFindings,
    LedgerWriter,
    LineForm,
    NullLedger,
    open_ledger,
)
from twinbus.ledger.record import encode

NEVER_S = 3_600.0
"""A flush interval that no test lives to see: only `flush` and `close` write."""


def ids(directory: Path) -> list[Any]:
    return [record.get("message_id") for record in read(directory)]


def test_a_record_holds_what_was_given_and_when_and_by_whom(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, process="me", flush_s=NEVER_S) as ledger:
        ledger.record("send", at_ms=12, entity="orders", message_id="a", outcome="ok", error=None)
    assert list(read(tmp_path)) == [
        {
            "v": 1,
            "at_ms": 12,
            "operation": "send",
            "process": "me",
            "entity": "orders",
            "message_id": "a",
            "outcome": "ok",
        }
    ]
    assert [path.name for path in tmp_path.glob("*.jsonl*")] == ["me-00000.jsonl"]


def test_nothing_is_made_before_there_is_something_to_write(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "deep" / "ledger", flush_s=NEVER_S) as ledger:
        assert list(tmp_path.iterdir()) == []
        ledger.record("ping")
        ledger.flush()
        assert len(list(read(tmp_path / "deep" / "ledger"))) == 1


def test_the_time_is_now_where_none_is_given(tmp_path: Path) -> None:
    before_ms = time.time_ns() // 1_000_000
    with LedgerWriter(tmp_path, process="p", flush_s=NEVER_S) as ledger:
        ledger.record("ping")
    assert before_ms <= next(read(tmp_path))["at_ms"] <= time.time_ns() // 1_000_000


def test_the_thread_writes_by_itself(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, flush_s=0.001) as ledger:
        ledger.record("send", message_id="a")
        while not list(tmp_path.glob("*.jsonl.open")) or ids(tmp_path) != ["a"]:
            threading.Event().wait(0.001)
    assert not any(thread.name == "twinbus-ledger" for thread in threading.enumerate())


def test_the_thread_says_that_the_process_lives(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, process="p", flush_s=0.001, heartbeat_s=0.002) as ledger:
        ledger.record("ping")
        path = tmp_path / "p-00000.jsonl.open"
        while not path.exists() or path.read_text().count('"state":"alive"') < 2:
            threading.Event().wait(0.001)
    assert read(tmp_path).findings == LedgerFindings()


def test_a_full_file_is_followed_by_the_next_and_no_record_is_in_two(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, process="p", rotate_bytes=100, flush_s=NEVER_S) as ledger:
        for number in range(10):
            ledger.record("send", message_id=str(number))
            ledger.flush()
    assert ids(tmp_path) == [str(number) for number in range(10)]
    names = sorted(path.name for path in tmp_path.glob("*.jsonl*"))
    # The first line alone is longer than that, so that each file has one record; the last has none.
    assert names == [f"p-000{number:02}.jsonl" for number in range(11)]
    assert read(tmp_path).findings == LedgerFindings()


def test_two_writers_of_one_name_keep_out_of_each_others_files(tmp_path: Path) -> None:
    first, second = (LedgerWriter(tmp_path, process="p", flush_s=NEVER_S) for _ in range(2))
    for ledger, name in ((first, "a"), (second, "b"), (first, "c")):
        ledger.record("send", message_id=name)
        ledger.flush()
    first.close()
    second.close()
    assert ids(tmp_path) == ["a", "c", "b"]
    assert read(tmp_path).findings == LedgerFindings()


def test_records_from_many_threads_all_arrive(tmp_path: Path) -> None:
    def work(name: int) -> None:
        for number in range(2_000):
            ledger.record("send", message_id=f"{name}-{number}")

    with LedgerWriter(tmp_path, flush_s=0.001, rotate_bytes=50_000) as ledger:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = ids(tmp_path)
    assert len(found) == len(set(found)) == 8_000


def test_past_the_buffer_records_are_counted_and_the_ledger_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = LedgerWriter(tmp_path, flush_s=NEVER_S, buffer_max=3)
    with caplog.at_level(logging.WARNING), small as ledger:
        for number in range(5):
            ledger.record("send", message_id=str(number))
        assert ledger.unrecorded == 2
    assert len(caplog.records) == 1
    records = list(read(tmp_path))
    assert [record["operation"] for record in records] == ["state", "send", "send", "send"]
    assert records[0]["unrecorded"] == 2


def test_a_value_of_the_wrong_kind_costs_its_own_record_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LedgerWriter(tmp_path, flush_s=NEVER_S) as ledger:
        ledger.record("send", message_id="a", size_bytes="many")
        ledger.record("send", message_id="b")
    assert ids(tmp_path) == [None, "b"]
    assert ledger.unrecorded == 1
    assert "wrong kind" in caplog.text


def test_a_misspelt_field_or_operation_is_our_own_mistake(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as ledger:
        with pytest.raises(AssertionError, match="messageid"):
            ledger.record("send", messageid="a")
        with pytest.raises(AssertionError, match="sent"):
            ledger.record("sent")


def test_a_closed_writer_takes_no_more_and_close_is_idempotent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = LedgerWriter(tmp_path)
    ledger.record("send", message_id="a")
    ledger.close()
    ledger.close()
    ledger.record("send", message_id="b")
    assert ids(tmp_path) == ["a"]
    assert ledger.unrecorded == 1
    assert caplog.messages == [
        "ledger: 1 records not written (they came after the ledger was closed); sends continue"
    ]


def test_a_forked_child_writes_its_own_file_and_not_its_parents_records(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, flush_s=NEVER_S) as ledger:
        ledger.record("send", message_id="parent")
        child = os.fork()
        if child == 0:
            ledger.record("send", message_id="child")
            ledger.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert sorted(ids(tmp_path)) == ["child", "parent"]
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    assert read(tmp_path).findings == LedgerFindings()


def test_a_directory_that_cannot_be_made_costs_records_and_no_exception(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with LedgerWriter(tmp_path / "file" / "ledger", flush_s=NEVER_S) as ledger:
        ledger.record("send")
        ledger.flush()
        ledger.record("send")
        ledger.flush()
    assert ledger.unrecorded == 2
    assert len(caplog.records) == 1
    assert "Not a directory" in caplog.text


def test_no_ledger_takes_everything_and_keeps_nothing(tmp_path: Path) -> None:
    for nowhere in (None, ""):
        ledger = open_ledger(nowhere)
        assert isinstance(ledger, NullLedger)
        with ledger:
            ledger.record("send", entity="orders")
            ledger.flush()
        assert ledger.unrecorded == 0
    there = open_ledger(tmp_path / "ledger")
    assert isinstance(there, LedgerWriter)
    there.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["_hidden", ".hidden", "a/b", "a:b", "x" * 201])
def test_a_process_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LedgerError, match="process name"):
        LedgerWriter(tmp_path, process=name)


def test_a_url_is_refused_except_that_of_a_directory(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="abfss://lake/ledger is a URL"):
        LedgerWriter("abfss://lake/ledger")
    assert LedgerWriter(f"file://{tmp_path}").directory == tmp_path


FORM = LineForm("send", entity="orders", outcome="ok")


def pairs(*names: str) -> list[tuple[str | None, int | None]]:
    return [(name, 10) for name in names]


def test_messages_of_one_call_are_a_line_each_in_order_with_other_records(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, process="p", flush_s=NEVER_S) as ledger:
        ledger.record("ping", entity="orders")
        ledger.record_messages(FORM, 5, pairs("a", "b"))
        ledger.record_messages(FORM, 6, pairs("c"))
        ledger.record("state", state="suspect")
    records = list(read(tmp_path))
    assert [(one["operation"], one.get("message_id")) for one in records] == [
        ("ping", None),
        ("send", "a"),
        ("send", "b"),
        ("send", "c"),
        ("state", None),
    ]
    assert [one.get("latency_us") for one in records] == [None, 5, 5, 6, None]
    assert {one["process"] for one in records} == {"p"}


def test_deliveries_are_the_lines_that_single_records_are(tmp_path: Path) -> None:
    shared = (("cause", "syphon"), ("entity", "orders"), ("outcome", "ok"), ("error", None))
    rows = [("a", 10, 1, 7), (None, 20, 2, None), ('\u00fc"', 30, 3, 8)]
    with LedgerWriter(tmp_path / "many", process="p", flush_s=NEVER_S) as ledger:
        ledger.record_deliveries("forward", shared, 5, rows)
    with LedgerWriter(tmp_path / "single", process="p", flush_s=NEVER_S) as ledger:
        for message_id, size_bytes, number, latency_us in rows:
            fields = {"message_id": message_id, "size_bytes": size_bytes, "latency_us": latency_us}
            ledger.record("forward", at_ms=5, **dict(shared), sequence_number=number, **fields)
    assert list(read(tmp_path / "many")) == list(read(tmp_path / "single"))


def test_the_buffer_counts_messages_not_calls(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, flush_s=NEVER_S, buffer_max=10) as ledger:
        ledger.record_messages(FORM, 5, pairs(*"abcdef"))
        ledger.record_messages(FORM, 5, pairs(*"ghijk"))
        assert ledger.unrecorded == 5
        ledger.record_messages(FORM, 5, pairs(*"gh"))
        ledger.flush()
        ledger.record_messages(FORM, 5, pairs(*"ijklmnop"))
        assert ledger.unrecorded == 5
    assert [name for name in ids(tmp_path) if name] == [*"abcdefghijklmnop"]


def test_a_message_of_the_wrong_kind_costs_its_call_and_no_other(tmp_path: Path) -> None:
    wrong: Any = [("a", 1), (7, 1)]
    with LedgerWriter(tmp_path, flush_s=NEVER_S) as ledger:
        ledger.record_messages(FORM, 5, wrong)
        ledger.record_messages(FORM, 5, pairs("b"))
    assert ids(tmp_path) == [None, "b"]
    assert ledger.unrecorded == 2


def test_a_forked_child_uses_a_form_under_its_own_name(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, process="parent", flush_s=NEVER_S) as ledger:
        ledger.record_messages(FORM, 5, pairs("a"))
        ledger.flush()
        child = os.fork()
        if child == 0:
            ledger.record_messages(FORM, 5, pairs("b"))
            ledger.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    names = {one["message_id"]: one["process"] for one in read(tmp_path)}
    assert names["a"] == "parent"
    assert names["b"] != "parent"


@pytest.mark.parametrize("message", [("a", 10), (None, 10), ("\u00fc", None), (None, None)])
def test_one_message_is_the_line_that_it_is_among_many(
    tmp_path: Path, message: tuple[str | None, int | None]
) -> None:
    with LedgerWriter(tmp_path, process="p", flush_s=NEVER_S) as ledger:
        ledger.record_message(FORM, 5, message)
        ledger.record_messages(FORM, 5, [message])
    text = re.sub(r'"at_ms":\d+', '"at_ms":1', (tmp_path / "p-00000.jsonl").read_text())
    _begin, first, second, _end = text.splitlines()
    assert first == second


def test_one_message_of_the_wrong_kind_or_past_the_buffer_is_counted(tmp_path: Path) -> None:
    wrong: Any = 7
    with LedgerWriter(tmp_path, flush_s=NEVER_S, buffer_max=2) as ledger:
        for message_id in (wrong, "a", "b"):
            ledger.record_message(FORM, 5, (message_id, 1))
        assert ledger.unrecorded == 1
    assert ids(tmp_path) == [None, "a"]
    assert ledger.unrecorded == 2


WRITER = """
import os, sys
from twinbus.ledger import LedgerWriter
ledger = LedgerWriter(sys.argv[1], flush_s=0.002, rotate_bytes=200_000)
number = 0
while True:
    for _ in range(500):
        ledger.record("send", message_id=str(number), entity="orders", outcome="ok")
        number += 1
    ledger.flush()
    os.write(1, b"%d\\n" % number)
"""

FULL_DISK = """
import resource, sys
from twinbus.ledger import LedgerWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
ledger = LedgerWriter(sys.argv[1], process="p", flush_s=3600)
for number in range(40):
    ledger.record("send", message_id=f"{number:04}")
    ledger.flush()
full = ledger.unrecorded
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.record("send", message_id="after")
ledger.close()
print(full, ledger.unrecorded)
"""


def test_kill_9_leaves_every_flushed_record_readable(tmp_path: Path) -> None:
    for rounds in (1, 7, 23):
        directory = tmp_path / str(rounds)
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        with child, child.stdout:
            flushed = [int(child.stdout.readline()) for _ in range(rounds)][-1]
            child.kill()
        assert child.returncode == -signal.SIGKILL
        reading = read(directory)
        found = [int(record["message_id"]) for record in reading]
        assert found == list(range(len(found)))
        assert len(found) >= flushed
        assert reading.torn <= 1
        assert reading.foreign == 0
        # What is not known is bounded, and nothing else is in doubt.
        findings = reading.findings
        [gap] = findings.gaps
        assert str(child.pid) in gap.process
        assert gap.to_ms is not None
        assert 0 < gap.to_ms - gap.from_ms <= 31_000
        assert replace(findings, gaps=()) == LedgerFindings()


def _record(directory: str) -> None:
    LedgerWriter(directory).record("send", message_id="child")


@pytest.mark.parametrize("package", ["multiprocessing", "billiard"])
def test_a_child_of_a_process_pool_ends_in_order(tmp_path: Path, package: str) -> None:
    context = pytest.importorskip(package).get_context("fork")
    child = context.Process(target=_record, args=(str(tmp_path),))
    child.start()
    child.join()
    reading = read(tmp_path)
    assert [one["message_id"] for one in reading] == ["child"]
    assert reading.findings == LedgerFindings()


def test_a_torn_last_line_is_rejected_and_the_rest_is_read(tmp_path: Path) -> None:
    # The kernel seldom tears a write; here is what it leaves when it does.
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child, child.stdout:
        child.stdout.readline()
        child.kill()
    last = max(tmp_path.glob("*.jsonl*"))
    whole = last.read_bytes()
    # It may have begun a moment ago, and hold no record yet.
    process = last.name.rpartition("-")[0]
    whole = whole[: whole.rfind(b"\n") + 1] + encode(process, 5, "send", {"message_id": "last"})
    last.write_bytes(whole)
    lines = sum(1 for _ in read(tmp_path))
    for cut in range(2, 40):
        last.write_bytes(whole[:-cut])
        reading = read(tmp_path)
        assert sum(1 for _ in reading) == lines - 1
        assert (reading.torn, reading.foreign) == (1, 0)


def test_a_full_disk_costs_records_that_are_counted_and_tears_no_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    # A line has 83 bytes, so that 10 of the 40 fit behind the first into a file of 1,000.
    assert done.stdout.split() == ["30", "30"]
    assert done.stderr.count("\n") == 1
    assert "File too large" in done.stderr
    reading = read(tmp_path)
    records = list(reading)
    assert (reading.torn, reading.foreign) == (0, 0)
    assert [record.get("message_id") for record in records] == [
        *(f"{number:04}" for number in range(10)),
        None,
        "after",
    ]
    assert records[10]["unrecorded"] == 30
