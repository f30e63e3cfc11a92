"""The ledger in real processes: kill -9 while writing, and a disk that fills up."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.ledger_reading import read
from twinbus.ledger import LedgerFindings, LedgerWriter
from twinbus.ledger.record import encode

if TYPE_CHECKING:
    from pathlib import Path

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
