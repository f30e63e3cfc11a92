"""The tables that a stream keeps: the same as a batch's, whatever comes when, and whatever dies."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spark.kept import Tables, as_rows, batch_tables, stored_tables, write_lines
from tests.spark.ledgers import LABEL, Line, diverted, line, moved, received, sent
from tests.spark.stream_driver import COMMIT, COMMITTED, PUBLISHED, WRITTEN, lake_at
from twinbus.ledger import LedgerError
from twinbus.pipeline.store import increment, stream, upkeep
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.lake import Lake, Snapshot
from twinbus.pipeline.tables.gold import kept_tables, stored_schemas
from twinbus.pipeline.tables.journeys import with_peek
from twinbus.pipeline.tables.schemas import SIGHTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ENTITIES = (
    "orders",
    "Orders",
    "news",
    "news/Subscriptions/a",
    "news/subscriptions/B",
    "contoso/x-servicebus-transfer/3",
)
OPERATIONS = (
    *("send", "divert", "receive", "forward", "complete", "dead_letter", "backlog_receive"),
    *("send", "divert", "receive", "forward", "complete", "expire", "defer", "state"),
    *("ping", "manage", "abandon"),
)
QUEUES = (*("orders", "Orders", "news"), "contoso/x-servicebus-transfer/3")
"""Of a divert, a forward or a completion: the backlog queue, or the path of the entity's twin."""


def _record(**fields: Any) -> Line:
    return line(fields.pop("operation"), fields.pop("message_id"), fields.pop("at_s"), **fields)


# Any line at all, about few messages: what nobody would write is the best test of any order.
RECORDS = st.builds(
    _record,
    operation=st.sampled_from(OPERATIONS),
    message_id=st.sampled_from(["1", "2", "3", None]),
    at_s=st.integers(0, 90_000),
    entity=st.sampled_from([*ENTITIES, None]),
    outcome=st.sampled_from(["ok", "ok", "ok", "failed", "unknown", None]),
    cause=st.sampled_from(["application", "syphon", "consumer", "poll", None]),
    view=st.sampled_from([None, None, "broker"]),
    pair=st.sampled_from([None, "a b", "7"]),
    namespace=st.sampled_from([None, "a b", "east"]),
    side=st.sampled_from([None, "primary", "secondary"]),
    backlog_queue=st.sampled_from([None, *QUEUES]),
    size_bytes=st.sampled_from([None, 10, 70_000]),
    latency_us=st.sampled_from([None, -1, 2_500, 1 << 60]),
    state=st.sampled_from([None, "healthy", "duplicate", "closed", "deleted", "second_copy"]),
    error=st.sampled_from([None, "TTLExpiredException"]),
)
LOT_MAX = 3
ARRIVALS = st.lists(
    st.tuples(RECORDS, st.integers(0, LOT_MAX), st.integers(0, 1)), min_size=40, max_size=80
)
"""Records with the lot each comes in (the last is the tail), and the file of it."""


def check_stream_equals_batch(
    spark: SparkSession, arrivals: list[tuple[Line, int, int]], lots: int
) -> None:
    """Bring records lot by lot, the rest in open files; all tables are those of one batch."""
    files: dict[tuple[int, int], list[Line]] = {}
    for record, lot, file in arrivals:
        files.setdefault((min(lot, lots), file), []).append(record)
    # From the second lot on the sums of all lots are written as one part.
    with tempfile.TemporaryDirectory() as place, mock.patch.object(increment, "SUM_PARTS_MAX", 1):
        ledger = Path(place)
        for (lot, file), lines in sorted(files.items(), key=lambda item: item[0]):
            write_lines(ledger, f"p-{lot}{file}.jsonl{'.open' if lot == lots else ''}", lines)
            if file == max(other for at, other in files if at == lot) and lot < lots:
                stream.update(spark, ledger)
        with current_tables(spark, ledger) as now:
            assert now.records == len(arrivals)
            kept = as_rows({table.name: now.table(table.name) for table in kept_tables()})
    assert kept == batch_tables(spark, [record for record, _, _ in arrivals])


# One is some twenty messages in every state, and takes seconds; `soak` has more.
@settings(max_examples=1)
@given(arrivals=ARRIVALS)
def test_a_stream_in_any_order_equals_the_batch(
    spark: SparkSession, arrivals: list[tuple[Line, int, int]]
) -> None:
    check_stream_equals_batch(spark, arrivals, lots=2)


@pytest.mark.soak
@settings(max_examples=60)
@given(arrivals=ARRIVALS, lots=st.integers(1, LOT_MAX))
def test_many_streams_in_any_order_equal_the_batch(
    spark: SparkSession, arrivals: list[tuple[Line, int, int]], lots: int
) -> None:
    check_stream_equals_batch(spark, arrivals, lots)


def test_a_ledger_with_bad_files_is_taken_once_and_wrong_tables_are_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger = tmp_path / "a ledger, of two"
    first = [sent("a"), diverted("b", 1), received("a", 2)]
    write_lines(ledger, "p-0.jsonl", first)
    write_lines(ledger, "newer-0.jsonl", [{**sent("x"), "v": 2, "at_ms": "soon"}])
    (ledger / "foreign.jsonl").write_bytes(b"\x00\xff not ours\n" + b'{"v":1,"at_ms":176')
    (ledger / "notes.txt").write_text("no part of the ledger")
    (ledger / "folder.jsonl").mkdir()
    stop = threading.Event()
    task = upkeep.TablesTask(verb="follow", ledger=str(ledger))
    upkeep.follow(spark, task, stop, lambda line: stop.set())
    snapshot = stream.open_store(spark, ledger).latest()
    assert (snapshot.batch, snapshot.records) == (0, 3)
    assert snapshot.rejected == {"torn": 1, "newer": 1, "foreign": 1}
    # A file that was adopted from a dead process is far older than what was taken.
    late = moved("b", 1, out_s=9)[1:]
    write_lines(ledger, "dead-0.jsonl", late)
    os.utime(ledger / "dead-0.jsonl", (1_000_000_000, 1_000_000_000))
    commit_once, said = Lake.publish, list[str]()

    def commit_behind_a_rival(lake: Lake, *given: Any) -> Snapshot:
        commit_once(lake, *given)
        return commit_once(lake, *given)

    with mock.patch.object(Lake, "publish", commit_behind_a_rival):
        snapshot = stream.update(spark, ledger, say=said.append)
    assert (snapshot.batch, snapshot.records) == (1, 6)
    [line] = said
    assert line.startswith("another process has just changed the tables at ")
    assert stream.update(spark, ledger) == snapshot
    store = stream.open_store(spark, ledger)
    assert stored_tables(store, snapshot) == batch_tables(spark, [*first, *late])


def test_a_ledger_can_be_moved_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    ledger, copy = tmp_path / "ledger", tmp_path / "cöpy {of} [it], *"
    write_lines(ledger, "p-0.jsonl", [sent("a"), diverted("b", 1)])
    stream.update(spark, ledger)
    shutil.copytree(ledger, copy)
    shutil.rmtree(ledger)
    late = moved("b", 1, out_s=9)[1:]
    write_lines(copy, "p-1.jsonl", late)
    snapshot = stream.update(spark, copy)
    assert (snapshot.batch, snapshot.records) == (1, 5)
    # The message that was diverted before the move is delivered after it.
    version = snapshot.versions["notable"]
    notable = DeltaTable(str(copy / "_tables" / "notable"), version=version).to_pyarrow_table()
    assert sorted(notable["messages"].to_pylist()) == [-1, 1]


def test_a_report_reads_open_files_and_what_a_peek_saw(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path, "p-0.jsonl.open", [sent("a"), diverted("b", 1), diverted("c", 2)])
    with (tmp_path / "p-0.jsonl.open").open("a") as file:
        file.write('{"v":1,"at_m')
    seen = spark.createDataFrame([("Orders", "b", "waiting", LABEL)], SIGHTINGS)
    with current_tables(spark, tmp_path) as now:
        # The line that is being written is no news.
        assert (now.records, now.rejected) == (3, {})
        blind = {row["message_id"]: row["fate"] for row in now.notable().collect()}
        found = with_peek(now.notable(), seen).collect()
        looked = {row["message_id"]: row["fate"] for row in found}
    assert blind == {"b": "undecided", "c": "undecided"}
    assert looked == {"b": "waiting", "c": "lost"}


def test_no_ledger_is_one_clear_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger at"):
        stream.update(spark, tmp_path)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    Kill = Callable[[Path, str, Path | None], int]

FILES: tuple[list[Line], ...] = (
    [sent("a"), diverted("b", 1), diverted("c", 2), line("state", None, 1, state="failed over")],
    [*moved("b", 1, out_s=9)[1:], received("a", 3), received("b", 10), received("b", 11)],
)

WITHOUT_ROWS = {f"{table} committed" for table in ("diversions", "states", "raised", "skews")}
"""The second batch adds no rows to these tables, so they get no version."""

COMMITTED_LATER = [
    point for point in COMMITTED if not point.endswith("created") and point not in WITHOUT_ROWS
]
"""Points of the second batch."""

COMMAND = (sys.executable, "-m", "tests.spark.stream_driver")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def killed(spark: SparkSession) -> Iterator[Kill]:
    """Has a process work until it kills itself at a point; gives its exit status."""
    reached = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    command = [*COMMAND, str(reached.port), str(reached.auth_token), "-"]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        orders, answers = driver.stdin, driver.stdout

        def kill(place: Path, point: str, step: Path | None = None) -> int:
            orders.write(json.dumps([str(place), point, str(step) if step else ""]) + "\n")
            orders.flush()
            return int(answers.readline())

        yield kill
        orders.close()


@pytest.fixture(scope="module")
def whole(spark: SparkSession) -> Tables:
    """The tables of all records, worked out at once."""
    return batch_tables(spark, [one for lines in FILES for one in lines])


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of two files, without tables."""
    ledger = tmp_path_factory.mktemp("new") / "ledger"
    for number, lines in enumerate(FILES):
        write_lines(ledger, f"p-{number}.jsonl", lines)
    return ledger


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of which the tables have the first file, and not yet the second one."""
    ledger = tmp_path_factory.mktemp("begun") / "ledger"
    write_lines(ledger, "p-0.jsonl", FILES[0])
    stream.update(spark, ledger)
    write_lines(ledger, "p-1.jsonl", FILES[1])
    return ledger


def versions(ledger: Path) -> dict[str, int]:
    """The newest version of each table, and of the sets."""
    places = (ledger / "_tables" / name for name in (*stored_schemas(), "sets"))
    return {
        place.name: DeltaTable(str(place)).version()
        for place in places
        if (place / "_delta_log").exists()
    }


def check_done_again(spark: SparkSession, ledger: Path, whole: Tables, *, sets: int) -> None:
    """The tables are whole after the next update; `sets` have been published by then."""
    snapshot = stream.update(spark, ledger)
    assert snapshot.number == sets - 1
    assert stored_tables(stream.open_store(spark, ledger), snapshot) == whole
    assert len(whole["notable"]) == 2


@pytest.mark.parametrize(
    "point", [pytest.param("journeys written", marks=pytest.mark.soak), "fates committed"]
)
def test_a_killed_process_is_followed_by_one_that_has_the_same_tables(
    spark: SparkSession, tmp_path: Path, begun: Path, whole: Tables, killed: Kill, point: str
) -> None:
    ledger = shutil.copytree(begun, tmp_path / "ledger")
    assert killed(ledger, point, None) == -signal.SIGKILL
    check_done_again(spark, ledger, whole, sets=2)


@pytest.mark.soak
@pytest.mark.parametrize("batch", [0, 1])
def test_a_process_that_is_killed_after_any_write_has_changed_no_version(
    spark: SparkSession,
    tmp_path: Path,
    new: Path,
    begun: Path,
    whole: Tables,
    killed: Kill,
    batch: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger = shutil.copytree((new, begun)[batch], tmp_path / "ledger")
    before = versions(ledger)
    assert len(before) == (0, 16)[batch]
    for point in WRITTEN:
        assert killed(ledger, point, None) == -signal.SIGKILL, point
        assert versions(ledger) == before, point
    # Beside the remains of all of them; a first batch takes both files.
    check_done_again(spark, ledger, whole, sets=batch + 1)
    with capsys.disabled():
        sys.stdout.write(f"\nkilled at {len(WRITTEN)} points of batch {batch}: none counted\n")


def contents(tables: Path) -> dict[str, list[str]]:
    """The rows that the newest set names, read without Spark."""
    snapshot = lake_at(tables).latest()
    return {
        name: sorted(
            map(str, DeltaTable(str(tables / name), version=version).to_pyarrow_table().to_pylist())
        )
        for name, version in snapshot.versions.items()
    }


@pytest.mark.soak
@pytest.mark.parametrize("batch", [0, 1])
def test_a_process_that_is_killed_at_any_step_of_a_commit_is_followed_by_another(
    tmp_path: Path,
    new: Path,
    begun: Path,
    killed: Kill,
    batch: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger = shutil.copytree((new, begun)[batch], tmp_path / "ledger")
    first, second = tmp_path / "first", tmp_path / "second"
    for attempt in (first, second):
        assert killed(ledger, COMMIT, attempt) == -signal.SIGKILL
    prepared, again = ledger / "_tables", pickle.loads(second.read_bytes())
    done = shutil.copytree(prepared, tmp_path / "done")
    lake_at(done).publish(*again)
    expected = contents(done)
    points = (COMMITTED, COMMITTED_LATER)[batch]
    for number, point in enumerate(points):
        tables = shutil.copytree(prepared, tmp_path / str(number))
        assert killed(tables, point, first) == -signal.SIGKILL, point
        found = lake_at(tables).latest()
        assert found.number == batch - (point != PUBLISHED), point
        if point != PUBLISHED:
            assert lake_at(tables).publish(*again).number == batch, point
        assert contents(tables) == expected, point
    with capsys.disabled():
        sys.stdout.write(f"\nkilled at {len(points)} points of commit {batch}: the same tables\n")


def lose_power(ledger: Path, table: str) -> None:
    """Kill a process and its Spark while a table of the next batch is written."""
    done = subprocess.run(
        [*COMMAND, str(ledger), table],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        timeout=500,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == -signal.SIGKILL


def test_a_spark_that_is_killed_while_it_writes_leaves_the_tables_as_they_were(
    spark: SparkSession, tmp_path: Path, begun: Path, whole: Tables
) -> None:
    ledger = shutil.copytree(begun, tmp_path / "ledger")
    lose_power(ledger, "fates")
    check_done_again(spark, ledger, whole, sets=2)


@pytest.mark.soak
@pytest.mark.parametrize("table", ["bronze", "journeys", "charges", "notable"])
def test_a_spark_that_is_killed_while_it_writes_any_kind_of_table(
    spark: SparkSession, tmp_path: Path, begun: Path, whole: Tables, table: str
) -> None:
    ledger = shutil.copytree(begun, tmp_path / "ledger")
    lose_power(ledger, table)
    check_done_again(spark, ledger, whole, sets=2)
