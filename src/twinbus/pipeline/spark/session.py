"""Starts a quiet Spark session on an installed Java.

The JVM's own output goes to a file that is shown only if the start fails: its first lines come
before any log level can be set. A session that is active already (a notebook, `spark-submit`, Spark
Connect) is used as it is, never reconfigured, and left running.

Sessions for few and for many rows are additional sessions of the same application: rows that they
read are processed with their settings. Over Spark Connect there is only the given one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import socket
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from twinbus.errors import TwinbusError
from twinbus.extras import install_command
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.spark import classic
from twinbus.pipeline.spark.class_archive import ClassArchive, class_archive
from twinbus.pipeline.spark.classic import spark_failures_in_one_line
from twinbus.pipeline.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[*,4]"
"""All cores, and a task is tried four times as on a cluster; `local[*]` alone would try once."""

DRIVER_MEMORY: Final = "1g"
"""Spark refuses less than about 450 MB; a drill needs no more than this."""

SHUFFLE_PARTITIONS: Final = 4
"""Spark's 200 are for a cluster: on one machine each is a task with nothing to do."""

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_CLASS_PATH: Final = "spark.driver.extraClassPath"

QUICK_START: Final = {_JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Settings for short work (a drill, the tests): half the start for a slower long run."""

_LONG_WORK: Final = "-XX:+UseParallelGC"
"""Java's own choice of a collector shortens pauses, which no batch minds, and pays for it at every
reference that is written: an audit took 18.4 s with it and 14.0 s with this one."""

_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_JAVA_READS: Final = (
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"),
    # Spark's own scripts.
    "SPARK_SUBMIT_OPTS",
)
_SPARK_READS: Final = ("java-opts", "spark-defaults.conf")
"""Environment variables, and files in `SPARK_CONF_DIR`, with options for every JVM. A JVM with two
collectors does not start."""

ROWS_A_PARTITION: Final = 2_000_000
"""Records, so that a task can sum them in its memory. Larger partitions are sorted on disk: an
audit of a hundred million records in 4 partitions took 235 s and 4.8 GB, in 32 134 s and 2.4 GB."""

ROWS_A_TASK: Final = 100_000
"""A task of fewer records mostly starts and ends: with a cluster's 200 partitions, a report on
32,000 records was 2,275 tasks."""

_FOR_FEW: Final = {
    "spark.sql.adaptive.enabled": "false",
    # Each broadcast of a few rows would be a job of its own.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.disableHints": "true",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    # Without compiled code it asks a cache of each expression for each row: a third of a task.
    "spark.sql.subexpressionElimination.enabled": "false",
}
"""For some thousand rows: Spark would spend most of its time compiling and planning."""

LISTED_BY_DRIVER_MAX: Final = 1_000
"""Files that the driver lists by itself. Spark starts a job for more than 32: 200 of them took
5.3 s by a job, and 0.5 s without."""

METHOD_BYTES_MAX: Final = 8_000
"""Java never compiles a larger method, and Spark makes them of up to 65,535 bytes. To pick the
messages for five tables was one of 8,126: 3.3 to 5.0 s of a processor for 920,000 of them. In
smaller methods, which Spark makes instead, it is 2.5 to 2.9 s."""

_LISTED_BY_DRIVER: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_METHOD_BYTES: Final = "spark.sql.codegen.hugeMethodLimit"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_PARTITIONS_AT_FIRST: Final = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
"""Before Spark merges small ones."""

_beside: weakref.WeakKeyDictionary[SparkSession, dict[frozenset[tuple[str, str]], SparkSession]] = (
    weakref.WeakKeyDictionary()
)
"""Additional sessions of a session, by their settings."""

_TAIL_BYTES: Final = 16_000
_TELLING: Final = ("Exception: ", "Error: ", "ERROR")
"""Marks of a reason among the JVM's lines, the plainest first; without one it is the last line."""
_UNDER_SPARK_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"
_CONNECT: Final = "sc://"
_CONNECT_PORT: Final = 15002
_CONNECT_ANSWER_S: Final = 10.0
_CONNECT_SINCE: Final = (4, 0)
"""`make spark-matrix` runs Spark Connect from this version on."""


class SparkStartError(TwinbusError):
    """Spark is not installed or does not start; the text says which, and the JVM's reason."""


@contextlib.contextmanager
def spark_session(
    *,
    master: str = LOCAL_MASTER,
    announce: Callable[[str], None] | None = None,
    settings: Mapping[str, str] | None = None,
    record_classes: bool = False,
) -> Iterator[SparkSession]:
    """Yield a session: `start_session` before the block, `stop_session` after it.

    Errors of Spark in the block are raised as SparkFailed, whose text is one line.
    """
    with spark_failures_in_one_line():
        is_running = _active() is not None
        session = start_session(
            master=master, announce=announce, settings=settings, record_classes=record_classes
        )
        try:
            yield session
        finally:
            if not is_running:
                stop_session(session)


def start_session(
    *,
    master: str = LOCAL_MASTER,
    announce: Callable[[str], None] | None = None,
    settings: Mapping[str, str] | None = None,
    record_classes: bool = False,
) -> SparkSession:
    """Start a quiet session on `master`, or return the active one; `announce` gets a line.

    `settings` are Spark's and override those here; under `spark-submit` its own come first.
    `record_classes`: this session records its classes, so that later ones start faster
    (`class_archive`).
    """
    if importlib.util.find_spec("pyspark") is None:
        raise SparkStartError(f"Spark is not installed: {install_command('spark,jre')}")
    running = _active()
    if running is not None:
        return running
    if master.startswith(_CONNECT):
        return _connect(master)
    if _UNDER_SPARK_SUBMIT in os.environ:
        return _submitted(settings or {})
    java = find_java()
    if announce is not None:
        announce(f"starting Spark (Java {java.version} from {java.source})")
    changes = _environment(master, java)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # Py4J also writes to the root logger, with a traceback, when the JVM is gone.
    logging.getLogger().addFilter(_is_not_py4j)
    wanted = {**_settings(master), **(settings or {})}
    if _JAVA_OPTIONS in wanted and _has_collector(os.environ):
        wanted[_JAVA_OPTIONS] = _COLLECTOR.sub("", wanted[_JAVA_OPTIONS])
        if not wanted[_JAVA_OPTIONS].strip():
            # An empty text would override the options in Spark's own files.
            del wanted[_JAVA_OPTIONS]
    with _changed(os.environ, changes):
        archive = _archive(java, wanted, record=record_classes)
        if archive is None:
            return _launched(wanted)
        options = f"{wanted.get(_JAVA_OPTIONS, '')} {archive.option}"
        try:
            return _launched({**wanted, _JAVA_OPTIONS: options}, records=archive.is_recorded)
        except SparkStartError:
            session = _launched(wanted)
            # The archive was the reason.
            archive.discard()
            return session


def _has_collector(environment: Mapping[str, str]) -> bool:
    options = [environment.get(name, "") for name in _JAVA_READS]
    if directory := environment.get("SPARK_CONF_DIR"):
        for name in _SPARK_READS:
            with contextlib.suppress(OSError):
                options.append(Path(directory, name).read_text(errors="replace"))
    return any(map(_COLLECTOR.search, options))


def _launched(settings: Mapping[str, str], *, records: bool = False) -> SparkSession:
    # To a file and not a pipe: a pipe that is not read fills up and stops the JVM.
    with tempfile.TemporaryFile() as output:
        try:
            return classic.launch(settings, output, ends_alone=records)
        except Exception as error:
            classic.reset()
            master, words = shown_master(settings["spark.master"]), _last_words(output)
            raise SparkStartError(f"Spark does not start on {master}: {words or error}") from error


def _archive(java: Java, settings: Mapping[str, str], *, record: bool) -> ClassArchive | None:
    """Return the archive for a JVM on this machine; a cluster has its own settings."""
    options = settings.get(_JAVA_OPTIONS, "")
    is_own = "-Xshare" in options or "-XX:SharedArchiveFile" in options
    if is_own or not _is_local(settings["spark.master"]) or _CLASS_PATH in settings:
        return None
    return class_archive(java, _pyspark_home(), os.environ, record=record, now=time.time())


def stop_session(session: SparkSession) -> None:
    """Stop the session and, where this process started it, the JVM.

    Waits until it is gone, unless the JVM records its classes, which takes it some seconds.
    """
    if classic.is_classic(session):
        classic.stop(session)
    else:
        session.stop()


def session_for_few(spark: SparkSession) -> SparkSession:
    """Return a session for some thousand rows, which compiles no code for them."""
    return _session_with(spark, _FOR_FEW)


def session_for_many(spark: SparkSession, rows: int) -> SparkSession:
    """Return a session for this number of rows (0: unknown), which may be the given one.

    The given one limits the number of partitions, unless they would be too large.
    """
    given = spark.conf.get(_PARTITIONS) or ""
    if not given.isdecimal():
        # Some platforms choose the number themselves ("auto").
        return _session_with(spark, {})
    useful = max(SHUFFLE_PARTITIONS, -(-rows // ROWS_A_TASK))
    wanted = str(max(min(int(given), useful), -(-rows // ROWS_A_PARTITION)))
    settings = {_PARTITIONS: wanted}
    if spark.conf.get(_PARTITIONS_AT_FIRST, None) is not None:
        settings[_PARTITIONS_AT_FIRST] = wanted
    return _session_with(spark, settings)


def _session_with(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a session with these settings; the given one if it has them already."""
    if not classic.is_classic(spark):
        # Frames of two sessions cannot be joined there, and the user configures this one.
        return spark
    given: dict[str, str] = dict(spark.conf.getAll)
    listed = int(spark.conf.get(_LISTED_BY_DRIVER) or 0)
    method_bytes = int(spark.conf.get(_METHOD_BYTES) or METHOD_BYTES_MAX)
    wanted = {
        **given,
        _LISTED_BY_DRIVER: str(max(listed, LISTED_BY_DRIVER_MAX)),
        _METHOD_BYTES: str(min(method_bytes, METHOD_BYTES_MAX)),
        **settings,
    }
    if all(spark.conf.get(name, None) == value for name, value in wanted.items() - given.items()):
        return spark
    made = _beside.setdefault(spark, {})
    key = frozenset(wanted.items())
    if key not in made:
        made[key] = _new_session(spark, wanted)
    return made[key]


def _new_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import AnalysisException

    session = spark.newSession()
    # It has the settings of the application, not those made in the given session, which often
    # include credentials for a URL.
    there: dict[str, str] = dict(session.conf.getAll)
    for name, value in settings.items() - there.items():
        # Settings of the application cannot be set here, and do not differ.
        with contextlib.suppress(AnalysisException):
            session.conf.set(name, value)
    return session


def master_of(spark: SparkSession) -> str:
    """Return the master of the session's Spark, or "Spark Connect"."""
    return spark.conf.get("spark.master", None) or "Spark Connect"


def shown_master(master: str) -> str:
    """Return a master for people: what follows or precedes its address may be a secret."""
    scheme, mark, address = re.split("[;?]", master)[0].partition("://")
    return (scheme + mark + address.rpartition("@")[2]).removesuffix("/")


def is_named(master: str | None) -> bool:
    """Return whether the user chose a Spark: a master, `spark-submit`, or a session that runs."""
    return master is not None or _UNDER_SPARK_SUBMIT in os.environ or _active() is not None


def reads_local_files(spark: SparkSession) -> bool:
    """Return whether tasks surely see the files of this machine."""
    return classic.is_classic(spark) and _is_local(master_of(spark))


def interrupt_jobs(spark: SparkSession) -> None:
    if classic.is_classic(spark):
        classic.cancel_all_jobs(spark)
    else:
        spark.interruptAll()


def require_shared(
    master: str | None, places: Iterable[PurePath | str | None], *, shared: bool
) -> None:
    """Raise LedgerError for a local path on a cluster, unless it is declared shared.

    The processes of `local-cluster` run on this machine and share its disk.
    """
    if shared or master is None or _is_local(master):
        return
    for place in places:
        if place and not is_url(str(place)):
            raise LedgerError(
                f"{place} is a local path and {shown_master(master)} is a cluster, where each"
                " machine has its own disk: use a URL that all machines reach, or declare a"
                " directory that all of them mount (--shared, in Python shared=True)"
            )


def is_url(place: str) -> bool:
    """Return whether a place is a URL of another file system than the local one."""
    scheme, separator, _ = place.partition("://")
    return bool(separator) and scheme != "file"


def _active() -> SparkSession | None:
    # Without pyspark loaded there is no session; loading it to check would cost 0.2 s.
    if "pyspark.sql" not in sys.modules:
        return None
    connected: Any = sys.modules.get("pyspark.sql.connect.session")
    remote = connected and (
        connected.SparkSession.getActiveSession() or connected.SparkSession._get_default_session()
    )
    return classic.running_session() if remote is None else require_tried(remote)


def require_tried(remote: SparkSession) -> SparkSession:
    """Return the session of Spark Connect; SparkStartError if its Spark was never tried."""
    numbers = re.match(r"(\d+)\.(\d+)", remote.version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < _CONNECT_SINCE:
        raise SparkStartError(
            f"Spark Connect needs Spark 4.0 or later, this is {remote.version}: use a classic"
            " session (--master, or a cluster of your own)"
        )
    return remote


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in PurePath(record.pathname).parts


def _settings(master: str) -> dict[str, str]:
    common = {
        "spark.master": master,
        "spark.app.name": "twinbus",
        "spark.log.level": "ERROR",
        # Spark would look up the stack for the source line of every column expression.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # A second attempt beside a running one would be a second syphon on the same queue.
        "spark.speculation": "false",
        "spark.sql.session.timeZone": "UTC",
        # The first text in lower case would cost 3 s of a processor, which ICU takes to try the
        # title case of every character.
        "spark.sql.icu.caseMappings.enabled": "false",
        _LISTED_BY_DRIVER: str(LISTED_BY_DRIVER_MAX),
        _METHOD_BYTES: str(METHOD_BYTES_MAX),
        "spark.ui.showConsoleProgress": "false",
    }
    if not _is_local(master):
        # A cluster has settings of its own for the others.
        return common
    common |= {
        "spark.driver.memory": DRIVER_MEMORY,
        _PARTITIONS: str(SHUFFLE_PARTITIONS),
        "spark.ui.enabled": "false",
        # Nothing outside this machine has business with it, and its name need not resolve.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        _JAVA_OPTIONS: _LONG_WORK,
    }
    if classic.is_in_one_process(master):
        # Other users of this machine reach the ports of driver and block manager too, and tasks
        # with their connection strings are blocks there. Spark makes the secret itself.
        common["spark.authenticate"] = "true"
    return common


def _environment(master: str, java: Java) -> dict[str, str]:
    """Return the environment variables of the JVM and its Python workers."""
    changes = {"JAVA_HOME": str(java.home)}
    if _is_local(master):
        changes |= {
            # The workers must be this Python, with what is installed in it.
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            # A Spark of another version on this machine does not fit our pyspark.
            "SPARK_HOME": _pyspark_home(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_HOSTNAME": "localhost",
        }
    return changes


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _pyspark_home() -> str:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent)


def _connect(url: str) -> SparkSession:
    """A session of the Spark at a URL `sc://HOST:PORT`, with the settings of that one."""
    from pyspark.sql import SparkSession

    builder, shown = SparkSession.builder, shown_master(url)
    try:
        parts = urlsplit(shown)
        address = parts.hostname or "", parts.port or _CONNECT_PORT
    except ValueError:
        raise SparkStartError(
            f"{shown} is no address of Spark Connect; give sc://HOST:PORT"
        ) from None
    try:
        # Spark itself tries for minutes before it reports that nothing answers.
        socket.create_connection(address, _CONNECT_ANSWER_S).close()
        remote: Any = builder.remote(url)
        return require_tried(remote.getOrCreate())
    except (ImportError, OSError) as error:
        text = str(error).replace(url, shown)
        raise SparkStartError(f"Spark Connect at {shown} cannot be used: {text}") from error


def _submitted(settings: Mapping[str, str]) -> SparkSession:
    """Return the session of `spark-submit`, with settings that its command line leaves open."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    # Its JVM runs already: options for one come too late.
    wanted = {name: value for name, value in settings.items() if name != _JAVA_OPTIONS}
    return builder.config(map=wanted).getOrCreate()  # type: ignore[no-any-return]


def _last_words(output: IO[bytes]) -> str:
    """Return the line of the JVM's output that best says why it ended, or ""."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL_BYTES))
    lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines()]
    for telling in _TELLING:
        for line in lines:
            if telling in line:
                return line
    return lines[-1] if lines else ""


@contextlib.contextmanager
def _changed(environment: Any, changes: Mapping[str, str]) -> Iterator[None]:
    """Apply `changes` to the environment while Spark starts, and undo them afterwards."""
    before = {name: environment.get(name) for name in changes}
    environment.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del environment[name]
            else:
                environment[name] = value
