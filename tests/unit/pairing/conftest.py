"""Closes the fake pairs of each test at its end, in its own event loop."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

from twinbus.testing.fake_sdk import FakePair


@pytest.fixture(autouse=True)
def pairs_are_closed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair that a test closed itself is closed once more, which changes nothing."""
    test, init, made = request.node.obj, FakePair.__init__, list[FakePair]()
    if not inspect.iscoroutinefunction(test):
        return

    def noted(pair: FakePair, **options: Any) -> None:
        init(pair, **options)
        made.append(pair)

    @functools.wraps(test)
    async def closing(**given: Any) -> None:
        await test(**given)
        for pair in made:
            await pair.client.close()

    monkeypatch.setattr(FakePair, "__init__", noted)
    request.node.obj = closing
