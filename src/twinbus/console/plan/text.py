"""A plan in words: what to take and why, what happens then, and how the others compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

from twinbus.console.terminal.table import aligned, duration, money, paint
from twinbus.planning.outcomes import SampledMean, SettingOutcome
from twinbus.planning.plan import Plan

__all__ = ["amount", "cells", "chance", "interval", "lines", "neighbours", "plainly", "queues"]

BAR_WIDTH: Final = 40

HEADINGS: Final = (
    "failover",
    "ping",
    "queues",
    "raised a year",
    "backlog full",
    "diverted",
    "drain 50 %",
    "drain 95 %",
    "pings",
    "polls",
    "added a year",
)


def lines(plan: Plan, warnings: Sequence[str]) -> Iterator[str]:
    """The whole plan for a terminal."""
    best = plan.advice.outcome
    yield from (paint(f"warning: {text}", "yellow") for text in warnings)
    yield from (paint(f"not met: {miss}", "red") for miss in plan.advice.misses)
    setting = best.setting
    yield paint(
        f"failover_interval={setting.failover_interval_s:g}"
        f"  ping_primary_interval={setting.ping_interval_s:g}"
        f"  backlog_queue_count={setting.queues}",
        "bold",
    )
    yield plan.advice.reason
    yield ""
    yield from aligned(list(facts(plan)))
    for title, found in neighbours(plan):
        yield ""
        yield f"{title}, the rest as above (* recommended)"
        rows = [["", *HEADINGS]]
        rows += [["*" if one is best else "", *cells(plan, one)] for one in found]
        yield from aligned(rows, right=set(range(1, len(HEADINGS) + 1)))
    yield from _chart(plan)
    yield ""
    yield "Assumed:"
    yield from (f"- {text}" for text in plan.assumptions)


def facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """What happens in a year under the recommended setting."""
    best, question, spent = plan.advice.outcome, plan.question, plan.advised_money
    currency = spent.paired.currency
    patterns = ", ".join(map(str, question.patterns))
    yield "outages", f"{patterns}: {amount(best.outages)} a year, {_long(best.outage_s)} in all"
    yield (
        "failed over",
        f"{amount(best.failovers)} times a year, after {best.detection_s:.1f} s on average",
    )
    yield "back", f"{best.recovery_s:.1f} s after the primary, on average"
    yield (
        "raised",
        f"{amount(best.raised)} sends a year, {plan.raised_per_million(best):.3g} of a million",
    )
    yield "backlog full", f"{chance(best.full)}; {amount(best.refused)} sends a year raise for it"
    yield "one queue full", f"{chance(best.queue_full)}; senders then change to another"
    yield (
        "diverted",
        f"{amount(best.diverted)} messages a year, at most {best.peak_max:,.0f} at once",
    )
    yield (
        "drained",
        (
            f"the longest of a year takes {interval(best.drain_p50_s)} (half of the years),"
            f" {interval(best.drain_p95_s)} (95 %), {interval(best.drain_max_s)} (the worst)"
        ),
    )
    yield "pings, polls", f"{amount(best.pings)} and {best.polls:,} a year"
    yield "the pair", _year(spent.paired_year, currency, spent.paired.not_priced)
    yield "it adds", _year(spent.added_year, currency, ())
    geo = spent.geo_replication
    yield "Premium Geo-Replication", _year(spent.geo_replication_year, currency, geo.not_priced)
    yield "simulated", f"{question.years:,} years, seed {question.seed}; ± is the standard error"


def neighbours(plan: Plan) -> Iterator[tuple[str, list[SettingOutcome]]]:
    """The settings that differ from the recommended one in one option only."""
    best = plan.advice.outcome.setting
    views: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("failover intervals", lambda one: (one.ping_interval_s, one.queues)),
        ("ping intervals", lambda one: (one.failover_interval_s, one.queues)),
        ("backlog queues", lambda one: (one.failover_interval_s, one.ping_interval_s)),
    )
    for title, others in views:
        found = [one for one in plan.outcomes if others(one.setting) == others(best)]
        if len(found) > 1:
            yield title.capitalize(), found


def cells(plan: Plan, outcome: SettingOutcome) -> list[str]:
    """One setting as a row."""
    setting = outcome.setting
    spent = plan.money[plan.outcomes.index(outcome)]
    return [
        interval(setting.failover_interval_s),
        interval(setting.ping_interval_s),
        f"{setting.queues}",
        plainly(outcome.raised_total),
        f"{outcome.full.mean:.2%}",
        plainly(outcome.diverted.mean),
        interval(outcome.drain_p50_s),
        interval(outcome.drain_p95_s),
        plainly(outcome.pings.mean),
        f"{outcome.polls:,}",
        money(spent.added_year, spent.paired.currency),
    ]


def _chart(plan: Plan) -> Iterator[str]:
    """Raised sends by failover interval, and full backlogs by number of queues, as bars."""
    views = dict(neighbours(plan))
    if found := views.get("Failover intervals"):
        yield ""
        yield "Sends that raise in a year"
        yield from _bars(
            [(interval(one.setting.failover_interval_s), one.raised.mean) for one in found], plainly
        )
    if found := views.get("Backlog queues"):
        yield ""
        yield "Years with a full backlog"
        yield from _bars(
            [(queues(one.setting.queues), one.full.mean) for one in found],
            lambda share: f"{share:.2%}",
        )


def _bars(found: Sequence[tuple[str, float]], words: Callable[[float], str]) -> list[str]:
    most = max(value for _, value in found) or 1.0
    rows = [
        [name, "█" * (round(value / most * BAR_WIDTH) or int(value > 0)), words(value)]
        for name, value in found
    ]
    return aligned(rows, right={0})


def amount(value: SampledMean) -> str:
    """A mean with its error."""
    error = f" ± {plainly(value.error)}" if value.error else ""
    return plainly(value.mean) + error


def chance(value: SampledMean) -> str:
    """A probability with its error; never seen is not never."""
    if not value.mean:
        return f"in none of the years (below {value.error:.2%}, most likely)"
    return f"in {value.mean:.2%} ± {value.error:.2%} of the years"


def plainly(value: float) -> str:
    """A count to read: whole where it is large."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def interval(seconds: float) -> str:
    """A time span; short ones with their tenth."""
    return f"{seconds:.3g} s" if seconds < 60 else duration(seconds)


def queues(count: int) -> str:
    """A number of backlog queues."""
    return f"{count} queue{'s' if count != 1 else ''}"


def _long(value: SampledMean) -> str:
    return f"{duration(value.mean)} ± {duration(value.error)}"


def _year(total: Decimal, currency: str, not_priced: Sequence[str]) -> str:
    lacks = f", without {', '.join(not_priced)}: not priced" if not_priced else ""
    return f"{money(total, currency)} a year{lacks}"
