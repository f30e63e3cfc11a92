"""The tether between a drain and its tasks: what a task cannot do now, and when it shall end.

    driver:  with DriverListener(host) as post: ...submit tasks with post.address...; post.release()
    task:    async with DriverLink(address) as tether: ...; await tether.released()

Spark ends a task by killing its process, which would duplicate what is in flight. A task that is
tethered ends by itself when the driver lets go of it, and also when the driver dies. A task that
cannot reach the driver's post (a firewall between them) works without, and is ended as Spark does.
Nothing that is counted goes this way: tasks die, and the ledger has the numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import threading
from dataclasses import dataclass, field
from typing import Final, Self

log = logging.getLogger("twinbus.pipeline")

CONNECT_S: Final = 5.0
"""A driver that has not answered by now cannot be reached; the task does not wait longer."""

INTRODUCTION_S: Final = 10.0
"""Whoever connects and does not say the token within this time is none of our tasks."""

LINE_BYTES_MAX: Final = 16 * 1024
PROBLEMS_MAX: Final = 20
"""Told by one task: enough for a person, and it fits a line."""
PROBLEM_LENGTH_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """Where the driver waits for its tasks; travels with them."""

    host: str
    port: int
    token: str = field(repr=False)


class DriverListener:
    """The driver's end, on a thread of its own; a context manager."""

    def __init__(self, host: str, bind: str | None = None) -> None:
        """`host` is where executors find the driver, `bind` the address to listen on there."""
        self._host, self._bind = host, bind or host
        self._token = secrets.token_hex(16)
        self._port: int | None = None
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._problems: dict[asyncio.StreamWriter, tuple[str, ...]] = {}
        self._is_released = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="twinbus-tether", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._loop is not None and self._over is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    @property
    def address(self) -> DriverAddress | None:
        """For the tasks; None where the driver cannot listen."""
        return None if self._port is None else DriverAddress(self._host, self._port, self._token)

    @property
    def attached(self) -> int:
        """Tasks that hold on now."""
        with self._lock:
            return len(self._problems)

    @property
    def problems(self) -> tuple[str, ...]:
        """What keeps messages where they are, as the running tasks tell it."""
        with self._lock:
            told = [problem for problems in self._problems.values() for problem in problems]
        return tuple(dict.fromkeys(told))

    def release(self) -> None:
        """Have every task settle what is in flight and end; those that come later end at once."""
        self._is_released = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        with self._lock:
            writers = list(self._problems)
        for writer in writers:
            writer.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await asyncio.start_server(self._attend, self._bind, 0, limit=LINE_BYTES_MAX)
        except OSError as error:
            log.warning("tasks cannot be told to end, %s refuses to listen: %s", self._bind, error)
            return
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        self._let_go()

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(INTRODUCTION_S):
                said = (await reader.readline()).strip()
            if not hmac.compare_digest(said, self._token.encode()) or self._is_released:
                return
            with self._lock:
                self._problems[writer] = ()
            while line := await reader.readline():
                with self._lock:
                    self._problems[writer] = _read_problems(line)
        except (OSError, TimeoutError, ValueError):
            # A task that died, or a stranger.
            return
        finally:
            with self._lock:
                self._problems.pop(writer, None)
            writer.close()


class DriverLink:
    """A task's end; an async context manager."""

    def __init__(self, address: DriverAddress | None) -> None:
        self._address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._said: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        if self._address is None:
            return self
        try:
            async with asyncio.timeout(CONNECT_S):
                self._reader, self._writer = await asyncio.open_connection(
                    self._address.host, self._address.port
                )
        except (OSError, TimeoutError) as error:
            log.warning(
                "the driver at %s:%d cannot be reached, so this task ends only when it is done"
                " or killed: %s",
                self._address.host,
                self._address.port,
                error,
            )
            return self
        self._writer.write(f"{self._address.token}\n".encode())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    async def released(self) -> None:
        """Returns when the driver lets go, or is gone; never for a task without a tether."""
        if self._reader is None:
            await asyncio.get_running_loop().create_future()
            return
        with contextlib.suppress(OSError):
            # The driver says nothing: all that can be read is the end.
            await self._reader.read(1)

    def tell(self, problems: tuple[str, ...]) -> None:
        """Tell the driver what keeps messages where they are; only what is news is sent."""
        problems = tuple(problem[:PROBLEM_LENGTH_MAX] for problem in problems[:PROBLEMS_MAX])
        if self._writer is None or self._writer.is_closing() or problems == self._said:
            return
        self._said = problems
        self._writer.write(json.dumps(problems).encode() + b"\n")


def _read_problems(line: bytes) -> tuple[str, ...]:
    told = json.loads(line)
    if not isinstance(told, list):
        raise ValueError("not a list of problems")  # noqa: TRY004 - one error for all bad lines
    return tuple(str(problem) for problem in told)
