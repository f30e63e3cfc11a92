"""Runs the checks on namespaces and on a broker of the same tier, and compares the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twinbus.errors import error_text
from twinbus.namespace.namespace import Namespace
from twinbus.verify import entity_checks, limit_checks, message_checks
from twinbus.verify.check import Check
from twinbus.verify.facts import Fact, Likeness, Observed, differences, without_secrets
from twinbus.verify.scratch import ScratchNamespace, require_no_foreign_entities

if TYPE_CHECKING:
    from twinbus.broker.profile import ServiceProfile

CHECKS: Final = (*entity_checks.CHECKS, *message_checks.CHECKS, *limit_checks.CHECKS)

FAILED: Final = "the check ended with"
"""The only answer of a check that could not be carried out."""

CHECK_S: Final = 180.0
"""Time limit of one check, beside the wait for an idle link."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyPlan:
    """What to run."""

    profile: ServiceProfile
    """The tier to compare with."""
    budget: int = 500
    """Billed operations that all checks may make together."""
    is_intrusive: bool = False
    label: str = ""
    """Part of the names of scratch entities."""
    only: frozenset[str] = frozenset()
    """Names of the checks to run; none: all."""


@dataclass(slots=True)
class VerifyReport:
    """The facts, and what the run left."""

    facts: list[Fact] = field(default_factory=list)
    operations: int = 0
    """Billed operations that were made at most."""
    left_behind: list[str] = field(default_factory=list)


async def verify(
    sides: Mapping[str, Namespace],
    plan: VerifyPlan,
    on_fact: Callable[[Fact], None] = lambda fact: None,
) -> VerifyReport:
    """Run the checks on each namespace; ForeignEntities if an intrusive run could do harm."""
    from twinbus.broker.embedded import EmbeddedBroker

    if plan.is_intrusive:
        for namespace in sides.values():
            await require_no_foreign_entities(namespace)
    report = VerifyReport()
    checks = [check for check in CHECKS if not plan.only or check.name in plan.only]
    with EmbeddedBroker("reference", profile=plan.profile) as broker:
        model = Namespace.from_connection_string(broker.connection_string())
        for side, namespace in sides.items():
            target = ScratchNamespace(namespace, label=plan.label, is_traced=True)
            reference = ScratchNamespace(model, label=plan.label)
            for world in (target, reference):
                world.link_idle_s = plan.profile.link_idle_s
            try:
                async with target, reference:
                    for check in checks:
                        fact = await _fact(check, side, target, reference, plan, report)
                        report.facts.append(fact)
                        on_fact(fact)
            finally:
                report.left_behind += target.left_behind
    return report


async def _fact(
    check: Check,
    side: str,
    target: ScratchNamespace,
    reference: ScratchNamespace,
    plan: VerifyPlan,
    report: VerifyReport,
) -> Fact:
    """Run one check on both, if the plan allows it."""
    why = ""
    if check.is_intrusive and not plan.is_intrusive:
        why = "it could disturb others: --intrusive"
    elif report.operations + check.operations > plan.budget:
        why = f"it makes up to {check.operations:,} operations; the budget is {plan.budget:,}"
    if why:
        likeness = Likeness.NOT_CHECKED
        return Fact(side=side, check=check.name, asks=check.asks, likeness=likeness, why=why)
    report.operations += check.operations
    assert target.frames is not None
    target.frames.take()
    observed, expected = await asyncio.gather(_run(check, target), _run(check, reference))
    frames = target.frames.take()
    if FAILED in expected:
        why = f"the check fails on the reference: {expected[FAILED]}"
        likeness = Likeness.NOT_CHECKED
        return Fact(side=side, check=check.name, asks=check.asks, likeness=likeness, why=why)
    different = differences(observed, expected)
    secrets = target.secrets()
    return Fact(
        side=side,
        check=check.name,
        asks=check.asks,
        likeness=Likeness.DIFFERENT if different else Likeness.SAME,
        observed=without_secrets(observed, secrets),
        expected=without_secrets(expected, ()),
        differs=different,
        frames=tuple(without_secrets(frames, secrets)) if different else (),
    )


async def _run(check: Check, world: ScratchNamespace) -> Observed:
    try:
        async with asyncio.timeout(CHECK_S + 2 * (world.link_idle_s or 0.0)):
            return await check.run(world)
    except Exception as error:  # noqa: BLE001  # whatever the service does is a fact
        return {FAILED: error_text(error).replace(world.label, "SCRATCH")}
