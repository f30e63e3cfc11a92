"""Spark beside the drill: it starts on a thread of its own while traffic runs, and works there.

One thread for all of it: a session belongs to the thread that made it.
"""

from __future__ import annotations

import importlib
import importlib.util
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from twinbus.cost import prices
from twinbus.pipeline import jobs
from twinbus.pipeline.spark.session import (
    LOCAL_MASTER,
    QUICK_START,
    SparkStartError,
    start_session,
    stop_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkThread", "require_spark", "start_worker", "work_out_tables_once"]

T = TypeVar("T")

END_LIMIT_S: Final = 20.0
"""How long the end of a drill waits for Spark to end."""
STOP_LIMIT_S: Final = 3.0
"""The same for a drill that was stopped: somebody waits. The JVM ends when this process does."""


def require_spark() -> None:
    """SparkStartError before anything else has begun, where Spark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkStartError("the drill needs Spark: pip install 'twinbus[all]'")


def start_worker(session: SparkSession) -> None:
    """Have a Python worker run with the syphon loaded: the first one takes Spark seconds."""
    session.range(1).mapInArrow(_as_it_is, "id long").collect()


def work_out_tables_once(session: SparkSession, ledger: Path) -> None:
    """Work out the tables of the ledger so far, and throw them away.

    The first time costs Spark several times the second (it loads and compiles). While messages are
    sent nobody waits for it.
    """
    jobs.tables(session, ledger, prices.standard())


def _as_it_is(batches: Iterator[Any]) -> Iterator[Any]:
    importlib.import_module("twinbus.syphon.host")
    yield from batches


class SparkThread:
    """A Spark session and the thread it lives on; a context manager that ends both."""

    def __init__(
        self, *, master: str = LOCAL_MASTER, settings: Mapping[str, str] = QUICK_START
    ) -> None:
        self._master, self._settings = master, settings
        self.said = ""
        """What the start said of itself: which Java it found."""
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._session: SparkSession | None = None
        self._limit_s = END_LIMIT_S
        self._closing = False
        # Not waited for when the process ends: a start that hangs must not hang Ctrl-C.
        self._thread = threading.Thread(target=self._run, name="twinbus-spark", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.submit(lambda session: None)
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing = True
        self._work.put(None)
        self._thread.join(self._limit_s)

    def submit(self, work: Callable[[SparkSession], T]) -> Future[T]:
        """Have `work` done with the session, after what was submitted before."""
        future: Future[T] = Future()

        def do() -> None:
            if self._closing:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self._session is None:
                    self._session = start_session(
                        master=self._master, announce=self._say, settings=self._settings
                    )
                future.set_result(work(self._session))
            except BaseException as error:  # noqa: BLE001 - it goes to who waits for the future
                future.set_exception(error)

        self._work.put(do)
        return future

    def stop(self) -> None:
        """End what Spark is doing now, and do not wait for it for long."""
        self._limit_s = STOP_LIMIT_S
        self._closing = True
        self.interrupt()

    def interrupt(self) -> None:
        """End what Spark is doing now."""
        session: Any = self._session
        if session is not None:
            session.sparkContext.cancelAllJobs()

    def _say(self, line: str) -> None:
        self.said = line

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        if self._session is not None:
            stop_session(self._session)
