"""`twinbus ledger` without Spark: how it ends when something goes wrong, and its help."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from tests.ledger_reading import is_whole, read
from tests.unit.console.commands import run
from twinbus.console import COULD_NOT, STOPPED, USAGE_ERROR, spark_thread
from twinbus.ledger.files import LedgerFiles
from twinbus.ledger.record import LedgerError, encode
from twinbus.pipeline.spark.session import QUICK_START
from twinbus.pipeline.store import upkeep

TASKS = (
    *(["update"], ["rebuild"], ["compact"]),
    *(["retain", "--days", "9"], ["erase", "--message-id", "x"]),
)
VERBS = (["status"], *TASKS)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of each Spark that a command starts; it is none."""
    found: list[Any] = []

    @contextmanager
    def no_session(**settings: Any) -> Iterator[Any]:
        found.append(settings)
        yield mock.Mock()

    monkeypatch.setattr(spark_thread, "spark_session", no_session)
    return found


@pytest.fixture
def perform(
    starts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], Any]], None]:
    """Have something done in place of what Spark would do."""

    def patch(work: Callable[[], Any]) -> None:
        monkeypatch.setattr(upkeep, "perform", lambda *given: work())

    return patch


@pytest.mark.parametrize(("verb", "more"), [(verb, more) for verb, *more in TASKS])
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            Py4JError("An error occurred.\n: java.net.UnknownHostException: nohost\n\tat x"),
            "Spark failed: java.net.UnknownHostException: nohost",
        ),
        (LedgerError("there is no ledger at x"), "there is no ledger at x"),
    ],
)
def test_what_goes_wrong_is_one_line(
    verb: str,
    more: list[str],
    error: Exception,
    line: str,
    perform: Callable[[Callable[[], Any]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    perform(fail)
    ran = run(capsys, "ledger", verb, "hdfs://nohost/x", *more)
    assert ran == (COULD_NOT, "", f"twinbus: {line}\n")


def test_ctrl_c_does_not_wait_for_spark(
    perform: Callable[[Callable[[], Any]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()
    waited = []

    def last() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        waited.append(over.wait(20))

    perform(last)
    try:
        ran = run(capsys, "ledger", "compact", "hdfs://nohost/x")
        assert ran == (STOPPED, "", "twinbus: stopped\n")
        assert waited == []
    finally:
        over.set()


@pytest.fixture
def no_spark(starts: list[Any]) -> Iterator[None]:
    yield
    assert starts == []


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(("verb", "more"), [(verb, more) for verb, *more in VERBS])
def test_a_ledger_that_is_not_there_is_told_without_spark(
    verb: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = run(capsys, "ledger", verb, str(tmp_path / "gone"), *more)
    place = f"{tmp_path}/gone is not there"
    line = f"twinbus: LEDGER must be a directory with a ledger in it; {place}\n"
    assert gone == (USAGE_ERROR, "", line)
    empty = run(capsys, "ledger", verb, str(tmp_path), *more)
    assert (empty.status, empty.out, empty.err.count("\n")) == (USAGE_ERROR, "", 1)
    assert empty.err.startswith(f"twinbus: there is no ledger at {tmp_path}: ")


@pytest.mark.usefixtures("no_spark")
def test_no_message_is_not_every_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app-0.jsonl").write_text("")
    ran = run(capsys, "ledger", "erase", str(tmp_path), "--message-id", "")
    line = "twinbus: --message-id is empty: name the message to forget\n"
    assert ran == (USAGE_ERROR, "", line)


@pytest.mark.usefixtures("no_spark")
def test_the_status_needs_no_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "app-0.jsonl").write_text("")
    place = f"file:{tmp_path}/_tables"
    line = f"{place}: no tables yet; make a report, or twinbus ledger update LEDGER\n"
    assert run(capsys, "ledger", "status", str(tmp_path)) == (0, f"{line}1 file of 0 writers\n", "")
    told = run(capsys, "ledger", "status", str(tmp_path), "--output", "json")
    assert (json.loads(told.out)["commit"], told.err) == (-1, "")
    nowhere = run(capsys, "ledger", "status", "nofs://host/ledger")
    assert (nowhere.status, nowhere.out) == (COULD_NOT, "")
    assert nowhere.err.startswith("twinbus: nofs://host/ledger/_tables cannot be used: ")


@pytest.mark.usefixtures("no_spark")
def test_the_status_shows_a_killed_writer_and_a_person_can_close_its_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for process in ("web-1", "web-2"):
        files = LedgerFiles(tmp_path, process)
        files.append(encode(process, 5, "send", {"message_id": process}))
        if process == "web-1":
            files.end()
        else:
            # As a kill leaves it, adopted.
            files.abandon()
            (left,) = tmp_path.glob("*.open")
            left.rename(left.with_suffix(""))
    told = run(capsys, "ledger", "status", str(tmp_path))
    assert "2 files of 2 writers, 1 ended, 1 stopped without an end\n" in told.out
    assert "web-2 stopped without an end: records from " in told.out
    ledger = str(tmp_path)
    wrong = run(capsys, "ledger", "close", "web-1", ledger, "--reason", "x")
    assert (wrong.status, wrong.out) == (COULD_NOT, "")
    assert "nothing is in doubt for web-1" in wrong.err
    assert "a missing file: web-2" in wrong.err
    empty = run(capsys, "ledger", "close", "web-2", ledger, "--reason", " ")
    assert (empty.status, empty.out) == (USAGE_ERROR, "")
    done = run(capsys, "ledger", "close", "web-2", ledger, "--reason", "it was\nidle")
    assert done.status == 0
    assert done.out.startswith("web-2 is closed: it was idle (")
    assert is_whole(read(tmp_path).findings)
    told = run(capsys, "ledger", "status", ledger)
    assert "3 files of 3 writers, 1 closed, 2 ended\n" in told.out
    assert "; closed: it was idle (" in told.out
    again = run(capsys, "ledger", "close", "web-2", ledger, "--reason", "x")
    assert again.status == COULD_NOT


def file_of(size_bytes: int, path: Path) -> None:
    """Make a file of that length, which takes no room."""
    path.touch()
    os.truncate(path, size_bytes)


def test_a_large_ledger_is_worth_a_slow_start(tmp_path: Path) -> None:
    file_of(4_000, tmp_path / "app-0.jsonl")
    (tmp_path / "_tables" / "bronze").mkdir(parents=True)
    file_of(spark_thread.LONG_BYTES, tmp_path / "_tables" / "bronze" / "0.parquet")
    ledger = str(tmp_path)
    assert spark_thread.settings_for(ledger) == QUICK_START
    assert spark_thread.settings_for(ledger, f"{ledger}/_tables") == {}
    assert spark_thread.settings_for("hdfs://host/ledger") == {}
    file_of(spark_thread.LONG_BYTES, tmp_path / "app-1.jsonl")
    assert spark_thread.settings_for(ledger) == {}


@pytest.mark.parametrize("verb", [verb for verb, *_ in VERBS])
def test_the_commands_have_help_with_an_example(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = run(capsys, "ledger", verb, "--help")
    assert shown.status == 0
    assert f"Example: twinbus ledger {verb}" in shown.out
