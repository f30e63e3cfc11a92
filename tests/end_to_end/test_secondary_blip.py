"""A secondary that is restarted while the primary is down: real processes, the official SDK.

A connection that fails says that the secondary namespace cannot be reached. It pulls no backlog
queue, and calls wait for the secondary within their timeout (SPEC 3, Diverting).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.pairs import drain_all, until
from tests.processes import ServedBroker
from twinbus import Namespace, SendAvailabilityOptions, pair_namespaces
from twinbus.pairing.sending.sender import PairedSender

pytestmark = pytest.mark.end_to_end

TASKS = 12
TIMEOUT_S = 60.0
DOWN_S = 2.0
FREE_S = 10.0
"""From the health of the secondary to the first success, at most."""

OPTIONS = SendAvailabilityOptions(failover_interval=1.0, attempt_timeout=5.0, ledger="")


@dataclass
class PatientLoad:
    """Tasks that send one message after the other, each call with 60 s of patience."""

    sender: PairedSender
    accepted: dict[str, float] = field(default_factory=dict)
    """The id of each message whose send returned, and when."""
    raised: list[BaseException] = field(default_factory=list)
    _number: int = 0
    _stopping: bool = False

    async def run(self) -> None:
        await asyncio.gather(*(self._send() for _ in range(TASKS)))

    def stop(self) -> None:
        self._stopping = True

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            self._number += 1
            message_id = f"id-{self._number}"
            try:
                message = ServiceBusMessage("x", message_id=message_id)
                await self.sender.send_messages(message, timeout=TIMEOUT_S)
                self.accepted[message_id] = loop.time()
            except Exception as error:  # noqa: BLE001  # the test looks at each
                self.raised.append(error)
            await asyncio.sleep(0.01)


async def test_a_blip_of_the_secondary_costs_patience_and_no_error(
    two_brokers: tuple[ServedBroker, ServedBroker],
) -> None:
    primary, secondary = two_brokers
    loop = asyncio.get_running_loop()
    sides = (
        Namespace.from_connection_string(primary.connection_string(), "contoso"),
        Namespace.from_connection_string(secondary.connection_string()),
    )
    async with pair_namespaces(*sides, OPTIONS) as pair:
        queues = pair.backlog_queues
        assert len(queues) == OPTIONS.backlog_queue_count
        load = PatientLoad(pair.get_queue_sender("orders"))
        await asyncio.to_thread(primary.kill9)
        running = asyncio.create_task(load.run())
        await until(lambda: len(load.accepted) > 50)
        await asyncio.to_thread(secondary.kill9)
        await asyncio.sleep(DOWN_S)
        assert not load.raised, load.raised[0]
        await asyncio.to_thread(secondary.restart)
        healthy_at, before = loop.time(), len(load.accepted)
        await until(lambda: len(load.accepted) > before + TASKS or bool(load.raised))
        load.stop()
        await running
        pulled = [str(q) for q in pair.status().backlog_queues.values() if q.state == "pulled"]
    assert load.raised == []
    assert pulled == []
    first_after = sorted(load.accepted.values())[before]
    assert first_after - healthy_at < FREE_S
    stored = {str(m.message_id) for m in await drain_all(secondary.connection_string(), queues)}
    assert set(load.accepted) - stored == set()
