"""A pair whose notice board hangs, refuses, is full, busy, deleted or purged: as without one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from tests.contract.pairs import embedded, paired, until
from tests.official_sdk import administration, client
from twinbus import EmbeddedBroker
from twinbus.broker.faults import Fault
from twinbus.fleet import board
from twinbus.fleet.core import board_turns
from twinbus.servicebus import conditions
from twinbus.servicebus.names import board_path
from twinbus.status.document import PairStatus

pytestmark = pytest.mark.contract

PATH, SECONDARY = board_path("contoso"), "contoso-dr"

BAD = {
    "hangs": [Fault(kind="hang", entity=PATH), Fault(kind="hang", entity=f"{PATH}/*")],
    "refuses links": [Fault(kind="refuse_attach", entity=PATH)],
    "is full": [Fault(kind="refuse_send", entity=PATH, condition=conditions.RESOURCE_LIMIT)],
    "is busy": [Fault(kind="throttle", entity=PATH)],
    "drops connections": [Fault(kind="drop_before_commit", entity=PATH)],
}

broker = embedded()


@pytest.fixture(autouse=True)
def quick_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of its own, which uses the board as soon as it needs it."""
    monkeypatch.setenv("TWINBUS_RUN_DIR", str(tmp_path))
    for name in ("FIRST_LOOK_S", "FIRST_POST_S"):
        monkeypatch.setattr(board_turns, name, 0.2)
    monkeypatch.setattr(board, "ANSWER_S", 2.0)


@pytest.mark.parametrize("how", [*BAD, "is deleted", "is purged"])
async def test_a_bad_board_delays_and_loses_nothing(broker: EmbeddedBroker, how: str) -> None:
    async with (
        paired(broker, failover_interval=0.5, ping_primary_interval=600) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        for fault in BAD.get(how, []):
            broker.add_fault(fault, SECONDARY)
        if how == "is deleted":
            with administration(broker.connection_string(SECONDARY)) as admin:
                admin.delete_queue(PATH)
        began = time.monotonic()
        await sender.send_messages(ServiceBusMessage("1"))
        broker.cut_off("contoso")
        for number in range(5):
            await sender.send_messages(ServiceBusMessage(str(number)))
        # Half a second until the failover, and retries with a back-off of a second.
        assert time.monotonic() - began < 8.0
        if how == "is purged":
            with client(broker.connection_string(SECONDARY)) as sdk:
                await asyncio.to_thread(purge, sdk)
        status = pair.status()
        assert status.entities["orders"].state == "failed over"
        assert status.entities["orders"].diverted == 5
        if how not in ("is purged", "is deleted"):
            await until(lambda: board_off(pair.status()), 40.0)
        await sender.send_messages(ServiceBusMessage("6"))
        assert pair.status().entities["orders"].diverted == 6
    broker.serve_again("contoso")


def board_off(status: PairStatus) -> str:
    return "" if status.fleet is None else status.fleet.board_off


def purge(sdk: ServiceBusClient) -> None:
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with sdk.get_queue_receiver(PATH, receive_mode=mode) as receiver:
        receiver.receive_messages(100, max_wait_time=1)
