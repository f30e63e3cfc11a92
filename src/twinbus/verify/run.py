"""Runs the checks on namespaces and on a broker of the same tier, and compares the answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from twinbus.errors import error_text
from twinbus.namespace.namespace import Namespace
from twinbus.verify.checks import CHECKS
from twinbus.verify.scratch import (
    PREFIX,
    Check,
    Observed,
    ScratchNamespace,
    require_no_foreign_entities,
)

if TYPE_CHECKING:
    from twinbus.broker.profile import ServiceProfile

FAILED: Final = "the check ended with"
"""The only answer of a check that could not be carried out."""

CHECK_S: Final = 180.0
"""Time limit of one check, beside the wait for an idle link."""


_SECRET: Final = re.compile(
    r"(?i)((?:SharedAccessKey|SharedAccessSignature|sig|skn)=|Bearer\s+|\beyJ)[^;&\s'\"]+"
)


class Likeness(StrEnum):
    """Whether the namespace did what the reference did."""

    SAME = "same"
    DIFFERENT = "different"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """The answer of one namespace to one check."""

    side: str
    check: str
    asks: str
    likeness: Likeness = Likeness.NOT_CHECKED
    observed: Observed = field(default_factory=dict)
    expected: Observed = field(default_factory=dict)
    """The answer of the reference."""
    differs: tuple[str, ...] = ()
    """The questions with another answer."""
    why: str = ""
    """Why it was not checked."""
    frames: tuple[str, ...] = ()
    """The frames of a different answer, the oldest first."""


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
            prefix = PREFIX + (plan.label and f"{plan.label}-")
            target = ScratchNamespace(namespace, prefix, is_traced=True)
            reference = ScratchNamespace(model, prefix)
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
    fact = Fact(side=side, check=check.name, asks=check.asks)
    if check.is_intrusive and not plan.is_intrusive:
        return replace(fact, why="it could disturb others: --intrusive")
    if report.operations + check.operations > plan.budget:
        most = f"it makes up to {check.operations:,} operations; the budget is {plan.budget:,}"
        return replace(fact, why=most)
    report.operations += check.operations
    assert target.frames is not None
    target.frames.take()
    observed, expected = await asyncio.gather(_run(check, target), _run(check, reference))
    frames = target.frames.take()
    if FAILED in expected:
        return replace(fact, why=f"the check fails on the reference: {expected[FAILED]}")
    different = differences(observed, expected)
    secrets = target.secrets()
    return replace(
        fact,
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


def differences(observed: Observed, expected: Observed) -> tuple[str, ...]:
    """The questions whose answers differ, in the order of the reference."""
    names = [*expected, *(name for name in observed if name not in expected)]
    return tuple(name for name in names if observed.get(name) != expected.get(name))


def without_secrets(value: Any, secrets: Iterable[str]) -> Any:
    """JSON data in which no text has a key, a signature or a token."""
    known = [secret for secret in secrets if secret]

    def clean(one: Any) -> Any:
        if isinstance(one, str):
            for secret in known:
                one = one.replace(secret, "***")
            return _SECRET.sub(r"\1***", one)
        if isinstance(one, Mapping):
            return {str(name): clean(inner) for name, inner in one.items()}
        if isinstance(one, list | tuple):
            return [clean(inner) for inner in one]
        return one

    return clean(value)
