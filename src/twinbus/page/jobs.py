"""Runs `twinbus` commands for the page in processes of their own: a drain, a report that proves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

from twinbus.page.core.model import ShownProof
from twinbus.status.reading import read

OUTPUT_BYTES_MAX: Final = 1024 * 1024
JOB_S: Final = 4 * 3600.0
"""A drain or a report that takes longer is ended; nothing is lost by that."""

STOP_S: Final = 5.0
ENTRY: Final = "from twinbus.console.entry import main; main()"

FILE: Final = "_proof.json"
"""Spark passes over names that begin so."""

JOB: Final = "prove"
VERDICTS: Final[dict[str, Literal["nothing lost", "lost", "unknown"]]] = {
    "good": "nothing lost",
    "bad": "lost",
    "unknown": "unknown",
}


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a command ended."""

    status: int
    lines: list[str]
    """What it printed, as text."""
    error: str
    """The last line of its errors."""


class JobRunner:
    """Runs at most one command of each name at a time."""

    def __init__(self, environment: Mapping[str, str], command: tuple[str, ...] = ()) -> None:
        """`environment` is added to that of the page: it has the namespaces and their secrets."""
        self._environment = {**os.environ, **environment}
        self._command = command or (sys.executable, "-c", ENTRY)
        self._jobs: dict[str, asyncio.Task[None]] = {}

    def is_running(self, name: str) -> bool:
        return name in self._jobs

    def start(self, name: str, arguments: list[str], ended: Callable[[JobResult], None]) -> bool:
        """Start a command; `ended` is called with its result. False: one of this name runs."""
        if name in self._jobs:
            return False
        task = asyncio.create_task(self._run(arguments, ended), name=f"twinbus-page-{name}")
        self._jobs[name] = task
        task.add_done_callback(lambda _: self._jobs.pop(name, None))
        return True

    async def close(self) -> None:
        tasks = list(self._jobs.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, arguments: list[str], ended: Callable[[JobResult], None]) -> None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._command, *arguments, env=self._environment,
            stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(JOB_S):
                printed, errors = await asyncio.gather(
                    _bounded(process.stdout), _bounded(process.stderr)
                )
                status = await process.wait()
        except TimeoutError:
            printed, errors, status = b"", b"it took too long and was ended", -1
        finally:
            await _end(process)
        lines = printed.decode(errors="replace").splitlines()
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        ended(JobResult(status, lines, "".join(last).removeprefix("twinbus: ")))


class Drains(NamedTuple):
    """Drains backlogs between the two namespaces, by endpoint, that the page was started with."""

    primary: str
    secondary: str
    jobs: JobRunner


class Proof:
    """Makes the conservation report of a ledger, and remembers its answer."""

    def __init__(self, ledger: Path, jobs: JobRunner) -> None:
        self._ledger = ledger
        self._jobs = jobs

    def document(self) -> ShownProof:
        known = ShownProof()
        # A file that is no proof is a ValueError too.
        with contextlib.suppress(OSError, ValueError):
            known = read(ShownProof, json.loads((self._ledger / FILE).read_bytes()))
        return replace(known, making=self._jobs.is_running(JOB))

    def make(self, ended: Callable[[str, bool], None]) -> bool:
        """Start a new report; `ended` gets its answer and whether it was made. False: one runs."""
        place = self._ledger / f"_report-{os.getpid()}.json"
        arguments = ["report", "conservation", str(self._ledger), "--output", "json"]

        def take(result: JobResult) -> None:
            try:
                text, is_made = self._kept(place, result)
            finally:
                place.unlink(missing_ok=True)
            ended(text, is_made)

        return self._jobs.start(JOB, [*arguments, "--to", str(place)], take)

    def _kept(self, place: Path, result: JobResult) -> tuple[str, bool]:
        try:
            report = json.loads(place.read_bytes())
            verdict, unknown = report["verdict"], [str(one) for one in report["unknown"]]
            text = result.lines[0] if result.lines else VERDICTS[verdict]
            keep_proof(self._ledger, verdict, text, unknown)
        except (OSError, ValueError, KeyError, TypeError):
            return f"the report could not be made: {result.error}", False
        return text, True


def keep_proof(ledger: Path, verdict: str, text: str, unknown: Sequence[str]) -> None:
    """Keep the answer of a conservation report, whose verdict is a key of VERDICTS."""
    known = ShownProof(
        made_at=time.time(), verdict=VERDICTS[verdict], text=text, unknown=list(unknown)
    )
    written = ledger / f"{FILE}.new"
    written.write_text(json.dumps(asdict(known)))
    written.replace(ledger / FILE)


async def _bounded(stream: asyncio.StreamReader) -> bytes:
    """Return the beginning of what a process prints; the rest is read and dropped."""
    kept = bytearray()
    while piece := await stream.read(65_536):
        kept += piece[: OUTPUT_BYTES_MAX - len(kept)]
    return bytes(kept)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    # SIGTERM first: a drain finishes what is in flight.
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
