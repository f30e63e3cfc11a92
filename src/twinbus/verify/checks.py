"""The checks of `twinbus verify`: what each asks a namespace, and what it answered.

Entities (refusals in the service's words, settings that stay, creations that race), messages
(pings, deferral, peeks, sessions, duplicates, locks, schedules) and limits (links, sizes, credit;
with --intrusive also what exceeds them).
"""

from __future__ import annotations

import asyncio
import itertools
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from functools import partial
from secrets import token_bytes
from typing import Any, Final
from uuid import uuid4

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.management import AccessRights, AuthorizationRule
from azure.servicebus.management import EntityStatus as ServiceStatus

from twinbus.amqp.events import Attached, Closed, Detached, Ended, Event
from twinbus.amqp.performatives import Attach, Source, Target
from twinbus.amqp.types import UInt
from twinbus.namespace.namespace import KEEP_ALIVE_OFF, Namespace
from twinbus.pairing.core.backlog import drift_of
from twinbus.pairing.core.pings import PING_TIME_TO_LIVE_S
from twinbus.pairing.sdk.administration import create_backlog_queue, description_of
from twinbus.pairing.sdk.pooled_sender import message_limit_bytes
from twinbus.pairing.sending.client import send_ping
from twinbus.verify.scratch import ANSWER_S, IDLE, Check, Observed, ScratchNamespace
from twinbus.verify.transactions import transactions

RACERS: Final = 5
WRONG_KEY: Final = "bm90IHRoZSBrZXkgb2YgdGhpcyBuYW1lc3BhY2U="
LISTENER: Final = "listener"
KEY_BYTES: Final = 32
TOO_LARGE: Final = 300 * 1_024
"""Larger than the 256 KB of the Standard tier."""

WAIT_S: Final = 5.0
"""How long a receiver waits for a message that was sent before."""

SILENCE_S: Final = 1.0
"""How long a receiver waits for a message that must not come."""

LOCK_S: Final = 5
"""The shortest lock that the service offers."""

SUBSCRIPTION: Final = "seen"
BURSTS: Final = 3
BURST: Final = 1_200
"""Messages of one batch: more than the credits of a second."""

MINUTE_S: Final = 60.0


async def missing_entity(world: ScratchNamespace) -> Observed:
    return await _both_answers(world, world.path("ghost"))


async def disabled_entity(world: ScratchNamespace) -> Observed:
    path = await world.queue("disabled")
    async with world.administration() as admin:
        found = await admin.get_queue(path)
        found.status = ServiceStatus.DISABLED
        await admin.update_queue(found)
    return await _both_answers(world, path)


async def wrong_key(world: ScratchNamespace) -> Observed:
    path = await world.queue("wrong-key")
    stranger = world.with_key(None, WRONG_KEY)
    return {"send": await world.send(path, ServiceBusMessage("x"), namespace=stranger)}


async def listen_only_key(world: ScratchNamespace) -> Observed:
    key, other = (b64encode(token_bytes(KEY_BYTES)).decode() for _ in range(2))
    listener = world.with_key(LISTENER, key)
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.LISTEN],
        key_name=LISTENER,
        primary_key=key,
        secondary_key=other,
    )
    path = await world.queue("listen-only", authorization_rules=[rule])
    return await _both_answers(world, path, listener)


async def too_large(world: ScratchNamespace) -> Observed:
    path = await world.queue("too-large")
    return {"send": await world.send(path, ServiceBusMessage(b"x" * TOO_LARGE))}


async def backlog_settings(world: ScratchNamespace) -> Observed:
    path = world.to_be_deleted("backlog/x-servicebus-transfer/0")
    async with world.administration() as admin:
        await create_backlog_queue(admin, path)
        found = description_of(await admin.get_queue(path))
    return {"drift": [str(drift) for drift in drift_of(found)]}


async def racing_creations(world: ScratchNamespace) -> Observed:
    path = world.to_be_deleted("race")

    async def create() -> Observed:
        async with world.administration() as admin:
            return await world.answer(admin.create_queue(path, auto_delete_on_idle=IDLE))

    answers = await asyncio.gather(*(create() for _ in range(RACERS)))
    refusals = [answer for answer in answers if answer["error"] is not None]
    again = await create()
    return {
        "created": len(answers) - len(refusals),
        "refused": sorted({f"{one['error']} {one['status']}" for one in refusals}),
        "created again": f"{again['error']} {again['status']}",
    }


async def _both_answers(
    world: ScratchNamespace, path: str, namespace: Namespace | None = None
) -> Observed:
    sent = await world.send(path, ServiceBusMessage("x"), namespace=namespace)
    async with world.link("receiver", path, namespace) as receiver:
        received = await world.answer(receiver.receive_messages(1, max_wait_time=1))
    return {"send": sent, "receive": received}


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
    path = await world.queue("defer")
    await world.send(path, ServiceBusMessage("x"))
    async with world.link("receiver", path) as receiver:
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
    path = await world.queue("peek")
    later = datetime.now(UTC) + timedelta(minutes=10)
    scheduled = ServiceBusMessage("later", scheduled_enqueue_time_utc=later)
    await world.send(path, *(ServiceBusMessage(text) for text in ("one", "two")), scheduled)
    async with world.link("receiver", path) as receiver:
        [locked] = await receiver.receive_messages(1, max_wait_time=WAIT_S)
        found = await receiver.peek_messages(10, sequence_number=1)
        await receiver.complete_message(locked)
        return {
            "found": [(str(message), str(message.state)) for message in found],
            "numbers increase": all(
                one.sequence_number < two.sequence_number for one, two in itertools.pairwise(found)
            ),
            "past the end": len(await receiver.peek_messages(1, sequence_number=1 << 40)),
        }


async def sessions(world: ScratchNamespace) -> Observed:
    path = await world.queue("sessions", requires_session=True)
    without = await world.send(path, ServiceBusMessage("x"))
    await world.send(path, ServiceBusMessage("x", session_id="s"))
    observed: dict[str, Any] = {"send without a session": without}
    async with world.link("receiver", path, session_id="s") as receiver:
        await receiver.session.set_state(b"state")
        observed["state"] = bytes(await receiver.session.get_state()).decode()
        [message] = await receiver.receive_messages(1, max_wait_time=WAIT_S)
        await receiver.complete_message(message)
        async with world.link("receiver", path, session_id="s") as second:
            observed["accept a locked session"] = await world.answer(second.__aenter__())
    async with world.link("receiver", path) as plain:
        observed["receive without a session"] = await world.answer(
            plain.receive_messages(1, max_wait_time=SILENCE_S)
        )
    async with world.link(
        "receiver", path, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=SILENCE_S
    ) as nothing:
        observed["next session, none"] = await world.answer(nothing.__aenter__())
    return observed


async def duplicates(world: ScratchNamespace) -> Observed:
    path = await world.queue("duplicates", requires_duplicate_detection=True)
    copies = [ServiceBusMessage(text, message_id=f"{uuid4()}") for text in "abc"]
    for copy in copies:
        copy.message_id = copies[0].message_id
    answer = await world.send(path, *copies)
    async with world.link("receiver", path) as receiver:
        found = await receiver.peek_messages(10)
    return {"answer": answer, "stored": [str(message) for message in found]}


async def lost_lock(world: ScratchNamespace) -> Observed:
    path = await world.queue("lock", lock_duration=timedelta(seconds=LOCK_S))
    await world.send(path, ServiceBusMessage("x"))
    async with world.link("receiver", path) as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=WAIT_S)
        await asyncio.sleep(LOCK_S + 1)
        renewed = await world.answer(receiver.renew_message_lock(message))
        completed = await world.answer(receiver.complete_message(message))
    return {"renew": renewed, "complete": completed}


async def schedules(world: ScratchNamespace) -> Observed:
    path = await world.queue("schedule")
    later = datetime.now(UTC) + timedelta(minutes=10)
    async with world.link("sender", path) as sender:
        numbers = await sender.schedule_messages(ServiceBusMessage("x"), later)
        once = await world.answer(sender.cancel_scheduled_messages(numbers))
        twice = await world.answer(sender.cancel_scheduled_messages(numbers))
    return {"numbers": len(numbers), "cancel": once, "cancel again": twice}


async def link_limits(world: ScratchNamespace) -> Observed:
    path = await world.queue("limits")
    connection = world.connection(lambda event: None)
    await connection.open()
    links = connection.session.free_handles
    await connection.close()
    async with world.link("sender", path) as sender:
        batch = await sender.create_message_batch()
        largest = message_limit_bytes(sender)
    return {
        "links of a session": links,
        "largest message": largest,
        "largest batch": batch.max_size_in_bytes,
    }


async def handle_past_the_highest(world: ScratchNamespace) -> Observed:
    """Attach a link with a handle that is one higher than the session allows."""
    path = await world.queue("handles")
    ended: asyncio.Future[Detached | Ended | Closed] = asyncio.get_running_loop().create_future()
    attached: list[str] = []

    def heard(event: Event) -> None:
        if isinstance(event, Attached):
            # A service that refuses a link attaches and then detaches it.
            attached.append(event.link.name)
        elif isinstance(event, Detached | Ended | Closed) and not ended.done():
            ended.set_result(event)

    name = uuid4().hex
    connection = world.connection(heard)
    await connection.open()
    try:
        session = connection.session
        highest = session.free_handles - 1
        await connection.authorize(path)
        attach = Attach(
            name=name,
            handle=UInt(highest + 1),
            snd_settle_mode=0,
            rcv_settle_mode=0,
            source=Source(address=name),
            target=Target(address=path),
            initial_delivery_count=UInt(0),
        )
        session.write(attach)
        connection.flush()
        async with asyncio.timeout(ANSWER_S):
            event = await ended
    except TimeoutError:
        return {"answer": "attached" if name in attached else None}
    finally:
        await connection.close()
    answer = type(event).__name__.lower()
    if event.error is None:
        return {"answer": answer}
    text = world.settled(str(event.error.description)).replace(name, "LINK")
    return {"answer": answer, "condition": str(event.error.condition), "text": text}


async def throttling(world: ScratchNamespace) -> Observed:
    """Send three times what the Standard tier takes in a second, at once."""
    path = await world.queue("throttle")
    async with world.client() as client:
        senders = [client.get_queue_sender(path, **KEEP_ALIVE_OFF) for _ in range(BURSTS)]
        try:
            # Ready to be sent before the first is: the second is short.
            bursts = [await sender.create_message_batch() for sender in senders]
            for burst in bursts:
                for _ in range(BURST):
                    burst.add_message(ServiceBusMessage("x"))
            sends = zip(senders, bursts, strict=True)
            answers = await asyncio.gather(
                *(world.answer(sender.send_messages(burst)) for sender, burst in sends)
            )
        finally:
            for sender in senders:
                await sender.close()
    refusals = [answer for answer in answers if answer["error"] is not None]
    return {"refusal": refusals[0] if refusals else None}


async def idle_detach(world: ScratchNamespace) -> Observed:
    """Leave a link idle until the service detaches it."""
    if world.link_idle_s is None:
        return {"detached": "this tier has no limit to wait for"}
    path = await world.queue("idle")
    loop = asyncio.get_running_loop()
    detached: asyncio.Future[Detached] = loop.create_future()

    def heard(event: Event) -> None:
        if isinstance(event, Detached) and not detached.done():
            detached.set_result(event)

    connection = world.connection(heard)
    await connection.open()
    try:
        await connection.authorize(path)
        session = await connection.session_with_room()
        name = uuid4().hex
        session.attach_sender(name, source=Source(address=name), target=Target(address=path))
        connection.flush()
        began = loop.time()
        async with asyncio.timeout(world.link_idle_s * 1.5 + MINUTE_S):
            error = (await detached).error
        minutes = round((loop.time() - began) / MINUTE_S)
    except TimeoutError:
        return {"detached": None}
    finally:
        await connection.close()
    if error is None:
        return {"detached": "without a reason", "after minutes": minutes}
    text = world.settled(str(error.description)).replace(name, "LINK")
    return {"detached": str(error.condition), "text": text, "after minutes": minutes}


CHECKS: Final[tuple[Check, ...]] = (
    Check("missing entity", "errors for an entity that does not exist", 4, missing_entity),
    Check("disabled entity", "errors for an entity that is disabled", 6, disabled_entity),
    Check("wrong key", "error for a key that is wrong", 3, wrong_key),
    Check("listen-only key", "answers to a key that may only listen", 6, listen_only_key),
    Check("message size", "error for a message of 300 KB", 7, too_large),
    Check("backlog settings", "a backlog queue keeps its settings", 3, backlog_settings),
    Check("racing creations", "answers to creations of one path at once", 8, racing_creations),
    Check("ping", "a ping is accepted, and nobody sees it", 17, ping),
    Check("deferral", "a deferred message is found and received by its number", 9, deferral),
    Check("peek", "what a peek finds, in which state", 9, peeks),
    Check("sessions", "locks, state and refusals of a session queue", 14, sessions),
    Check("duplicates", "a repeated id is accepted and stored once", 6, duplicates),
    Check("lost lock", "errors for a lock that has expired", 6, lost_lock),
    Check("schedule", "a schedule is cancelled once", 5, schedules),
    Check("transactions", "answers to transactions of two queues", 15, transactions),
    Check("link limits", "links of a session, size of messages and batches", 3, link_limits),
    Check(
        "handle-max", "the answer to one link too many on a session",
        3, handle_past_the_highest, is_intrusive=True,
    ),
    Check(
        "throttling", "the refusal of what exceeds the credits of a second",
        BURSTS * BURST + 3, throttling, is_intrusive=True,
    ),
    Check(
        "idle detach", "an idle link is detached, when and how", 3, idle_detach, is_intrusive=True
    ),
)  # fmt: skip
