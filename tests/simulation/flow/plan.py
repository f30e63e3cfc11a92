"""Worlds whose entities have twins, and whose consumers are paired receivers.

In a calm world nothing fails but the primary, once: then the receive gap is bounded. Elsewhere the
faults of plan.py come, to consumers too; a twin may be replaced by a queue of another application.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from tests.simulation.plan import FAULTS_END_S, EntityPlan, Fault, Plan, draw_fault

CALM: Final = 0.25
"""Share of the worlds in which only the primary fails."""

WITHOUT_CONSUMERS: Final = frozenset({"carts"})
"""Its sessions have no twin and no receiver here; what comes home to it stays."""

LOCK_S: Final = 10.0

NAMESAKE: Final = EntityPlan("invoices", lock_s=LOCK_S)
"""The secondary has a queue of this name without the mark, with messages of another application."""

LEFT_OUT: Final = frozenset({"delete", "command"})
"""Faults that say nothing about receivers."""

CALM_CALLS: Final = 40


@dataclass(frozen=True)
class ConsumerPlan:
    """A process that receives from one entity."""

    name: str
    entity: EntityPlan
    prefetch: int
    at_once: int
    """Messages that it asks for, and handles at the same time."""

    def __str__(self) -> str:
        how = f"{self.at_once} at once, prefetch {self.prefetch}"
        return f"{self.name} of {self.entity.path}: {how}"


@dataclass(frozen=True)
class FlowPlan(Plan):
    """A world with twins and consumers."""

    consumers: tuple[ConsumerPlan, ...] = ()
    is_calm: bool = False

    @property
    def twins(self) -> list[EntityPlan]:
        """The entities that have a twin."""
        return [one for one in self.entities if one != NAMESAKE and not one.sessions]

    def lines(self) -> list[str]:
        calm = ["a calm world: only the primary fails"] if self.is_calm else []
        return [*calm, *super().lines(), *map(str, self.consumers)]

    def process_names(self) -> list[str]:
        return [*super().process_names(), *(one.name for one in self.consumers)]


def draw_flow(rng: Random) -> FlowPlan:
    """A world's shape."""
    is_calm = rng.random() < CALM
    entities = _entities(rng, is_calm=is_calm)
    plan = FlowPlan(
        entities=entities,
        options={
            "twins": rng.choice(("*", tuple(one.path for one in entities))),
            "backlog_queue_count": 1,
            "failover_interval": rng.choice((0.0, 0.5, 2.0, 5.0)),
            "ping_primary_interval": rng.choice((1.0, 3.0)),
            "attempt_timeout": rng.choice((0.3, 1.0, 2.0)),
            "retry_total": rng.choice((0, 1, None)),
            "retry_backoff_factor": 0.05,
            "syphon_poll": 5.0,
            "undeliverable_grace": 21_600.0,
        },
        applications=1 if is_calm else rng.choice((1, 2)),
        syphons=1,
        embedded=False,
        calls=CALM_CALLS if is_calm else rng.randint(4, 8),
        pump_messages=8,
        lock_s=5.0,
        faults=(),
        timeouts_s=(15.0,) if is_calm else (None, 4.0, 15.0),
        consumers=_consumers(rng, entities, is_calm=is_calm),
        is_calm=is_calm,
    )
    # A syphon that does not know yet that the primary is gone would keep messages from consumers.
    pumped = [] if is_calm else [one.path for one in plan.twins if one.kind == "queue"]
    if NAMESAKE in entities:
        pumped.append(NAMESAKE.path)
    faults = [_outage(rng)] if is_calm or rng.random() < 0.7 else []
    if not is_calm:
        drawn = [draw_fault(rng, plan) for _ in range(rng.randint(2, 5))]
        faults += [fault for fault in drawn if fault.kind not in LEFT_OUT]
        queues = [one.path for one in plan.twins if one.kind == "queue"]
        if queues and rng.random() < 0.2:
            at = rng.uniform(5.0, 30.0)
            faults.append(Fault(at, 0.0, "replace twin", rng.choice(queues)))
    ordered = tuple(sorted(faults, key=lambda fault: fault.at))
    return FlowPlan(**{**plan.__dict__, "faults": ordered, "pumped_twins": tuple(pumped)})


def _entities(rng: Random, *, is_calm: bool) -> tuple[EntityPlan, ...]:
    twins = [
        EntityPlan("orders", lock_s=LOCK_S),
        EntityPlan("payments", deduplicates=True, lock_s=LOCK_S),
        EntityPlan("news", kind="topic", lock_s=LOCK_S),
    ]
    if is_calm:
        return (rng.choice(twins),)
    others = [EntityPlan("carts", sessions=True), NAMESAKE]
    return (*rng.sample(twins, rng.randint(1, 2)), *rng.sample(others, rng.randint(0, 1)))


def _consumers(
    rng: Random, entities: tuple[EntityPlan, ...], *, is_calm: bool
) -> tuple[ConsumerPlan, ...]:
    found: list[ConsumerPlan] = []
    for entity in entities:
        if entity.path in WITHOUT_CONSUMERS:
            continue
        for _ in range(1 if is_calm else rng.choice((1, 1, 2))):
            prefetch, at_once = rng.choice((0, 0, 5)), rng.choice((1, 4))
            name = f"consumer-{len(found)}"
            found.append(ConsumerPlan(name, entity, prefetch, at_once))
    return tuple(found)


def _outage(rng: Random) -> Fault:
    kind, detail = rng.choice(
        (("crash namespace", ""), ("crash namespace", "dark"), ("stop namespace", ""))
    )
    lasts_s = rng.uniform(12.0, 25.0)
    at = rng.uniform(4.0, FAULTS_END_S - lasts_s - 5.0)
    return Fault(at, lasts_s, kind, "primary", detail)
