"""The shape of one world, drawn from its seed: entities, options, processes, faults.

Drawn before anything runs, so that a person can read at the head of a timeline what will happen.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Final

FAULTS_END_S: Final = 40.0
"""When the last fault is over, and the last call of an application begins, in most worlds."""

TIMEOUTS_S: Final = (None, None, 0.5, 4.0, 15.0)

LIMPING: Final = 0.4
"""Of all worlds have a primary that comes back in part."""

STRICT_CALLS: Final = 8
"""Times as many calls where order is looked at: one sender, one call after the other."""

CONDITIONS: Final = ("internal", "busy", "quota", "unauthorized")


@dataclass(frozen=True)
class EntityPlan:
    """One entity of the primary."""

    path: str
    kind: str = "queue"
    sessions: bool = False
    deduplicates: bool = False
    lock_s: float = 60.0

    def __str__(self) -> str:
        words = [self.kind, *(["with sessions"] * self.sessions)]
        words += ["with duplicate detection"] * self.deduplicates
        return f"{self.path} ({', '.join(words)})"


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, and when."""

    at: float
    lasts_s: float
    kind: str
    target: str
    detail: str = ""
    amount: float = 0.0

    def __str__(self) -> str:
        amount = f" {self.amount:.2f}" if self.amount else ""
        words = f"{self.kind} {self.target} {self.detail}".strip()
        return f"{self.at:.1f} s, for {self.lasts_s:.1f} s: {words}{amount}"


@dataclass(frozen=True)
class Burst:
    """Many calls that one application makes at the same time, or in a short time."""

    at: float
    application: str
    calls: int
    lasts_s: float = 0.0
    """The calls begin at any time in so many seconds."""

    def __str__(self) -> str:
        return f"{self.at:.1f} s: {self.calls} calls of {self.application} in {self.lasts_s:.1f} s"


@dataclass(frozen=True)
class Plan:
    """All of it."""

    entities: tuple[EntityPlan, ...]
    options: dict[str, Any]
    applications: int
    syphons: int
    embedded: bool
    """The first application runs the syphon inside."""
    calls: int
    """Of each place in each application that sends."""
    pump_messages: int
    lock_s: float | None
    """Of backlog queues that an administrator made; None: the pair makes them."""
    faults: tuple[Fault, ...]
    ends_s: float = FAULTS_END_S
    """When the last fault is over, and the last call of an application begins."""
    timeouts_s: tuple[float | None, ...] = TIMEOUTS_S
    """What callers choose their timeout from."""
    bursts: tuple[Burst, ...] = ()
    opening_s: float = 0.0
    """How much longer than a round trip opening a link to the primary takes: TLS, sign-in."""
    credits_per_s: float | None = None
    """Each namespace throttles as the profile azure-standard does, with so few credits."""
    night: str = ""
    """The kind of a bad night (night/plan.py); empty: a world of random faults alone."""
    is_clean: bool = False
    """A bad night without random faults: its promises hold without exception."""
    backlog_is_late: bool = False
    """The administrator makes the backlog queues when the fault `late queues` ends."""
    backlog_deduplicates: bool = False
    """The administrator's backlog queues detect duplicates."""
    patient_from_s: float | None = None
    """No call that begins later and has a minute of patience may raise; None: any may."""
    protected_at_s: float | None = None
    """When every pair must have found all backlog queues; None: when the world is quiet."""
    pumped_twins: tuple[str, ...] = ()
    """Twins that the syphons empty."""

    def lines(self) -> list[str]:
        """For the head of a timeline."""
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        where = "and one inside app-0" if self.embedded else ""
        locks = "" if self.lock_s is None else f", locks of {self.lock_s:g} s in the backlog"
        night = f"a bad night: {self.night}{'' if self.is_clean else ', and other faults'}"
        credit = f"each namespace has {self.credits_per_s} credits a second"
        return [
            *([night] if self.night else []),
            *([credit] if self.credits_per_s is not None else []),
            "entities: " + "; ".join(map(str, self.entities)),
            "options: " + options,
            f"{self.applications} applications, {self.syphons} syphons {where}".rstrip() + locks,
            *(f"fault at {fault}" for fault in self.faults),
            *(f"burst at {burst}" for burst in self.bursts),
        ]

    def process_names(self) -> list[str]:
        return [
            *(f"app-{n}" for n in range(self.applications)),
            *(f"syphon-{n}" for n in range(self.syphons)),
        ]


def draw_plan(rng: Random) -> Plan:
    """A world's shape; a quarter of them keep strict session order."""
    is_strict = rng.random() < 0.25
    entities = _entities(rng, is_strict=is_strict)
    options = _options(rng, is_strict=is_strict)
    embedded = rng.random() < 0.5
    # Strict order is promised for one sending process and one syphon (SPEC 3).
    applications = 1 if is_strict else rng.choice((2, 2, 3))
    syphons = (0 if embedded else 1) if is_strict else rng.choice((1, 1, 2))
    plan = Plan(
        entities=entities,
        options=options,
        applications=applications,
        syphons=syphons,
        embedded=embedded,
        calls=rng.randint(3, 7) * (STRICT_CALLS if is_strict else 1),
        pump_messages=rng.choice((4, 8, 200)),
        lock_s=rng.choice((None, None, 5.0)),
        faults=(),
    )
    drawn = [draw_fault(rng, plan) for _ in range(rng.randint(3, 7))]
    if rng.random() < LIMPING:
        drawn += _limping(rng, plan)
    if is_strict:
        drawn = [fault for fault in drawn if not _is_beyond_strict(fault)]
    faults = sorted(drawn, key=lambda fault: fault.at)
    return Plan(**{**plan.__dict__, "faults": tuple(faults)})


def _entities(rng: Random, *, is_strict: bool) -> tuple[EntityPlan, ...]:
    pool = [
        EntityPlan("orders"),
        EntityPlan("payments", deduplicates=True),
        EntityPlan("carts", sessions=True),
        EntityPlan("shipments", sessions=True, deduplicates=True),
        EntityPlan("news", kind="topic"),
    ]
    if is_strict:
        return (EntityPlan("carts", sessions=True),)
    return tuple(rng.sample(pool, rng.randint(1, 3)))


def _options(rng: Random, *, is_strict: bool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "backlog_queue_count": rng.randint(1, 3),
        "failover_interval": rng.choice((0.0, 0.5, 2.0, 5.0)),
        "ping_primary_interval": rng.choice((1.0, 3.0, 8.0)),
        "ping_mode": rng.choice(("message", "message", "link")),
        "healthy_pings": rng.choice((1, 1, 2)),
        "attempt_timeout": rng.choice((0.3, 1.0, 2.0)),
        "retry_total": rng.choice((0, 1, 3, None)),
        "retry_backoff_factor": rng.choice((0.05, 0.4)),
        "retry_backoff_max": 2.0,
        "syphon_poll": rng.choice((5.0, 60.0)),
        "ttl_policy": rng.choice(("full", "full", "remaining")),
        "undeliverable_grace": rng.choice((5.0, 21_600.0)),
    }
    if is_strict:
        options["session_order"] = "strict"
    return options


def draw_fault(rng: Random, plan: Plan) -> Fault:
    """One thing that goes wrong at some time in this world."""
    kind = rng.choice(_KINDS)
    at = rng.uniform(0.5, FAULTS_END_S - 6.0)
    lasts_s = min(rng.choice((0.5, 3.0, 8.0, 20.0)) * rng.uniform(0.5, 1.5), FAULTS_END_S - at)
    # The primary is what this is all about.
    side = rng.choice(("primary", "primary", "secondary"))
    entity = rng.choice(plan.entities).path
    queue = f"backlog {rng.randrange(plan.options['backlog_queue_count'])}"
    process = rng.choice(["*", *plan.process_names()])
    match kind:
        case "crash process":
            when = rng.choice(("", "busy"))
            return Fault(at, min(lasts_s, 5.0), kind, rng.choice(plan.process_names()), when)
        case "crash namespace":
            return Fault(at, lasts_s, kind, side, rng.choice(("", "dark")))
        case "stop namespace":
            return Fault(at, lasts_s, kind, side)
        case "partition":
            return Fault(at, lasts_s, kind, process, side)
        case "slow":
            return Fault(at, lasts_s, kind, process, side, rng.choice((0.2, 1.0, 3.0)))
        case "flaky":
            return Fault(at, lasts_s, kind, process, side, rng.choice((0.05, 0.2, 0.5)))
        case "refuse":
            target = rng.choice((entity, queue, f"all of {side}"))
            return Fault(at, lasts_s, kind, target, rng.choice(CONDITIONS))
        case "disable":
            return Fault(at, lasts_s, kind, rng.choice((entity, entity, queue)))
        case "delete":
            for_good = rng.random() < 0.2 and plan.options["undeliverable_grace"] < 60.0
            return Fault(at, lasts_s, kind, entity, "for good" if for_good else "")
        case "detach idle":
            return Fault(at, 0.0, kind, "all sources")
    application = f"app-{rng.randrange(plan.applications)}"
    command = rng.choice(("freeze", "force_failover", "mark_healthy"))
    return Fault(at, lasts_s, "command", application, f"{command} {entity}")


def _limping(rng: Random, plan: Plan) -> list[Fault]:
    """The primary goes, and comes back with one entity that takes nothing for a while longer.

    What the syphon then holds for that entity must not be in the way of the others.
    """
    at, lasts_s = rng.uniform(2.0, 15.0), rng.uniform(2.0, 6.0)
    entity = rng.choice(plan.entities).path
    longer_s = lasts_s + rng.uniform(8.0, 18.0)
    first = Fault(at, lasts_s, rng.choice(("crash namespace", "stop namespace")), "primary")
    return [first, Fault(at, longer_s, "refuse", entity, rng.choice(("quota", "busy")))]


def _is_beyond_strict(fault: Fault) -> bool:
    """Faults after which strict order promises nothing: it is for one sending process, and no
    person steps in."""
    is_sender = fault.kind == "crash process" and fault.target.startswith("app")
    return is_sender or fault.kind in ("delete", "command")


_KINDS: Final = (
    "crash process", "crash process", "crash process", "crash namespace", "crash namespace",
    "stop namespace", "stop namespace", "partition", "partition", "slow", "slow", "flaky", "flaky",
    "refuse", "refuse", "disable", "delete", "detach idle", "command", "command",
)  # fmt: skip
