"""One Spark job on a thread of its own, so that the caller can watch it and cancel it."""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from typing import TYPE_CHECKING, Final, Self

from pyspark import InheritableThread

from twinbus.pipeline.spark.classic import JobGroup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OURS: Final = re.compile(r"^(?:\w+\.)*(?:SyphonError|LedgerError): (.+)$", re.MULTILINE)
"""The last line of a traceback from a task that met an error of ours: its text is for people."""

_CANCELLED: Final = ("SPARK_JOB_CANCELLED", "cancelled", "canceled")
_STOPPED: Final = ("SparkContext was shut down", "stopped SparkContext", "Py4JNetworkError")
_LENGTH_MAX: Final = 500


class JobFailed(Exception):
    """The job failed, in one line; `is_final` if another would fail in the same way."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class JobCancelled(JobFailed):
    """Somebody cancelled the job."""


class SparkJob:
    """Collects a DataFrame, from the begin of a `with` block; its end waits for the job's."""

    def __init__(self, spark: SparkSession, work: DataFrame, words: str) -> None:
        """`words` is what Spark's pages show for it."""
        self._work = work
        self._words = words
        self._group = JobGroup(spark, f"twinbus-{uuid.uuid4().hex[:12]}")
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = InheritableThread(target=self._run)
        # A job that hangs must not hang the end of the process.
        self._thread.daemon = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self.cancel()
        self._over.wait()

    def wait(self, limit_s: float) -> bool:
        """Wait for the job's end; whether it came within the limit."""
        return self._over.wait(limit_s)

    def result(self) -> None:
        """Nothing for a job that ended well, else JobFailed."""
        if self._error is not None:
            raise failure_of(self._error) from self._error

    def cancel(self) -> None:
        """Have Spark kill its tasks."""
        with contextlib.suppress(Exception):  # a context that is gone has no jobs either
            self._group.cancel()

    def tasks(self) -> tuple[int, int]:
        """How many tasks run now, and how many wait for a slot."""
        return self._group.tasks()

    def _run(self) -> None:
        try:
            self._group.enter(self._words)
            # The one action: it runs the tasks, and what they return is not looked at.
            self._work.collect()
        except Exception as error:  # noqa: BLE001 - `result` raises it for the caller
            self._error = error
        finally:
            self._over.set()


def failure_of(error: Exception) -> JobFailed:
    """What the failure of a job means, from the text of its exception."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return JobFailed(ours[-1].strip(), is_final=True)
    if any(word in text for word in _STOPPED):
        return JobFailed("Spark has stopped under the drain", is_final=True)
    line = next((line.strip() for line in text.splitlines() if line.strip()), repr(error))
    if any(word in text for word in _CANCELLED):
        return JobCancelled(f"the Spark job was cancelled: {line[:_LENGTH_MAX]}")
    return JobFailed(line[:_LENGTH_MAX])
