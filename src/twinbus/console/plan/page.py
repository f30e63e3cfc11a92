"""A plan as one HTML page with charts, which needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final

from twinbus.console.plan.text import HEADINGS, cells, facts, interval, neighbours, plainly, queues
from twinbus.console.terminal.table import money
from twinbus.console.web import page as pages
from twinbus.planning.plan import Plan

__all__ = ["page"]

WIDTH: Final = 880
NAMES: Final = 190
ROW: Final = 30
LABEL: Final = 150
"""Room for the value behind the longest bar."""


def page(plan: Plan, warnings: Sequence[str]) -> str:
    """The whole page."""
    setting = plan.advice.outcome.setting
    title = (
        f"Fail over after {interval(setting.failover_interval_s)}, ping every"
        f" {interval(setting.ping_interval_s)}, backlog in {queues(setting.queues)}"
    )
    misses = [f"not met: {miss}" for miss in plan.advice.misses] + list(warnings)
    kind = "bad" if plan.advice.misses else "good"
    body = "\n".join(
        [
            (
                f'<div class="answer {kind}"><h1>{escape(title)}</h1>'
                f"<p>{escape(plan.advice.reason)}</p>{pages.listed(misses, ordered=False)}</div>"
            ),
            *(pages.section(name, chart) for name, chart in _charts(plan)),
            pages.section("A year with it", _facts(plan)),
            pages.section("Every setting", _settings(plan)),
            pages.section("Assumed", pages.listed(plan.assumptions, ordered=False)),
        ]
    )
    return pages.whole_page(f"Twinbus plan: {title}", body)


def _charts(plan: Plan) -> Iterator[tuple[str, str]]:
    views = dict(neighbours(plan))
    best = plan.advice.outcome
    if found := views.get("Failover intervals"):
        bars = [
            (interval(one.setting.failover_interval_s), one.raised.mean, one is best)
            for one in found
        ]
        yield "Sends that raise in a year, by failover interval", _bars(bars, plainly)
    if found := views.get("Backlog queues"):
        bars = [(queues(one.setting.queues), one.full.mean, one is best) for one in found]
        yield "Years with a full backlog", _bars(bars, lambda share: f"{share:.2%}")
    if found := views.get("Ping intervals"):
        bars = [
            (interval(one.setting.ping_interval_s), one.recovery_s, one is best) for one in found
        ]
        yield "From the primary's return to the first send, by ping interval", _bars(bars, interval)
    spent = plan.advised_money
    bars = [
        ("namespace alone", float(spent.alone.total * 12), False),
        ("pair", float(spent.paired_year), True),
        ("Geo-Replication", float(spent.geo_replication_year), False),
    ]
    amounts = {
        float(total): money(total, spent.paired.currency)
        for total in (spent.alone.total * 12, spent.paired_year, spent.geo_replication_year)
    }
    yield "Money of a year", _bars(bars, lambda total: amounts[total])


def _bars(found: Sequence[tuple[str, float, bool]], words: Callable[[float], str]) -> str:
    """Bars from left to right; the recommended one stands out, and every one has its number."""
    most = max(value for _, value, _ in found) or 1.0
    room = WIDTH - NAMES - LABEL
    parts = []
    for place, (name, value, is_best) in enumerate(found):
        top, long = place * ROW + 4, max(1.0, value / most * room)
        kind = "backlog" if is_best else "plain"
        parts.append(
            f'<text x="{NAMES - 10}" y="{top + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="{kind}" x="{NAMES}" y="{top}" width="{long:.1f}" height="20"/>'
            f'<text x="{NAMES + long + 8:.1f}" y="{top + 15}">{escape(words(value))}</text>'
        )
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" role="img"'
        f' viewBox="0 0 {WIDTH} {len(found) * ROW + 8}">{"".join(parts)}</svg>'
    )


def _facts(plan: Plan) -> str:
    rows = "".join(
        f'<tr><td class="soft">{escape(name)}</td><td>{escape(value)}</td></tr>'
        for name, value in facts(plan)
    )
    return f"<table>{rows}</table>"


def _settings(plan: Plan) -> str:
    head = "".join(f'<th class="number">{escape(name)}</th>' for name in HEADINGS)
    rows = []
    for one in plan.outcomes:
        inner = "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells(plan, one))
        is_best = one is plan.advice.outcome
        rows.append(f"<tr{' style=font-weight:600' if is_best else ''}>{inner}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"
