"""What a drill of a known outage says of the outage itself, and of Geo-Replication in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twinbus.console.drill.result import DrillResult
from twinbus.console.terminal.table import money
from twinbus.cost.bill import MonthUse, geo_replication_bill
from twinbus.cost.prices import standard
from twinbus.planning.known_outages import (
    PROMOTION_S,
    PROMOTION_SOURCE,
    KnownOutage,
    known_outage,
    sends_in_promotion,
)
from twinbus.wording import duration

SPEED: Final = 1_000
"""How many times faster a drill plays a known outage: nine hours become half a minute."""


def compared(result: DrillResult) -> tuple[str, ...]:
    """Sentences of a drill that stands for a known outage; none for any other drill."""
    outage = known_outage(result.plan.stands_for or "")
    return tuple(_sentences(result, outage)) if outage else ()


def _sentences(result: DrillResult, outage: KnownOutage) -> Iterator[str]:
    plan, book = result.plan, standard()
    length = duration(outage.length_s)
    yield f"{outage.when}: {length}, played {SPEED:,} times faster. {outage.source}."
    units = outage.added_units(plan.rate, plan.failover_interval_s, size_bytes=1)
    price = book.meter("operations").cost_past_free(units)
    yield (
        f"In all of {length}, at {plan.rate:.0f} small messages a second, the backlog adds"
        f" {units:,} operations to the month: {money(price, book.currency)} past the free ones."
    )
    fewest_min, most_min = (seconds / 60 for seconds in PROMOTION_S)
    fewest, most = sends_in_promotion(plan.rate)
    month = geo_replication_bill(MonthUse(), book, replicated_bytes=0)
    yield (
        "With Geo-Replication a person starts a promotion, which usually takes"
        f" {fewest_min:g} to {most_min:g} min ({PROMOTION_SOURCE}). In that time come"
        f" {fewest:,} to {most:,} sends. Two regions with one messaging unit cost"
        f" {money(month.total, book.currency)} a month, and each GB copied extra ({book.name})."
    )
