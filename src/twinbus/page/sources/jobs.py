"""Runs `twinbus` commands for the page in processes of their own: a drain, a report."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

OUTPUT_BYTES_MAX: Final = 1024 * 1024
JOB_S: Final = 4 * 3600.0
"""A drain or a report that takes longer is ended; nothing is lost by that."""

STOP_S: Final = 5.0
ENTRY: Final = "from twinbus.console.entry import main; main()"
BUSY: Final = "it runs already"


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
        """Return whether the command of this name runs."""
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
        """End every command that still runs."""
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
