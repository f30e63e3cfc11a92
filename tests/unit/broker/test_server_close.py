"""A broker that was closed, and connections that end after it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from twinbus.broker.server import STORE_CHECK_S, BrokerServer
from twinbus.broker.storage.lmdb_store import LmdbStore
from twinbus.testing import run_virtual


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
