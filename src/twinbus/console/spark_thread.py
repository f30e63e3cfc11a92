"""A Spark session on its own thread, so that it starts and works while a command does more.

One thread does all of it: a session belongs to the thread that made it.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import queue
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self, TypeVar

from twinbus.extras import install_command
from twinbus.pipeline.functions import NeedsSpark, in_this_process
from twinbus.pipeline.spark.classic import spark_failures_in_one_line
from twinbus.pipeline.spark.session import (
    LOCAL_MASTER,
    QUICK_START,
    SparkStartError,
    interrupt_jobs,
    is_named,
    spark_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

END_LIMIT_S: Final = 20.0
"""Maximum time that the end of a command waits for Spark."""
STOP_LIMIT_S: Final = 3.0
"""The same for a command that was stopped or failed. The JVM ends when this process does."""

LONG_BYTES: Final = 500 << 20
"""For larger ledgers Spark compiles fully: a slower start, a faster run."""


INSTALL: Final = "TWINBUS_INSTALL_SPARK"
"""The command that installs Spark's packages while a drill runs, as `make drill` sets it."""


def require_spark() -> None:
    """Raise SparkStartError if Spark, or what the tables need beside it, is not installed."""
    for package, what in (("pyspark", "Spark"), ("deltalake", "the package deltalake")):
        if importlib.util.find_spec(package) is None:
            raise SparkStartError(f"this command needs {what}: {install_command('spark,jre')}")


class SparkInstallation:
    """The packages of Spark, which are installed in the background if `INSTALL` says how.

    A context manager, which ends an installation that still runs. SparkStartError if the packages
    are missing and nothing installs them.
    """

    def __init__(self) -> None:
        self._command = os.environ.get(INSTALL, "")
        self.process: subprocess.Popen[bytes] | None = None
        """The installation, while it runs."""
        self._output: IO[bytes]

    def __enter__(self) -> Self:
        try:
            require_spark()
        except SparkStartError:
            if not self._command:
                raise
            self._output = tempfile.TemporaryFile()
            self.process = subprocess.Popen(  # noqa: S603 - the user's own command
                shlex.split(self._command),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the drill, which ends this itself.
                start_new_session=True,
            )
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def is_done(self, timeout_s: float) -> bool:
        """Whether the packages are there; waits for them, but no longer than the timeout.

        SparkStartError if the installation failed.
        """
        if self.process is None:
            return True
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self.process = None
        importlib.invalidate_caches()
        if status:
            self._output.seek(0)
            said = self._output.read().decode(errors="replace").strip().splitlines()
            raise SparkStartError(
                f"Spark could not be installed: {said[-1] if said else f'status {status}'}"
                f" ({self._command})"
            )
        require_spark()
        return True


def settings_for(ledger: str, tables: str | None = None) -> Mapping[str, str]:
    """Settings of Spark for a ledger by its size; `tables`, if all that is there is read too."""
    if "://" in ledger or "://" in (tables or ""):
        return {}
    files = [*Path(ledger).glob("*"), *(Path(tables).rglob("*") if tables else ())]
    total_bytes = 0
    for file in files:
        # One may be renamed or removed meanwhile.
        with suppress(OSError):
            total_bytes += file.stat().st_size
    return {} if total_bytes > LONG_BYTES else QUICK_START


class SparkThread:
    """A Spark session on its own thread; a context manager that ends both.

    A session that was running before is used and left running. When the block raises, running
    jobs are cancelled, and the end of Spark is waited for only briefly.
    """

    def __init__(
        self,
        *,
        master: str | None = None,
        settings: Mapping[str, str] = QUICK_START,
        at_once: bool = True,
    ) -> None:
        """`master` is that of Spark; None: this machine. Without `at_once` the first work that
        needs Spark starts it.
        """
        self._master, self._settings, self._at_once = master or LOCAL_MASTER, settings, at_once
        self._is_wanted = is_named(master)
        """Whether no work is for this process: the user chose a Spark, or work needed it."""
        self.announcement = ""
        """The last line of the start: which Java it found."""
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._session: SparkSession | None = None
        self._open = ExitStack()
        self._closing = False
        # A daemon: a start that hangs must not hang Ctrl-C.
        self._thread = threading.Thread(target=self._run, name="twinbus-spark", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if self._at_once:
            self.submit(lambda session: None)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._closing = True
        if kind is not None:
            self.interrupt()
        self._work.put(None)
        self._thread.join(END_LIMIT_S if kind is None else STOP_LIMIT_S)

    def submit(self, work: Callable[[SparkSession], T]) -> Future[T]:
        """Run `work` with the session, after what was submitted before."""
        future: Future[T] = Future()

        def do() -> None:
            if self._closing:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self._session is None:
                    self._session = self._open.enter_context(
                        spark_session(
                            master=self._master,
                            announce=partial(setattr, self, "announcement"),
                            settings=self._settings,
                            record_classes=True,
                        )
                    )
                with spark_failures_in_one_line():
                    future.set_result(work(self._session))
            except BaseException as error:  # noqa: BLE001 - the future carries it
                future.set_exception(error)

        self._work.put(do)
        return future

    async def do(
        self, work: Callable[[SparkSession | None], T], what: str, say: Callable[[str], None]
    ) -> T:
        """Do work on a ledger without Spark if this process can (None), else with the session.

        `what` is said of the work.
        """
        say(what)
        if not self._is_wanted:
            try:
                return await asyncio.to_thread(_here, work)
            except NeedsSpark:
                self._is_wanted = True
        if self._session is None:
            say("starting Spark")
            await asyncio.wrap_future(self.submit(lambda session: None))
            say(what)
        return await asyncio.wrap_future(self.submit(work))

    def interrupt(self) -> None:
        session: Any = self._session
        if session is not None:
            # Without its JVM there is no job to cancel.
            with suppress(Exception):
                interrupt_jobs(session)

    def _run(self) -> None:
        with self._open:
            while (work := self._work.get()) is not None:
                work()


def _here(work: Callable[[None], T]) -> T:
    with in_this_process():
        return work(None)
