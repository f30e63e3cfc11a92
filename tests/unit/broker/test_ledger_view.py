"""The broker's view is written when what it tells of is on disk, and not at all if that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.ledger_reading import read
from tests.unit.broker.fakes import incoming
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.server import STORE_CHECK_S, BrokerServer
from twinbus.broker.storage.lmdb_store import LmdbStore
from twinbus.broker.storage.store import Batch
from twinbus.errors import StoreError
from twinbus.ledger import LedgerWriter
from twinbus.testing import run_virtual

NEVER_S = 3_600.0


class Disk(LmdbStore):
    """A store that can be told to fail."""

    is_broken = False

    def write(self, batch: Batch) -> None:
        if self.is_broken:
            raise StoreError("the disk is broken")
        super().write(batch)


async def served(ledger: LedgerWriter, disk: Disk) -> BrokerServer:
    server = BrokerServer("contoso", disk, (), ledger=ledger)
    server.namespace.create_queue("orders", QueueDescription(), server.now_ms())
    await server.commit.durable()
    return server


def send(server: BrokerServer, *names: str) -> None:
    target = server.namespace.send_target("orders")
    batch = [incoming(message_id=name) for name in names]
    server.namespace.send(target, batch, server.now_ms())
    server.wake()


def told(directory: Path) -> list[Any]:
    return [record.get("message_id") or record.get("state") for record in read(directory)]


async def test_what_could_not_be_stored_is_not_told_of(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, flush_s=NEVER_S) as ledger:
        disk = Disk(tmp_path / "data")
        server = await served(ledger, disk)
        send(server, "a")
        await asyncio.sleep(0)
        await server.commit.durable()
        disk.is_broken = True
        send(server, "b")
        await asyncio.sleep(0)
        with pytest.raises(StoreError, match="broken"):
            await server.commit.durable()
        disk.is_broken = False
        send(server, "c")
        await server.close()
    assert told(tmp_path) == ["serving", "recovered", "a", "c", "stopped"]


async def test_nothing_is_told_before_it_is_on_disk(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, flush_s=NEVER_S) as ledger:
        server = await served(ledger, Disk(tmp_path / "data"))
        send(server, "a")
        ledger.flush()
        assert told(tmp_path) == ["serving", "recovered"]
        await asyncio.sleep(0)
        ledger.flush()
        assert told(tmp_path) == ["serving", "recovered"], "the tick is over, its commit is not"
        await server.commit.durable()
        ledger.flush()
        assert told(tmp_path) == ["serving", "recovered", "a"]
        await server.close()


async def test_records_that_there_is_no_room_for_are_counted(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, flush_s=NEVER_S, buffer_max=2) as ledger:
        server = await served(ledger, Disk(tmp_path / "data"))
        send(server, "a", "b", "c")
        await asyncio.sleep(0)
        await server.commit.durable()
        assert server.view is not None
        assert server.view.unrecorded == 3
        await server.close()
    (said,) = [record for record in read(tmp_path) if "unrecorded" in record]
    assert said["unrecorded"] == 3


def test_a_connection_that_ends_after_the_broker_does_not_look_for_its_store(
    tmp_path: Path,
) -> None:
    failures: list[dict[str, object]] = []

    async def closed_and_woken() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        server = BrokerServer("contoso", LmdbStore(tmp_path), [])
        await server.close()
        await asyncio.sleep(2 * STORE_CHECK_S)
        server.wake()
        await asyncio.sleep(0.1)

    run_virtual(closed_and_woken())
    assert failures == []
