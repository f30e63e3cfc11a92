"""Checks of messages: pings, deferral, peeks, sessions, duplicates, locks and schedules."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import uuid4

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue

from twinbus.pairing.core.schedules import PING_TIME_TO_LIVE_S
from twinbus.pairing.sending.pinger import send_ping
from twinbus.verify.scratch import Check, Observed, ScratchNamespace

WAIT_S: Final = 5.0
"""How long a receiver waits for a message that was sent before."""

SUBSCRIPTION: Final = "seen"

SILENCE_S: Final = 1.0
"""How long a receiver waits for a message that must not come."""

LOCK_S: Final = 5
"""The shortest lock that the service offers."""


async def ping(world: ScratchNamespace) -> Observed:
    """Ping a queue and a topic; return how many messages are seen where, also after expiry."""
    kept = {"dead_lettering_on_message_expiration": True}
    queue = await world.queue("ping", **kept)
    topic = await world.topic("ping-topic", SUBSCRIPTION, **kept)
    async with world.client() as client:
        places = {
            "queue": partial(client.get_queue_receiver, queue),
            "subscription": partial(client.get_subscription_receiver, topic, SUBSCRIPTION),
        }
        senders = [client.get_queue_sender(queue), client.get_topic_sender(topic)]
        receivers = {name: open_() for name, open_ in places.items()}
        dead = {name: open_(sub_queue=ServiceBusSubQueue.DEAD_LETTER)
                for name, open_ in places.items()}  # fmt: skip
        links = [*senders, *receivers.values(), *dead.values()]
        try:
            # Attached before the ping is sent, which lives for one second; closed concurrently,
            # because the SDK takes a second to close each.
            await asyncio.gather(*(link.__aenter__() for link in links))
            await asyncio.gather(*(send_ping(sender) for sender in senders))
            seen = [_seen_now(name, receiver) for name, receiver in receivers.items()]
            seen += [_seen_later(name, receiver) for name, receiver in dead.items()]
            found = dict(pair for pairs in await asyncio.gather(*seen) for pair in pairs.items())
        finally:
            await asyncio.gather(*(link.close() for link in links), return_exceptions=True)
    async with world.administration() as admin:
        one = await admin.get_queue_runtime_properties(queue)
        other = await admin.get_subscription_runtime_properties(topic, SUBSCRIPTION)
    counts = {"queue": one.total_message_count, "subscription": other.total_message_count}
    return {**found, **{f"the count of the {name}": count for name, count in counts.items()}}


async def _seen_now(name: str, receiver: Any) -> dict[str, int]:
    return {
        f"a peek at the {name}": len(await receiver.peek_messages(1)),
        f"a receiver of the {name}": len(
            await receiver.receive_messages(1, max_wait_time=SILENCE_S)
        ),
    }


async def _seen_later(name: str, receiver: Any) -> dict[str, int]:
    """Peek after the time at which a ping that was stored expires and is dead-lettered."""
    await asyncio.sleep(PING_TIME_TO_LIVE_S + SILENCE_S)
    return {f"the dead-letter queue of the {name}": len(await receiver.peek_messages(1))}


async def deferral(world: ScratchNamespace) -> Observed:
    """Defer a message, find it by a peek, and receive it by its number."""
    path = await world.queue("defer")
    await world.send(path, ServiceBusMessage("x"))
    async with world.receiver(path) as receiver:
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
    async with world.receiver(path) as receiver:
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
    async with world.receiver(path, session_id="s") as receiver:
        await receiver.session.set_state(b"state")
        observed["state"] = bytes(await receiver.session.get_state()).decode()
        [message] = await receiver.receive_messages(1, max_wait_time=WAIT_S)
        await receiver.complete_message(message)
        async with world.receiver(path, session_id="s") as second:
            observed["accept a locked session"] = await world.answer(second.__aenter__())
    async with world.receiver(path) as plain:
        observed["receive without a session"] = await world.answer(
            plain.receive_messages(1, max_wait_time=SILENCE_S)
        )
    async with world.receiver(
        path, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=SILENCE_S
    ) as nothing:
        observed["next session, none"] = await world.answer(nothing.__aenter__())
    return observed


async def duplicates(world: ScratchNamespace) -> Observed:
    """Send one id three times to a queue with duplicate detection."""
    path = await world.queue("duplicates", requires_duplicate_detection=True)
    copies = [ServiceBusMessage(text, message_id=f"{uuid4()}") for text in "abc"]
    for copy in copies:
        copy.message_id = copies[0].message_id
    answer = await world.send(path, *copies)
    async with world.receiver(path) as receiver:
        found = await receiver.peek_messages(10)
    return {"answer": answer, "stored": [str(message) for message in found]}


async def lost_lock(world: ScratchNamespace) -> Observed:
    """Complete a message whose lock has expired."""
    path = await world.queue("lock", lock_duration=timedelta(seconds=LOCK_S))
    await world.send(path, ServiceBusMessage("x"))
    async with world.receiver(path) as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=WAIT_S)
        await asyncio.sleep(LOCK_S + 1)
        renewed = await world.answer(receiver.renew_message_lock(message))
        completed = await world.answer(receiver.complete_message(message))
    return {"renew": renewed, "complete": completed}


async def schedules(world: ScratchNamespace) -> Observed:
    """Cancel a scheduled message twice."""
    path = await world.queue("schedule")
    later = datetime.now(UTC) + timedelta(minutes=10)
    async with world.sender(path) as sender:
        numbers = await sender.schedule_messages(ServiceBusMessage("x"), later)
        once = await world.answer(sender.cancel_scheduled_messages(numbers))
        twice = await world.answer(sender.cancel_scheduled_messages(numbers))
    return {"numbers": len(numbers), "cancel": once, "cancel again": twice}


def _increase(numbers: list[int]) -> bool:
    return all(one < two for one, two in itertools.pairwise(numbers))


CHECKS: Final[tuple[Check, ...]] = (
    Check("ping", "a ping is accepted, and nobody sees it", 17, ping),
    Check("deferral", "a deferred message is found and received by its number", 9, deferral),
    Check("peek", "what a peek finds, in which state", 9, peeks),
    Check("sessions", "locks, state and refusals of a session queue", 14, sessions),
    Check("duplicates", "a repeated id is accepted and stored once", 6, duplicates),
    Check("lost lock", "errors for a lock that has expired", 6, lost_lock),
    Check("schedule", "a schedule is cancelled once", 5, schedules),
)
