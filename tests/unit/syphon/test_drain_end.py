"""The end of a drain: counts lag behind, so a peek has to find the queues empty too."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twinbus.client.connection import MACHINE
from twinbus.errors import SyphonError
from twinbus.syphon import host as host_module
from twinbus.syphon.host import SyphonHost, _until_empty

pytestmark = pytest.mark.virtual_time


async def test_a_drain_ends_when_a_peek_finds_nothing_though_the_counts_said_so_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A message that is not counted yet, a secondary that is away, and an empty queue.
    peeks: list[list[str] | Exception] = [["late"], SyphonError("away"), []]

    async def nothing(*_: object) -> int:
        return 0

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[None]:
        yield

    async def peek(*_: object, page: int) -> AsyncGenerator[str, None]:
        found = peeks.pop(0)
        if isinstance(found, Exception):
            raise found
        for message in found[:page]:
            yield message

    monkeypatch.setattr(host_module, "_total", nothing)
    monkeypatch.setattr(host_module, "open_connection", opened)
    monkeypatch.setattr(host_module, "peek", peek)
    relay: Any = SimpleNamespace(queue="q", fault=None)
    host = SimpleNamespace(
        relays=[relay],
        queues=["q"],
        twins=[],
        only=None,
        secondary=None,
        in_flight=0,
        moved=0,
        environment=MACHINE,
    )
    await _until_empty(cast("SyphonHost", host), 0.01, None)
    assert peeks == []
