"""`twinbus check --proof`: the line, the ids below it, exit statuses, progress, and no Spark."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.unit.console.commands import run
from tests.unit.console.test_entry import script
from twinbus.console.watch import proof
from twinbus.console.watch.proof import ProofLine
from twinbus.ledger.record import encode

AT_MS = 1_760_000_000_000
LOST = ("divert", "backlog_receive", "complete")
MOVED = ("divert", "backlog_receive", "forward", "complete")


def write(directory: Path, stories: dict[str, tuple[str, ...]], more: bytes = b"") -> str:
    fields = {"cause": "syphon", "pair": "contoso+east", "entity": "orders", "outcome": "ok"}
    lines = [
        encode("p", AT_MS, operation, {**fields, "message_id": message_id})
        for message_id, operations in stories.items()
        for operation in operations
    ]
    (directory / "p-00000.jsonl").write_bytes(b"".join(lines) + more)
    return str(directory)


def test_nothing_lost_is_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(capsys, "check", "--proof", write(tmp_path, {"a": MOVED, "b": ("send",)}))
    first, *details = ran.out.splitlines()
    assert (ran.status, ran.err) == (0, "")
    assert first == (
        "TWINBUS OK - nothing lost: 2 accepted = 2 delivered | lost=0;;;0 accepted=2;;;0"
        " delivered=2;;;0 waiting=0;;;0 dead_lettered=0;;;0 expired=0;;;0 undecided=0;;;0"
    )
    assert f"read: 5 records of {tmp_path}" in details


def test_a_lost_message_is_critical_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = write(tmp_path, {"a": MOVED, "gone\x1b[2J": LOST})
    ran = run(capsys, "check", "--proof", ledger)
    first, second, *_ = ran.out.splitlines()
    assert (ran.status, first.split(" = ")[0]) == (2, "TWINBUS CRITICAL - 1 LOST: 2 accepted")
    assert second.endswith(": lost (orders, accepted 2025-10-09T08:53:20.000Z)")
    assert "\x1b" not in ran.out
    document = json.loads(run(capsys, "check", "--proof", ledger, "--output", "json").out)
    assert (document["state"], document["exit_status"]) == ("CRITICAL", 2)
    assert document["figures"]["lost"] == 1
    [message] = document["proof"]["messages"]
    assert (message["message_id"], message["fate"]) == ("gone\x1b[2J", "lost")


def test_what_could_not_be_read_is_unknown_with_a_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = run(capsys, "check", "--proof", write(tmp_path, {"a": MOVED}, b'{"v":2}\nno record\n'))
    assert ran.status == 3
    assert ran.out.startswith("TWINBUS UNKNOWN - not known whether anything is lost")
    details = [line for line in ran.out.splitlines() if line.startswith("not read: ")]
    assert details == [
        "not read: p-00000.jsonl line 5: of a later version of Twinbus",
        "not read: p-00000.jsonl line 6: not a record of Twinbus, or damaged",
    ]


def test_a_message_without_a_later_record_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = run(capsys, "check", "--proof", write(tmp_path, {"a": MOVED, "stays": ("divert",)}))
    assert ran.status == 3
    assert "\nstays: unknown: waiting, or lost (orders, accepted " in ran.out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--proof", "/nowhere/at/all"], "there is no ledger at /nowhere/at/all"),
        (["--proof", "abfss://x@y/z"], "reads a directory of this machine"),
        (["--proof", ".", "--pair", "contoso"], "leave out --pair"),
        (["--proof"], "usage error"),
    ],
)
def test_what_cannot_be_proved_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    ran = run(capsys, "check", *words)
    assert (ran.status, ran.err, ran.out.count("\n")) == (3, "", 1)
    assert ran.out.startswith("TWINBUS UNKNOWN - ")
    assert text in ran.out


def test_a_fault_of_ours_is_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "proof_of", lambda *_: 1 // 0)
    ran = run(capsys, "check", "--proof", write(tmp_path, {"a": MOVED}))
    assert (ran.status, ran.err) == (3, "")
    assert "internal error of Twinbus: ZeroDivisionError" in ran.out


def test_a_machine_without_spark_can_prove(tmp_path: Path) -> None:
    ledger = write(tmp_path, {"a": MOVED})
    done = script(
        {"pyspark", "pyarrow", "deltalake", "pandas", "numpy"}, "check", "--proof", ledger
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("TWINBUS OK - nothing lost: 1 accepted = 1 delivered | ")


def test_sigterm_stops_it_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*given: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(proof, "proof_of", stopped)
    ran = run(capsys, "check", "--proof", write(tmp_path, {"a": MOVED}))
    assert (ran.status, ran.out, ran.err) == (130, "", "twinbus: stopped\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_progress_is_shown_once_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("sys.stderr", io.StringIO())
    line = ProofLine()
    line.step("reading the ledger", 0.5)
    now_s[0] += 1.9
    assert line.text() == ""
    now_s[0] += 1.1
    assert line.text() == "[############............]  50% reading the ledger, 3 s"
