"""What a bad night promises, beyond what checks.py demands of every world."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.network import IDLE_S
from tests.simulation.night.plan import PATIENCE_S
from tests.simulation.plan import Fault
from twinbus.pairing.observing.events import BacklogQueuePulled, EntityChanged

if TYPE_CHECKING:
    from tests.simulation.programs import Application
    from tests.simulation.world import World

LOST_CONNECTION: Final = "ServiceBusConnectionError"

OWN_FAULT: Final = "MessageSizeExceededError"
"""The message's own fault: no patience helps."""


async def require_protection(world: World) -> None:
    """Once backlog queues can be used, every pair finds them in time (SPEC 2.5)."""
    at = world.plan.protected_at_s
    if at is None:
        return
    await asyncio.sleep(at - world.loop.time())
    for application in world.applications:
        missing = set(world.backlog_paths) - set(application.client.state.rotation.queues)
        if missing:
            world.violation("unprotected", f"{application.name} did not find {sorted(missing)}")


def require_cause(world: World, application: Application, event: EntityChanged) -> None:
    """An entity of the primary fails over only for a fault that hit it, or by a person's command:
    a healthy primary never fails over (SPEC 3)."""
    entity = application.client.entity(event.path)
    if entity.failover.forced:
        return
    options, now = world.options, world.loop.time()
    # A connection that a fault has silenced is noticed later, by the next call that uses it.
    aftermath_s = options.failover_interval_s + options.attempt_timeout_s + IDLE_S
    for fault in world.plan.faults:
        is_near = fault.at <= now <= fault.at + fault.lasts_s + aftermath_s
        if is_near and _hits_primary(fault, application.name, event.path):
            return
    name = application.name
    world.violation("healthy", f"{event.path} of {name} failed over: {event.reason}")


def require_queue_fault(world: World, application: Application, event: BacklogQueuePulled) -> None:
    """A connection that fails says nothing about one queue, and pulls none (SPEC 3)."""
    if event.reason.startswith(LOST_CONNECTION):
        text = f"{event.queue} by {application.name}: {event.reason}"
        world.violation("pulled", text)


def _hits_primary(fault: Fault, process: str, path: str) -> bool:
    """Whether calls of a process to an entity can fail by it in a way that counts (SPEC 3)."""
    match fault.kind:
        case "crash namespace" | "stop namespace":
            return fault.target == "primary"
        case "partition" | "slow" | "flaky":
            return fault.detail == "primary" and fault.target in ("*", process)
        case "refuse":
            is_meant = fault.target in ("all of primary", path.lower())
            return is_meant and fault.detail == "internal"
    # What was throttled, disabled or deleted has answered.
    return False


def check_patience(world: World) -> Iterator[str]:
    """A call with a minute of patience outlasts a blip of the secondary, and whatever else a clean
    night brings: it goes on within the caller's timeout (SPEC 3)."""
    since = world.plan.patient_from_s
    if since is None:
        return
    for call in world.truth.calls:
        is_patient = call.timeout_s is not None and call.timeout_s >= PATIENCE_S
        if not is_patient or call.began < since or call.outcome != "raised":
            continue
        if not call.error.startswith(OWN_FAULT):
            assert call.ended is not None
            took_s = call.ended - call.began
            yield f"call {call.number} raised after {took_s:.1f} s: {call.error}"
