"""Measuring the backlog for a syphon's metrics, when the secondary does not play along."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from twinbus.errors import SyphonError
from twinbus.namespace.endpoint import Endpoint
from twinbus.syphon.connection.counts import CountsUnavailable, QueueCounts
from twinbus.syphon.observing import depth
from twinbus.syphon.observing.depth import MeasuredQueue, SyphonBacklog

EMPTY = MeasuredQueue(0, 0, None)


def measured(
    monkeypatch: pytest.MonkeyPatch, *polls: Mapping[str, Exception | QueueCounts]
) -> list[Mapping[str, MeasuredQueue]]:
    """Return the depths after each poll, at which each queue answers as given."""
    answers: Iterator[Mapping[str, Exception | QueueCounts]] = iter(polls)
    seen: list[Mapping[str, MeasuredQueue]] = []
    now: dict[str, Any] = {}

    async def counts_of(_: Endpoint, queue: str) -> QueueCounts:
        answer = now["poll"][queue]
        if isinstance(answer, Exception):
            raise answer
        return cast("QueueCounts", answer)

    def queues() -> list[str]:
        if "poll" in now:
            seen.append(backlog.depths())
        now["poll"] = next(answers, None)
        if now["poll"] is None:
            raise asyncio.CancelledError
        return list(now["poll"])

    monkeypatch.setattr(depth, "counts_of", counts_of)
    backlog = SyphonBacklog(cast("Endpoint", None), queues, every_s=0.001)
    # The times of a busy machine must not make an answer stale.
    monkeypatch.setattr(depth, "STALE_AFTER", 1_000_000)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(backlog.run())
    return seen


def test_a_queue_that_was_deleted_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    (depths,) = measured(monkeypatch, {"a": SyphonError("no such queue"), "b": QueueCounts()})
    assert depths == {"b": EMPTY}


def test_after_an_error_the_last_numbers_stay_and_measuring_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dead = QueueCounts(dead_lettered=2, total=2)
    polls: list[Mapping[str, Exception | QueueCounts]] = [
        {"a": QueueCounts()},
        {"a": CountsUnavailable("away")},
        {"a": ValueError("nonsense")},
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
    backlog = SyphonBacklog(cast("Endpoint", None), list, every_s=10.0)
    assert backlog.depths() == {}
    backlog._depths, backlog._measured_at = {"a": EMPTY}, 970.0
    assert backlog.depths() == {"a": EMPTY}
    backlog._measured_at = 969.0
    assert backlog.depths() == {}
