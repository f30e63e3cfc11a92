"""Messages that are too old, on real brokers: never dropped in silence (SPEC 6)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.official_sdk import administration, client
from tests.processes import ServedBroker, run_twinbus
from twinbus.options import SendAvailabilityOptions
from twinbus.syphon.draining import drain
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.end_to_end

BRIEF, LONG = timedelta(seconds=1), timedelta(hours=1)
AGE_S = 1.5
PATIENCE_S = 60.0
QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(3)]
DRIFTED = QUEUES[2]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """Three backlogs, each with one message that is too old and one that is not.

    The messages of the first two carry their own time to live; in the third the queue has one,
    which no backlog queue should have.
    """
    directory = tmp_path_factory.mktemp("expiry")
    with ServedBroker(directory, "contoso", "second", options=("--quiet",)) as broker:
        with administration(broker.connection_string("contoso")) as admin:
            for name in ("full", "remaining"):
                admin.create_queue(name)
        with administration(broker.connection_string("second")) as admin:
            for queue in QUEUES[:2]:
                admin.create_queue(queue)
            admin.create_queue(
                DRIFTED,
                default_message_time_to_live=BRIEF,
                dead_lettering_on_message_expiration=True,
            )
        with client(broker.connection_string("second")) as sdk:
            for queue, path in zip(QUEUES, ("full", "remaining", "full"), strict=True):
                with sdk.get_queue_sender(queue) as sender:
                    for lives in (BRIEF, LONG):
                        name = f"{path}-{lives.seconds}"
                        message = ServiceBusMessage("x", message_id=name, time_to_live=lives)
                        sender.send_messages(to_backlog_message(message, path, now_ms=0))
        time.sleep(AGE_S)
        yield broker


def drained(broker: ServedBroker, queue: str, policy: Any) -> tuple[int, int]:
    """Drain one queue: how many were forwarded, and how many dead-lettered."""
    work = drain(
        broker.connection_string("contoso"),
        broker.connection_string("second"),
        [queue],
        options=SendAvailabilityOptions(ttl_policy=policy),
        idle_s=0.1,
    )
    stats = asyncio.run(asyncio.wait_for(work, PATIENCE_S))
    return stats.forwarded, stats.dead_lettered


def lives(broker: ServedBroker, path: str) -> dict[str, float]:
    """Seconds to live of what an entity of the primary holds, by message id."""
    with (
        client(broker.connection_string("contoso")) as sdk,
        sdk.get_queue_receiver(path) as receiver,
    ):
        return {
            m.message_id or "": (m.time_to_live or timedelta()).total_seconds()
            for m in receiver.peek_messages(10)
        }


def dead_letters(broker: ServedBroker, queue: str) -> list[dict[str, Any]]:
    """What `twinbus backlog dead-letters` shows."""
    sides = {f"TWINBUS_{side}": broker.connection_string(name) for side, name in SIDES.items()}
    done = run_twinbus(
        "backlog", "dead-letters", "list", "--queue", queue, "--output", "json", environment=sides
    )
    assert done.returncode == 0, done.stderr
    shown: list[dict[str, Any]] = json.loads(done.stdout)["messages"]
    return shown


SIDES = {"PRIMARY": "contoso", "SECONDARY": "second"}


def test_the_whole_time_to_live_is_restored(broker: ServedBroker) -> None:
    assert drained(broker, QUEUES[0], "full") == (2, 0)
    assert lives(broker, "full").get("full-3600") == LONG.total_seconds()


def test_what_remains_is_restored_and_what_is_over_is_dead_lettered(broker: ServedBroker) -> None:
    assert drained(broker, QUEUES[1], "remaining") == (1, 1)
    left = lives(broker, "remaining")
    assert set(left) == {"remaining-3600"}
    assert LONG.total_seconds() - 300 < left["remaining-3600"] <= LONG.total_seconds() - AGE_S
    [dead] = dead_letters(broker, QUEUES[1])
    assert dead["message_id"] == "remaining-1"
    assert dead["reason"] == "TimeToLiveExpired"
    assert dead["description"].startswith("its time to live of 1 s ended in the backlog, ")


def test_what_expired_by_drift_is_shown_with_the_dead_letters(broker: ServedBroker) -> None:
    assert drained(broker, DRIFTED, "full") == (0, 0)
    shown = dead_letters(broker, DRIFTED)
    assert sorted(each["message_id"] for each in shown) == ["full-1", "full-3600"]
    assert {each["reason"] for each in shown} == {"TTLExpiredException"}
