"""Backlog queues drained by a Spark job: everything arrives, and the ledger says so."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.processes import ServedBroker
from twinbus.ledger import read
from twinbus.pipeline.drain import drain, group_queues
from twinbus.syphon.actions import Action, Forward
from twinbus.syphon.pump import Limits, Pump

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from twinbus.syphon.host import DrainProgress
    from twinbus.syphon.parcel import Parcel

QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(3)]
EACH = 200


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A primary with one queue, and a secondary with three full backlog queues."""
    from azure.servicebus import ServiceBusMessage

    from tests.official_sdk import administration, client
    from twinbus.transfer import to_backlog_message

    with ServedBroker(tmp_path, "contoso", "contoso-dr", ephemeral=True) as broker:
        primary = broker.connection_string("contoso")
        secondary = broker.connection_string("contoso-dr")
        with administration(primary) as admin:
            admin.create_queue("orders")
        with administration(secondary) as admin, client(secondary) as sdk:
            for queue in QUEUES:
                admin.create_queue(queue)
                messages = [
                    ServiceBusMessage("x", message_id=f"{queue[-1]}-{n}") for n in range(EACH)
                ]
                with sdk.get_queue_sender(queue) as sender:
                    sender.send_messages([to_backlog_message(m, "orders") for m in messages])
        yield primary, secondary


def received(primary: str) -> Counter[str | None]:
    from tests.official_sdk import client

    found: Counter[str | None] = Counter()
    with (
        client(primary) as sdk,
        sdk.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver,
    ):
        while more := receiver.receive_messages(500, max_wait_time=1):
            found.update(message.message_id for message in more)
    return found


def test_a_spark_job_empties_every_queue_and_its_tasks_write_the_ledger(
    spark: SparkSession, namespaces: tuple[str, str], tmp_path: Path
) -> None:
    progress: list[DrainProgress] = []
    drain(
        spark,
        *namespaces,
        QUEUES,
        ledger_directory=tmp_path / "ledger",
        tasks=2,
        on_progress=progress.append,
    )

    assert received(namespaces[0]) == Counter(f"{q[-1]}-{n}" for q in QUEUES for n in range(EACH))
    assert progress[-1].waiting == 0
    records = list(read(tmp_path / "ledger"))
    forwards = Counter(r["message_id"] for r in records if r["operation"] == "forward")
    assert len(forwards) == len(QUEUES) * EACH
    assert {r["backlog_queue"] for r in records if "backlog_queue" in r} == set(QUEUES)


class DroppingPump(Pump):
    """Completes one message that it never sent."""

    def received(self, parcel: Parcel, now: float) -> list[Action]:
        actions = super().received(parcel, now)
        if parcel.message_id != "1-7":
            return actions
        kept = [a for a in actions if not (isinstance(a, Forward) and a.parcel is parcel)]
        return kept + self.accepted([parcel], now)


def test_a_faulty_pump_can_be_planted_by_name(
    spark: SparkSession, namespaces: tuple[str, str]
) -> None:
    drain(
        spark,
        *namespaces,
        QUEUES[:2],
        limits=Limits(messages=50),
        pump_factory="tests.spark.test_drain:DroppingPump",
    )
    missing = {f"{q[-1]}-{n}" for q in QUEUES[:2] for n in range(EACH)} - set(
        received(namespaces[0])
    )
    assert missing == {"1-7"}


def test_queues_are_dealt_evenly() -> None:
    assert group_queues(["a", "b", "c", "a"], 2) == [["a", "c"], ["b"]]
    assert group_queues(["a"], 5) == [["a"]]
