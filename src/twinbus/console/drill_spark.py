"""Spark beside the drill: it starts on a thread of its own while traffic runs, and works there.

One thread for all of it: a session belongs to the thread that made it.
"""

from __future__ import annotations

import importlib
import importlib.util
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from twinbus.cost import prices
from twinbus.pipeline import jobs
from twinbus.pipeline.session import QUICK_START, SparkStartError, start_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkThread", "require_spark", "warm_up"]

T = TypeVar("T")

END_LIMIT_S: Final = 20.0
"""How long the end of a drill waits for Spark. Past that the JVM ends when this process does."""


def require_spark() -> None:
    """SparkStartError before anything else has begun, where Spark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkStartError("the drill needs Spark: pip install 'twinbus[all]'")


def warm_up(session: SparkSession, ledger: Path) -> None:
    """Have Spark do all of its work once, on the ledger so far, and throw the answer away.

    The first time costs it many times the second: classes, code, a Python worker. While messages
    are sent that costs nobody anything; afterwards somebody would be waiting.
    """
    session.range(1).mapInArrow(_as_it_is, "id long").collect()
    jobs.tables(session, ledger, prices.standard(), snapshot=[])


def _as_it_is(batches: Iterator[Any]) -> Iterator[Any]:
    importlib.import_module("twinbus.syphon.host")
    yield from batches


class SparkThread:
    """A Spark session and the thread it lives on; a context manager that ends both."""

    def __init__(self) -> None:
        self.said = ""
        """What the start said of itself: which Java it found."""
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._session: SparkSession | None = None
        # Not waited for when the process ends: a start that hangs must not hang Ctrl-C.
        self._thread = threading.Thread(target=self._run, name="twinbus-spark", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.submit(lambda session: None)
        return self

    def __exit__(self, *exc: object) -> None:
        self._work.put(None)
        self._thread.join(END_LIMIT_S)

    def submit(self, work: Callable[[SparkSession], T]) -> Future[T]:
        """Have `work` done with the session, after what was submitted before."""
        future: Future[T] = Future()

        def do() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self._session is None:
                    self._session = start_session(announce=self._say, settings=QUICK_START)
                future.set_result(work(self._session))
            except BaseException as error:  # noqa: BLE001 - it goes to who waits for the future
                future.set_exception(error)

        self._work.put(do)
        return future

    def interrupt(self) -> None:
        """End what Spark is doing now: whoever asked for it has gone."""
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
