"""Measuring the backlog for a syphon's metrics, when the secondary does not play along."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, cast

import pytest

from twinbus.client.administration import QueueCounts
from twinbus.errors import SyphonError
from twinbus.namespace.endpoint import Endpoint
from twinbus.syphon.observing import depth
from twinbus.syphon.observing.depth import MeasuredQueue, SyphonBacklog

EMPTY = MeasuredQueue(0, 0, None)


def measured(
    monkeypatch: pytest.MonkeyPatch, *polls: Exception | Mapping[str, QueueCounts]
) -> list[Mapping[str, MeasuredQueue]]:
    """Return the depths after each poll, which is answered as given."""
    answers = iter(polls)
    seen: list[Mapping[str, MeasuredQueue]] = []

    async def counts() -> Mapping[str, QueueCounts]:
        seen.append(backlog.depths())
        answer = next(answers, None)
        if answer is None:
            raise asyncio.CancelledError
        if isinstance(answer, Exception):
            raise answer
        return answer

    backlog = SyphonBacklog(cast("Endpoint", None), counts, every_s=0.001)
    # The times of a busy machine must not make an answer stale.
    monkeypatch.setattr(depth, "STALE_AFTER", 1_000_000)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(backlog.run())
    return seen[1:]


def test_after_an_error_the_last_numbers_stay_and_measuring_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dead = QueueCounts(dead_lettered=2, total=2)
    polls: list[Exception | Mapping[str, QueueCounts]] = [
        {"a": QueueCounts()},
        SyphonError("away"),
        ValueError("nonsense"),
        {"a": dead},
    ]
    first, second, third, last = measured(monkeypatch, *polls)
    assert first == second == third == {"a": EMPTY}
    assert last == {"a": MeasuredQueue(0, 2, None)}
    # One warning for each time that it begins to fail.
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "the depth of the backlog is not known: away"
    ]


def test_numbers_that_are_too_old_are_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)
    backlog = SyphonBacklog(cast("Endpoint", None), cast("Any", None), every_s=10.0)
    assert backlog.depths() == {}
    backlog._depths, backlog._measured_at = {"a": EMPTY}, 970.0
    assert backlog.depths() == {"a": EMPTY}
    backlog._measured_at = 969.0
    assert backlog.depths() == {}
