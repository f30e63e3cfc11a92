"""Chooses one of the simulated settings, and says why in a sentence.

The criteria, in order: a backlog that is large enough; few enough sends that raise; the longest
failover interval, because a short one fails over for a disturbance that retries would survive; the
fewest operations, which weighs pings against messages diverted after the primary is back, and idle
polls against the number of queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.cost.arithmetic import message_units, moved_message_units
from twinbus.cost.quantities import QuantityError

if TYPE_CHECKING:
    from twinbus.planning.outcomes import PlanQuestion, SettingOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanLimits:
    """Limits that a good setting keeps."""

    full_share: float = 0.01
    """Maximum share of years in which the backlog is full."""
    raised_per_million: float = 1.0
    """Maximum sends of a million that raise before the failover."""

    def __post_init__(self) -> None:
        if not 0 <= self.full_share <= 1:
            raise QuantityError(f"full years must be 0 to 1 of all; got {self.full_share:g}")
        if not 0 <= self.raised_per_million <= 1e6:
            raise QuantityError(
                f"raised sends must be 0 to 1,000,000 of a million; got {self.raised_per_million:g}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """The recommended setting."""

    outcome: SettingOutcome
    reason: str
    misses: tuple[str, ...] = ()
    """Limits that no setting keeps, and what to compare instead."""


def advise(
    outcomes: Sequence[SettingOutcome], question: PlanQuestion, limits: PlanLimits
) -> Advice:
    """Return the best of the outcomes."""
    misses = []
    fit = [one for one in outcomes if one.full.mean <= limits.full_share]
    is_fit = bool(fit)
    if not fit:
        best = min((one.full for one in outcomes), key=lambda full: full.mean)
        # With another seed any of these might be the best.
        fit = [one for one in outcomes if one.full.mean <= best.mean + 2 * best.error]
        misses.append(
            f"no setting keeps the chance of a full backlog to {limits.full_share:.3g} a year, the"
            f" best has {best.mean:.3g}: compare more or larger backlog queues"
        )
    kept = [one for one in fit if raised_per_million(one, question) <= limits.raised_per_million]
    is_kept = bool(kept)
    if not kept:
        least = min(raised_per_million(one, question) for one in fit)
        kept = [one for one in fit if raised_per_million(one, question) == least]
        misses.append(
            "no setting keeps sends that raise before the failover to"
            f" {limits.raised_per_million:g} of a million, the best has {least:.3g}: compare"
            " shorter failover intervals, or send with a longer timeout"
        )
    longest = max(one.setting.failover_interval_s for one in kept)
    rest = [one for one in kept if one.setting.failover_interval_s == longest]
    chosen = min(rest, key=lambda one: _burden(one, question))
    reason = _reason(chosen, question, is_fit=is_fit, is_kept=is_kept)
    return Advice(outcome=chosen, reason=reason, misses=tuple(misses))


def _burden(outcome: SettingOutcome, question: PlanQuestion) -> tuple[float, int, float]:
    """Return the operations that the pair adds; ties go to fewer queues, then to fewer pings.

    A send that a full backlog refused counts as diverted: refusing saves nothing.
    """
    size, setting = question.traffic.size_bytes, outcome.setting
    detours = (outcome.diverted.mean + outcome.refused.mean) * (
        moved_message_units(size) - message_units(size)
    )
    added = detours + outcome.pings.mean + outcome.polls
    return added, setting.queues, -setting.ping_interval_s


def raised_per_million(outcome: SettingOutcome, question: PlanQuestion) -> float:
    """Return how many sends of a million raise before the failover."""
    return outcome.raised.mean / question.messages_a_year * 1e6


def _reason(best: SettingOutcome, question: PlanQuestion, *, is_fit: bool, is_kept: bool) -> str:
    setting = best.setting
    raised = f"before that ({raised_per_million(best, question):.3g} of a million sends)"
    interval = (
        f"the longest compared that raises few enough {raised}, because a longer one does not fail"
        " over for a hiccup"
        if is_kept
        else f"which raises the fewest {raised}"
    )
    queues = f"{setting.queues} backlog queue{'s' if setting.queues > 1 else ''}"
    enough = "the fewest that are seldom enough full" if is_fit else "about the least often full"
    return (
        f"Fail over after {setting.failover_interval_s:g} s, {interval}; {queues}, {enough} (in"
        f" {best.full.mean:.2%} of years); ping every {setting.ping_interval_s:g} s, where pings"
        " and messages diverted after the primary is back cost least together."
    )
