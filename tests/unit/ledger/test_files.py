"""How files are begun, named, ended by size, age and close, and what bounds them together."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.ledger_reading import read
from twinbus.ledger import LedgerError, LedgerFindings, LedgerWriter, adopt, files, open_file
from twinbus.ledger.open_file import OpenFile

if TYPE_CHECKING:
    from pathlib import Path

NEVER_S = 3_600.0
LINE_BYTES = 80
"""Of a line with a message id of one character, by the process `p`."""


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.jsonl*"))


def lines(path: Path) -> list[str]:
    """The lines of a file without those about its writer."""
    return [line for line in path.read_text().splitlines() if '"operation":"writer"' not in line]


def ids(directory: Path) -> list[Any]:
    return [record.get("message_id") for record in read(directory)]


def note(ledger: LedgerWriter, *message_ids: str) -> None:
    for message_id in message_ids:
        ledger.record("send", message_id=message_id)
    ledger.flush()


class Clock:
    """Instead of `time.monotonic`, where files ask for their age."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr("twinbus.ledger.files.time.monotonic", lambda: self.now_s)


def test_a_file_is_open_until_the_writer_is_closed(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, process="p", flush_s=NEVER_S) as ledger:
        note(ledger, "a")
        assert names(tmp_path) == ["p-00000.jsonl.open"]
        assert ids(tmp_path) == ["a"]
    assert names(tmp_path) == ["p-00000.jsonl"]
    assert ids(tmp_path) == ["a"]


def test_a_file_that_has_been_open_for_long_is_ended_though_nothing_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    some = files.LedgerFiles(tmp_path, "p", rotate_s=300)
    some.append(b"1\n")
    clock.now_s += 299
    some.end_if_old()
    some.append(b"2\n")
    assert names(tmp_path) == ["p-00000.jsonl.open"]
    clock.now_s += 1
    some.end_if_old()
    assert names(tmp_path) == ["p-00000.jsonl", "p-00001.jsonl.open"]
    # One without a record stays open for longer.
    clock.now_s += 1_000
    some.end_if_old()
    assert names(tmp_path) == ["p-00000.jsonl", "p-00001.jsonl.open"]
    clock.now_s += files.ROTATE_IDLE_S
    some.append(b"3\n")
    clock.now_s += 300
    some.append(b"4\n")
    ended = [f"p-0000{number}.jsonl" for number in range(3)]
    assert names(tmp_path) == [*ended, "p-00003.jsonl.open"]
    assert [lines(tmp_path / name) for name in names(tmp_path)] == [["1", "2"], [], ["3"], ["4"]]


def test_the_writers_thread_ends_an_old_file_by_itself(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, process="p", flush_s=0.001, rotate_s=0.002) as ledger:
        ledger.record("send", message_id="a")
        while "p-00000.jsonl" not in names(tmp_path):
            threading.Event().wait(0.001)


def test_a_writer_whose_file_was_adopted_goes_on_in_the_next(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, process="p", flush_s=NEVER_S) as ledger:
        note(ledger, "a")
        (tmp_path / "p-00000.jsonl.open").rename(tmp_path / "p-00000.jsonl")
        note(ledger, "b")
        assert names(tmp_path) == ["p-00000.jsonl", "p-00001.jsonl.open"]
        assert len(lines(tmp_path / "p-00000.jsonl")) == 1
        # And once more, with nothing noted after it: closing must not take it for its own.
        (tmp_path / "p-00001.jsonl.open").rename(tmp_path / "p-00001.jsonl")
    assert names(tmp_path) == [f"p-0000{number}.jsonl" for number in range(3)]
    assert ids(tmp_path) == ["a", "b"]
    assert ledger.unrecorded == 0
    # Its next file names the hash of each, so nothing is missing and nothing changed.
    assert read(tmp_path).findings == LedgerFindings()


def test_a_writer_whose_file_was_deleted_goes_on_in_the_next(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, process="p", flush_s=NEVER_S) as ledger:
        note(ledger, "a")
        (tmp_path / "p-00000.jsonl.open").unlink()
        note(ledger, "b")
    assert names(tmp_path) == ["p-00001.jsonl"]
    assert ids(tmp_path) == ["b"]
    assert read(tmp_path).findings == LedgerFindings(missing_files=("p-00000.jsonl",))


def test_neither_opening_nor_ending_takes_a_name_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "p-00000.jsonl").write_text("ended\n")
    some = files.LedgerFiles(tmp_path, "p")
    some.append(b"1\n")
    assert names(tmp_path) == ["p-00000.jsonl", "p-00001.jsonl.open"]
    (tmp_path / "p-00001.jsonl").write_text("from elsewhere\n")
    some.end()
    assert names(tmp_path) == ["p-00000.jsonl", "p-00001.jsonl", "p-00001.jsonl.open"]
    assert (tmp_path / "p-00000.jsonl").read_text() == "ended\n"
    assert (tmp_path / "p-00001.jsonl").read_text() == "from elsewhere\n"
    assert lines(tmp_path / "p-00001.jsonl.open") == ["1"]
    # The one that its writer closed is read.
    assert set(read(tmp_path).findings.refused) == {"p-00001.jsonl"}


def test_a_file_whose_first_line_could_not_be_written_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    some = files.LedgerFiles(tmp_path, "p")
    with monkeypatch.context() as patched:
        patched.setattr(OpenFile, "append", lambda self, data: 0)
        assert some.append(b"1\n") == 0
    assert names(tmp_path) == []
    assert some.append(b"1\n") == 0, "it is tried again after a second"
    clock.now_s += files.RETRY_S
    assert some.append(b"1\n") == 2
    assert names(tmp_path) == ["p-00000.jsonl.open"]


def test_a_forked_child_leaves_its_parents_file_locked(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, flush_s=NEVER_S) as ledger:
        note(ledger, "parent")
        child = os.fork()
        if child == 0:
            note(ledger, "child")
            ledger.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        (mine,) = tmp_path.glob("*.open")
        os.utime(mine, (0, 0))
        assert adopt(tmp_path) == []
    assert sorted(ids(tmp_path)) == ["child", "parent"]


def test_past_its_share_of_the_disk_a_writer_counts_and_resumes_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(monkeypatch)
    with (
        caplog.at_level(logging.WARNING),
        LedgerWriter(tmp_path, process="p", max_bytes=1_000, flush_s=NEVER_S) as ledger,
    ):
        note(ledger, *"abcde")
        for name in "fghijklmnopqrst":
            note(ledger, name)
        lost = ledger.unrecorded
        assert 3 < lost < 15
        # The full file was ended, so that it can be taken away; lines about the writer go on.
        assert names(tmp_path) == ["p-00000.jsonl", "p-00001.jsonl.open"]
        (tmp_path / "p-00000.jsonl").unlink()
        note(ledger, "u")
        assert ledger.unrecorded == lost + 1, "it looks for room every 10 s, not at every record"
        clock.now_s += files.MEASURE_AGAIN_S
        note(ledger, "v")
    assert len(caplog.records) == 1
    assert "reached 1,000 bytes; compact or delete" in caplog.text
    records = list(read(tmp_path))
    assert [record.get("unrecorded") for record in records] == [lost + 1, None]
    assert ids(tmp_path) == [None, "v"]


def test_the_share_is_that_of_the_host_however_often_a_process_is_started(tmp_path: Path) -> None:
    for _ in range(3):
        with LedgerWriter(tmp_path, max_bytes=1_000, flush_s=NEVER_S) as ledger:
            note(ledger, "a")
    assert len(ids(tmp_path)) < 3, "beyond it there are only lines about the writers"
    (tmp_path / "other-host-1-2-00000.jsonl").write_bytes(b"\n" * 2_000)
    for old in tmp_path.glob(f"{open_file.HOST}-*"):
        old.unlink()
    with LedgerWriter(tmp_path, max_bytes=1_000, flush_s=NEVER_S) as ledger:
        note(ledger, "b")
    assert ids(tmp_path) == ["b"]


def test_the_share_can_be_set_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINBUS_LEDGER_MAX_BYTES", "10")
    with LedgerWriter(tmp_path, flush_s=NEVER_S) as ledger:
        note(ledger, "a")
        assert ledger.unrecorded == 1
    monkeypatch.setenv("TWINBUS_LEDGER_MAX_BYTES", "20 GB")
    with pytest.raises(LedgerError, match="'20 GB': give a whole number of bytes"):
        LedgerWriter(tmp_path)
