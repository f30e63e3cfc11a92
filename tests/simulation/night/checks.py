"""What a bad night promises, beyond what checks.py demands of every world."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.night.plan import PATIENCE_S

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["check_patience", "require_protection"]

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
