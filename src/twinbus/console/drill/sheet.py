"""The content of a drill's report: what happened, for a reader who was not there. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from twinbus.console.drill.result import (
    KNOWN_OUTAGE_SPEED,
    REDELIVERED,
    DrillPlan,
    DrillResult,
)
from twinbus.console.output import money
from twinbus.console.report.availability_sheet import outage_chart
from twinbus.console.report.charges_sheet import DUPLICATE_CAUSES, by_kind_table, cause_bars
from twinbus.console.sheet import OutageChart, Sheet, Table, Tile, sections
from twinbus.cost.bill import MonthUse, geo_replication_bill
from twinbus.cost.prices import standard
from twinbus.pipeline.reports.documents import ReportVerdict
from twinbus.planning.question import (
    PROMOTION_S,
    PROMOTION_SOURCE,
    known_outage,
    sends_in_promotion,
)
from twinbus.wording import counted, duration

IDS_SHOWN: Final = 20
"""Ids that a person reads; drill.json has more."""

FEW: Final = 10

TILES: Final = (
    *("accepted", "received", "lost", "duplicates", "diverted", "sends that raised"),
    "receive gap",
)


class NumberRow(NamedTuple):
    name: str
    value: str
    meaning: str
    is_bad: bool = False


def drill_sheet(result: DrillResult) -> Sheet:
    rows = list(_numbers(result))
    return Sheet(
        title="drill",
        headline=_headline(result),
        verdict=ReportVerdict.GOOD if result.passed else ReportVerdict.BAD,
        alerts=tuple(_alerts(result)),
        story=tuple(_story(result)),
        tiles=tuple(Tile(row.name, row.value, row.is_bad) for row in rows if row.name in TILES),
        charts=(
            _outage(result),
            cause_bars("Operations by cause", result.operations_by_cause),
        ),
        tables=(
            Table(
                title="Every number",
                rows=tuple(row[:3] for row in rows),
                numbers=frozenset({1}),
                bad=frozenset(index for index, row in enumerate(rows) if row.is_bad),
            ),
            _bill(result),
        ),
        sections=sections(
            ("The outage that it stands for", tuple(_comparison(result))),
            ("How it was run", tuple(_run(result))),
        ),
    )


def _outage(result: DrillResult) -> OutageChart:
    """The outage from the first send to the last message that left the backlog."""
    moments = result.moments
    marks = (
        (moments.killed_ms, 0, "primary killed"),
        (moments.killed_ms, result.failover_s, "failed over"),
        (moments.back_ms, 0, "primary back"),
        (moments.back_ms, result.recover_s, "ping answered"),
        (result.report.drain_began_ms, 0, "drain by Spark"),
    )
    marked = [
        (from_ms + later_s * 1000, label)
        for from_ms, later_s, label in marks
        if from_ms is not None and later_s is not None
    ]
    bands = [(moments.killed_ms, moments.back_ms, "primary down")]
    availability = result.report.availability
    return outage_chart("The outage", availability, "primary down", bands, marked)


def rate_text(plan: DrillPlan) -> str:
    """Messages a second, with a decimal where there are few."""
    return f"{plan.rate:.0f}" if plan.rate >= FEW else f"{plan.rate:.1f}"


def _headline(result: DrillResult) -> str:
    if result.lost:
        return f"{counted(result.lost, 'message')} lost"
    if result.not_received:
        return f"{counted(result.not_received, 'message')} not received"
    if result.doubts:
        return "Nothing is proved"
    return "Nothing was lost"


def _alerts(result: DrillResult) -> Iterator[str]:
    if result.lost:
        ids = result.lost_ids
        more = result.lost - min(len(ids), IDS_SHOWN)
        tail = f" and {more:,} more, see drill.json" if more > 0 else ""
        yield f"lost: {', '.join(ids[:IDS_SHOWN])}{tail}"
    left = result.not_received - result.lost
    if left:
        yield f"still in the backlog: {counted(left, 'message')}; the drain did not finish"
    yield from (f"not proved: {doubt}" for doubt in result.doubts)


def _story(result: DrillResult) -> Iterator[str]:
    plan = result.plan
    down_s = (result.moments.back_ms - result.moments.killed_ms) / 1000
    yield (
        f"{counted(plan.senders, 'sender')} sent {plan.messages:,} messages at"
        f" {rate_text(plan)} a second; the primary was killed with SIGKILL after"
        f" {plan.kill_after_s:.0f} s and was down for {down_s:.1f} s."
    )
    if result.client:
        yield f"The senders know nothing of Twinbus: {result.client}, through a gateway."
    if result.failover_s is None:
        yield "No entity failed over: the outage was shorter than the failover interval."
    else:
        yield (
            f"Its entities failed over {result.failover_s:.1f} s after the kill:"
            f" {counted(result.twinned, 'message')} went to the twins of {_paths(result)[0]},"
            f" {result.diverted - result.twinned:,} to"
            f" {counted(plan.backlog_queues, 'backlog queue')} in the secondary."
        )
    yield from _receiving(result)
    raised = f"{counted(result.caller_errors, 'send')} raised an error, so their callers know."
    yield raised if result.caller_errors else "No send raised an error: the callers did not notice."
    if result.recover_s is not None:
        yield f"The ping found the primary {result.recover_s:.1f} s after it was back."
    if result.drain_s is not None:
        pace = "" if result.drain_rate is None else f", {result.drain_rate:,.0f} a second"
        yield (
            f"Spark brought {counted(result.report.forwarded, 'message')} home in"
            f" {result.drain_s:.1f} s{pace}."
        )
    yield (
        f"The consumers got {result.received or 0:,} of {result.total.accepted:,} accepted"
        f" messages: {result.lost:,} lost, {counted(result.duplicates, 'duplicate')}."
    )
    if result.redelivered:
        yield (
            f"The primary delivered {counted(result.redelivered, 'message')} again: the kill hit"
            " between delivery and completion."
        )


def _receiving(result: DrillResult) -> Iterator[str]:
    """How long the consumers were without a message."""
    with_twin, without = result.receive_gap_s, result.backlog_receive_gap_s
    if with_twin is None or without is None:
        return
    twins, others = _paths(result)
    yield (
        f"The longest time without a message was {with_twin:.1f} s for the consumers of {twins},"
        f" which have twins, and {without:.1f} s for those of {others}, which has none."
    )


def _paths(result: DrillResult) -> tuple[str, str]:
    """The entities with a twin, and the others."""
    return " and ".join(result.twins), " and ".join(result.without_twin)


def _numbers(result: DrillResult) -> Iterator[NumberRow]:
    total, plan = result.total, result.plan
    left = result.not_received - result.lost
    numbers = (
        ("accepted", total.accepted, "send_messages returned", 0),
        ("delivered", total.delivered, "the primary or a twin acknowledged it", 0),
        ("received", result.received or 0, "a consumer got it", result.not_received),
        ("lost", result.lost, "accepted, and nowhere to be found", result.lost),
        ("in the backlog", left or None, "neither lost nor delivered", left),
        ("duplicates", result.duplicates, _duplicate_causes(result), 0),
        ("delivered again", result.redelivered or None, "the kill hit before its completion", 0),
        ("diverted", result.diverted, f"{result.twinned:,} of them to twins", 0),
        ("sends that raised", result.caller_errors, "the caller saw an error", 0),
    )
    for name, number, meaning, bad in numbers:
        if number is not None:
            yield NumberRow(name, f"{number:,}", meaning, is_bad=bool(bad))
    speed = f"{result.drain_rate or 0:,.0f} messages a second, by Spark"
    kill = f"from the kill; the failover interval is {plan.failover_interval_s:g} s"
    back = f"from the primary's return; a ping every {plan.ping_interval_s:g} s"
    twins, others = _paths(result)
    gap = "longest time without a message after the kill;"
    times = (
        ("receive gap", result.receive_gap_s, f"{gap} {twins}, which have twins"),
        ("without a twin", result.backlog_receive_gap_s, f"{gap} {others}, from the backlog"),
        ("time to fail over", result.failover_s, kill),
        ("time to recover", result.recover_s, back),
        ("drain", result.drain_s, "there was no backlog" if result.drain_rate is None else speed),
    )
    for name, seconds, meaning in times:
        yield NumberRow(name, "–" if seconds is None else f"{seconds:.1f} s", meaning)
    bill = result.report.charges.bill
    settled = "counted" if bill.settlement_counted else "not counted"
    yield NumberRow(
        "operations",
        f"{bill.units:,}",
        f"of 64 KB, as Azure bills; settlement {settled}; receives as the receivers recorded them",
    )
    yield NumberRow(
        "money",
        money(bill.amount_past_free, bill.currency),
        f"once the month's free operations are used up ({bill.price_book})",
    )


def _duplicate_causes(result: DrillResult) -> str:
    if not result.duplicates:
        return "received more than once"
    windows = result.report.conservation.duplicate_windows.items()
    others = [(name, count) for name, count in windows if name != REDELIVERED]
    return "; ".join(f"{count:,}: {DUPLICATE_CAUSES.get(name, name)}" for name, count in others)


def _bill(result: DrillResult) -> Table:
    bill = result.report.charges.bill
    return replace(
        by_kind_table(result.report.charges),
        title="The bill",
        note=(
            f"{bill.units:,} units: {money(bill.amount_past_free, bill.currency)} once the month"
            f" has used up its free operations, {money(bill.amount, bill.currency)} if these were"
            f" its only ones. Settlement is {'' if bill.settlement_counted else 'not '}counted."
            f" Prices: {bill.price_book}. Receives are those that the receivers recorded; twinbus"
            " report charges counts those of the broker, with messages that were given back."
        ),
        in_text=False,
    )


def _comparison(result: DrillResult) -> Iterator[str]:
    """Sentences about the known outage that a drill stands for, and Geo-Replication in it."""
    outage = known_outage(result.plan.stands_for or "")
    if outage is None:
        return
    plan, book = result.plan, standard()
    length = duration(outage.length_s)
    yield f"{outage.when}: {length}, played {KNOWN_OUTAGE_SPEED:,} times faster. {outage.source}."
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


def _run(result: DrillResult) -> Iterator[str]:
    plan = result.plan
    outage = plan.stands_for or f"{plan.outage_s:g}"
    yield (
        f"twinbus drill --messages {plan.messages} --senders {plan.senders}"
        f" --outage {outage} --failover-interval {plan.failover_interval_s:g}"
        f" --ping-interval {plan.ping_interval_s:g} --queues {plan.backlog_queues}"
        + (" --gateway" if plan.gateway else "")
        + (f" --like {plan.like}" if plan.like else "")
    )
    took = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in result.took_s.items())
    records = result.report.conservation.scope.records
    yield f"Twinbus {result.version}; {records:,} records in the ledger; {took}"
