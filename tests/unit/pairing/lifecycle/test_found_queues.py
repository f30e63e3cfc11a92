"""What a pair makes of the queues that it finds: a topic, those of others, those it leaves out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.pairing.lifecycle.test_discovery import HOUR_S, FakeAdministration, world
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.failover import ForceFailover
from twinbus.pairing.lifecycle.administration import BacklogAdministration, first_line

pytestmark = pytest.mark.virtual_time


async def test_a_topic_in_place_of_a_backlog_queue_leaves_that_queue_out() -> None:
    class WithTopic(FakeAdministration):
        continuation_token: Any = "the list goes on"

        async def get_queue(self, path: str) -> Any:
            if path.endswith("/1"):
                # As the SDK's client for an entry that describes no queue.
                raise AttributeError("'NoneType' object has no attribute 'lock_duration'")
            return await super().get_queue(path)

    async with world(WithTopic()) as made:
        assert set(made.state.rotation.left_out) == {made.paths[1]}
        assert "another entity has its name" in made.state.rotation.left_out[made.paths[1]]
        assert made.state.rotation.queues == (made.paths[0], *made.paths[2:])


async def test_the_syphon_of_a_pair_finds_the_queues_of_another_application() -> None:
    async with world(enable_syphon=True) as made:
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


async def test_queues_that_are_left_out_for_the_same_reason_are_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin = FakeAdministration()
    async with world(admin) as made:
        admin.queues = dict.fromkeys(made.paths, "Disabled")
    caplog.clear()
    async with world(admin):
        [line] = [r.message for r in caplog.records if "left out" in r.message]
        assert line.startswith("contoso/x-servicebus-transfer/{0,1,2} are left out: ")


def test_a_host_that_cannot_be_connected_to_is_named_once_with_one_port() -> None:
    words = "Cannot connect to host nohost:443 ssl:default [Name or service not known]"
    assert first_line(OSError(words)) == "Name or service not known"


@pytest.mark.parametrize(
    ("host", "more", "is_hinted"),
    [
        ("localhost:5671", "", True),
        ("localhost:5671", "UseDevelopmentEmulator=true", False),
        ("contoso.servicebus.windows.net", "", False),
    ],
)
def test_a_forgotten_emulator_is_hinted_at(host: str, more: str, is_hinted: bool) -> None:
    key = "SharedAccessKeyName=x;SharedAccessKey=eA=="
    side = Namespace.of(f"Endpoint=sb://{host};{key};{more}")
    found = BacklogAdministration(side, None, timeout_s=1.0)._judged(  # type: ignore[arg-type]
        ConnectionResetError("reset"), None
    )
    assert ("UseDevelopmentEmulator=true" in str(found)) is is_hinted
