"""Which pumps of twins run."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.errors import SyphonError
from twinbus.servicebus.twins import FoundTwin
from twinbus.syphon import twin_search
from twinbus.syphon.twin_search import OUTAGE, TwinSearch

pytestmark = pytest.mark.virtual_time


class Host:
    """The pump of a twin, as far as a search steers it."""

    in_flight = 0

    def __init__(self) -> None:
        self.why_paused: set[str] = set()

    def pause(self, why: str) -> None:
        self.why_paused.add(why)

    def resume(self, why: str) -> None:
        self.why_paused.discard(why)


class Group:
    def __init__(self) -> None:
        self.environment: Any = type("Clock", (), {"monotonic": lambda _: 0.0})()

    async def add(self, host: Host) -> None:
        """Start nothing."""


async def test_a_twin_is_left_to_its_consumers_while_its_entity_is_not_healthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def none_found(*_: object) -> list[FoundTwin]:
        raise SyphonError("no topics here")

    monkeypatch.setattr(twin_search, "found_subscriptions", none_found)
    hosts: dict[str, Host] = {}

    def make_host(path: str) -> Any:
        hosts[path] = Host()
        return hosts[path]

    group: Any = Group()
    secondary: Any = None
    search = TwinSearch(secondary, "contoso", group, make_host)
    search.entity_changed("orders", is_healthy=False)
    await search.listed([FoundTwin(path, active=1) for path in ("Orders", "billing")])
    assert {path: host.why_paused for path, host in hosts.items()} == {
        "Orders": {OUTAGE},
        "billing": set(),
    }
    search.entity_changed("ORDERS", is_healthy=True)
    search.entity_changed("billing", is_healthy=False)
    assert {path: host.why_paused for path, host in hosts.items()} == {
        "Orders": set(),
        "billing": {OUTAGE},
    }
