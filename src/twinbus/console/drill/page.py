"""The drill's page: one HTML file that needs nothing else, from the result alone.

It is read by somebody who is tired: the answer is on top and large, the story next, then the
pictures, then every number. Light and dark follow the reader's own setting.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from twinbus.console.drill import text as drill_words
from twinbus.console.terminal.table import money
from twinbus.console.web import charts
from twinbus.console.web.page import listed, section, whole_page

if TYPE_CHECKING:
    from twinbus.console.drill.result import DrillResult

__all__ = ["page", "picture", "timeline_of"]


def page(result: DrillResult) -> str:
    """The whole page."""
    title = f"Twinbus drill: {drill_words.headline(result).lower()}"
    body = "\n".join(
        [
            _answer(result),
            _tiles(result),
            section("What happened", listed(drill_words.story(result))),
            section("The outage", charts.timeline(timeline_of(result))),
            section("Operations by cause", _operations(result)),
            section("Every number", _numbers(result)),
            section("The bill", _bill(result)),
            section("How it was run", _run(result)),
        ]
    )
    return whole_page(title, body)


def picture(result: DrillResult) -> str:
    """The chart of the outage as an SVG file of its own."""
    return charts.timeline(timeline_of(result), alone=True) + "\n"


def timeline_of(result: DrillResult) -> charts.Timeline:
    """The outage in seconds from the first send."""
    tables, moments = result.tables, result.moments
    # Buckets begin at whole seconds; the axis begins with the first of them.
    began_s = min([moments.began_ms / 1000, *(float(sends.at_s) for sends in tables.sends)])
    bucket_s = tables.bucket_s

    def after(at_ms: float) -> float:
        return at_ms / 1000 - began_s

    markers = [charts.Marker(after(moments.killed_ms), "primary killed")]
    if result.failover_s is not None:
        failed_over_ms = moments.killed_ms + result.failover_s * 1000
        markers.append(charts.Marker(after(failed_over_ms), "failed over"))
    markers.append(charts.Marker(after(moments.back_ms), "primary back"))
    if result.recover_s is not None:
        healthy_ms = moments.back_ms + result.recover_s * 1000
        markers.append(charts.Marker(after(healthy_ms), "ping answered"))
    if tables.drain_began_ms is not None:
        markers.append(charts.Marker(after(tables.drain_began_ms), "drain by Spark"))
    ends = [
        *(after((sends.at_s + bucket_s) * 1000) for sends in tables.sends),
        *(after((depth.at_s + bucket_s) * 1000) for depth in tables.backlog),
        *(marker.at_s for marker in markers),
    ]
    return charts.Timeline(
        bucket_s=bucket_s,
        bars=[
            charts.Bar(after(sends.at_s * 1000), sends.to_primary, sends.to_backlog)
            for sends in tables.sends
        ],
        depth=[(after((depth.at_s + bucket_s) * 1000), depth.depth) for depth in tables.backlog],
        bands=[charts.Band(after(moments.killed_ms), after(moments.back_ms), "primary down")],
        markers=sorted(markers, key=lambda marker: marker.at_s),
        until_s=max(ends, default=1.0) + 0.5,
    )


def _answer(result: DrillResult) -> str:
    kind = "good" if result.passed else "bad"
    told = drill_words.missing(result)
    lines = listed(told, ordered=False) if told else f"<p>{escape(_proof(result))}</p>"
    return (
        f'<div class="answer {kind}"><h1>{escape(drill_words.headline(result))}</h1>{lines}</div>'
    )


def _proof(result: DrillResult) -> str:
    return (
        f"{result.tables.accepted:,} messages were accepted while the primary was killed and came"
        f" back, and {result.tables.received or 0:,} of them were received."
    )


def _tiles(result: DrillResult) -> str:
    shown = {"accepted", "received", "lost", "duplicates", "diverted", "sends that raised"}
    tiles = [
        f'<div class="tile{" bad" if row.is_bad else ""}"><b>{escape(row.value)}</b>'
        f"<span>{escape(row.name)}</span></div>"
        for row in drill_words.rows(result)
        if row.name in shown
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _operations(result: DrillResult) -> str:
    counted = result.tables.operations_by_cause
    known = [cause for cause in drill_words.CAUSES if counted.get(cause)]
    others = sorted(counted.keys() - drill_words.CAUSES.keys())
    return charts.cause_bars(
        (drill_words.cause_name(cause), counted[cause]) for cause in [*known, *others]
    )


def _numbers(result: DrillResult) -> str:
    lines = [
        f"<tr{' class=bad' if row.is_bad else ''}><td>{escape(row.name)}</td>"
        f'<td class="number">{escape(row.value)}</td><td class="soft">{escape(row.meaning)}</td>'
        "</tr>"
        for row in drill_words.rows(result)
    ]
    return f"<table>{''.join(lines)}</table>"


def _bill(result: DrillResult) -> str:
    bill = result.tables.bill
    lines = [
        f"<tr><td>{escape(drill_words.cause_name(charge.cause))}</td>"
        f"<td>{escape(charge.operation)}{' (assumed)' if charge.assumed else ''}</td>"
        f'<td class="number">{charge.operations:,}</td><td class="number">{charge.units:,}</td>'
        "</tr>"
        for charge in sorted(result.tables.charges, key=lambda charge: -charge.operations)
    ]
    used_up = money(bill.amount_past_free, bill.currency)
    free = money(bill.amount, bill.currency)
    return (
        '<table><tr><th>cause</th><th>operation</th><th class="number">calls</th>'
        f'<th class="number">units of 64 KB</th></tr>{"".join(lines)}</table>'
        f'<p class="note">{bill.units:,} units: {escape(used_up)} once the month has used up its'
        f" free operations, {escape(free)} if these were its only ones. Settlement is"
        f" {'' if bill.settlement_counted else 'not '}counted. Prices: {escape(bill.price_book)}."
        "</p>"
    )


def _run(result: DrillResult) -> str:
    plan = result.plan
    command = (
        f"twinbus drill --messages {plan.messages} --senders {plan.senders}"
        f" --outage {plan.outage_s:g} --failover-interval {plan.failover_interval_s:g}"
        f" --ping-interval {plan.ping_interval_s:g} --queues {plan.backlog_queues}"
    )
    took = ", ".join(f"{step.phase} {step.seconds:.1f} s" for step in result.took)
    known = [*result.tables.unknown, *result.tables.assumed]
    return (
        f"<p><code>{escape(command)}</code></p>"
        f'<p class="note">Twinbus {escape(result.version)}; {result.tables.records:,} records in'
        f" the ledger; {escape(took)}.</p>"
        + "".join(f'<p class="note">{escape(line)}</p>' for line in known)
    )
