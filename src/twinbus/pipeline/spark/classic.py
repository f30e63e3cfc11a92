"""Everything that needs a SparkContext or the JVM; no other module touches them.

A session of Spark Connect has neither, and shared or serverless compute bars both. With a session
that `is_classic` denies, a function here does its work as `connect` has it, or is not called.

At the end: what Spark raises as one line for a person; its own text is a page of Java. Importing
this module does not import pyspark.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import re
import shutil
import subprocess
import tempfile
import threading
import uuid
import weakref
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from traceback import walk_tb
from typing import IO, TYPE_CHECKING, Any, Final, Self

from twinbus.errors import TwinbusError
from twinbus.pipeline.spark import connect
from twinbus.pipeline.spark.connect import ConnectJobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_END_LIMIT_S: Final = 15.0

PACKAGE: Final = "twinbus"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""A zip knows no earlier time; the same package makes the same bytes."""

_shipped: weakref.WeakSet[Any] = weakref.WeakSet()
"""Contexts, and sessions of Spark Connect, whose executors have the package."""

_ending_alone: weakref.WeakSet[Any] = weakref.WeakSet()
"""Processes of JVMs whose end is not waited for."""


_LOOKED_UP: Final = ("org.apache.spark.sql.functions", "functions", "PythonUtils")
"""What pyspark calls the classes of its functions."""

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
    _keep_lookups(gateway.jvm)
    return SparkSession(SparkContext(conf=conf, gateway=gateway))


def _keep_lookups(jvm: Any) -> None:
    """Find pyspark's classes of functions, and their methods, once.

    For each column pyspark asks the JVM what these names are: a third of what a report asks, and
    for a short name the JVM searches all its jars.
    """
    from py4j.java_gateway import JavaClass, JavaMember  # type: ignore[import-untyped]

    class Kept(JavaClass):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            found = super().__getattr__(name)
            # A field can change.
            if isinstance(found, JavaMember):
                setattr(self, name, found)
            return found

    for name in _LOOKED_UP:
        with contextlib.suppress(Exception):
            found = getattr(jvm, name)
            setattr(jvm, name, Kept(found._fqn, found._gateway_client))


def running_session() -> SparkSession | None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    # A thread without a session shares that of the process, which can have only one Spark.
    return SparkSession.getActiveSession() or SparkSession._instantiatedSession


def hadoop_of(spark: SparkSession) -> tuple[Any, Any]:
    """Return the gateway to the JVM, and the settings that a session gives to Hadoop."""
    java: Any = spark._jsparkSession
    return spark.sparkContext._gateway, java.sessionState().newHadoopConf()


@contextlib.contextmanager
def active_session_kept(spark: SparkSession) -> Iterator[None]:
    """Keep the active session of this thread, which `createDataFrame` replaces by its own."""
    from pyspark.sql import SparkSession

    if not is_classic(spark):
        yield
        return
    before = SparkSession.getActiveSession()
    try:
        yield
    finally:
        there: Any = SparkSession._get_j_spark_session_class(spark._jvm)
        if before is None:
            there.clearActiveSession()
        else:
            there.setActiveSession(before._jsparkSession)
        SparkSession._activeSession = before


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
    spark.sparkContext.cancelAllJobs()


def slots(spark: SparkSession) -> int:
    """Return how many tasks can run at once."""
    if not is_classic(spark):
        return connect.slots(spark)
    return spark.sparkContext.defaultParallelism


def one_task_each(
    spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: StructType
) -> DataFrame:
    """Return a DataFrame in which each row is a task of its own."""
    if not is_classic(spark):
        return connect.one_task_each(spark, rows, schema)
    # `parallelize` with as many slices as rows is what does it: `createDataFrame` alone does not.
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, len(rows)), schema)


def ship_package(spark: SparkSession) -> None:
    """Ship the package of this process to all executors of the Spark application, once.

    What executors need besides is Spark's own: Python of the driver's version, pyspark and pyarrow.
    In local mode tasks find the package by themselves.
    """
    application = spark.sparkContext if is_classic(spark) else spark
    if is_classic(spark) and is_in_one_process(spark.sparkContext.master or ""):
        return
    if application in _shipped or not _root().is_dir():
        # Not a directory: it was shipped to this process, and so to the executors.
        return
    # Spark reads the file again for each new executor, so it stays as long as this process.
    directory = Path(tempfile.mkdtemp(prefix="twinbus-ship-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    archive = str(package_zip(directory / f"{PACKAGE}.zip"))
    if is_classic(spark):
        spark.sparkContext.addPyFile(archive)
    else:
        connect.ship(spark, archive)
    _shipped.add(application)


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
        self._work = work
        group = f"twinbus-{uuid.uuid4().hex[:12]}"
        self._marked: _MarkedJobs | ConnectJobs
        if is_classic(spark):
            from pyspark import InheritableThread

            self._marked = _MarkedJobs(spark.sparkContext, group, words)
            self._thread: threading.Thread = InheritableThread(target=self._run)
        else:
            self._marked = ConnectJobs(spark, group)
            self._thread = threading.Thread(target=self._run)
        self._over = threading.Event()
        self._error: Exception | None = None
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
        if self._error is not None:
            raise failure_of(self._error) from self._error

    def cancel(self) -> None:
        with contextlib.suppress(Exception):  # a Spark that is gone has no jobs
            self._marked.cancel()

    def tasks(self) -> tuple[int, int]:
        """Return how many tasks run, and how many wait for a slot."""
        return self._marked.tasks()

    def _run(self) -> None:
        try:
            with self._marked.marking():
                # The one action: it runs the tasks; their rows are not used.
                self._work.collect()
        except Exception as error:  # noqa: BLE001 - `result` raises it for the caller
            self._error = error
        finally:
            self._over.set()


class _MarkedJobs:
    """The jobs of one thread, as a group of a SparkContext."""

    def __init__(self, context: Any, group: str, words: str) -> None:
        self._context, self._group, self._words = context, group, words

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        self._context.setJobGroup(self._group, self._words)
        yield

    def cancel(self) -> None:
        self._context.cancelJobGroup(self._group)

    def tasks(self) -> tuple[int, int]:
        running = waiting = 0
        tracker = self._context.statusTracker()
        for job in tracker.getJobIdsForGroup(self._group):
            found = tracker.getJobInfo(job)
            for stage_id in found.stageIds if found else ():
                stage = tracker.getStageInfo(stage_id)
                if stage:
                    running += stage.numActiveTasks
                    waiting += stage.numTasks - stage.numCompletedTasks - stage.numActiveTasks
        return running, waiting


def failure_of(error: Exception) -> JobFailed:
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
        raise SparkFailed(f"Spark failed: {telling_line(error)}") from error


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


def telling_line(error: Exception) -> str:
    """Return the line of an error of Spark or its JVM that says why."""
    if _is_of_gateway(error):
        return JVM_GONE
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a Java error asks the JVM for its text
        return JVM_GONE
    thrown = _THROWN.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (thrown[0].strip() if thrown else lines[0] if lines else repr(error))[:_LINE_MAX]
