"""What must be true of every fleet, whatever its hosts tell each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from tests.simulation.fleet.plan import FAILOVER_S, PING_S, QUORUM, Span
from tests.simulation.fleet.world import BLIP_S
from twinbus.client.lock_validity import LEASE_LOCK_S
from twinbus.fleet.core.board_turns import (
    FIRST_MINUTE_SHARE,
    JITTER,
    LASTING_SHARE,
    LOOK_EVERY_S,
    NAMESPACE_CREDITS_PER_S,
    PEAK_SHARE,
)
from twinbus.fleet.core.pinging import SLOW_INTERVALS, STANDBY_INTERVALS_MIN, TRY_SPREAD_S
from twinbus.pairing.core.pings import PING_JITTER
from twinbus.status.fleet import EACH_PINGS

if TYPE_CHECKING:
    from tests.simulation.fleet.hosts import FleetProcess
    from tests.simulation.fleet.truth import FailedOver
    from tests.simulation.fleet.world import FleetWorld

ONE_PING_S: Final = PING_S * (1.0 + PING_JITTER)

FOUND_S: Final = 10.0
"""From the first own failure to the failover, if enough others have said so before."""

SLACK_S: Final = 2.0
"""An attempt, an answer, the turn of a ping."""

TOLD_S: Final = 2 * LOOK_EVERY_S * (1.0 + JITTER) + TRY_SPREAD_S
"""From a recovery that is posted to the live send of a host that has read all before it."""

TAKEOVER_S: Final = LEASE_LOCK_S + 1.5 * STANDBY_INTERVALS_MIN * PING_S
"""From the death of a holder until another process has its lease."""

HOSTS_LEAST: Final = 30
"""Fewer hosts do not show a share of theirs: each may come at the same time."""

PINGS_A_MINUTE: Final = 2.0

HOLDS: Final = "for all hosts"
"""What a process with the lease says of itself."""


def check_fleet(world: FleetWorld) -> Iterator[str]:
    """Look at everything; yield what is wrong, after the name of the rule."""
    for check in (
        check_command, check_quorum, check_hearsay, check_blip, check_undone, check_lost,
        check_failover, check_early, check_pings, check_pinger, check_recovery, check_credits,
        check_errors,
    ):  # fmt: skip
        for text in check(world):
            yield f"{check.__name__.removeprefix('check_')}: {text}"


def check_command(world: FleetWorld) -> Iterator[str]:
    """No process fails over without a failure of its own."""
    for one in world.truth.failovers:
        if one.failing_since is None:
            yield f"{one.process} failed over at {one.at:.1f} s, and none of its sends had failed"


def check_quorum(world: FleetWorld) -> Iterator[str]:
    """An early failover has a quorum of other hosts, or another process of its host."""
    for one in world.truth.failovers:
        if one.is_early and one.quorum < QUORUM and not one.others:
            yield f"{one.process} failed over early at {one.at:.1f} s: {one.quorum} other hosts"


def check_hearsay(world: FleetWorld) -> Iterator[str]:
    """A host tells others only what one of its processes knows by its own interval."""
    yield from world.truth.hearsay


def check_blip(world: FleetWorld) -> Iterator[str]:
    """Nothing fails over for a failure that ends at once, unless somebody lies."""
    if world.liars:
        return
    for one in world.truth.failovers:
        if not _outage_at(world, one.at):
            yield f"{one.process} failed over at {one.at:.1f} s while the primary answers"


def check_undone(world: FleetWorld) -> Iterator[str]:
    """A failover that was wrong ends within a ping interval: by a ping, or by one live send."""
    for one in wrong(world):
        limit_s = PING_S / 2 + SLACK_S + 2 * one.process.send_every_s
        if one.failed_again:
            limit_s += SLOW_INTERVALS * ONE_PING_S
        is_known = one.at + limit_s < world.plan.ends_s and not any(
            o.begins < one.at + limit_s for o in world.plan.outages if o.ends > one.at
        )
        if is_known and one.ended - one.at > limit_s:
            yield f"{one.process} failed over wrongly at {one.at:.1f} s, for {_lasted(one)}"


def check_lost(world: FleetWorld) -> Iterator[str]:
    """Every call returns, and its message is stored."""
    truth = world.truth
    yield from truth.raised
    lost = truth.returned - truth.stored
    if lost:
        yield f"{len(lost)} messages are LOST: #{min(lost)} is one"


def check_failover(world: FleetWorld) -> Iterator[str]:
    """Whoever fails for a whole interval has failed over, whatever the others and the board do."""
    attempt_s = world.options.attempt_timeout_s
    for process, failings in world.truth.failings.items():
        done = [one.at for one in world.truth.failovers if one.process is process]
        for failing in failings:
            limit = failing.begins + FAILOVER_S + attempt_s + SLACK_S
            ended = min(failing.ends, world.plan.ends_s)
            is_done = any(failing.begins <= at <= limit for at in done)
            if ended > limit and not is_done:
                yield f"{process} fails from {failing.begins:.1f} s on and did not fail over"


def check_early(world: FleetWorld) -> Iterator[str]:
    """Who begins to fail when others have said so fails over within seconds."""
    if world.plan.board or world.liars:
        return
    for outage in world.plan.outages:
        # The last of the first posts is there, and a message of it has been read.
        said_at = outage.begins + FAILOVER_S + 2 * LOOK_EVERY_S
        for one in world.truth.failovers:
            if one.failing_since is None or not said_at < one.failing_since < outage.ends:
                continue
            waited_s = one.at - one.failing_since
            if waited_s > FOUND_S:
                yield f"{one.process} failed over {waited_s:.1f} s after its first failure"


def check_pings(world: FleetWorld) -> Iterator[str]:
    """All hosts together ping an entity seldom, besides the slow pings of those who do not."""
    if world.plan.board:
        return
    failovers = world.truth.failovers
    for outage in world.plan.outages:
        pings = [at for at, _, who in world.truth.pings if HOLDS in who or EACH_PINGS in who]
        last = outage.begins
        while last + 60.0 <= outage.ends:
            count = sum(last <= at < last + 60.0 for at in pings)
            if count > PINGS_A_MINUTE:
                yield f"{count} pings in the minute from {last:.0f} s on"
            last += 10.0
    slow: dict[FleetProcess, float] = {}
    for at, process, who in world.truth.pings:
        is_slow = not (HOLDS in who or EACH_PINGS in who)
        # The count begins again with each failover.
        if is_slow and at - slow.get(process, -math.inf) < (SLOW_INTERVALS - 1) * PING_S:
            since = slow[process]
            if not any(one.process is process and since < one.at < at for one in failovers):
                yield f"{process} leaves pings to another: it pings at {since:.0f} and {at:.0f} s"
        if is_slow:
            slow[process] = at


def check_pinger(world: FleetWorld) -> Iterator[str]:
    """Somebody pings for all, and another one when that one is gone."""
    if world.plan.board or world.plan.lying_holder:
        return
    for outage in world.plan.outages:
        first = outage.begins + FAILOVER_S + 2 * ONE_PING_S
        at = [at for at, _, who in world.truth.pings if HOLDS in who and at in outage]
        limit_s = 2 * ONE_PING_S + (0.0 if world.killed_at is None else TAKEOVER_S)
        times = [outage.begins + FAILOVER_S, *at, outage.ends]
        for before, after in pairwise(times):
            if outage.ends > first and after - before > limit_s:
                yield f"nobody pings for all from {before:.0f} s to {after:.0f} s"


def check_recovery(world: FleetWorld) -> Iterator[str]:
    """When the primary answers again, every process uses it again."""
    plan = world.plan
    for outage in plan.outages:
        for one in world.truth.failovers:
            if one.at > outage.ends or one.ended < outage.ends or one.ended == one.at:
                continue
            limit_s = recovery_limit_s(world, outage) + 2 * one.process.send_every_s
            if not one.process.is_alive or outage.ends + limit_s > plan.ends_s:
                continue
            if one.ended - outage.ends > limit_s:
                late_s = one.ended - outage.ends
                yield f"{one.process} diverts for {late_s:.0f} s after the outage"


def recovery_limit_s(world: FleetWorld, outage: Span) -> float:
    """How long a recovery may take: with the news of a pinger, or else by a slow ping."""
    is_told = not (world.plan.board or world.plan.lying_holder or world.liars)
    return ONE_PING_S + TOLD_S if is_told else (SLOW_INTERVALS + 1) * ONE_PING_S


def check_credits(world: FleetWorld) -> Iterator[str]:
    """The fleet leaves the credits of the namespace to the others."""
    if len(world.hosts) < HOSTS_LEAST:
        return
    share = len(world.hosts) / 1_000 * NAMESPACE_CREDITS_PER_S
    peak, minute = world.credits(10), world.credits(60)
    if peak > PEAK_SHARE * share:
        yield f"{peak:.1f} credits a second in ten seconds"
    if minute > FIRST_MINUTE_SHARE * share:
        yield f"{minute:.1f} credits a second in a minute"
    for outage in world.plan.outages:
        # What the hosts had saved is spent by then.
        lasting = world.credits_in(outage.begins + 3 * FAILOVER_S, outage.ends)
        if lasting > LASTING_SHARE * share:
            yield f"{lasting:.1f} credits a second in an outage that lasts"


def check_errors(world: FleetWorld) -> Iterator[str]:
    """No task ends with an error that nobody takes."""
    yield from world.errors


def wrong(world: FleetWorld) -> list[FailedOver]:
    """Failovers while the primary answers."""
    return [one for one in world.truth.failovers if not _outage_at(world, one.at)]


def _outage_at(world: FleetWorld, at: float) -> bool:
    # A call that began before may end a little later.
    return any(outage.begins <= at <= outage.ends + BLIP_S for outage in world.plan.outages)


def _lasted(one: FailedOver) -> str:
    return "ever" if one.ended == math.inf else f"{one.ended - one.at:.0f} s"
