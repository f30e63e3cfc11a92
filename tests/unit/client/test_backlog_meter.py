"""Measuring the backlog for metrics, when the secondary does not play along."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import cast

import pytest

from twinbus.client.administration import QueueCounts
from twinbus.client.backlog_meter import BacklogMeter, QueueDepth
from twinbus.errors import SyphonError
from twinbus.namespace.endpoint import Endpoint

NO_MESSAGE = {"a": QueueDepth(0, 0, None)}


def measured(
    monkeypatch: pytest.MonkeyPatch, *answers: Exception | Mapping[str, QueueCounts]
) -> list[Mapping[str, QueueDepth]]:
    """Return the depths after each measurement, made every 10 s, with counts as given."""
    left, seen, now = list(answers), list[Mapping[str, QueueDepth]](), 1_000.0
    sleep = asyncio.sleep

    async def scenario() -> None:
        ended = asyncio.Event()

        async def counts() -> Mapping[str, QueueCounts]:
            seen.append(meter.depths())
            if not left:
                ended.set()
                await sleep(3600)
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def pause(length_s: float) -> None:
            nonlocal now
            now += length_s

        monkeypatch.setattr(asyncio, "sleep", pause)
        monkeypatch.setattr(time, "monotonic", lambda: now)
        meter = BacklogMeter(cast("Endpoint", None), counts, every_s=10.0)
        meter.start(asyncio.get_running_loop())
        await ended.wait()
        await meter.close()

    asyncio.run(scenario())
    return seen[1:]


def test_after_errors_measuring_goes_on_and_numbers_that_are_too_old_are_withdrawn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert measured(
        monkeypatch,
        {"a": QueueCounts()},
        SyphonError("away"),
        ValueError("nonsense"),
        SyphonError("away"),
        {"a": QueueCounts(dead_lettered=2, total=2)},
    ) == [NO_MESSAGE, NO_MESSAGE, NO_MESSAGE, {}, {"a": QueueDepth(0, 2, None)}]
    # One warning for each time that it begins to fail.
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "the depth of the backlog is not known: away"
    ]


def test_a_meter_that_was_closed_before_it_began_measures_nothing() -> None:
    async def scenario() -> None:
        meter = BacklogMeter(cast("Endpoint", None), cast("type", None), every_s=1.0)
        meter.start(asyncio.get_running_loop())
        await meter.close()
        await asyncio.sleep(0)
        assert meter.depths() == {}

    asyncio.run(scenario())
