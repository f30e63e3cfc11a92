"""Files that dead processes left open are ended by others; those of the living never are."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.ledger_reading import read
from twinbus.ledger import LedgerError, LedgerWriter, adopt, open_file, process_name
from twinbus.ledger.open_file import HOST

if TYPE_CHECKING:
    from pathlib import Path

WRITER = """
import os, sys
from twinbus.ledger import LedgerWriter
ledger = LedgerWriter(sys.argv[1], flush_s=3600)
ledger.record("send", message_id=f"of {os.getpid()}")
ledger.flush()
os.write(1, b"written\\n")
sys.stdin.read()
"""

NEVER_S = 3_600.0


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.jsonl*"))


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
    # This process is younger than 1970, so whoever named a file then was another.
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


def test_a_writer_at_full_speed_loses_nothing_to_adopters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The worst of adopters: it takes the living for dead, and asks for no lock.
    monkeypatch.setattr(open_file, "_is_dead", lambda name: True)
    monkeypatch.setattr("twinbus.ledger.open_file.fcntl.flock", lambda fd, how: None)
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            adopt(tmp_path)

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
