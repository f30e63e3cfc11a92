"""Commands that the page runs, and the conservation report it keeps; a small program stands in."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from twinbus.page import jobs as jobs_module
from twinbus.page.jobs import FILE, JobResult, JobRunner, Proof

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


async def test_a_command_that_prints_without_end_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs_module, "OUTPUT_BYTES_MAX", 1_000)
    result = await result_of(runner("print('x' * 1_000_000)"))
    assert (result.status, len(result.lines[0])) == (0, 1_000)


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
