"""The result of the planner: all settings with figures and costs, and the recommended one.

The cost of a year with a pair is compared with no pair and with Geo-Replication. Operations are
counted by stages (docs/costs.md) and priced for an average month: the monthly price tiers are wide
compared with the messages of one outage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from twinbus.cost.arithmetic import message_units, moved_message_units
from twinbus.cost.bill import MonthlyBill, MonthUse, ServiceTier, bill, exact, geo_replication_bill
from twinbus.cost.estimate import SYPHON_CONNECTIONS
from twinbus.planning.advice import Advice, PlanLimits, advise, raised_per_million
from twinbus.planning.outages import PROMOTION_S, PROMOTION_SOURCE, sends_in_promotion

if TYPE_CHECKING:
    from twinbus.cost.arithmetic import CountingRule
    from twinbus.cost.prices import PriceBook
    from twinbus.planning.outcomes import PlanQuestion, SettingOutcome

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
        """The cost of the recommended setting."""
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

    def raised_per_million(self, outcome: SettingOutcome) -> float:
        """Return how many sends of a million raise before the failover."""
        return raised_per_million(outcome, self.question)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions behind the figures, a sentence each."""
        return tuple(self._assumptions())

    def as_json(self) -> dict[str, Any]:
        """Return the plan for `json.dumps`."""
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
            "raised_before_failover_per_million": self.raised_per_million(outcome),
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
    """Return the plan for simulated outcomes."""
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
        """Return the amounts for `json.dumps`, as strings."""
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
        "moved": moved * moved_message_units(size, rule),
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
    """Return the cost of a year with this outcome."""
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
