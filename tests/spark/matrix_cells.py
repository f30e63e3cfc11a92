"""The cells of the matrix for the Spark of this environment: each verb on a small ledger.

python -m tests.spark.matrix_cells classic|connect [VERB…]

A verb runs by the product's own command where there is one. Its cell passes if the figures are
those of the ledger, is refused if the product says why in one line, and fails otherwise. One line
of JSON for each cell goes to standard output.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyspark

from tests.spark.connect_client import PLAN
from tests.spark.connect_server import connect_server
from tests.spark.drain_world import KINDS, QUEUES, World, duplicates, without_key, world
from tests.spark.kept import write_lines
from tests.spark.ledgers import LABEL, Line, diverted, line, moved, received, sent
from twinbus.console import cli
from twinbus.errors import TwinbusError
from twinbus.pipeline.drain.drain import drain
from twinbus.pipeline.drain.queue_source import register
from twinbus.pipeline.planner import simulate_on_spark
from twinbus.pipeline.spark.session import QUICK_START, spark_session
from twinbus.planning.simulation import simulate
from twinbus.syphon.draining import DrainProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODES: Final = ("classic", "connect")
EACH: Final = 20
"""Messages of each kind in a file of the ledger."""
IN_FILE: Final = EACH * 7
"""Records of one file: sent and received, moved (4 records), and left in the backlog."""
WAITING: Final = 25
"""Messages of each kind of destination in the backlog of the drain."""
PATIENCE_S: Final = 300.0
PRIMARY, SECONDARY = "MATRIX_PRIMARY", "MATRIX_SECONDARY"


def file_of(name: str) -> list[Line]:
    """A file's lines: three kinds of messages, of each the same number."""
    ids = [f"{name}-{number:02d}" for number in range(EACH)]
    lines = [one for each in ids for one in (sent(f"s{each}"), received(f"s{each}", 1))]
    lines += [one for each in ids for one in moved(f"m{each}")]
    return [*lines, *(diverted(f"w{each}") for each in ids)]


OUTAGE: Final = [
    line("state", None, at_s, state=state, cause=None)
    for at_s, state in ((1, "suspect"), (2, "failed over"), (9, "healthy"))
]


class Cells:
    """The verbs, in the order in which they can follow each other on one ledger."""

    def __init__(self, spark: SparkSession, directory: Path, namespaces: World) -> None:
        self._spark, self._world = spark, namespaces
        self._ledger, self._moves = directory / "ledger", directory / "moves"
        write_lines(self._ledger, "app-0.jsonl", [*file_of("a"), *OUTAGE])
        (self._ledger / "foreign.jsonl").write_text("no record\n")

    def update(self) -> str:
        told = _asked("ledger", "update", str(self._ledger))
        _same(told, {"commit": 0, "batch": 0, "records": IN_FILE + 3, "rejected": {"foreign": 1}})
        return f"{told['records']} records"

    def follow(self) -> str:
        write_lines(self._ledger, "app-1.jsonl", file_of("b"))
        with _stopped_after(self._ledger / "_tables" / "sets" / "_delta_log", 3):
            told = _asked("ledger", "follow", str(self._ledger))
        _same(told, {"commit": 1, "batch": 1, "records": 2 * IN_FILE + 3})
        return f"{told['records']} records"

    def reports(self) -> str:
        return self._reports()

    def batch_reports(self) -> str:
        """The same without tables."""
        return self._reports("--tables", "none")

    def _reports(self, *more: str) -> str:
        reports = _asked("report", "all", str(self._ledger), "--peek", "none", *more, status=None)
        total = reports["conservation"]["total"]
        _same(total, {"accepted": 6 * EACH, "delivered": 4 * EACH, "undecided": 2 * EACH})
        _same(reports["charges"], {"operations": 14 * EACH})
        [window] = reports["availability"]["windows"]
        _same({"ms": window["recovered_ms"] - window["failed_over_ms"]}, {"ms": 7_000})
        return f"{total['accepted']} accepted = {total['delivered']} + {total['undecided']}"

    def compact(self) -> str:
        told = _asked("ledger", "compact", str(self._ledger))
        _same(told, {"records": 2 * IN_FILE + 3})
        before, after = (told[name]["bronze"] for name in ("files_before", "files_after"))
        _same({"before": before, "after": after}, {"before": 2, "after": 1})
        return f"{before} files -> {after}"

    def erase(self) -> str:
        told = _asked("ledger", "erase", str(self._ledger), "--message-id", "ma-00")
        _same(told, {"records_erased": 4, "raw_files_changed": 1, "records": 2 * IN_FILE + 3})
        return f"{told['records_erased']} records"

    def rebuild(self) -> str:
        told = _asked("ledger", "rebuild", str(self._ledger))
        _same(told, {"batch": 0, "records": 2 * IN_FILE + 3, "rejected": {"foreign": 1}})
        return f"{told['records']} records"

    def retain(self) -> str:
        told = _asked("ledger", "retain", str(self._ledger), "--days", "1")
        removed = {"records_removed": 2 * IN_FILE + 3, "journeys_removed": 4 * EACH}
        _same(told, {**removed, "journeys_open": 2 * EACH, "records": 0})
        return f"{told['records_removed']} records"

    def plan(self) -> str:
        found, expected = simulate_on_spark(self._spark, PLAN), simulate(PLAN)
        assert found == expected, f"{found} instead of {expected}"
        return f"{PLAN.years} years"

    def source(self) -> str:
        register(self._spark)
        self._world.fill("matrix", WAITING)
        reader = self._spark.read.format("servicebus")
        read = reader.options(namespace=self._access(SECONDARY), backlog=LABEL).load()
        found = {
            row["destination"]: row["count"]
            for row in read.groupBy("destination").count().collect()
        }
        assert found == dict.fromkeys(KINDS, WAITING), found
        return f"{sum(found.values())} messages"

    def drain(self) -> str:
        if not self._world.waiting():
            self._world.fill("matrix", WAITING)
        return self._drained("matrix")

    def continuous_drain(self) -> str:
        """A drain that is stopped once nothing is left: its tasks end by themselves."""
        self._world.fill("again", WAITING)
        stop = threading.Event()

        def progressed(progress: DrainProgress) -> None:
            if not progress.waiting:
                stop.set()

        return self._drained("again", on_progress=progressed, continuous=True, stop=stop)

    def _drained(self, name: str, **more: Any) -> str:
        done = drain(
            self._spark,
            self._access(PRIMARY),
            self._access(SECONDARY),
            QUEUES,
            ledger_directory=self._moves,
            **more,
        )
        arrived = self._world.received()
        wanted = {f"{name}-{kind}-{number:06d}" for kind in KINDS for number in range(WAITING)}
        lost = wanted - {key for keys in arrived.values() for key in keys}
        assert not lost, f"{len(lost)} lost: {sorted(lost)[:5]}"
        assert not duplicates(arrived), duplicates(arrived)
        assert self._world.waiting() == 0
        statistics = done.statistics()
        assert statistics is not None
        _same(asdict(statistics), {"forwarded": len(wanted), "completed": len(wanted)})
        return f"{statistics.forwarded} messages"

    def _access(self, variable: str) -> str:
        """A namespace without its key, which is in the environment of driver and executors."""
        return without_key(os.environ[variable], variable)


VERBS: Final[dict[str, Callable[[Cells], str]]] = {
    "update": Cells.update,
    "follow": Cells.follow,
    "reports": Cells.reports,
    "compact": Cells.compact,
    "erase": Cells.erase,
    "rebuild": Cells.rebuild,
    "retain": Cells.retain,
    "reports without tables": Cells.batch_reports,
    "plan": Cells.plan,
    "data source": Cells.source,
    "drain": Cells.drain,
    "drain, continuous": Cells.continuous_drain,
}


def main(mode: str, only: list[str]) -> None:
    os.environ.pop("TWINBUS_LEDGER", None)
    with (
        tempfile.TemporaryDirectory(prefix="twinbus-matrix-") as name,
        world(Path(name)) as namespaces,
        contextlib.ExitStack() as stack,
    ):
        directory = Path(name)
        os.environ |= {PRIMARY: namespaces.primary, SECONDARY: namespaces.secondary}
        master = "local[2,4]"
        if mode == "connect":
            master = stack.enter_context(connect_server(master, directory / "server.log")).url
        try:
            spark = stack.enter_context(spark_session(master=master, settings=QUICK_START))
            assert spark.version == pyspark.__version__
        except Exception as error:  # noqa: BLE001 - a cell says it
            for verb in only or VERBS:
                _print(mode, verb, time.monotonic(), error)
            return
        cells = Cells(spark, directory, namespaces)
        for verb in only or VERBS:
            began = time.monotonic()
            try:
                _print(mode, verb, began, VERBS[verb](cells))
            except Exception as error:  # noqa: BLE001 - a cell says it
                _print(mode, verb, began, error)


class Refused(Exception):
    """A command ended with one line that says why."""


def _print(mode: str, verb: str, began: float, found: str | Exception) -> None:
    """Print the cell; standard error gets the traceback of one that failed."""
    seconds = round(time.monotonic() - began, 1)
    cell = {"spark": pyspark.__version__, "mode": mode, "verb": verb, "seconds": seconds}
    if isinstance(found, str):
        cell |= {"result": "passes", "told": found}
    else:
        is_refused = isinstance(found, Refused | TwinbusError) and "\n" not in str(found)
        cell |= {"result": "refused" if is_refused else "fails", "told": str(found)[:2_000]}
        if not is_refused:
            traceback.print_exception(found, limit=-4)
    print(json.dumps(cell), flush=True)  # noqa: T201 - for `matrix`


def _asked(*words: str, status: int | None = 0) -> dict[str, Any]:
    """What a command prints as JSON; Refused if it says in one line that it does not."""
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main([*words, "--output", "json"])
        except SystemExit as ended:
            code = ended.code
    if not out.getvalue():
        lines = err.getvalue().strip().splitlines()
        if len(lines) == 1 and lines[0].startswith("twinbus: "):
            raise Refused(lines[0])
        raise AssertionError(f"{code}: {err.getvalue()}")
    assert status is None or code == status, f"{code}: {err.getvalue()}"
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def _same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    told = {name: found.get(name) for name in expected}
    assert told == expected, f"{told} instead of {expected}"


@contextlib.contextmanager
def _stopped_after(log: Path, commits: int) -> Iterator[None]:
    """Send this process a SIGTERM when a table has so many commits, as an operator stops it."""
    over = threading.Event()

    def stop() -> None:
        ends = time.monotonic() + PATIENCE_S
        while len(list(log.glob("*.json"))) < commits and time.monotonic() < ends:
            if over.wait(0.2):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
