"""Checks of limits: links, sizes and credit; with --intrusive also what exceeds them."""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import uuid4

from azure.servicebus import ServiceBusMessage

from twinbus.amqp.events import Attached, Closed, Detached, Ended, Event
from twinbus.amqp.performatives import Attach, Source, Target
from twinbus.amqp.types import UInt
from twinbus.namespace.namespace import KEEP_ALIVE_OFF
from twinbus.pairing.sdk.pooled_sender import message_limit_bytes
from twinbus.verify.scratch import ANSWER_S, Check, Observed, ScratchNamespace, settled_text

BURSTS: Final = 3
BURST: Final = 1_200
"""Messages of one batch: more than the credits of a second."""

MINUTE_S: Final = 60.0


async def link_limits(world: ScratchNamespace) -> Observed:
    """Read what the service grants to a session and to a sending link."""
    path = await world.queue("limits")
    connection = world.connection(lambda event: None)
    await connection.open()
    links = connection.session.free_handles
    await connection.close()
    async with world.sender(path) as sender:
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
    text = settled_text(str(event.error.description), world.label).replace(name, "LINK")
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
    text = settled_text(str(error.description), world.label).replace(name, "LINK")
    return {"detached": str(error.condition), "text": text, "after minutes": minutes}


CHECKS: Final[tuple[Check, ...]] = (
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
