"""What a status says of receivers, processors and twins, and when that needs attention."""

from __future__ import annotations

from tests.unit.status.statuses import NOW, entity, status
from tests.unit.status.test_document import sent
from twinbus.status.document import TwinContents, TwinStatus
from twinbus.status.judgement import Severity, judgement_of
from twinbus.status.reading import read_status
from twinbus.status.receiving import (
    LATE_S,
    ProcessorStatus,
    ReceiverStatus,
    ReceivingSideStatus,
    only_counts,
    summed_processors,
    summed_receivers,
)
from twinbus.status.twins import STALE_S, twin_rows, twins_text

HERE = ReceivingSideStatus(states={"open": 1}, delivered=5, reopened=2, silent=1)
LOST = ReceivingSideStatus(states={"reconnecting": 1}, since_s=70.0, error="refused", delivered=2)
NOT_READ = ReceivingSideStatus(states={"not read": 1}, error="no mark")


def receiver(path: str = "orders", **sides: ReceivingSideStatus) -> ReceiverStatus:
    return ReceiverStatus(path=path, sides=sides, buffered=1, handed_out=4, second_copies=1)


def concerns(**parts: object) -> list[tuple[str, str]]:
    found = judgement_of(status(entity("orders"), **parts), NOW).concerns
    assert all(one.severity is Severity.ATTENTION for one in found)
    return [(one.kind, one.text) for one in found]


def test_receivers_of_one_entity_are_one_row() -> None:
    many = [receiver(primary=HERE, secondary=HERE)] * 3 + [receiver(primary=LOST)]
    row = summed_receivers("orders", many)
    assert row.receivers == 4
    assert row.sides["primary"] == ReceivingSideStatus(
        states={"reconnecting": 1, "open": 3}, since_s=70.0, error="refused",
        delivered=17, reopened=6, silent=3,
    )  # fmt: skip
    assert row.sides["primary"].state == "reconnecting"
    assert str(row.sides["primary"]) == "1 reconnecting for 1 min 10 s, 3 open"
    assert row.sides["secondary"].states == {"open": 3}
    assert (row.buffered, row.handed_out, row.second_copies) == (4, 16, 4)


def test_a_closed_receiver_leaves_its_counts_and_nothing_else() -> None:
    closed = only_counts(receiver(primary=LOST))
    assert (closed.receivers, closed.buffered, closed.handed_out) == (0, 0, 4)
    assert closed.sides["primary"] == ReceivingSideStatus(delivered=2)
    row = summed_receivers("orders", [closed, receiver(primary=HERE)])
    assert row.receivers == 1
    assert row.sides["primary"].states == {"open": 1}
    assert row.sides["primary"].error == ""
    assert str(closed.sides["primary"]) == "closed"


def test_a_link_that_is_missing_for_a_minute_needs_attention() -> None:
    for lost_s, is_told in ((LATE_S - 0.1, False), (LATE_S, True)):
        side = ReceivingSideStatus(states={"reconnecting": 1}, since_s=lost_s, error="refused")
        rows = {path: receiver(path, primary=side, secondary=HERE) for path in ("a", "b")}
        said = "receivers of a, b have no link to the primary for more than 1 min 0 s: refused"
        assert concerns(receivers=rows) == ([("receivers", said)] if is_told else [])


def test_a_twin_that_is_not_read_needs_attention_at_once() -> None:
    rows = {"orders": receiver(primary=HERE, secondary=NOT_READ)}
    assert concerns(receivers=rows) == [
        ("receivers", "receivers of orders do not read the secondary: no mark")
    ]


def test_a_processor_that_ended_by_itself_needs_attention_until_one_runs_again() -> None:
    ended = ProcessorStatus(path="orders", handled=3, failed=1, error="PairFaultedError: gone")
    assert concerns(processors={"orders": ended}) == [
        ("processors", "the processor of orders has ended: PairFaultedError: gone")
    ]
    again = ProcessorStatus(path="orders", running=1, concurrency=8, handling=2, handled=4)
    row = summed_processors("orders", [ended, again])
    assert row == ProcessorStatus(
        path="orders", running=1, concurrency=8, handling=2, handled=7, failed=1
    )
    assert concerns(processors={"orders": row}) == []
    assert str(row) == "processor of orders: 2 of 8 handlers run; 7 handled, 1 failed"


def test_a_twin_that_the_options_name_and_that_is_not_used_needs_attention() -> None:
    def twin(**facts: object) -> list[tuple[str, str]]:
        one = entity("events", twin=TwinStatus("not used", "no mark", **facts))  # type: ignore[arg-type]
        found = judgement_of(status(one), NOW).concerns
        return [(concern.kind, concern.text) for concern in found]

    said = "the twin of events: not used (no mark); what is diverted goes to the backlog"
    assert twin(named=True) == [("twins", said)]
    assert twin() == [], "a pattern may match an entity that has no twin"


def test_a_row_of_a_twin_is_green_only_if_its_mark_was_read() -> None:
    rows = twin_rows(
        status(
            entity("read", twin=TwinStatus("in use", verified=True)),
            entity("named", twin=TwinStatus("in use")),
            entity("pulled", twin=TwinStatus("pulled", "full", 3.0, verified=True)),
            entity("Listed", twin=TwinStatus("in use")),
            twins={
                "listed": TwinContents(waiting=7, active=4, scheduled=2, deferred=1),
                "old": TwinContents(waiting=9, listed_s=STALE_S),
                "late/Subscriptions/a": TwinContents(waiting=1, waits_s=1_000.0),
                "unknown": TwinContents(),
            },
        )
    )
    found = {row.path: (row.level, row.waiting, row.words) for row in rows}
    assert found == {
        "listed": ("healthy", 7, "in use"),
        "late/Subscriptions/a": ("attention", 1, "not checked here"),
        "read": ("healthy", None, "in use"),
        "named": ("none", None, "in use, not verified"),
        "pulled": ("attention", None, "pulled: full"),
        "unknown": ("none", None, "not checked here, not verified"),
    }
    assert rows[0].path == "listed", "what holds the most comes first"
    assert (rows[0].active, rows[0].scheduled, rows[0].deferred) == (4, 2, 1)


def test_what_is_not_known_is_never_said_to_be_nothing() -> None:
    assert twins_text({"orders": TwinContents()}) == "it is not known what orders holds"
    old = {"orders": TwinContents(waiting=5, listed_s=STALE_S), "events": TwinContents(waiting=2)}
    assert twins_text(old) == "2 messages wait in twins; it is not known what orders holds"


def test_a_status_with_receivers_is_the_same_after_its_journey() -> None:
    found = status(
        receivers={"orders": receiver(primary=LOST, secondary=HERE)},
        processors={"orders": ProcessorStatus(path="orders", running=1)},
        twins={"orders": TwinContents(waiting=None, listed_s=3.0)},
    )
    assert read_status(sent(found)) == found
    lines = str(found).splitlines()
    assert lines[-2:] == [
        (
            "  1 receiver of orders: primary 1 reconnecting for 1 min 10 s, 2 received (refused);"
            " secondary 1 open, 5 received, opened again 2 times; 4 handed out; 1 second copies"
            " not handed out"
        ),
        "  processor of orders: 0 of 0 handlers run; 0 handled, 0 failed",
    ]
