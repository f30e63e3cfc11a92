"""How files are begun, named and ended, adopted from dead processes, and found missing."""

from __future__ import annotations

import fcntl
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledger_reading import read
from twinbus.ledger import (
    LedgerError,
    LedgerFindings,
    LedgerWriter,
    adopt,
    files,
    open_file,
    process_name,
)
from twinbus.ledger.facts import (
    MissingFiles,
    is_note,
    missing_files,
    new_note,
    note_name,
    noted_files,
)
from twinbus.ledger.open_file import HOST, OpenFile

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

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_file_is_open_until_the_writer_is_closed(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, process="p", flush_s=NEVER_S) as ledger:
        note(ledger, "a")
        assert names(tmp_path) == ["p-00000.jsonl.open"]
        assert ids(tmp_path) == ["a"]
    assert names(tmp_path) == ["p-00000.jsonl"]
    assert ids(tmp_path) == ["a"]


def test_a_file_that_has_been_open_for_long_is_ended_though_nothing_comes(
    tmp_path: Path,
) -> None:
    clock = Clock()
    some = files.LedgerFiles(tmp_path, "p", rotate_s=300, clock=clock)
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
    clock = Clock()
    some = files.LedgerFiles(tmp_path, "p", clock=clock)
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
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    small = LedgerWriter(tmp_path, process="p", max_bytes=1_000, flush_s=NEVER_S, clock=clock)
    with caplog.at_level(logging.WARNING), small as ledger:
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


WRITER = """
import os, sys
from twinbus.ledger import LedgerWriter
ledger = LedgerWriter(sys.argv[1], flush_s=3600)
ledger.record("send", message_id=f"of {os.getpid()}")
ledger.flush()
os.write(1, b"written\\n")
sys.stdin.read()
"""


def writer(directory: Path) -> subprocess.Popen[str]:
    """A process that has written one record and does nothing more."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "written\n"
    return child


def test_what_a_killed_process_left_is_adopted_and_what_a_living_one_writes_is_not(
    tmp_path: Path,
) -> None:
    with writer(tmp_path) as dead, writer(tmp_path) as alive:
        assert adopt(tmp_path) == []
        dead.kill()
        assert dead.wait() == -signal.SIGKILL
        (adopted,) = adopt(tmp_path)
        assert f"-{dead.pid}-" in adopted.name
        assert adopted.name.endswith("-00000.jsonl")
        assert [name.endswith(".open") for name in names(tmp_path)].count(True) == 1
        assert adopt(tmp_path) == []
        alive.communicate("")
        assert alive.returncode == 0
    assert not list(tmp_path.glob("*.open"))
    found = {record["message_id"] for record in read(tmp_path)}
    assert found == {f"of {dead.pid}", f"of {alive.pid}"}


def test_the_next_writer_adopts_without_being_asked(tmp_path: Path) -> None:
    with writer(tmp_path) as dead:
        dead.kill()
    assert len(list(tmp_path.glob("*.open"))) == 1
    with LedgerWriter(tmp_path, process="p", flush_s=NEVER_S) as ledger:
        ledger.record("ping")
        while list(tmp_path.glob(f"{HOST}-*.open")):
            threading.Event().wait(0.001)
    assert len(list(read(tmp_path))) == 2


def left(directory: Path, name: str, *, age_s: float = 0.0) -> Path:
    path = directory / f"{name}-00000.jsonl.open"
    path.write_text("{}\n")
    at = time.time() - age_s
    os.utime(path, (at, at))
    return path


def test_a_process_id_that_another_process_has_now_is_no_sign_of_life(tmp_path: Path) -> None:
    # This process is younger than 1970, so another process named a file then.
    left(tmp_path, f"{HOST}-{os.getpid()}-1000")
    left(tmp_path, f"run-7-{HOST}-{os.getpid()}-2000")
    left(tmp_path, process_name())
    assert {path.name for path in adopt(tmp_path)} == {
        f"{HOST}-{os.getpid()}-1000-00000.jsonl",
        f"run-7-{HOST}-{os.getpid()}-2000-00000.jsonl",
    }


@pytest.mark.parametrize("name", ["another-host-1-1000", "spark-1", f"not{HOST}-1-1000"])
def test_of_which_nothing_is_known_is_adopted_when_unchanged_for_a_day(
    tmp_path: Path, name: str
) -> None:
    left(tmp_path, name, age_s=open_file.UNCHANGED_S - 60)
    assert adopt(tmp_path) == []
    left(tmp_path, name, age_s=open_file.UNCHANGED_S + 60)
    assert [path.name for path in adopt(tmp_path)] == [f"{name}-00000.jsonl"]


def test_a_file_whose_lock_is_held_is_never_adopted_however_old(tmp_path: Path) -> None:
    # By hand: a writer of that name would take its own file for that of a dead one, if it adopts
    # between the making of the file and its lock.
    path = left(tmp_path, f"{HOST}-1-1000", age_s=time.time())
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert adopt(tmp_path) == []
    assert len(adopt(tmp_path)) == 1


def test_adoption_overwrites_nothing(tmp_path: Path) -> None:
    # An open file beside the ended one of its name is a copy, or has one: the reader says so.
    name = f"{HOST}-{os.getpid()}-1000"
    left(tmp_path, name)
    (tmp_path / f"{name}-00000.jsonl").write_text("there already\n")
    assert adopt(tmp_path) == []
    assert (tmp_path / f"{name}-00000.jsonl").read_text() == "there already\n"
    assert list(read(tmp_path).findings.refused) == [f"{name}-00000.jsonl.open"]


def test_many_adopters_at_once_rename_each_file_once(tmp_path: Path) -> None:
    wanted = {f"{HOST}-{os.getpid()}-{number}" for number in range(1_000, 1_200)}
    for name in wanted:
        left(tmp_path, name)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found: list[list[Any]] = pool.map(adopt, [tmp_path] * 6)
    adopted = [path.name for some in found for path in some]
    assert sorted(adopted) == sorted(f"{name}-00000.jsonl" for name in wanted)
    assert names(tmp_path) == sorted(adopted)


def test_a_writer_at_full_speed_loses_nothing_to_adopters(tmp_path: Path) -> None:
    over = threading.Event()

    def work() -> None:
        """The worst of adopters: it takes the living for dead, and asks for no lock."""
        while not over.is_set():
            for path in tmp_path.glob("*.jsonl.open"):
                with suppress(FileNotFoundError):
                    if not path.with_suffix("").exists():
                        path.rename(path.with_suffix(""))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with LedgerWriter(tmp_path, process="p", flush_s=NEVER_S, rotate_bytes=500) as ledger:
            for number in range(500):
                ledger.record("send", message_id=str(number))
                ledger.flush()
    finally:
        over.set()
        thread.join()
    found = [int(record["message_id"]) for record in read(tmp_path)]
    assert sorted(found) == list(range(500))
    assert ledger.unrecorded == 0


def test_a_directory_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"no ledger at .*nowhere"):
        adopt(tmp_path / "nowhere")


def named(writer: str, *numbers: int) -> list[str]:
    return [f"{writer}-{number:05d}.jsonl" for number in numbers]


def test_a_noted_file_is_removed_once_it_is_not_there() -> None:
    note = new_note([*named("web-1", 0, 1, 2), "odd.jsonl"])
    assert missing_files([*named("web-1", 0, 1, 2), "odd.jsonl"], [note]) == MissingFiles()
    found = missing_files(named("web-1", 1, 3), [note])
    assert found == MissingFiles(removed=("odd.jsonl", "web-1-00000.jsonl", "web-1-00002.jsonl"))
    # Tables that took them still have their records.
    assert found.but({"odd.jsonl", *named("web-1", 0, 1, 2)}) == MissingFiles()
    assert list(found.but(named("web-1", 0, 1, 2)).sentences()) == [
        "records are missing: compact --remove-raw removed the file odd.jsonl"
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v":1}', '{"v":2,"writers":{},"others":[]}'])
def test_a_note_that_cannot_be_read_is_missed_too(text: str) -> None:
    found = missing_files(named("web-1", 0), [text, new_note(named("web-1", 1))])
    assert (found.removed, found.unnoted) == (("web-1-00001.jsonl",), 1)
    assert "no note says which" in list(found.sentences())[-1]


@given(st.sets(st.sampled_from([*named("a", *range(9)), *named("b-1", *range(9)), "x.jsonl"])))
def test_a_note_names_what_it_was_made_of(names: set[str]) -> None:
    assert noted_files(new_note(names)) == frozenset(names)


def test_a_note_is_small_and_no_file_of_records() -> None:
    name = note_name()
    assert is_note(name)
    assert not is_note(f"_{name}")
    assert ".jsonl" not in name
    assert json.loads(new_note(named("web-1", *range(90_000))))["writers"] == {
        "web-1": [[0, 89_999]]
    }


def test_a_writer_numbers_its_files_from_0(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, process="web-1") as writer:
        writer.record("send", entity="orders")
    there = sorted(path.name for path in tmp_path.iterdir())
    assert missing_files(there, []) == MissingFiles()
    assert there == ["ledger.id", *named("web-1", 0)]


def test_a_reader_without_spark_says_what_is_missing(tmp_path: Path) -> None:
    for name in ("web-1-00002.jsonl", "web-1-00004.jsonl.open", "web-2-00001.jsonl", "x-9.jsonl"):
        (tmp_path / name).touch()
    # The last file of a writer that a note names is not the end of its numbers.
    (tmp_path / note_name()).write_text(new_note([*named("web-1", 0), *named("web-3", 1)]))
    found = read(tmp_path)
    assert found.missing.removed == ("web-1-00000.jsonl", "web-3-00001.jsonl")
    absent = (*named("web-1", 1, 3), *named("web-2", 0), *named("web-3", 0))
    assert found.findings.missing_files == absent
    assert any("the ledger lacks 4 files (web-1-0" in one for one in found.findings.sentences())
