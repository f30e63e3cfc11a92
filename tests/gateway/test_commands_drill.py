"""The senders of `twinbus drill --gateway`: plain clients that know a connection string."""

from __future__ import annotations

import asyncio

import pytest

from tests.ledger_reading import read
from twinbus import SendAvailabilityOptions, pair_namespaces
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.console.drill.result import DrillPlan
from twinbus.console.drill.traffic import DrillGateway, DrillTraffic
from twinbus.console.drill.world import ENTITIES, World, create_entities

pytestmark = pytest.mark.end_to_end

PATIENCE_S = 120.0


class QuickPlan(DrillPlan):
    """A plan without an outage, whose messages are due at once."""

    @property
    def rate(self) -> float:
        return 10_000.0


PLAN = QuickPlan(messages=60, senders=2, gateway=True)


async def test_the_plain_sdk_sends_the_messages_of_a_drill_through_a_gateway() -> None:
    ended: list[int] = []
    with EmbeddedBroker("contoso", "contoso-dr") as broker, World() as world:
        sides = broker.connection_string("contoso"), broker.connection_string("contoso-dr")
        await create_entities(sides[0])
        options = SendAvailabilityOptions(ledger=world.ledger, backlog_queue_count=1)
        async with (
            asyncio.timeout(PATIENCE_S),
            DrillGateway(PLAN, pair_namespaces(*sides, options)) as gateway,
        ):
            traffic = DrillTraffic(PLAN, gateway.client, ended.append)
            await traffic.run()
        sent = [one for one in read(world.ledger) if one["operation"] == "send"]
    assert traffic.begun.is_set()
    assert traffic.began_ms > 0
    assert traffic.sends_returned == PLAN.messages
    assert sorted(ended) == list(range(1, PLAN.messages + 1))
    assert {one["message_id"] for one in sent} == expected_ids()
    assert {one["entity"] for one in sent} == {entity.path for entity in ENTITIES}
    assert all(one.get("client") for one in sent)


def expected_ids() -> set[str]:
    """As the paired senders of a drill name their messages."""
    shares = (PLAN.share(sender) for sender in range(PLAN.senders))
    return {
        f"{entity.path}-{number:06d}"
        for share in shares
        for place, entity in enumerate(ENTITIES)
        for number in share[place :: len(ENTITIES)]
    }
