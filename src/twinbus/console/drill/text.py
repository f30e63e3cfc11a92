"""A drill's result in a person's words and as rows of a table: for the terminal and for the page.

The words say what happened to somebody who was not there, and never more than the result knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.console.terminal.table import money

if TYPE_CHECKING:
    from twinbus.console.drill.result import DrillPlan, DrillResult
    from twinbus.pipeline.report import Bill

__all__ = [
    "CAUSES",
    "WINDOWS",
    "Row",
    "cause_name",
    "headline",
    "missing",
    "rate",
    "rows",
    "story",
]

IDS_SHOWN: Final = 20
"""Ids that a person reads; drill.json has more."""

FEW: Final = 10

CAUSES: Final = {
    "application": "sends to the primary",
    "failover": "sends to the backlog",
    "ping": "pings",
    "syphon": "syphon: receive, forward, complete",
    "poll": "syphon: polls that found nothing",
    "administration": "administration",
    "consumer": "receivers: receive, complete",
}
"""The ledger's causes in the order in which a message meets them."""

WINDOWS: Final = {
    "ambiguous": "a send that had no answer was done again elsewhere",
    "syphon": "the syphon forwarded it twice",
    "unexplained": "the ledger does not say why",
}


class Row(NamedTuple):
    """One line of the table."""

    name: str
    value: str
    meaning: str
    is_bad: bool = False


def headline(result: DrillResult) -> str:
    """The answer in a few words."""
    if result.lost:
        return f"{_counted(result.lost, 'message')} lost"
    if result.not_received:
        return f"{_counted(result.not_received, 'message')} not received"
    if result.doubts:
        return "Nothing is proved"
    return "Nothing was lost"


def story(result: DrillResult) -> list[str]:
    """What happened, one sentence each."""
    return list(_story(result))


def missing(result: DrillResult) -> list[str]:
    """Lines that name what is not as it should be; empty when all is well."""
    return list(_missing(result))


def rows(result: DrillResult) -> list[Row]:
    """The numbers of the drill with what each of them means."""
    return list(_rows(result))


def cause_name(cause: str) -> str:
    """A cause of the ledger as a person says it."""
    return CAUSES.get(cause, cause)


def rate(plan: DrillPlan) -> str:
    """Messages a second, with a digit more where there are few."""
    return f"{plan.rate:.0f}" if plan.rate >= FEW else f"{plan.rate:.1f}"


def _story(result: DrillResult) -> Iterator[str]:
    plan, tables = result.plan, result.tables
    down_s = (result.moments.back_ms - result.moments.killed_ms) / 1000
    yield (
        f"{_counted(plan.senders, 'sender')} sent {plan.messages:,} messages at"
        f" {rate(plan)} a second; the primary was killed with SIGKILL after"
        f" {plan.kill_after_s:.0f} s and was down for {down_s:.1f} s."
    )
    if result.failover_s is None:
        yield "No entity failed over: the outage was shorter than the failover interval."
    else:
        yield (
            f"Its entities failed over {result.failover_s:.1f} s after the kill, and"
            f" {_counted(tables.diverted, 'message')} went to"
            f" {_counted(plan.backlog_queues, 'backlog queue')} in the secondary."
        )
    yield _errors(result)
    if result.recover_s is not None:
        yield f"The ping found the primary {result.recover_s:.1f} s after it was back."
    if result.drain_s is not None:
        pace = "" if result.drain_rate is None else f", {result.drain_rate:,.0f} a second"
        yield (
            f"Spark brought {_counted(tables.forwarded, 'message')} home in"
            f" {result.drain_s:.1f} s{pace}."
        )
    yield (
        f"The receivers got {tables.received or 0:,} of {tables.accepted:,} accepted messages:"
        f" {result.lost:,} lost, {_counted(tables.duplicates, 'duplicate')}."
    )


def _errors(result: DrillResult) -> str:
    if result.caller_errors:
        raised = _counted(result.caller_errors, "send")
        return f"{raised} raised an error, so their callers know."
    return "No send raised an error: the callers did not notice."


def _missing(result: DrillResult) -> Iterator[str]:
    if result.lost:
        ids = result.lost_ids
        more = result.lost - min(len(ids), IDS_SHOWN)
        tail = f" and {more:,} more, see drill.json" if more > 0 else ""
        yield f"lost: {', '.join(ids[:IDS_SHOWN])}{tail}"
    left = result.not_received - result.lost
    if left:
        yield f"still in the backlog: {_counted(left, 'message')}; the drain did not end its work"
    yield from (f"not proved: {doubt}" for doubt in result.doubts)


def _rows(result: DrillResult) -> Iterator[Row]:
    tables, plan = result.tables, result.plan
    left = result.not_received - result.lost
    yield Row("accepted", f"{tables.accepted:,}", "send_messages returned")
    yield Row("delivered", f"{tables.delivered:,}", "the primary acknowledged it")
    yield Row(
        "received",
        f"{tables.received or 0:,}",
        "a plain SDK receiver got it",
        is_bad=bool(result.not_received),
    )
    yield Row(
        "lost", f"{result.lost:,}", "accepted, and nowhere to be found", is_bad=bool(result.lost)
    )
    if left:
        yield Row("in the backlog", f"{left:,}", "not lost, not delivered either", is_bad=True)
    yield Row("duplicates", f"{tables.duplicates:,}", _why_twice(result))
    yield Row("diverted", f"{tables.diverted:,}", "went to a backlog queue first")
    yield Row("sends that raised", f"{result.caller_errors:,}", "the caller saw an error")
    yield Row(
        "time to fail over",
        _seconds(result.failover_s),
        f"from the kill; the failover interval is {plan.failover_interval_s:g} s",
    )
    yield Row(
        "time to recover",
        _seconds(result.recover_s),
        f"from the primary's return; a ping every {plan.ping_interval_s:g} s",
    )
    yield Row("drain", _seconds(result.drain_s), _drain(result))
    yield from _bill(tables.bill)


def _drain(result: DrillResult) -> str:
    if result.drain_rate is None:
        return "there was no backlog"
    return f"{result.drain_rate:,.0f} messages a second, by Spark"


def _why_twice(result: DrillResult) -> str:
    if not result.tables.duplicates:
        return "received more than once"
    windows = result.tables.duplicate_windows.items()
    return "; ".join(f"{count:,}: {WINDOWS.get(name, name)}" for name, count in windows)


def _bill(bill: Bill) -> Iterator[Row]:
    settled = "counted" if bill.settlement_counted else "not counted"
    yield Row("operations", f"{bill.units:,}", f"of 64 KB, as Azure bills; settlement {settled}")
    yield Row(
        "money",
        money(bill.amount_past_free, bill.currency),
        f"once the month's free operations are used up ({bill.price_book})",
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
