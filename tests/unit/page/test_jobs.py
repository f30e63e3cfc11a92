"""Commands that the page runs, the report it keeps, and the end of a ledger it shows."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.outage_story import (
    BEGAN_S,
    ORDERS_DIVERTED,
    ORDERS_SENT,
    PAYMENTS_SENT,
    RAISED,
    story,
)
from twinbus.ledger.record import encode
from twinbus.page.jobs import FILE, OUTPUT_BYTES_MAX, JobResult, JobRunner, Proof
from twinbus.page.ledger_tail import LedgerTail, ledger_events, timeline

REPORT = """
import json, sys
place = sys.argv[sys.argv.index("--to") + 1]
open(place, "w").write(json.dumps({"verdict": "VERDICT", "unknown": ["u"]}))
print("nothing is lost: 5 of 5")
"""


def runner(program: str, **environment: str) -> JobRunner:
    return JobRunner(environment, (sys.executable, "-c", program))


async def result_of(jobs: JobRunner, *arguments: str) -> JobResult:
    ended: asyncio.Future[JobResult] = asyncio.get_running_loop().create_future()
    assert jobs.start("one", [*arguments], ended.set_result)
    assert not jobs.start("one", [*arguments], ended.set_result)
    assert jobs.is_running("one")
    return await ended


async def test_a_command_gets_the_environment_and_says_how_it_ended() -> None:
    program = "import os, sys; print(os.environ['X'], *sys.argv[1:]); sys.exit('twinbus: no way')"
    result = await result_of(runner(program, X="5"), "a", "b c")
    assert result == JobResult(1, ["5 a b c"], "no way")


async def test_a_command_that_prints_without_end_is_bounded() -> None:
    result = await result_of(runner("print('x' * 2_000_000)"))
    assert (result.status, len(result.lines[0])) == (0, OUTPUT_BYTES_MAX)


async def test_a_command_ends_with_the_page(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    program = f"import os, time; open({str(ready)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    jobs = runner(program)
    assert jobs.start("one", [], lambda _: None)
    pid = int(await asyncio.to_thread(ready.read_text))
    await jobs.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def proved(ledger: Path, program: str) -> tuple[Proof, str, bool]:
    proof = Proof(ledger, runner(program))
    ended: asyncio.Future[tuple[str, bool]] = asyncio.get_running_loop().create_future()
    assert proof.make(lambda text, is_made: ended.set_result((text, is_made)))
    assert proof.document().making is True
    text, is_made = await ended
    await asyncio.sleep(0)
    return proof, text, is_made


@pytest.mark.parametrize(
    ("word", "verdict"), [("good", "nothing lost"), ("bad", "lost"), ("unknown", "unknown")]
)
async def test_the_answer_of_a_report_is_kept_in_the_ledger(
    tmp_path: Path, word: str, verdict: str
) -> None:
    _, text, is_made = await proved(tmp_path, REPORT.replace("VERDICT", word))
    assert (text, is_made) == ("nothing is lost: 5 of 5", True)
    again = Proof(tmp_path, runner("")).document()
    assert (again.verdict, again.unknown, again.making) == (verdict, ["u"], False)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]  # noqa: ASYNC240


async def test_a_report_that_fails_leaves_the_last_answer(tmp_path: Path) -> None:
    await proved(tmp_path, REPORT.replace("VERDICT", "good"))
    proof, text, is_made = await proved(tmp_path, "raise SystemExit('twinbus: no Java')")
    assert (text, is_made) == ("the report could not be made: no Java", False)
    assert proof.document().verdict == "nothing lost"


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"verdict": "<b>"})])
def test_a_file_that_is_no_proof_proves_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert Proof(tmp_path, runner("")).document().verdict == "none"


def write(directory: Path, process: str = "web-7-1") -> Path:
    path = directory / f"{process}-00000.jsonl"
    with path.open("wb") as file:
        for at_s, operation, fields in sorted(story(), key=lambda line: line[0]):
            record = {"pair": "contoso+contoso-dr", "outcome": "ok", **fields}
            at_ms = round((BEGAN_S + at_s) * 1000)
            file.write(encode(process, at_ms, operation, record))
    return path


def test_an_outage_is_spans_marks_and_sends(tmp_path: Path) -> None:
    write(tmp_path)
    found = timeline(tmp_path, "contoso", BEGAN_S, BEGAN_S + 1_800, [7])
    (orders,) = (one for one in found["entities"] if one["path"] == "orders")
    assert orders["spans"] == [
        (BEGAN_S, BEGAN_S + 600, "healthy"),
        (BEGAN_S + 600, BEGAN_S + 660, "suspect"),
        (BEGAN_S + 660, BEGAN_S + 1_500, "failed over"),
        (BEGAN_S + 1_500, None, "healthy"),
    ]
    kinds = [kind for _, kind in orders["marks"]]
    assert (kinds.count("ping-failed"), kinds.count("failover"), kinds.count("restore")) == (
        14,
        1,
        1,
    )
    sums = [sum(bucket[index] for bucket in found["sends"]) for index in (1, 2, 3)]
    assert sums == [ORDERS_SENT + PAYMENTS_SENT, ORDERS_DIVERTED, RAISED]
    assert found["truncated"] is False


def test_another_pair_and_another_time_are_left_out(tmp_path: Path) -> None:
    write(tmp_path)
    assert timeline(tmp_path, "fabrikam", BEGAN_S, BEGAN_S + 1_800, [])["entities"] == []
    later = timeline(tmp_path, "contoso", BEGAN_S + 1_600, BEGAN_S + 1_800, [7])
    assert all(bucket[0] >= BEGAN_S + 1_600 for bucket in later["sends"])


def test_a_process_that_ended_has_no_open_span(tmp_path: Path) -> None:
    write(tmp_path)
    found = timeline(tmp_path, "contoso", BEGAN_S - 500, BEGAN_S + 9_000, [])
    (orders,) = (one for one in found["entities"] if one["path"] == "orders")
    assert orders["spans"][-1][1] is not None
    # Nobody knows what was before its first record.
    assert orders["spans"][0][0] == BEGAN_S


def test_of_a_long_ledger_only_the_end_is_read(tmp_path: Path) -> None:
    path = write(tmp_path)
    tail = LedgerTail(tmp_path, 0.0, bytes_max=10_000)
    lines = list(tail)
    assert tail.is_cut
    assert 0 < sum(len(line.line) for line in lines) <= 10_000
    assert tail.covered_from > BEGAN_S + 1_600
    assert lines[-1].line == path.read_bytes().splitlines()[-1]


def test_damaged_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path)
    with path.open("ab") as file:
        file.write(b'\xff\xfe\n{"v":1,"at_ms":9,"operation":"state","process":"x",]\n{"v":1,"at')
    (tmp_path / "other-00000.jsonl.open").write_bytes(b"\0" * 1_000)
    assert timeline(tmp_path, "contoso", BEGAN_S, BEGAN_S + 1_800, [7])["entities"]


def test_events_are_changes_of_state_and_actions(tmp_path: Path) -> None:
    path = write(tmp_path)
    action = {"pair": "contoso+dr", "state": "freeze", "entity": "orders", "outcome": "ok"}
    line = encode("page-1", (BEGAN_S + 1_700) * 1000, "action", {**action, "error": "asked by x"})
    with path.open("ab") as file:
        file.write(line)
    events = ledger_events(tmp_path, 0.0)
    assert [event.text for event in events] == [
        "orders: suspect (ConnectionError)",
        "orders: failed over (no success)",
        "orders: healthy (ping answered)",
        "orders: freeze (asked by x)",
    ]
    assert [event.kind for event in events] == ["state"] * 3 + ["action"]
    assert len(ledger_events(tmp_path, 0.0, limit=2)) == 2


def test_a_file_that_is_there_under_two_names_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path)
    lines = list(LedgerTail(tmp_path, 0))
    stale = path.with_name(f"{path.name}.open")
    stale.write_bytes(path.read_bytes()[:500])
    assert [one.line for one in LedgerTail(tmp_path, 0)] == [one.line for one in lines]
    assert list(LedgerTail(tmp_path, 0, without=[path.name])) == []
