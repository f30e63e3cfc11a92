"""A Spark session on a thread of its own, so that it starts and works while traffic runs.

One thread does all of it: a session belongs to the thread that made it.
"""

from __future__ import annotations

import importlib
import importlib.util
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from twinbus.cost import prices
from twinbus.pipeline.reports.outage import outage_report
from twinbus.pipeline.spark.session import (
    LOCAL_MASTER,
    QUICK_START,
    SparkStartError,
    spark_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

END_LIMIT_S: Final = 20.0
"""Maximum time that the end of a drill waits for Spark."""
STOP_LIMIT_S: Final = 3.0
"""The same for a drill that was stopped. The JVM ends when this process does."""


def require_spark() -> None:
    """Raise SparkStartError if Spark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkStartError("the drill needs Spark: pip install 'twinbus[all]'")


def start_worker(session: SparkSession) -> None:
    """Start a Python worker and load the syphon in it: the first one takes Spark seconds."""
    session.range(1).mapInArrow(_unchanged, "id long").collect()


def warm_up_reports(session: SparkSession, ledger: Path) -> None:
    """Make the reports of the ledger so far and discard them.

    The first time costs Spark several times the second (it loads and compiles). While messages are
    sent nobody waits for it.
    """
    outage_report(session, ledger, prices.standard(), (), peeked_ms=0, ids_max=1)


def _unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    importlib.import_module("twinbus.syphon.host")
    yield from batches


class SparkThread:
    """A Spark session on its own thread; a context manager that ends both.

    A session that was running before is used and left running.
    """

    def __init__(
        self, *, master: str = LOCAL_MASTER, settings: Mapping[str, str] = QUICK_START
    ) -> None:
        self._master, self._settings = master, settings
        self.announcement = ""
        """The last line of the start: which Java it found."""
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._session: SparkSession | None = None
        self._open = ExitStack()
        self._limit_s = END_LIMIT_S
        self._closing = False
        # A daemon: a start that hangs must not hang Ctrl-C.
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
                            master=self._master, announce=self._announce, settings=self._settings
                        )
                    )
                future.set_result(work(self._session))
            except BaseException as error:  # noqa: BLE001 - the future carries it
                future.set_exception(error)

        self._work.put(do)
        return future

    def stop(self) -> None:
        """Cancel the running jobs, and do not wait long for the end of Spark."""
        self._limit_s = STOP_LIMIT_S
        self._closing = True
        self.interrupt()

    def interrupt(self) -> None:
        """Cancel the running jobs."""
        session: Any = self._session
        if session is not None:
            session.sparkContext.cancelAllJobs()

    def _announce(self, line: str) -> None:
        self.announcement = line

    def _run(self) -> None:
        with self._open:
            while (work := self._work.get()) is not None:
                work()
