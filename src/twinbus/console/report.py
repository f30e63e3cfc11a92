"""The drill's page: one HTML file that needs nothing else, from the result alone.

It is read by somebody who is tired: the answer is on top and large, the story next, then the
pictures, then every number. Light and dark follow the reader's own setting.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from twinbus.console import charts, drill_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.console.drill_result import DrillResult

__all__ = ["page", "picture", "timeline_of"]

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b2130;--soft:#51586a;--ground:#f4f6fa;--card:#fff;
--line:#d9dee8;--good:#14804a;--good-ground:#e5f5ec;--bad:#b3261e;--bad-ground:#fdeceb}
@media (prefers-color-scheme:dark){:root{--ink:#eef1f7;--soft:#a9b2c6;--ground:#12161f;
--card:#1a202c;--line:#2c3444;--good:#5fd39a;--good-ground:#15301f;--bad:#ff8f8f;
--bad-ground:#3a1b1b}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
main{max-width:960px;margin:0 auto;padding:24px 16px 48px}
.answer{border-radius:10px;padding:20px 24px;border-left:8px solid}
.answer.good{background:var(--good-ground);border-color:var(--good)}
.answer.bad{background:var(--bad-ground);border-color:var(--bad)}
.answer h1{margin:0;font-size:30px;line-height:1.2}
.answer.good h1{color:var(--good)}.answer.bad h1{color:var(--bad)}
.answer p{margin:8px 0 0}.answer li{overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;margin:16px 0}
.tile,section{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:12px 14px}.tile b{display:block;font-size:26px;line-height:1.2}
.tile span{color:var(--soft);font-size:13px}.tile.bad b{color:var(--bad)}
section{padding:16px 20px;margin:16px 0;overflow-x:auto}
h2{font-size:17px;margin:0 0 10px}svg{display:block;width:100%;height:auto;min-width:560px}
table{border-collapse:collapse;width:100%;font-size:15px}
th,td{text-align:left;padding:6px 10px 6px 0;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}td.number,th.number{text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums;padding-right:20px}
td.soft,.note{color:var(--soft)}tr.bad td{color:var(--bad);font-weight:600}
.note{font-size:14px;margin:10px 0 0}ol{margin:0;padding-left:22px}
code{font:14px ui-monospace,Menlo,Consolas,monospace}
"""


def page(result: DrillResult) -> str:
    """The whole page."""
    title = f"Twinbus drill: {drill_words.headline(result).lower()}"
    body = "\n".join(
        [
            _answer(result),
            _tiles(result),
            _section("What happened", _list(drill_words.story(result))),
            _section("The outage", charts.timeline(timeline_of(result))),
            _section("Operations by cause", _operations(result)),
            _section("Every number", _numbers(result)),
            _section("The bill", _bill(result)),
            _section("How it was run", _run(result)),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{charts.STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


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
        outage=charts.Band(after(moments.killed_ms), after(moments.back_ms), "primary down"),
        markers=sorted(markers, key=lambda marker: marker.at_s),
        until_s=max(ends, default=1.0) + 0.5,
    )


def _answer(result: DrillResult) -> str:
    kind = "good" if result.passed else "bad"
    told = drill_words.missing(result)
    lines = _list(told, ordered=False) if told else f"<p>{escape(_proof(result))}</p>"
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
    used_up = drill_words.money(bill.amount_past_free, bill.currency)
    free = drill_words.money(bill.amount, bill.currency)
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
        f" --ping-interval {plan.ping_interval_s:g} --backlog-queues {plan.backlog_queues}"
    )
    took = ", ".join(f"{step.phase} {step.seconds:.1f} s" for step in result.took)
    known = [*result.tables.unknown, *result.tables.assumed]
    return (
        f"<p><code>{escape(command)}</code></p>"
        f'<p class="note">Twinbus {escape(result.version)}; {result.tables.records:,} records in'
        f" the ledger; {escape(took)}.</p>"
        + "".join(f'<p class="note">{escape(line)}</p>' for line in known)
    )


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def _list(lines: Iterable[str], *, ordered: bool = True) -> str:
    kind = "ol" if ordered else "ul"
    return f"<{kind}>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</{kind}>"
