"""When the syphon of a pair looks for twins that hold messages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twinbus.pairing.core.secondary import LIST_BUSY_S, LIST_IDLE_S
from twinbus.pairing.lifecycle.twin_listing import TwinListing
from twinbus.pairing.observing.events import EntityChanged, Listeners
from twinbus.pairing.sending.shared_state import SharedState
from twinbus.status.document import EntityState

pytestmark = pytest.mark.virtual_time


class State:
    """As much of a pair's state as the listing reads."""

    def __init__(self) -> None:
        self.listeners = Listeners()
        self.primary = SimpleNamespace(label="contoso")
        self.entity = SimpleNamespace(
            path="orders", failover=SimpleNamespace(state=EntityState.HEALTHY)
        )
        self.monitors: Any = SimpleNamespace(all=lambda: [self.entity])

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def change(self, after: EntityState) -> None:
        before, self.entity.failover.state = self.entity.failover.state, after
        self.listeners.tell(EntityChanged(path="orders", before=before, after=after, reason=""))


async def test_it_searches_at_the_times_of_a_listing_and_at_each_recovery() -> None:
    state, times = State(), list[float]()
    began = state.now

    async def search() -> None:
        times.append(round(state.now - began, 3))
        if len(times) == 2:
            raise OSError("away")

    changes = list[tuple[str, bool]]()

    def changed(path: str, is_healthy: bool) -> None:
        changes.append((path, is_healthy))

    listing = TwinListing(cast("SharedState", state), search, changed)
    listing.start()
    await asyncio.sleep(LIST_IDLE_S + 1)
    assert times == [0.0, LIST_IDLE_S]
    state.change(EntityState.FAILED_OVER)
    await asyncio.sleep(2 * LIST_BUSY_S)
    assert times[2:] == [LIST_IDLE_S + LIST_BUSY_S, LIST_IDLE_S + 2 * LIST_BUSY_S]
    state.change(EntityState.HEALTHY)
    await asyncio.sleep(0.001)
    assert times[4:] == [round(state.now - began - 0.001, 3)]
    assert changes == [("orders", False), ("orders", True)]
    await listing.close()
    await asyncio.sleep(10 * LIST_IDLE_S)
    assert len(times) == 5


async def test_an_entity_that_failed_over_before_the_start_is_known() -> None:
    """The secondary may answer later than the primary fails: the listing starts after both."""
    state, changes = State(), list[tuple[str, bool]]()

    async def search() -> None:
        # Before the first listing, which may start pumps.
        assert changes == [("orders", False)]

    def changed(path: str, is_healthy: bool) -> None:
        changes.append((path, is_healthy))

    state.entity.failover.state = EntityState.FAILED_OVER
    listing = TwinListing(cast("SharedState", state), search, changed)
    listing.start()
    await asyncio.sleep(1.0)
    assert changes == [("orders", False)]
    state.change(EntityState.HEALTHY)
    assert changes[1:] == [("orders", True)]
    await listing.close()
