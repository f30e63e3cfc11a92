"""Counters never decrease, also when the pair forgets an entity and sees it again."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage

from tests.unit.pairing.sending.test_raising import status_of
from twinbus.pairing.core.sides import PairSides
from twinbus.pairing.observing.metrics import OTHERS, MeasuredPair, PairCollector
from twinbus.pairing.sending.entity_monitor import EntityMonitors
from twinbus.testing.fake_pair import FakePair

pytestmark = pytest.mark.virtual_time


def stored(collector: PairCollector) -> dict[str, float]:
    """Messages stored on the primary, by entity."""
    [family] = [each for each in collector.collect() if each.name == "twinbus_messages_stored"]
    return {
        sample.labels["entity"]: sample.value
        for sample in family.samples
        if sample.labels["route"] == "primary"
    }


async def test_a_forgotten_entity_keeps_its_series_and_the_total_is_right() -> None:
    world = FakePair()
    state = world.client.state
    state.monitors = EntityMonitors(1)
    measured = MeasuredPair(state, PairSides(syphon=False), dict, lambda: status_of(world))
    collector = PairCollector(measured, entities_max=2)

    async def send_to(path: str) -> None:
        async with world.client.get_queue_sender(path) as sender:
            await sender.send_messages(ServiceBusMessage("x"))

    await send_to("a")
    await send_to("a")
    assert stored(collector) == {"a": 2}
    await send_to("b")
    assert stored(collector) == {"a": 2, "b": 1}
    await send_to("c")
    assert stored(collector) == {"a": 2, "b": 1, OTHERS: 1}
    await send_to("a")
    assert stored(collector) == {"a": 3, "b": 1, OTHERS: 1}
    # What came and went between two scrapes is in the total.
    await send_to("d")
    await send_to("b")
    await send_to("c")
    assert stored(collector) == {"a": 3, "b": 1, OTHERS: 4}
    assert len(state.monitors.all()) == 1
    await world.client.close()
