"""Bad nights: worlds in which the secondary flaps, queues come late, a namespace throttles, many
callers wait, or a healthy primary has impatient callers.

Each is a world of plan.py with faults of its own. In a clean night there are no others, so that
what the night promises holds without exception; else the random faults come on top.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from tests.simulation.plan import FAULTS_END_S, Burst, Fault, Plan, draw_plan

PATIENCE_S: Final = 60.0
"""With so long a timeout a caller outlasts every blip of the secondary."""

BLIP_S: Final = 5.0
"""The longest absence of the secondary that no patient caller may notice."""

FOUND_S: Final = 75.0
"""Queues are searched for every 60 s, with jitter; the search itself takes some seconds."""

OPENING_S: Final = 0.2
"""What opening a link takes where callers are impatient; sending takes a tenth of it."""

THROTTLED: Final = 0.15
"""Share of the worlds whose namespaces count credits, as the profile azure-standard does."""

CREDITS_PER_S: Final = (12.0, 30.0)
"""Few enough to run out while the pairs start, in a drain, and in some calls."""

BURST_CALLS: Final = 200
LOCK_S: Final = 5.0

_OUTAGES: Final = (("crash namespace", ""), ("crash namespace", "dark"), ("stop namespace", ""))


def draw_world(rng: Random) -> Plan:
    """A world's shape: one in six is a bad night, and half of those are clean."""
    plan = draw_plan(rng)
    drawn = rng.random()
    if rng.random() < THROTTLED:
        plan = replace(plan, credits_per_s=rng.choice(CREDITS_PER_S))
    if plan.credits_per_s is not None or "session_order" in plan.options:
        return plan
    for night, (share, draw) in NIGHTS.items():
        drawn -= share
        if drawn < 0.0:
            return _night(rng, plan, night, draw)
    return plan


def _night(rng: Random, plan: Plan, night: str, draw: Callable[[Random, Plan], Plan]) -> Plan:
    is_clean = rng.random() < 0.5
    bare = replace(plan, night=night, is_clean=is_clean, faults=())
    drawn = draw(rng, bare)
    if drawn.is_clean:
        return drawn
    faults = sorted((*plan.faults, *drawn.faults), key=lambda fault: fault.at)
    return replace(drawn, faults=tuple(faults), patient_from_s=None, protected_at_s=None)


def _flapping(rng: Random, plan: Plan) -> Plan:
    """The secondary goes several times for some seconds, mostly while the primary is down."""
    faults = []
    at = rng.uniform(3.0, 6.0)
    if rng.random() < 0.8:
        faults.append(_outage(rng, "primary", at, rng.uniform(20.0, 30.0)))
    longest_s = BLIP_S if plan.is_clean else 2 * BLIP_S
    at += rng.uniform(-1.0, 4.0)
    while at < FAULTS_END_S - longest_s and len(faults) < 5:
        faults.append(_outage(rng, "secondary", at, rng.uniform(1.0, longest_s)))
        at += faults[-1].lasts_s + rng.uniform(1.0, 6.0)
    timeouts_s = (PATIENCE_S, PATIENCE_S, None, 4.0)
    return replace(plan, faults=tuple(faults), timeouts_s=timeouts_s, patient_from_s=0.0)


def _late_queues(rng: Random, plan: Plan) -> Plan:
    """Backlog queues are missing, disabled or deleted for a while; then the primary goes."""
    kind = rng.choice(("late queues", "disable", "delete queue"))
    has_manage = kind != "late queues" and rng.random() < 0.5
    at = 0.0 if kind != "delete queue" else rng.uniform(2.0, 20.0)
    lasts_s = rng.choice((3.0, 20.0, 90.0)) * rng.uniform(0.7, 1.3)
    # A pair with Manage makes a queue that was deleted itself, once it finds it missing.
    is_remade = has_manage and kind == "delete queue" and rng.random() < 0.7
    count = plan.options["backlog_queue_count"]
    targets = [f"backlog {number}" for number in range(count)]
    if kind == "late queues":
        targets = ["all backlog queues"]
    elif not is_remade and rng.random() < 0.3:
        targets = targets[:1]
    found_at = at + lasts_s + FOUND_S
    outage_s = PATIENCE_S + 20.0 if is_remade else rng.uniform(5.0, 15.0)
    return replace(
        plan,
        options={**plan.options, "create_backlog_queues": has_manage},
        lock_s=None if is_remade else LOCK_S,
        backlog_is_late=kind == "late queues",
        backlog_deduplicates=not has_manage and rng.random() < 0.6,
        faults=(
            *(Fault(at, lasts_s, kind, target) for target in targets),
            _outage(rng, "primary", found_at + 1.0, outage_s),
        ),
        ends_s=found_at + outage_s + 10.0,
        calls=4 * plan.calls,
        timeouts_s=(PATIENCE_S, None, 15.0),
        patient_from_s=found_at,
        protected_at_s=found_at,
    )


def _throttling(rng: Random, plan: Plan) -> Plan:
    """A burst goes into the backlog, and comes home to a primary that throttles, while callers go
    on sending. In some worlds the secondary throttles what is diverted, too.
    """
    at, outage_s = rng.uniform(2.0, 4.0), rng.uniform(10.0, 14.0)
    back_at, throttled_s = at + outage_s, rng.uniform(8.0, 12.0)
    per_s = rng.choice((40.0, 80.0))
    faults = [
        _outage(rng, "primary", at, outage_s),
        Fault(back_at, throttled_s, "throttle", "primary", amount=per_s),
    ]
    is_secondary_too = rng.random() < 0.3
    if is_secondary_too:
        faults.append(Fault(at, outage_s, "throttle", "secondary", amount=per_s))
    return replace(
        plan,
        options={**plan.options, "failover_interval": rng.choice((0.0, 2.0)), "retry_total": 1},
        # Each syphon has a governor of its own, which knows nothing of the others.
        syphons=(0 if plan.embedded else 1) if plan.is_clean else plan.syphons,
        pump_messages=BURST_CALLS,
        faults=tuple(faults),
        timeouts_s=(None, PATIENCE_S, PATIENCE_S),
        bursts=(
            Burst(at + rng.uniform(4.0, 6.0), "app-0", BURST_CALLS),
            Burst(back_at, "app-0", 50, throttled_s),
        ),
        patient_from_s=0.0,
    )


def _burst(rng: Random, plan: Plan) -> Plan:
    """Many calls at once: while all is well, the primary is away, or both namespaces are."""
    at = rng.uniform(3.0, 10.0)
    away = rng.choice(((), ("primary",), ("primary",), ("primary", "secondary")))
    faults = [_outage(rng, side, at, rng.uniform(3.0, 25.0)) for side in away]
    return replace(
        plan,
        options={**plan.options, "retry_total": rng.choice((0, 1, 3))},
        faults=tuple(faults),
        timeouts_s=(None, None, 4.0, PATIENCE_S),
        bursts=(Burst(at + rng.uniform(-0.1, 3.0), "app-0", BURST_CALLS),),
        patient_from_s=0.0 if "secondary" not in away else None,
    )


def _healthy_primary(rng: Random, plan: Plan) -> Plan:
    """No fault meets the primary, and some callers have about the patience that a link takes to
    open."""
    faults = [
        _outage(rng, "secondary", rng.uniform(1.0, 30.0), rng.uniform(1.0, 10.0))
        for _ in range(rng.randint(0, 2))
    ]
    return replace(
        plan,
        is_clean=True,
        faults=tuple(faults),
        timeouts_s=(OPENING_S / 2, OPENING_S * 1.05, None, 4.0),
        opening_s=OPENING_S,
    )


def _outage(rng: Random, side: str, at: float, lasts_s: float) -> Fault:
    kind, detail = rng.choice(_OUTAGES)
    return Fault(max(at, 0.5), lasts_s, kind, side, detail)


NIGHTS: Final[dict[str, tuple[float, Callable[[Random, Plan], Plan]]]] = {
    "a flapping secondary": (0.08, _flapping),
    "late queues": (0.06, _late_queues),
    "throttling": (0.03, _throttling),
    "a burst": (0.03, _burst),
    "a healthy primary": (0.04, _healthy_primary),
}
"""By name: their share of the worlds without strict order, and what draws them."""
