"""Checks of messages: pings, deferral, peeks, sessions, duplicates, locks and schedules."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue

from twinbus.namespace.administration_client import administration_client
from twinbus.namespace.namespace import KEEP_ALIVE_OFF
from twinbus.pairing.core.ping import PING_TIME_TO_LIVE_S
from twinbus.pairing.sending.pinger import send_ping
from twinbus.verify.check import Check
from twinbus.verify.facts import Observed
from twinbus.verify.scratch import ScratchNamespace

WAIT_S: Final = 5.0
"""How long a receiver waits for a message that was sent before."""

SILENCE_S: Final = 1.0
"""How long a receiver waits for a message that must not come."""

LOCK_S: Final = 5
"""The shortest lock that the service offers."""


async def ping(world: ScratchNamespace) -> Observed:
    """Send a ping; say who sees it, at once and when it has expired."""
    path = await world.queue("ping", dead_lettering_on_message_expiration=True)
    async with (
        world.client() as client,
        _opened(client.get_queue_sender(path, **KEEP_ALIVE_OFF)) as sender,
        _receiver(client, path) as receiver,
        _receiver(client, path, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead,
    ):
        sent = await world.answer(send_ping(sender))
        peeked = len(await receiver.peek_messages(1))
        received = len(await receiver.receive_messages(1, max_wait_time=SILENCE_S))
        await asyncio.sleep(PING_TIME_TO_LIVE_S + SILENCE_S)
        dead_lettered = len(await dead.peek_messages(1))
    async with administration_client(world.namespace) as admin:
        counted = (await admin.get_queue_runtime_properties(path)).total_message_count
    return {
        "answer": sent,
        "peeked": peeked,
        "received": received,
        "dead-lettered": dead_lettered,
        "counted": counted,
    }


async def deferral(world: ScratchNamespace) -> Observed:
    """Defer a message, find it by a peek, and receive it by its number."""
    path = await world.queue("defer")
    await world.send(path, ServiceBusMessage("x"))
    async with world.client() as client, _receiver(client, path) as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=WAIT_S)
        await receiver.defer_message(message)
        number = message.sequence_number
        [peeked] = await receiver.peek_messages(1, sequence_number=number)
        waiting = len(await receiver.receive_messages(1, max_wait_time=SILENCE_S))
        [again] = await receiver.receive_deferred_messages([number])
        await receiver.complete_message(again)
        return {
            "state in a peek": str(peeked.state),
            "received without its number": waiting,
            "delivery count": again.delivery_count,
            "number once more": await world.answer(receiver.receive_deferred_messages([number])),
        }


async def peeks(world: ScratchNamespace) -> Observed:
    """Peek at messages that are active, locked and scheduled."""
    path = await world.queue("peek")
    later = datetime.now(UTC) + timedelta(minutes=10)
    scheduled = ServiceBusMessage("later", scheduled_enqueue_time_utc=later)
    await world.send(path, *(ServiceBusMessage(text) for text in ("one", "two")), scheduled)
    async with world.client() as client, _receiver(client, path) as receiver:
        [locked] = await receiver.receive_messages(1, max_wait_time=WAIT_S)
        found = await receiver.peek_messages(10, sequence_number=1)
        await receiver.complete_message(locked)
        return {
            "found": [(str(message), str(message.state)) for message in found],
            "numbers increase": _increase([message.sequence_number for message in found]),
            "past the end": len(await receiver.peek_messages(1, sequence_number=1 << 40)),
        }


async def sessions(world: ScratchNamespace) -> Observed:
    """Use a queue with sessions rightly and wrongly."""
    path = await world.queue("sessions", requires_session=True)
    without = await world.send(path, ServiceBusMessage("x"))
    await world.send(path, ServiceBusMessage("x", session_id="s"))
    observed: dict[str, Any] = {"send without a session": without}
    async with world.client() as client:
        async with _receiver(client, path, session_id="s") as receiver:
            await receiver.session.set_state(b"state")
            observed["state"] = bytes(await receiver.session.get_state()).decode()
            [message] = await receiver.receive_messages(1, max_wait_time=WAIT_S)
            await receiver.complete_message(message)
            second = client.get_queue_receiver(path, session_id="s", **KEEP_ALIVE_OFF)
            observed["accept a locked session"] = await world.answer(second.__aenter__())
            await second.close()
        plain = client.get_queue_receiver(path, **KEEP_ALIVE_OFF)
        observed["receive without a session"] = await world.answer(
            plain.receive_messages(1, max_wait_time=SILENCE_S)
        )
        await plain.close()
        nothing = client.get_queue_receiver(
            path, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=SILENCE_S, **KEEP_ALIVE_OFF
        )
        observed["next session, none"] = await world.answer(nothing.__aenter__())
        await nothing.close()
    return observed


async def duplicates(world: ScratchNamespace) -> Observed:
    """Send one id three times to a queue with duplicate detection."""
    path = await world.queue("duplicates", requires_duplicate_detection=True)
    copies = [ServiceBusMessage(text, message_id=f"{uuid4()}") for text in "abc"]
    for copy in copies:
        copy.message_id = copies[0].message_id
    answer = await world.send(path, *copies)
    async with world.client() as client, _receiver(client, path) as receiver:
        found = await receiver.peek_messages(10)
    return {"answer": answer, "stored": [str(message) for message in found]}


async def lost_lock(world: ScratchNamespace) -> Observed:
    """Complete a message whose lock has expired."""
    path = await world.queue("lock", lock_duration=timedelta(seconds=LOCK_S))
    await world.send(path, ServiceBusMessage("x"))
    async with world.client() as client, _receiver(client, path) as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=WAIT_S)
        await asyncio.sleep(LOCK_S + 1)
        renewed = await world.answer(receiver.renew_message_lock(message))
        completed = await world.answer(receiver.complete_message(message))
    return {"renew": renewed, "complete": completed}


async def schedules(world: ScratchNamespace) -> Observed:
    """Cancel a scheduled message twice."""
    path = await world.queue("schedule")
    later = datetime.now(UTC) + timedelta(minutes=10)
    async with (
        world.client() as client,
        _opened(client.get_queue_sender(path, **KEEP_ALIVE_OFF)) as sender,
    ):
        numbers = await sender.schedule_messages(ServiceBusMessage("x"), later)
        once = await world.answer(sender.cancel_scheduled_messages(numbers))
        twice = await world.answer(sender.cancel_scheduled_messages(numbers))
    return {"numbers": len(numbers), "cancel": once, "cancel again": twice}


def _increase(numbers: list[int]) -> bool:
    return all(one < two for one, two in itertools.pairwise(numbers))


@asynccontextmanager
async def _opened(handler: Any) -> AsyncIterator[Any]:
    try:
        await handler.__aenter__()
        yield handler
    finally:
        await handler.close()


def _receiver(client: Any, path: str, **options: Any) -> Any:
    return _opened(client.get_queue_receiver(path, **KEEP_ALIVE_OFF, **options))


CHECKS: Final[tuple[Check, ...]] = (
    Check("ping", "a ping is accepted, and nobody sees it", 8, ping),
    Check("deferral", "a deferred message is found and received by its number", 9, deferral),
    Check("peek", "what a peek finds, in which state", 9, peeks),
    Check("sessions", "locks, state and refusals of a session queue", 14, sessions),
    Check("duplicates", "a repeated id is accepted and stored once", 6, duplicates),
    Check("lost lock", "errors for a lock that has expired", 6, lost_lock),
    Check("schedule", "a schedule is cancelled once", 5, schedules),
)
