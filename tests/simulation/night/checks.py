"""What a bad night promises, beyond what checks.py demands of every world.

Of clean nights of throttling, which have one syphon: how the backlog comes home to the primary,
live traffic first, and not too slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.network import IDLE_S
from tests.simulation.night.plan import PATIENCE_S
from tests.simulation.plan import Fault
from twinbus.pairing.core.attempts import BUSY_PAUSE_S, RetryPolicy, call_limit_s
from twinbus.pairing.observing.events import BacklogQueuePulled, EntityChanged

if TYPE_CHECKING:
    from tests.simulation.programs import Application
    from tests.simulation.truth import Call
    from tests.simulation.world import World
    from twinbus.syphon.core.pacing import Governor

LOST_CONNECTION: Final = "ServiceBusConnectionError"

BUSY: Final = "ServiceBusServerBusyError"

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
        if not call.error.startswith(OWN_FAULT) and not _met_a_drain_twice(world, call):
            assert call.ended is not None
            took_s = call.ended - call.began
            yield f"call {call.number} raised after {took_s:.1f} s: {call.error}"


CUT_S: Final = 1.0
"""After the first refusal: what was in flight is answered, and the governor has cut its rate."""

REFUSED_MAX: Final = 0.1
"""The share of a slowed drain that may meet server-busy, while it finds out how much is taken."""

GROWTH_S: Final = 4
USED: Final = 0.3
"""A rate that is used for so many seconds, at least to this share, and not refused must grow."""

HASTY_S: Final = 3 * BUSY_PAUSE_S
"""A call with less time in all cannot outlast the second in which the credits ran out."""

UNLIMITED: Final = float("inf")


async def watch_governor(world: World) -> None:
    """Note the rate of the syphon's governor, second by second, for `check_drain`."""
    plan = world.plan
    if plan.night != "throttling" or not plan.is_clean:
        return
    while world.loop.time() < plan.ends_s:
        governor = _governor(world)
        world.rates.append(UNLIMITED if governor is None or governor.is_open else governor.per_s)
        await asyncio.sleep(1.0)


def _governor(world: World) -> Governor | None:
    if world.syphons:
        host = world.syphons[0].host
        return None if host is None else host.rate.governor
    hosts = world.applications[0].hosts
    return hosts[0].rate.governor if hosts else None


def check_drain(world: World) -> Iterator[str]:
    """The drain slows down for server-busy, live callers get none, and the rate grows again."""
    throttle = world.faults.throttles.get("primary")
    if not world.rates or throttle is None:
        return
    forwards = [(at, is_taken) for at, kind, is_taken in throttle.answers if kind == "forward"]
    refused = [at for at, is_taken in forwards if not is_taken]
    if refused:
        slowed_at = refused[0] + CUT_S
        taken = sum(is_taken for at, is_taken in forwards if at > slowed_at)
        late = sum(at > slowed_at for at in refused)
        if late > 1 + taken * REFUSED_MAX:
            yield f"{late} forwards met server-busy later than {slowed_at:.1f} s, {taken} did not"
    bound_s = call_limit_s(RetryPolicy.of(world.options))
    for call in world.truth.calls:
        if (call.timeout_s or bound_s) < HASTY_S or _met_a_drain_twice(world, call):
            continue
        if call.outcome == "raised" and call.error.startswith(BUSY):
            yield f"call {call.number} raised {call.error} while the backlog came home"
    yield from _stagnation(world, refused)


def _met_a_drain_twice(world: World, call: Call) -> bool:
    """Whether a call met server-busy while the drain was finding its rate, and had one retry.

    Its two attempts may both fall into the seconds before the drain has slowed down: who asks for
    one retry gets one. Without `retry_total`, or with more retries, a call outlasts these seconds.
    """
    throttle = world.faults.throttles.get("primary")
    if throttle is None or world.options.retry_total != 1 or not call.error.startswith(BUSY):
        return False
    refused = [at for at, kind, taken in throttle.answers if kind == "forward" and not taken]
    assert call.ended is not None
    return bool(refused) and refused[0] <= call.ended <= refused[0] + CUT_S + BUSY_PAUSE_S


def _stagnation(world: World, refused: list[float]) -> Iterator[str]:
    """Where the rate was used, was not refused, and did not grow all the same."""
    forwarded = [copy.at for copy in world.truth.copies if copy.deed.kind == "forward"]
    for second in range(len(world.rates) - GROWTH_S):
        before, after = world.rates[second], world.rates[second + GROWTH_S]
        seconds = range(second, second + GROWTH_S)
        if before == UNLIMITED or any(int(at) in seconds for at in refused):
            continue
        is_used = all(sum(int(at) == each for at in forwarded) >= USED * before for each in seconds)
        if is_used and after <= before:
            yield f"the rate was {before:.1f}/s at {second} s and {GROWTH_S} s later {after:.1f}/s"
            return
