"""Checks of entities: refusals in the service's words, settings that stay, creations that race."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from secrets import token_bytes
from typing import Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import AccessRights, AuthorizationRule
from azure.servicebus.management import EntityStatus as ServiceStatus

from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.backlog import drift_of
from twinbus.pairing.lifecycle.administration import create_backlog_queue, description_of
from twinbus.verify.scratch import IDLE, Check, Observed, ScratchNamespace

RACERS: Final = 5
WRONG_KEY: Final = "bm90IHRoZSBrZXkgb2YgdGhpcyBuYW1lc3BhY2U="
LISTENER: Final = "listener"
KEY_BYTES: Final = 32
TOO_LARGE: Final = 300 * 1_024
"""Larger than the 256 KB of the Standard tier."""


async def missing_entity(world: ScratchNamespace) -> Observed:
    """Send to and receive from an entity that does not exist."""
    path = world.path("ghost")
    return {
        "send": await world.send(path, ServiceBusMessage("x")),
        "receive": await _receive(world, path),
    }


async def disabled_entity(world: ScratchNamespace) -> Observed:
    """Send to and receive from a queue that is disabled."""
    path = await world.queue("disabled")
    async with world.administration() as admin:
        found = await admin.get_queue(path)
        found.status = ServiceStatus.DISABLED
        await admin.update_queue(found)
    return {
        "send": await world.send(path, ServiceBusMessage("x")),
        "receive": await _receive(world, path),
    }


async def wrong_key(world: ScratchNamespace) -> Observed:
    """Send with a key that is wrong."""
    path = await world.queue("wrong-key")
    stranger = world.with_key(None, WRONG_KEY)
    return {"send": await world.send(path, ServiceBusMessage("x"), namespace=stranger)}


async def listen_only_key(world: ScratchNamespace) -> Observed:
    """Send and receive with a key that has only the right to listen."""
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
    return {
        "send": await world.send(path, ServiceBusMessage("x"), namespace=listener),
        "receive": await _receive(world, path, listener),
    }


async def too_large(world: ScratchNamespace) -> Observed:
    """Send a message that is larger than the Standard tier takes."""
    path = await world.queue("too-large")
    return {"send": await world.send(path, ServiceBusMessage(b"x" * TOO_LARGE))}


async def backlog_settings(world: ScratchNamespace) -> Observed:
    """Create a queue with the settings of a backlog queue, and read what became of them."""
    path = world.to_be_deleted("backlog/x-servicebus-transfer/0")
    async with world.administration() as admin:
        await create_backlog_queue(admin, path)
        found = description_of(await admin.get_queue(path))
    return {"drift": [str(drift) for drift in drift_of(found)]}


async def racing_creations(world: ScratchNamespace) -> Observed:
    """Create one queue several times at once."""
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


async def _receive(
    world: ScratchNamespace, path: str, namespace: Namespace | None = None
) -> Observed:
    async with world.receiver(path, namespace) as receiver:
        return await world.answer(receiver.receive_messages(1, max_wait_time=1))


CHECKS: Final[tuple[Check, ...]] = (
    Check("missing entity", "errors for an entity that does not exist", 4, missing_entity),
    Check("disabled entity", "errors for an entity that is disabled", 6, disabled_entity),
    Check("wrong key", "error for a key that is wrong", 3, wrong_key),
    Check("listen-only key", "answers to a key that may only listen", 6, listen_only_key),
    Check("message size", "error for a message of 300 KB", 7, too_large),
    Check("backlog settings", "a backlog queue keeps its settings", 3, backlog_settings),
    Check("racing creations", "answers to creations of one path at once", 8, racing_creations),
)
