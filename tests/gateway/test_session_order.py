"""Strict session order through a gateway: in an outage each session arrives as it was sent."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.contract.pairs import until
from tests.gateway.gateway_world import PATIENCE_S, gateway_world
from twinbus.broker.descriptions import QueueDescription

pytestmark = pytest.mark.contract

SESSIONS = ("a", "b", "c")


class SessionSender:
    """A client that sends one message of a session after the other until it is told to stop."""

    def __init__(self, client: ServiceBusClient, session: str) -> None:
        self.sent: list[str] = []
        self.pause_s = 0.05
        self._client = client
        self._session = session
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    async def run(self) -> None:
        async with self._client.get_queue_sender("talks") as sender:
            while not self._stopping:
                name = f"{self._session}-{len(self.sent)}"
                await sender.send_messages(
                    ServiceBusMessage(name, message_id=name, session_id=self._session)
                )
                self.sent.append(name)
                await asyncio.sleep(self.pause_s)


async def test_sessions_arrive_in_order_when_the_primary_is_cut_off_in_mid_stream() -> None:
    async with (
        gateway_world(session_order="strict", enable_syphon=True, syphon_poll=1) as world,
        world.client() as client,
    ):
        world.primary.create_queue("talks", QueueDescription(requires_session=True))
        senders = [SessionSender(client, session) for session in SESSIONS]
        tasks = [asyncio.create_task(sender.run()) for sender in senders]
        pair = world.gateway.pair

        def figures() -> tuple[int, int]:
            entity = pair.status().entities.get("talks")
            return (0, 0) if entity is None else (entity.sent, entity.diverted)

        await until(lambda: figures()[0] > 10)
        world.primary.cut_off()
        await until(lambda: figures()[1] > 10)
        world.primary.serve_again()
        sent = figures()[0]
        # Sessions return to the primary when their backlog has been moved; they go on meanwhile,
        # but not so fast that the syphon, with one message of a session under way, falls behind.
        for sender in senders:
            sender.pause_s = 0.5
        await until(lambda: figures()[0] > sent + 3)
        for sender in senders:
            sender.stop()
        await asyncio.gather(*tasks)
        primary = world.primary.connection_string()
        orders = [
            arrived(primary, session, sender.sent)
            for session, sender in zip(SESSIONS, senders, strict=True)
        ]
        assert await asyncio.gather(*orders) == [sender.sent for sender in senders]


async def arrived(primary: str, session: str, sent: list[str]) -> list[str]:
    """The first arrivals of a session, when all that was sent is there."""
    found: dict[str, None] = {}
    async with (
        asyncio.timeout(PATIENCE_S),
        ServiceBusClient.from_connection_string(primary) as client,
        client.get_queue_receiver("talks", session_id=session) as receiver,
    ):
        while len(found) < len(sent):
            for one in await receiver.receive_messages(50, max_wait_time=1):
                found[str(one)] = None
                await receiver.complete_message(one)
    return list(found)
