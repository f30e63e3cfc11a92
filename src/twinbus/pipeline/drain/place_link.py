"""The same connection as `driver_link`, through files at the ledger's place.

Over Spark Connect the driver is a client: executors cannot reach it. So it writes a file `stop`
into a directory of the drain at the ledger's place, which all tasks look for, and each task writes
its problems there. Readers of the ledger pass over the directory, for its name begins with a dot;
the driver removes it at the end. A driver that dies leaves its tasks at work until their queues are
empty or their turn is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import time
from dataclasses import dataclass
from typing import Any, Final, Self

from twinbus.pipeline.drain.driver_link import PROBLEM_LENGTH_MAX, PROBLEMS_MAX
from twinbus.pipeline.drain.ledger_place import file_system

log = logging.getLogger("twinbus.pipeline")

STOP_POLL_S: Final = 2.0
"""Time between two looks of a task for the file that stops it."""
PROBLEMS_POLL_S: Final = 5.0
"""Time between two readings of the problems by the driver."""

_STOP: Final = "stop"
_PROBLEMS: Final = ".problems"
_TOLD_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PlaceAddress:
    """The directory of a drain at its ledger's place; shipped with the tasks."""

    place: str
    run: str

    def opened(self) -> tuple[Any, str]:
        files, folder = file_system(self.place)
        return files, f"{folder}/.{self.run}"


class PlaceListener:
    """The driver's end; a context manager."""

    def __init__(self, address: PlaceAddress) -> None:
        self.address = address
        self._files, self._folder = address.opened()
        self._problems: tuple[str, ...] = ()
        self._read_at = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._files.delete_dir(self._folder)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why messages are not moved, as reported by running tasks."""
        now = time.monotonic()
        if now >= self._read_at:
            self._read_at = now + PROBLEMS_POLL_S
            with contextlib.suppress(OSError):
                self._problems = tuple(dict.fromkeys(self._reported()))
        return self._problems

    def _reported(self) -> list[str]:
        fs: Any = importlib.import_module("pyarrow.fs")
        selector = fs.FileSelector(self._folder, allow_not_found=True)
        found = [one for one in self._files.get_file_info(selector) if one.path.endswith(_PROBLEMS)]
        problems = list[str]()
        for one in found:
            with self._files.open_input_stream(one.path) as source:
                told = source.read(_TOLD_BYTES_MAX)
            # A task may be writing it, and others may write here.
            with contextlib.suppress(ValueError, RecursionError):
                given = json.loads(told)
                listed = given if isinstance(given, list) else []
                problems += [str(each)[:PROBLEM_LENGTH_MAX] for each in listed[:PROBLEMS_MAX]]
        return problems

    def release(self) -> None:
        """Let every task settle its messages and end."""
        try:
            _put(self._files, self._folder, _STOP, b"")
        except OSError as error:
            log.warning("tasks cannot be stopped, writing to %s failed: %s", self._folder, error)


class PlaceLink:
    """A task's end; an async context manager."""

    def __init__(self, address: PlaceAddress, name: str) -> None:
        """`name` is that of the task's process: its problems are in a file of that name."""
        self._address, self._name = address, f"{name}{_PROBLEMS}"
        self._files, self._folder = address.opened()
        self._problems: tuple[str, ...] = ()
        self._told: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._problems = ()
        await asyncio.to_thread(self._tell)

    async def released(self) -> None:
        """Wait until the driver has written that the tasks are to end."""
        while not await asyncio.to_thread(self._is_stopped):  # noqa: ASYNC110 - a file tells it
            await asyncio.sleep(STOP_POLL_S)

    def report(self, problems: tuple[str, ...]) -> None:
        """Report to the driver why messages are not moved, if that changed."""
        self._problems = tuple(one[:PROBLEM_LENGTH_MAX] for one in problems[:PROBLEMS_MAX])

    def _is_stopped(self) -> bool:
        # A place that does not answer now may do so at the next look.
        with contextlib.suppress(OSError):
            self._tell()
            [found] = self._files.get_file_info([f"{self._folder}/{_STOP}"])
            return bool(found.is_file)
        return False

    def _tell(self) -> None:
        problems = self._problems
        if problems != self._told:
            with contextlib.suppress(OSError):
                _put(self._files, self._folder, self._name, json.dumps(problems).encode())
                self._told = problems


def _put(files: Any, folder: str, name: str, content: bytes) -> None:
    files.create_dir(folder, recursive=True)
    with files.open_output_stream(f"{folder}/{name}") as target:
        target.write(content)
