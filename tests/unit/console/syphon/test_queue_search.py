"""The search for backlog queues of a running syphon: one listing starts pumps and counts."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from twinbus.client.administration import ListingRefused, QueueCounts
from twinbus.console.syphon import request as queue_search
from twinbus.console.syphon.request import QueueSearch
from twinbus.namespace.access import Endpoint
from twinbus.status.document import SyphonQueueStatus

PATHS = [f"contoso/x-servicebus-transfer/{index}" for index in range(3)]


class FakeGroup:
    def __init__(self) -> None:
        self.queues: list[str] = []

    def status(self) -> dict[str, SyphonQueueStatus]:
        return dict.fromkeys(self.queues, SyphonQueueStatus())

    async def start(self, queues: list[str]) -> None:
        self.queues += queues


def searching(
    monkeypatch: pytest.MonkeyPatch, listing: dict[str, int], named: list[str] | None = None
) -> tuple[FakeGroup, QueueSearch]:
    """Return a search in a namespace whose backlog queues hold `listing` messages."""

    async def listed(*_: object) -> dict[str, str]:
        if listing is REFUSED:
            raise ListingRefused("no Manage right")
        return {queue: f"<MessageCount>{held}</MessageCount>" for queue, held in listing.items()}

    async def counted(_: Endpoint, __: str) -> QueueCounts:
        return QueueCounts(active=1, total=1)

    monkeypatch.setattr(queue_search, "list_entries", listed)
    monkeypatch.setattr(queue_search, "counts_of", counted)
    group = FakeGroup()
    endpoint = cast("Endpoint", None)
    return group, QueueSearch(endpoint, "contoso", cast("Any", group), group.start, named)


REFUSED: dict[str, int] = {}


def test_a_count_finds_and_starts_queues_that_were_made_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listing = {PATHS[0]: 0}
    group, search = searching(monkeypatch, listing)
    assert search.is_due()
    asyncio.run(search.search())
    assert (group.queues, search.is_due()) == (PATHS[:1], False)
    listing |= {PATHS[1]: 5}
    counts = asyncio.run(search.counts())
    assert (counts[PATHS[1]].waiting, group.queues, search.without_pump) == (5, PATHS[:2], [])
    search.close()
    listing |= {PATHS[2]: 1}
    asyncio.run(search.counts())
    assert (group.queues, search.without_pump) == (PATHS[:2], PATHS[2:])


def test_queues_beyond_the_named_ones_are_told_and_not_pumped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, search = searching(monkeypatch, dict.fromkeys(PATHS, 2), PATHS[:2])
    asyncio.run(search.search())
    assert (group.queues, search.without_pump, search.is_due()) == (PATHS[:2], [], False)
    counts = asyncio.run(search.counts())
    assert sum(each.waiting for each in counts.values()) == 6
    assert (group.queues, search.without_pump) == (PATHS[:2], PATHS[2:])


def test_named_queues_are_counted_one_by_one_without_the_right_to_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, search = searching(monkeypatch, REFUSED, PATHS[:2])
    assert list(asyncio.run(search.counts())) == PATHS[:2]
    _, search = searching(monkeypatch, REFUSED)
    with pytest.raises(ListingRefused):
        asyncio.run(search.counts())
