"""Everything that needs a SparkContext or the JVM; no other module touches them.

A session of Spark Connect has neither, and shared or serverless compute bars both. Tables, reports
and plans run on every session, because they call nothing here with a session that `is_classic`
denies. A drain needs a classic session: it watches and cancels its own job.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import shutil
import subprocess
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_END_LIMIT_S: Final = 15.0

PACKAGE: Final = "twinbus"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""A zip knows no earlier time; the same package makes the same bytes."""

_shipped: weakref.WeakSet[Any] = weakref.WeakSet()
"""Contexts whose executors have the package."""

_ending_alone: weakref.WeakSet[Any] = weakref.WeakSet()
"""Processes of JVMs whose end is not waited for."""


def is_classic(spark: SparkSession) -> bool:
    """Whether a session has a SparkContext; one of Spark Connect has none."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def launch(
    settings: Mapping[str, str], output: IO[bytes], *, ends_alone: bool = False
) -> SparkSession:
    """Start a session on a JVM of its own, whose output goes to a file.

    `ends_alone`: nothing waits for the end of the JVM, which then writes its classes.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    start: Any = launch_gateway
    gateway = start(conf, {"stdout": output, "stderr": subprocess.STDOUT})
    if ends_alone:
        _ending_alone.add(gateway.proc)
    return SparkSession(SparkContext(conf=conf, gateway=gateway))


def running_session() -> SparkSession | None:
    """Return the classic session of this process, or None."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    # A thread without a session shares that of the process, which can have only one Spark.
    return SparkSession.getActiveSession() or SparkSession._instantiatedSession


def stop(session: SparkSession) -> None:
    """Stop a session and, where this process started it, the JVM (`reset`)."""
    process = getattr(session.sparkContext._gateway, "proc", None)
    try:
        session.stop()
    except Exception:
        if process is None or process.poll() is None:
            raise
        # The JVM died, and with it what there was to stop.
    if process is not None:
        reset()


def reset() -> None:
    """End the JVM that this process started, so that pyspark can start another one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:
        return
    with contextlib.suppress(Exception):
        gateway.shutdown()
    # The JVM ends by itself when its standard input does.
    if process.stdin is not None:
        process.stdin.close()
    if process in _ending_alone:
        threading.Thread(target=process.wait, daemon=True).start()
        return
    try:
        process.wait(_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cancel_all_jobs(spark: SparkSession) -> None:
    """Cancel every job of the application."""
    spark.sparkContext.cancelAllJobs()


def slots(spark: SparkSession) -> int:
    """Return how many tasks can run at once."""
    return spark.sparkContext.defaultParallelism


def one_task_each(
    spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: StructType
) -> DataFrame:
    """Return a DataFrame in which each row is a task of its own."""
    # `parallelize` with as many slices as rows is what does it: `createDataFrame` alone does not.
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, len(rows)), schema)


class JobGroup:
    """The jobs of one thread, for another thread to monitor and cancel."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._context: Any = spark.sparkContext
        self._name = name

    def enter(self, words: str) -> None:
        """Add the jobs of this thread to the group; `words` describe them on Spark's pages."""
        self._context.setJobGroup(self._name, words)

    def cancel(self) -> None:
        """Kill the tasks."""
        self._context.cancelJobGroup(self._name)

    def tasks(self) -> tuple[int, int]:
        """Return how many tasks run, and how many wait for a slot."""
        running = waiting = 0
        tracker = self._context.statusTracker()
        for job in tracker.getJobIdsForGroup(self._name):
            found = tracker.getJobInfo(job)
            for stage_id in found.stageIds if found else ():
                stage = tracker.getStageInfo(stage_id)
                if stage:
                    running += stage.numActiveTasks
                    waiting += stage.numTasks - stage.numCompletedTasks - stage.numActiveTasks
        return running, waiting


def ship_package(spark: SparkSession) -> None:
    """Ship the package of this process to all executors of the Spark application, once.

    What executors need besides is Spark's own: Python of the driver's version, pyspark and pyarrow.
    In local mode tasks find the package by themselves. Over Spark Connect nothing is shipped: there
    it must be installed.
    """
    if not is_classic(spark) or is_in_one_process(spark.sparkContext.master or ""):
        return
    if spark.sparkContext in _shipped or not _root().is_dir():
        # Not a directory: it was shipped to this process, and so to the executors.
        return
    # Spark reads the file again for each new executor, so it stays as long as this process.
    directory = Path(tempfile.mkdtemp(prefix="twinbus-ship-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    spark.sparkContext.addPyFile(str(package_zip(directory / f"{PACKAGE}.zip")))
    _shipped.add(spark.sparkContext)


def is_in_one_process(master: str) -> bool:
    """Whether tasks run in the driver: `local`, `local[*]`, but not `local-cluster[...]`."""
    return master == "local" or master.startswith("local[")


def package_zip(path: Path) -> Path:
    """Write the package's files as a zip that Python can import from."""
    root = _root()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_dir() or "__pycache__" in file.parts:
                continue
            name = f"{PACKAGE}/{file.relative_to(root).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


def _root() -> Path:
    package: Any = importlib.import_module(PACKAGE)
    return Path(package.__file__).parent
