"""The queues that other applications made for the same primary, found by a pair with a syphon."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.pairing.lifecycle.test_discovery_times import HOUR_S, world
from twinbus.pairing.core.failover import ForceFailover

pytestmark = pytest.mark.virtual_time


async def test_the_syphon_of_a_pair_finds_the_queues_of_another_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(monkeypatch, enable_syphon=True) as made:
        assert made.handed_over == [made.paths]
        await asyncio.sleep(HOUR_S + 30.0)
        # Our own queues and those of others, then every 15 minutes.
        assert made.searched_at == [0.0, 0.0, 900.0, 1_800.0, 2_700.0, 3_600.0]
        label = made.state.primary.label
        others = [f"{label}/x-servicebus-transfer/{index}" for index in (17, 18)]
        made.admin.queues |= dict.fromkeys([*others, "another/x-servicebus-transfer/0"], "Active")
        made.pair.client.entity("orders").tell(ForceFailover())
        await asyncio.sleep(130.0)
        assert made.handed_over == [made.paths, others]
        assert made.searched_at == [3_660.0, 3_720.0]
        assert set(made.state.rotation.queues) == set(made.paths)
