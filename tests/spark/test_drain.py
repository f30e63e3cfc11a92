"""Backlog queues drained by a Spark job: everything arrives, and the ledger says so."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.end_to_end.bad_pumps import spark_pumped_by
from tests.ledger_reading import read
from tests.official_sdk import administration, client, receive_all
from tests.processes import ServedBroker, until
from tests.spark import drain_world
from tests.unit.console.commands import run
from twinbus.console.syphon.drain import DrainDisplay
from twinbus.errors import SyphonError
from twinbus.ledger import LedgerError
from twinbus.options import SendAvailabilityOptions
from twinbus.pipeline.drain.drain import DrainRun, DrainStatistics, _turn_s, drain, group_queues
from twinbus.syphon.core.actions import Action, Forward
from twinbus.syphon.core.pump import IntakeLimits, Pump
from twinbus.transfer.sdk import to_backlog_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from twinbus.syphon.draining import DrainProgress
    from twinbus.transfer.unpacking import BacklogMessage

QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(3)]
EACH = 200


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A primary with one queue, and a secondary with three full backlog queues."""
    with ServedBroker(tmp_path, "contoso", "contoso-dr", ephemeral=True) as broker:
        primary = broker.connection_string("contoso")
        secondary = broker.connection_string("contoso-dr")
        with administration(primary) as admin:
            admin.create_queue("orders")
        with administration(secondary) as admin:
            for queue in QUEUES:
                admin.create_queue(queue)
                divert(secondary, queue, [f"{queue[-1]}-{n}" for n in range(EACH)])
        yield primary, secondary


@pytest.fixture
def quick_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain that looks, tries again and gives slots away much sooner than others."""
    for name, wait_s in (("PROGRESS_S", 0.02), ("RETRY_FIRST_S", 0.01), ("STARVED_S", 1.0)):
        monkeypatch.setattr(f"twinbus.pipeline.drain.drain.{name}", wait_s)


def divert(secondary: str, queue: str, message_ids: list[str], path: str = "orders") -> None:
    messages = [ServiceBusMessage("x", message_id=message_id) for message_id in message_ids]
    with client(secondary) as sdk, sdk.get_queue_sender(queue) as sender:
        sender.send_messages([to_backlog_message(m, path, now_ms=0) for m in messages])


def received(primary: str) -> Counter[str | None]:
    with (
        client(primary) as sdk,
        sdk.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver,
    ):
        return Counter(message.message_id for message in receive_all(receiver))


def test_a_spark_job_empties_every_queue_and_its_tasks_write_the_ledger(
    spark: SparkSession, namespaces: tuple[str, str], tmp_path: Path
) -> None:
    progress: list[DrainProgress] = []

    async def cell() -> DrainRun:
        # As in a notebook, where a loop runs around every cell.
        return drain(
            spark,
            *namespaces,
            QUEUES,
            ledger_directory=tmp_path / "ledger",
            tasks=2,
            on_progress=progress.append,
        )

    done = asyncio.run(cell())
    assert received(namespaces[0]) == Counter(f"{q[-1]}-{n}" for q in QUEUES for n in range(EACH))
    assert progress[-1].waiting == 0
    records = list(read(tmp_path / "ledger"))
    forwards = Counter(r["message_id"] for r in records if r["operation"] == "forward")
    assert len(forwards) == len(QUEUES) * EACH
    assert {r["backlog_queue"] for r in records if "backlog_queue" in r} == set(QUEUES)
    count = len(QUEUES) * EACH
    assert done.statistics() == DrainStatistics(forwarded=count, completed=count)


class DroppingPump(Pump):
    """Completes one message that it never sent."""

    def received(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        actions = super().received(messages, now)
        dropped = [message for message in messages if message.message_id == "1-7"]
        if not dropped:
            return actions
        kept = [a for a in actions if not (isinstance(a, Forward) and a.message in dropped)]
        return kept + self.accepted(dropped, now)


def test_a_message_that_a_faulty_pump_drops_is_missing(
    spark: SparkSession, namespaces: tuple[str, str]
) -> None:
    with spark_pumped_by(DroppingPump):
        drain(spark, *namespaces, QUEUES[:2], limits=IntakeLimits(messages=50))
    missing = {f"{q[-1]}-{n}" for q in QUEUES[:2] for n in range(EACH)} - set(
        received(namespaces[0])
    )
    assert missing == {"1-7"}


class PumpThatFailsOnce(Pump):
    """Cannot be made until somebody has tried; each test names its own marker."""

    def __init__(self, **settings: Any) -> None:
        marker = Path(os.environ["TWINBUS_TEST_MARKER"])
        if not marker.exists():
            marker.touch()
            raise RuntimeError("the executor is gone")
        super().__init__(**settings)


def test_a_continuous_drain_outlives_a_failed_job_and_stops_without_duplicates(
    spark: SparkSession,
    namespaces: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The workers of Spark have the environment of its start: the marker has to be where they look.
    marker = tmp_path / "failed"
    monkeypatch.setattr(spark.sparkContext, "environment", {"TWINBUS_TEST_MARKER": str(marker)})
    stop = threading.Event()
    progress: list[DrainProgress] = []
    ended: list[DrainRun] = []

    def run() -> None:
        with spark_pumped_by(PumpThatFailsOnce):
            ended.append(
                drain(
                    spark,
                    *namespaces,
                    QUEUES,
                    ledger_directory=tmp_path / "ledger",
                    continuous=True,
                    stop=stop,
                    on_progress=progress.append,
                )
            )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: progress and progress[-1].waiting == 0 and marker.exists(), 200.0)
        first = received(namespaces[0])
        # It goes on: what comes later is moved by the same call.
        divert(namespaces[1], QUEUES[1], [f"later-{n}" for n in range(50)])
        later = Counter[str | None]()

        def all_came() -> bool:
            later.update(received(namespaces[0]))
            return later.total() >= 50

        until(all_came, 200.0)
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert first == Counter(f"{q[-1]}-{n}" for q in QUEUES for n in range(EACH))
    assert later == Counter(f"later-{n}" for n in range(50))
    count = len(QUEUES) * EACH + 50
    assert ended[0].statistics() == DrainStatistics(forwarded=count, completed=count)


@pytest.mark.usefixtures("quick_drain")
def test_a_drain_that_is_stopped_in_the_middle_duplicates_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    stop, each = threading.Event(), 2_000
    count = each * len(drain_world.KINDS)

    def stop_early(progress: DrainProgress) -> None:
        if progress.waiting < count * 3 // 4:
            stop.set()

    # What a stopped drain left locked would be waited for, longer than this test may take.
    with drain_world.world(tmp_path, lock=timedelta(minutes=5)) as namespaces:
        sides = namespaces.primary, namespaces.secondary
        namespaces.fill("s", each)
        limits = IntakeLimits(messages=50)
        drain(spark, *sides, drain_world.QUEUES, limits=limits, on_progress=stop_early, stop=stop)
        left = namespaces.waiting()
        assert 0 < left < count, "it was not stopped in the middle"
        drain(spark, *sides, drain_world.QUEUES)
        arrived = namespaces.received()
    assert sum(map(len, arrived.values())) == count
    assert not drain_world.duplicates(arrived)


@pytest.mark.usefixtures("quick_drain")
def test_a_task_that_waits_for_a_destination_gives_others_its_slot(
    spark: SparkSession, namespaces: tuple[str, str]
) -> None:
    from tests.official_sdk import administration

    assert spark.sparkContext.defaultParallelism == 1
    with administration(namespaces[0]) as admin:
        admin.create_queue("closed", status="SendDisabled")
    divert(namespaces[1], QUEUES[0], ["held"], path="closed")
    stop = threading.Event()
    thread = threading.Thread(
        target=drain, args=(spark, *namespaces, QUEUES), kwargs={"tasks": 3, "stop": stop}
    )
    thread.start()
    came = Counter[str | None]()

    def all_came() -> bool:
        came.update(received(namespaces[0]))
        return came.total() >= len(QUEUES) * EACH

    try:
        until(all_came, 60.0)
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert came == Counter(f"{q[-1]}-{n}" for q in QUEUES for n in range(EACH))


def test_a_continuous_task_outlives_the_grace_of_a_missing_destination() -> None:
    assert _turn_s(SendAvailabilityOptions()) > 21_600
    assert _turn_s(SendAvailabilityOptions(undeliverable_grace=0)) == 3_600


def test_what_a_user_can_get_wrong_is_one_line(
    spark: SparkSession, namespaces: tuple[str, str]
) -> None:
    primary, secondary = namespaces
    with pytest.raises(SyphonError, match="there is no queue nowhere"):
        drain(spark, primary, secondary, ["nowhere"])
    with pytest.raises(SyphonError, match="the primary needs a connection string"):
        drain(spark, None, secondary, QUEUES)
    with pytest.raises(SyphonError, match="the secondary: this is no connection string"):
        drain(spark, primary, "junk", QUEUES)
    with pytest.raises(SyphonError, match="tasks must be at least 1; got 0"):
        drain(spark, primary, secondary, QUEUES, tasks=0)
    with pytest.raises(LedgerError, match="cannot write a ledger to ftp://x/y"):
        drain(spark, primary, secondary, QUEUES, ledger_directory="ftp://x/y")
    # An error of ours inside a task comes out as what it is, and the job is not tried again.
    with (
        pytest.raises(SyphonError, match=r"^a mistake of ours$"),
        spark_pumped_by(refusing_pump),
    ):
        drain(spark, primary, secondary, QUEUES)


@pytest.mark.soak  # 20 s of a worker in CI, which has one failed job in the drain that outlives it
@pytest.mark.usefixtures("quick_drain")
def test_a_job_that_fails_again_and_again_is_given_up(
    spark: SparkSession, namespaces: tuple[str, str]
) -> None:
    with (
        pytest.raises(SyphonError, match="3 Spark jobs failed and moved nothing, 600 messages"),
        spark_pumped_by(not_a_pump),
    ):
        drain(spark, *namespaces, QUEUES)


def refusing_pump(**settings: Any) -> Pump:
    raise SyphonError("a mistake of ours")


def not_a_pump(**settings: Any) -> Pump:
    raise RuntimeError("this one never works")


def test_queues_are_dealt_evenly() -> None:
    assert group_queues(["a", "b", "c", "a"], 2) == [["a", "c"], ["b"]]
    assert group_queues(["a"], 5) == [["a"]]


ATTENTION, STOPPED = 3, 130


RATE_PER_S = 40
PACED = 60


def test_a_drain_on_spark_says_what_was_moved_and_what_was_given_up(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def drains(*more: str) -> tuple[object, dict[str, Any]]:
        words = "syphon drain --engine spark --label contoso --output json".split()
        ran = run(capsys, *words, *more)
        return ran.status, json.loads(ran.out)

    with ServedBroker(tmp_path, "contoso", "contoso-dr", ephemeral=True) as broker:
        primary = broker.connection_string("contoso")
        secondary = broker.connection_string("contoso-dr")
        monkeypatch.setenv("TWINBUS_PRIMARY", primary)
        monkeypatch.setenv("TWINBUS_SECONDARY", secondary)
        with administration(primary) as admin:
            for path in ("orders", "events"):
                admin.create_queue(path)
        with administration(secondary) as admin:
            for queue in QUEUES:
                admin.create_queue(queue)
        with client(secondary) as sdk, sdk.get_queue_sender(QUEUES[0]) as sender:
            for path in ("events", "orders"):
                sender.send_messages(
                    [to_backlog_message(ServiceBusMessage("x"), path, now_ms=0)] * PACED
                )
            sender.send_messages(ServiceBusMessage("it says no destination"))

        bounds = "--only", "orders", "--rate", str(RATE_PER_S), "--lease"
        code, done = drains(*bounds, "--ledger", str(tmp_path / "ledger"))
        assert (code, done["drained"], done["forwarded"]) == (0, True, PACED)
        assert (done["queues"], done["not_served"]) == ([QUEUES[0]], PACED + 1)
        sent = [r["at_ms"] for r in read(tmp_path / "ledger") if r["operation"] == "forward"]
        assert max(sent) - min(sent) >= 1_000 * PACED / RATE_PER_S * 0.8

        with monkeypatch.context() as stopping:
            stopping.setattr(
                DrainDisplay, "__call__", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
            )
            code, stopped = drains("--queue", QUEUES[0], "--rate", "1")
        # A scheduler must not take it for drained.
        assert (code, stopped["drained"], stopped["queues"]) == (STOPPED, False, QUEUES[:1])
        assert stopped["forwarded"] < PACED

        code, done = drains("--tasks", "1")
        assert (code, done["drained"]) == (ATTENTION if done["dead_lettered"] else 0, True)
        assert stopped["forwarded"] + done["forwarded"] == PACED
        assert stopped["dead_lettered"] + done["dead_lettered"] == 1
        with administration(primary) as admin:
            for path in ("orders", "events"):
                arrived = admin.get_queue_runtime_properties(path).active_message_count
                assert arrived == PACED
