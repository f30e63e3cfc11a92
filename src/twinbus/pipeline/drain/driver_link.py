"""The connection of a drain's tasks to its driver: a task reports problems, the driver ends it.

    driver:  with DriverListener(host) as listener: ...tasks with listener.address...; release()
    task:    async with DriverLink(address) as link: ...; await link.released()

Spark ends a task by killing its process, which would duplicate messages in flight. A task with a
link ends by itself when the driver closes the link or dies. A task that cannot reach the driver (a
firewall between them) works without, and Spark kills it. Counts do not go this way: tasks can die,
and the ledger has the numbers.
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
"""How long a task waits for a connection to the driver."""

INTRODUCTION_S: Final = 10.0
"""Time for a task to send its token; later connections are closed."""

LINE_BYTES_MAX: Final = 16 * 1024
PROBLEMS_MAX: Final = 20
"""Problems that one task reports: enough for a person, and they fit a line."""
PROBLEM_LENGTH_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """Where the driver listens for its tasks; shipped with them."""

    host: str
    port: int
    token: str = field(repr=False)


class DriverListener:
    """The driver's end, on a thread of its own; a context manager."""

    def __init__(self, host: str, bind: str | None = None) -> None:
        """`host` is the driver's name for executors, `bind` the address to listen on."""
        self._host, self._bind = host, bind or host
        self._token = secrets.token_hex(16)
        self._port: int | None = None
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._problems: dict[asyncio.StreamWriter, tuple[str, ...]] = {}
        self._is_released = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="twinbus-driver-link", daemon=True)

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
        """The address for tasks; None if the driver cannot listen."""
        return None if self._port is None else DriverAddress(self._host, self._port, self._token)

    @property
    def attached(self) -> int:
        with self._lock:
            return len(self._problems)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why messages are not moved, as reported by running tasks."""
        with self._lock:
            reported = [problem for problems in self._problems.values() for problem in problems]
        return tuple(dict.fromkeys(reported))

    def release(self) -> None:
        """Let every task settle its messages and end; tasks that connect later end at once."""
        self._is_released = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._close_links)

    def _close_links(self) -> None:
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
            log.warning("tasks cannot be stopped, listening on %s failed: %s", self._bind, error)
            return
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        self._close_links()

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(INTRODUCTION_S):
                token = (await reader.readline()).strip()
            if not hmac.compare_digest(token, self._token.encode()) or self._is_released:
                return
            with self._lock:
                self._problems[writer] = ()
            while line := await reader.readline():
                problems = json.loads(line)
                if not isinstance(problems, list):
                    return
                with self._lock:
                    self._problems[writer] = tuple(map(str, problems))
        except (OSError, TimeoutError, ValueError):
            # A task that died, or a connection from elsewhere.
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
        self._reported: tuple[str, ...] = ()

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
        """Wait until the driver closes the link or is gone; for ever without a link."""
        if self._reader is None:
            await asyncio.get_running_loop().create_future()
            return
        with contextlib.suppress(OSError):
            # The driver sends nothing: only the end can be read.
            await self._reader.read(1)

    def report(self, problems: tuple[str, ...]) -> None:
        """Report to the driver why messages are not moved, if that changed."""
        problems = tuple(problem[:PROBLEM_LENGTH_MAX] for problem in problems[:PROBLEMS_MAX])
        if self._writer is None or self._writer.is_closing() or problems == self._reported:
            return
        self._reported = problems
        self._writer.write(json.dumps(problems).encode() + b"\n")
