"""One Spark job on a thread of its own, and what Spark raises as one line for a person.

Spark's own text is a page of Java. Nothing here needs pyspark to be imported.
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Iterator
from traceback import walk_tb
from typing import TYPE_CHECKING, Final, Self

from twinbus.errors import TwinbusError
from twinbus.pipeline.spark.classic import JobGroup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OURS: Final = re.compile(r"^(?:\w+\.)*(?:SyphonError|LedgerError): (.+)$", re.MULTILINE)
"""The last line of a task's traceback with one of our errors, whose text is for people."""

_CANCELLED: Final = ("SPARK_JOB_CANCELLED", "cancelled", "canceled")
_STOPPED: Final = ("SparkContext was shut down", "stopped SparkContext", "Py4JNetworkError")
_LENGTH_MAX: Final = 500
_LINE_MAX: Final = 300
_SPARKS: Final = {"grpc", "py4j", "pyspark"}

_THROWN: Final = re.compile(r"(?:[a-z]\w*\.)+\w+(?:Exception|Error)\b.*")
"""Java's line for what was thrown: after the failed call, before the stack."""

JVM_GONE: Final = "its JVM ended: it was killed, or ran out of memory"


class JobFailed(Exception):
    """The job failed, in one line; `is_final` if another would fail in the same way."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class JobCancelled(JobFailed):
    """Somebody cancelled the job."""


class SparkJob:
    """Collects a DataFrame in the background; the end of its `with` block waits for it."""

    def __init__(self, spark: SparkSession, work: DataFrame, words: str) -> None:
        """`words` describe the job on Spark's pages."""
        from pyspark import InheritableThread

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
        """Wait for the job; return whether it ended within the limit."""
        return self._over.wait(limit_s)

    def result(self) -> None:
        """Raise JobFailed if the job failed."""
        if self._error is not None:
            raise failure_of(self._error) from self._error

    def cancel(self) -> None:
        """Kill the tasks of the job."""
        with contextlib.suppress(Exception):  # a context that is gone has no jobs
            self._group.cancel()

    def tasks(self) -> tuple[int, int]:
        """Return how many tasks run, and how many wait for a slot."""
        return self._group.tasks()

    def _run(self) -> None:
        try:
            self._group.enter(self._words)
            # The one action: it runs the tasks; their rows are not used.
            self._work.collect()
        except Exception as error:  # noqa: BLE001 - `result` raises it for the caller
            self._error = error
        finally:
            self._over.set()


def failure_of(error: Exception) -> JobFailed:
    """Return the failure of a job, from the text of its exception."""
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


class SparkFailed(TwinbusError):
    """Spark failed; the text says why."""


@contextlib.contextmanager
def spark_failures_in_one_line() -> Iterator[None]:
    """Raise SparkFailed for what Spark or its JVM raises in the block."""
    try:
        yield
    except Exception as error:
        if not _is_sparks(error):
            raise
        raise SparkFailed(f"Spark failed: {_telling_line(error)}") from error


def _is_sparks(error: Exception) -> bool:
    # By name: without Spark installed an import here would fail.
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return bool(packages & _SPARKS) or _is_of_gateway(error)


def _is_of_gateway(error: Exception) -> bool:
    """Return whether the connection to the JVM failed: Py4J raises the socket's own errors."""
    if not isinstance(error, OSError | EOFError):
        return False
    frames = walk_tb(error.__traceback__)
    modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames}
    return bool(modules & _SPARKS)


def _telling_line(error: Exception) -> str:
    if _is_of_gateway(error):
        return JVM_GONE
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a Java error asks the JVM for its text
        return JVM_GONE
    thrown = _THROWN.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (thrown[0].strip() if thrown else lines[0] if lines else repr(error))[:_LINE_MAX]
