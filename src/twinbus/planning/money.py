"""The cost of a year with a pair, compared with no pair and with Geo-Replication.

Operations are counted by the stages of SPEC 8 and priced for an average month: the monthly price
tiers are wide compared with the messages of one outage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from twinbus.cost.arithmetic import message_units, moved_message_units
from twinbus.cost.bill import (
    MonthlyBill,
    MonthUse,
    ServiceTier,
    bill,
    exact,
    geo_replication_bill,
)
from twinbus.cost.estimate import SYPHON_CONNECTIONS

if TYPE_CHECKING:
    from twinbus.cost.arithmetic import CountingRule
    from twinbus.cost.prices import PriceBook
    from twinbus.planning.outcomes import PlanQuestion, SettingOutcome

MONTHS: Final = 12


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
