"""A topic that has the name of a backlog queue."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.pairing.lifecycle.test_discovery_times import FakeAdministration, world

pytestmark = pytest.mark.virtual_time


async def test_a_topic_in_place_of_a_backlog_queue_leaves_that_queue_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class WithTopic(FakeAdministration):
        continuation_token: Any = "the list goes on"

        async def get_queue(self, path: str) -> Any:
            if path.endswith("/1"):
                # As the SDK's client for an entry that describes no queue.
                raise AttributeError("'NoneType' object has no attribute 'lock_duration'")
            return await super().get_queue(path)

    async with world(monkeypatch, WithTopic()) as made:
        assert set(made.state.rotation.left_out) == {made.paths[1]}
        assert "another entity has its name" in made.state.rotation.left_out[made.paths[1]]
        assert made.state.rotation.queues == (made.paths[0], *made.paths[2:])
