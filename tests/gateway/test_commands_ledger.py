"""The ledger of a gateway names the client of each send: the container id of its connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.end_to_end.raw_client import RawClient, message
from tests.gateway.gateway_world import gateway_world
from tests.ledger_reading import read
from twinbus.broker.faults import Fault
from twinbus.gateway.server import CLIENT_NAME_MAX

pytestmark = pytest.mark.contract


class NamedClient(RawClient):
    """A client that calls itself something else."""

    container_id = ""

    def __init__(self) -> None:
        super().__init__()
        self._connection.container_id = self.container_id


class HostileClient(NamedClient):
    container_id = "\x1b[2J\nevil\u202e" + "x" * 10_000


def records(ledger: Path, operation: str) -> dict[str, dict[str, Any]]:
    """The records of an operation that succeeded, by message."""
    found = (one for one in read(ledger) if one["operation"] == operation)
    return {one["message_id"]: one for one in found if one["outcome"] == "ok"}


async def send(client: RawClient, *keys: str) -> None:
    sender = await client.sender("orders")
    await sender.room()
    for key in keys:
        await sender.send(message(key))
    await client.close()


async def test_sends_and_diverts_name_the_client(tmp_path: Path) -> None:
    async with gateway_world("orders", ledger=tmp_path) as world:
        text = world.connection_string()
        await send(await RawClient.open(text), "a", "b")
        async with world.client() as client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("x", message_id="sdk"))
        world.primary.add_fault(Fault(kind="hang", entity="orders"))
        await send(await RawClient.open(text), "diverted")
    sent, diverted = records(tmp_path, "send"), records(tmp_path, "divert")
    assert {key: sent[key]["client"] for key in "ab"} == {"a": "raw-client", "b": "raw-client"}
    # The SDK chooses a name of its own for each connection.
    assert sent["sdk"]["client"] not in {"", "raw-client"}
    assert diverted["diverted"]["client"] == "raw-client"
    failed = [one for one in read(tmp_path) if one.get("outcome") in {"failed", "unknown"}]
    assert {one["client"] for one in failed if one["operation"] == "send"} == {"raw-client"}


async def test_a_name_that_a_client_chose_is_bounded_and_shows_no_control_character(
    tmp_path: Path,
) -> None:
    async with gateway_world("orders", ledger=tmp_path) as world:
        await send(await HostileClient.open(world.connection_string()), "hostile")
        await send(await NamedClient.open(world.connection_string()), "nameless")
    sent = records(tmp_path, "send")
    name = sent["hostile"]["client"]
    assert name.startswith("�[2J evil�xxx")
    assert len(name) == CLIENT_NAME_MAX
    assert "client" not in sent["nameless"]
