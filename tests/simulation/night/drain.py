"""How the backlog comes home to a primary that throttles: live traffic first, and not too slowly.

Checked in clean nights of throttling, which have one syphon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from twinbus.pairing.core.attempts import BUSY_PAUSE_S, RetryPolicy, call_limit_s

if TYPE_CHECKING:
    from tests.simulation.world import World
    from twinbus.syphon.core.pacing import Governor

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
    pair = world.applications[0].pair
    return None if pair is None or not pair._hosts else pair._syphon.rate.governor


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
        if (call.timeout_s or bound_s) < HASTY_S:
            continue
        if call.outcome == "raised" and call.error.startswith("ServiceBusServerBusyError"):
            yield f"call {call.number} raised {call.error} while the backlog came home"
    yield from _stagnation(world, refused)


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
