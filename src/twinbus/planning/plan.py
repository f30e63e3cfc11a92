"""The result of the planner: all settings with figures and costs, and the recommended one.

The cost of a year with a pair is compared with no pair and with Geo-Replication. Operations are
counted by stages (docs/costs.md) and priced for an average month: the monthly price tiers are wide
compared with the messages of one outage.

The advice chooses one of the simulated settings. The criteria, in order: a backlog that is large
enough; few enough sends that raise; the longest failover interval, because a short one fails over
for a disturbance that retries would survive; the fewest operations, which weighs pings against
messages diverted after the primary is back, and idle polls against the number of queues.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from twinbus.cost.arithmetic import QuantityError, message_units
from twinbus.cost.bill import MonthlyBill, MonthUse, ServiceTier, bill, exact, geo_replication_bill
from twinbus.cost.estimate import SYPHON_CONNECTIONS
from twinbus.planning.question import PROMOTION_S, PROMOTION_SOURCE, sends_in_promotion

if TYPE_CHECKING:
    from twinbus.cost.arithmetic import CountingRule
    from twinbus.cost.prices import PriceBook
    from twinbus.planning.question import PlanQuestion, SettingOutcome

MONTHS: Final = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The result for one question."""

    question: PlanQuestion
    outcomes: tuple[SettingOutcome, ...]
    money: tuple[YearMoney, ...]
    """The cost of each outcome, in the same order."""
    advice: Advice
    prices: PriceBook

    @property
    def advised_money(self) -> YearMoney:
        return self.money[self.outcomes.index(self.advice.outcome)]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Where the model differs from reality, a sentence each."""
        failover_s = self.advice.outcome.setting.failover_interval_s
        traffic = self.question.traffic
        if traffic.is_dense(failover_s):
            return ()
        sparse = (
            f"a client sends to an entity only every {traffic.gap_s:.3g} s, so that some fail over"
            " after the primary is back: more is diverted and pinged than said here"
        )
        return (sparse,)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return tuple(self._assumptions())

    def as_json(self) -> dict[str, Any]:
        advice, question = self.advice, self.question
        return {
            "recommended": self._setting_json(advice.outcome, self.advised_money),
            "reason": advice.reason,
            "misses": list(advice.misses),
            "settings": [
                self._setting_json(outcome, money)
                for outcome, money in zip(self.outcomes, self.money, strict=True)
            ],
            "question": {
                **asdict(question.traffic),
                "outages": [str(pattern) for pattern in question.patterns],
                "queue_bytes": question.queue_bytes,
                "drain_per_s": question.drain_per_s,
                "years": question.years,
                "seed": question.seed,
            },
            "geo_replication_promotion": {
                "seconds": list(PROMOTION_S),
                "sends": list(sends_in_promotion(question.traffic.rate_per_s)),
                "source": PROMOTION_SOURCE,
            },
            "price_book": self.prices.name,
            "assumptions": list(self.assumptions),
        }

    def _assumptions(self) -> Iterator[str]:
        question, traffic = self.question, self.question.traffic
        yield (
            "an outage takes the whole primary and leaves the secondary whole; sends are steady,"
            f" one of each client to each entity every {traffic.gap_s:.3g} s"
        )
        yield (
            f"a send tries for {traffic.patience_s:g} s; it raises if the entity has not failed"
            " over and the primary is not back by then"
        )
        yield (
            f"an attempt that fails takes {traffic.failed_attempt_s:g} s (0 where the connection is"
            " refused, the attempt timeout where the primary hangs)"
        )
        yield (
            f"a message takes {question.message_bytes:,} bytes of the {question.queue_bytes:,} of a"
            " backlog queue; the backlog is full when all queues are, for a sender changes queues"
        )
        yield (
            f"the syphon brings {question.drain_per_s:g} messages a second home, from the moment"
            " that the primary is back; what is left when the next outage comes is added to"
        )
        yield (
            "every year begins with an empty backlog; an outage that begins inside another follows"
            " it; none is longer than 30 days"
        )
        yield (
            f"polls of {question.poll_s:g} s all year by {question.syphons} syphon(s); sends that"
            " raise are not charged; an average month is priced"
        )
        yield from self.advised_money.paired.assumptions
        yield from self.advised_money.geo_replication.assumptions[:1]

    def _setting_json(self, outcome: SettingOutcome, money: YearMoney) -> dict[str, Any]:
        setting = outcome.setting
        return {
            "failover_interval_s": setting.failover_interval_s,
            "ping_interval_s": setting.ping_interval_s,
            "backlog_queues": setting.queues,
            "outages": asdict(outcome.outages),
            "outage_s": asdict(outcome.outage_s),
            "failovers": asdict(outcome.failovers),
            "raised": outcome.raised_total,
            "raised_before_failover": asdict(outcome.raised),
            "raised_before_failover_per_million": raised_per_million(outcome, self.question),
            "raised_backlog_full": asdict(outcome.refused),
            "diverted": asdict(outcome.diverted),
            "chance_full": asdict(outcome.full),
            "chance_queue_full": asdict(outcome.queue_full),
            "peak_messages_max": outcome.peak_max,
            "detection_s": outcome.detection_s,
            "recovery_s": outcome.recovery_s,
            "drain_s": {
                "p50": outcome.drain_p50_s,
                "p95": outcome.drain_p95_s,
                "max": outcome.drain_max_s,
            },
            "pings": asdict(outcome.pings),
            "polls": outcome.polls,
            "money": money.as_json(),
        }


def plan_of(
    question: PlanQuestion,
    outcomes: Sequence[SettingOutcome],
    prices: PriceBook,
    limits: PlanLimits | None = None,
    *,
    messaging_units: int = 1,
    rule: CountingRule | None = None,
) -> Plan:
    return Plan(
        question=question,
        outcomes=tuple(outcomes),
        money=tuple(
            year_money(one, question, prices, messaging_units=messaging_units, rule=rule)
            for one in outcomes
        ),
        advice=advise(outcomes, question, limits or PlanLimits()),
        prices=prices,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class YearMoney:
    """Three ways to run a year, each as its average month."""

    operations: Mapping[str, float]
    """Billed units of a year with the pair, by cause."""
    paired: MonthlyBill
    alone: MonthlyBill
    """One Standard namespace with the same messages, all sent directly."""
    geo_replication: MonthlyBill

    @property
    def paired_year(self) -> Decimal:
        return self.paired.total * MONTHS

    @property
    def added_year(self) -> Decimal:
        """What the pair adds to the cost of one namespace."""
        return (self.paired.total - self.alone.total) * MONTHS

    @property
    def geo_replication_year(self) -> Decimal:
        return self.geo_replication.total * MONTHS

    def as_json(self) -> dict[str, Any]:
        return {
            "operations": {cause: round(count) for cause, count in self.operations.items()},
            "paired_year": exact(self.paired_year),
            "added_year": exact(self.added_year),
            "geo_replication_year": exact(self.geo_replication_year),
            "currency": self.paired.currency,
            "not_priced": sorted({*self.paired.not_priced, *self.geo_replication.not_priced}),
        }


def operations_of(
    outcome: SettingOutcome, question: PlanQuestion, rule: CountingRule | None = None
) -> dict[str, float]:
    """Return the billed units of a year by cause, assuming that a send that raised is free."""
    size = question.traffic.size_bytes
    moved = outcome.diverted.mean
    direct = max(0.0, question.messages_a_year - moved - outcome.raised_total)
    return {
        "messages": direct * message_units(size, rule),
        "moved": moved * message_units(size, rule, moved=True),
        "pings": outcome.pings.mean,
        "polls": float(outcome.polls),
    }


def year_money(
    outcome: SettingOutcome,
    question: PlanQuestion,
    prices: PriceBook,
    *,
    messaging_units: int = 1,
    rule: CountingRule | None = None,
) -> YearMoney:
    traffic = question.traffic
    counted = operations_of(outcome, question, rule)
    plain = question.messages_a_year * message_units(traffic.size_bytes, rule)
    # Clients also connect to the backlog in an outage: a few hours of a year, not counted.
    connections = traffic.links
    pumps = question.syphons * outcome.setting.queues * SYPHON_CONNECTIONS
    taken = question.messages_a_year - outcome.raised_total
    direct = max(0.0, taken) * message_units(traffic.size_bytes, rule)
    alone = MonthUse(operation_units=_monthly(direct), connections_peak=connections)
    paired = MonthUse(
        operation_units=_monthly(sum(counted.values())),
        connections_peak=connections + pumps,
        bytes_out=_monthly(outcome.diverted.mean * traffic.size_bytes),
    )
    geo = MonthUse(
        operation_units=_monthly(plain),
        connections_peak=connections,
        messaging_units=messaging_units,
    )
    replicated = _monthly(question.messages_a_year * traffic.size_bytes)
    return YearMoney(
        operations=counted,
        paired=bill(paired, ServiceTier.STANDARD, prices),
        alone=bill(alone, ServiceTier.STANDARD, prices),
        geo_replication=geo_replication_bill(geo, prices, replicated_bytes=replicated),
    )


def _monthly(of_a_year: float) -> int:
    return math.ceil(of_a_year / MONTHS)


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
    outcome: SettingOutcome
    reason: str
    misses: tuple[str, ...] = ()
    """Limits that no setting keeps, and what to compare instead."""


def advise(
    outcomes: Sequence[SettingOutcome], question: PlanQuestion, limits: PlanLimits
) -> Advice:
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
        message_units(size, moved=True) - message_units(size)
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
