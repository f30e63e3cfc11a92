"""What the syphon could not restore is refused through a gateway, and SDKs do not retry it."""

from __future__ import annotations

import asyncio

import pytest

from tests.end_to_end.raw_client import RawClient, Refused, message
from tests.gateway.gateway_world import gateway_world
from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.types import Symbol, Timestamp

pytestmark = pytest.mark.contract

SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")


def scheduled(at: object) -> bytes:
    return encode_message(
        message_annotations={SCHEDULED: at}, properties=Properties(message_id="m"), data=b"x"
    )


UNRESTORABLE = {
    "a session id that is too long": message("m", session="s" * 200),
    "a schedule after the year 9999": scheduled(Timestamp(253_402_300_800_000)),
    "a schedule before the year 1": scheduled(Timestamp(-(2**62))),
    "a schedule that is no time": scheduled("tomorrow"),
    "a property with the name of an alias": encode_message(
        properties=Properties(message_id="m"),
        application_properties={"x-ms-path": "payments"},
        data=b"x",
    ),
}


async def test_what_the_syphon_could_not_restore_is_refused_when_it_is_sent() -> None:
    async with gateway_world("orders") as world:
        raw = await RawClient.open(world.connection_string())
        sender = await raw.sender("orders")
        await sender.room()
        world.gateway.pair.force_failover("orders")
        sends = [sender.send(wire) for wire in UNRESTORABLE.values()]
        results = await asyncio.gather(*sends, return_exceptions=True)
        conditions = {
            name: result.condition if isinstance(result, Refused) else repr(result)
            for name, result in zip(UNRESTORABLE, results, strict=True)
        }
        expected = dict.fromkeys(UNRESTORABLE, "amqp:not-allowed")
        # The backlog queue itself refuses this one.
        expected["a schedule that is no time"] = "amqp:decode-error"
        assert conditions == expected
        assert all(str(result) for result in results)
        assert world.gateway.pair.status().entities["orders"].diverted == 0
        await sender.send(message("good"))
        assert world.gateway.pair.status().entities["orders"].diverted == 1
        await raw.close()


@pytest.mark.parametrize("name", ["orders ", "or//ders", "orders/$management/x", "a" * 300, "é"])
async def test_a_link_to_what_is_no_name_is_refused(name: str) -> None:
    async with gateway_world() as world:
        raw = await RawClient.open(world.connection_string())
        with pytest.raises(Refused) as caught:
            await raw.sender(name)
        assert caught.value.condition == "amqp:not-allowed"
        await raw.close()
