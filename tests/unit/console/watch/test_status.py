"""A pair's status as a tired person reads it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.unit.status.statuses import NOW, QUEUE, entity, queue, side, status
from twinbus.console.output import aligned
from twinbus.console.watch.receiving import ROWS_MAX
from twinbus.console.watch.status import PairView, entity_line, render, summary
from twinbus.control.protocol import HostCard
from twinbus.status.document import PairStatus, SyphonQueueStatus, TwinContents, TwinStatus
from twinbus.status.fleet import FleetStatus
from twinbus.status.judgement import Severity, judgement_of
from twinbus.status.receiving import ProcessorStatus, ReceiverStatus, ReceivingSideStatus
from twinbus.wording import duration, size, visible

CARD = HostCard("pair", "contoso", 4711, "app.py")
READY = "2 backlog queues can take over, verified 2 min ago"


def view(found: PairStatus) -> PairView:
    return PairView(CARD, 3_700.0, found, judgement_of(found, NOW))


def attention(found: PairStatus) -> list[str]:
    return view(found).judgement.attention


def test_a_healthy_pair_is_a_few_lines() -> None:
    lines = render(view(status(entity("orders", sent=1_200), entity("events"))))
    assert lines == [
        "contoso  sb://contoso -> sb://contoso-dr  pid 4711 (app.py), up 1 h 1 min",
        "  all entities are healthy",
        f"  sends are safe: the primary takes them, {READY}",
        "",
        "  ENTITY  STATE    FOR   SENT  DIVERTED  RAISED  REASON",
        "  events  healthy           0         0       0",
        "  orders  healthy       1,200         0       0",
        "",
        "  backlog queues: 2 of 2 in rotation",
        "    depth: not measured here, `twinbus backlog list` asks the secondary",
        "  syphon: not running in this process",
    ]


def test_what_could_not_be_verified_for_lack_of_a_right_is_said_once() -> None:
    unknown = ["sessions", "forwarding"]
    queues = {name: queue(not_verified=unknown) for name in ("one", "two")}
    document = status(entity("orders"), backlog_queues=queues, backlog_waiting=1_234)
    lines = render(view(document))
    assert lines[-4:-1] == [
        "  backlog queues: 2 of 2 in rotation",
        "    depth: 1,234 messages",
        "    not verified, for lack of a right: sessions, forwarding",
    ]


def test_trouble_comes_first_and_one_error_of_many_entities_is_said_once() -> None:
    refused = "ServiceBusConnectionError: refused"
    down: dict[str, Any] = {
        "state": "failed over",
        "since_s": 240.0,
        "reason": "no success for 60 s",
    }
    document = status(
        entity("a-quiet-one"),
        entity("orders", **down, last_error=refused, sent=7, diverted=3, raised=1),
        entity("payments", **down, last_error=refused, forced=True),
        entity("gone", "unusable", reason="not found", last_error="404"),
        entity("held", frozen=True),
    )
    kinds = [(one.kind, one.severity) for one in view(document).judgement.concerns]
    assert kinds == [
        ("unusable", Severity.RAISES),
        ("frozen", Severity.EXPOSED),
        ("failed over", Severity.ATTENTION),
    ]
    lines = render(view(document))
    assert lines[1:4] == [
        "  ! unusable: gone",
        "  ! frozen by hand: held",
        "  ! failed over: orders, payments",
    ]
    assert lines[4].startswith("  ! sends are NOT safe: those to gone raise until")
    table = [line.split()[0] for line in lines if line.startswith("  ") and "healthy" in line]
    assert lines[7].split()[:2] == ["gone", "UNUSABLE"]
    assert "FAILED OVER, FORCED" in lines[9]
    assert " 4 min 0 s " in lines[8]
    assert lines[8].split()[-8:-5] == ["7", "3", "1"]
    assert table == ["a-quiet-one", "held"]
    assert f"  last error of orders, payments: {refused}" in lines
    assert sum(refused in line for line in lines) == 1


def test_thousands_of_healthy_entities_do_not_hide_the_one_in_trouble() -> None:
    many = [entity(f"queue-{number:05}") for number in range(10_000)]
    document = status(*many, entity("zebra", "suspect", reason="a send failed"))
    lines = render(view(document))
    assert len(lines) < 40
    assert any("zebra" in line and "SUSPECT" in line for line in lines)
    assert "  and 9,980 more healthy entities; --all lists them" in lines
    assert len(render(view(document), show_all=True)) > 10_000


def test_queues_out_of_use_and_the_syphons_obstacles_say_why() -> None:
    document = status(
        entity("orders"),
        backlog_queues={
            QUEUE: queue(),
            "contoso/x-servicebus-transfer/1": queue("pulled", reason="full", returns_in_s=20.4),
        },
        syphon={
            QUEUE: SyphonQueueStatus(
                completed=1_500,
                in_flight=2,
                held={"orders": "disabled"},
                problems={"primary": "refused"},
            )
        },
    )
    lines = render(view(document))
    assert lines[-6:] == [
        "  backlog queues: 1 of 2 in rotation",
        "    contoso/x-servicebus-transfer/1  pulled, back in 20 s: full",
        "    depth: not measured here, `twinbus backlog list` asks the secondary",
        "  syphon: 1,500 forwarded, 2 in flight, 0 dead-lettered",
        "    primary: refused",
        "    orders: disabled",
    ]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (status(protected=False), "UNPROTECTED"),
        (status(sides=side("faulted", "gone")), "primary is faulted"),
        (
            status(verification_error="q/0: refused TrackingId:a_B"),
            "NOT protected: no backlog queue answers (q/0: refused), last verified 2 min ago",
        ),
        (
            status(verification_error="refused", verified_at=None),
            "NOT protected: no backlog queue answers (refused), never verified",
        ),
        (status(ledger_unrecorded=12), "ledger could not record 12"),
        (status(entity("x", "suspect")), "suspect: x"),
        (status(syphon={"q/0": SyphonQueueStatus(paused=True)}), "the syphon is paused"),
    ],
)
def test_what_needs_attention(document: PairStatus, said: str) -> None:
    assert any(said in line for line in attention(document))
    assert summary([view(document)]) == "1 pair, attention needed in 1"
    assert attention(status(entity("orders"))) == []
    assert summary([view(status()), view(status())]) == "2 pairs, all healthy"


def test_an_entity_whose_calls_raise_is_not_shown_as_healthy() -> None:
    gone = "MessagingEntityNotFoundError: $cbs: no payments. TrackingId:a_B, Timestamp:2026-11-17"
    document = status(
        entity("orders", sent=9),
        entity("payments", raised=201, raising=201, raising_reason=gone),
        entity("events", "suspect", reason="a send failed", raising=1, raising_reason=gone),
    )
    lines = render(view(document))
    plain = "MessagingEntityNotFoundError: no payments"
    why = f"(202 calls in the last minute: {plain})"
    assert lines[1:4] == [
        f"  ! raising: payments, events {why}",
        "  ! suspect: events",
        f"  ! sends are NOT safe: those to payments, events raise {why}",
    ]
    assert lines[6].split()[:3] == ["events", "SUSPECT,", "RAISING"]
    assert lines[7].split()[:2] == ["payments", "RAISING"]
    assert lines[7].endswith("201 calls raised in the last minute")
    assert f"  last error of events, payments: {plain}" in lines
    assert summary([view(document)]) == "1 pair, attention needed in 1"


def test_an_unhealthy_entity_says_what_comes_next_and_when_its_error_was() -> None:
    at = datetime(2026, 11, 16, 3, 4, 5).astimezone()
    failed = {"last_error": "Connection refused", "last_error_at": at.timestamp()}
    document = status(
        entity("orders", "suspect", reason="a send failed", fails_over_in_s=42.9, **failed),
        entity("events", "failed over", reason="forced", forced=True, next_ping_in_s=7.2),
        entity("bills", "failed over", reason="forced", forced=True, next_ping_in_s=0.0),
    )
    text = "\n".join(render(view(document)))
    assert "a send failed, fails over in 42 s\n" in text
    assert "forced, next ping in 7 s\n" in text
    assert "forced, pinging now\n" in text
    assert "last error of orders (2026-11-16 03:04:05): Connection refused" in text


def test_queues_of_a_lost_secondary_are_not_said_to_be_in_rotation() -> None:
    why = "the secondary cannot be reached: refused"
    paths = [f"contoso/x-servicebus-transfer/{number}" for number in range(4)]
    lines = render(view(status(backlog_queues={path: queue(reason=why) for path in paths})))
    assert lines[-4:-2] == [
        "  backlog queues: 0 of 4 in rotation",
        f"    contoso/x-servicebus-transfer/{{0,1,2,3}}  {why}",
    ]


LOST = {"one": queue(reason="the secondary cannot be reached: refused")}


@pytest.mark.parametrize(
    ("document", "is_safe", "said"),
    [
        (
            status(entity("x", "failed over")),
            True,
            "those to x go to the backlog; 2 backlog queues can take over, verified 2 min ago",
        ),
        (
            status(entity("x", "failed over"), entity("y")),
            True,
            "those to x go to the backlog; the primary takes the rest, 2 backlog queues can",
        ),
        (status(verified_at=None), True, "2 backlog queues can take over, not verified yet"),
        (status(verified_at=NOW - 3), True, "can take over, verified less than 1 min ago"),
        (status(verified_at=NOW - 7_300), True, "can take over, verified 2 h 1 min ago"),
        (status(verification_error="refused"), False, "no backlog queue can be used now"),
        (status(entity("x", "failed over", frozen=True)), True, "those to x go to the backlog"),
        (
            status(
                entity("x", "failed over", twin=TwinStatus("in use", verified=True)),
                entity("y", "failed over", twin=TwinStatus("not used", "no mark")),
            ),
            True,
            "those to x go to their twins; those to y go to the backlog",
        ),
        (
            status(entity("x", "suspect", fails_over_in_s=42.0)),
            True,
            "those to x are retried, and diverted within 42 s (a call whose timeout ends before",
        ),
        (status(entity("x", "unusable")), False, "those to x raise until a ping is answered"),
        (status(entity("x", frozen=True)), False, "those to x depend on the primary alone until"),
        (status(protected=False), False, "because there is no backlog queue"),
        (status(backlog_queues=LOST), False, "no backlog queue can be used now"),
        (status(faulted="gone"), False, "every call raises (gone)"),
        (
            status(sides=side("closed", "closed by hand")),
            False,
            "every call raises (the primary is closed)",
        ),
    ],
)
def test_one_line_says_whether_sends_are_safe(
    document: PairStatus, is_safe: bool, said: str
) -> None:
    judgement = view(document).judgement
    text = judgement.sends
    assert judgement.is_safe is is_safe
    assert judgement.is_safe or judgement.concerns, "what is not safe must not exit with 0"
    assert text.startswith("sends are safe: " if is_safe else "sends are NOT safe: ")
    assert said in text
    assert any(line.endswith(text) for line in render(view(document)))


def test_receivers_processors_and_twins_have_tables_of_their_own() -> None:
    lost = ReceivingSideStatus(states={"reconnecting": 1, "open": 2}, since_s=12.0, error="refused")
    here = ReceivingSideStatus(states={"open": 3}, reopened=4, silent=1)
    found = status(
        entity("orders", twin=TwinStatus("in use", verified=True)),
        receivers={
            "orders": ReceiverStatus(
                path="orders", receivers=3, sides={"primary": lost, "secondary": here},
                handed_out=1_204, second_copies=2,
            )
        },
        processors={
            "orders": ProcessorStatus(path="orders", running=1, concurrency=8, handling=3)
        },
        twins={"events/Subscriptions/a": TwinContents(
            topic="events", waiting=5, active=4, scheduled=1, deferred=0, consumers_only="x")},
        syphon={},
    )  # fmt: skip
    lines = render(view(found))
    start = lines.index("", lines.index("  backlog queues: 2 of 2 in rotation"))
    assert lines[start - 1] == (
        "    5 messages wait in twins; only consumers empty events/Subscriptions/a (5, x)"
    )
    assert [line.split() for line in lines[start + 1 :] if line] == [
        "RECEIVED FROM RECEIVERS PRIMARY TWIN HANDED OUT SECOND COPIES REOPENED OF THEM SILENT"
        " REASON".split(),
        "orders 3 1 reconnecting for 12 s, 2 open 3 open 1,204 2 4 1 refused".split(),
        "PROCESSOR RUNNING HANDLING OF HANDLED FAILED DEAD-LETTERED REASON".split(),
        "orders 1 3 8 0 0 0".split(),
        "TWIN ACTIVE SCHEDULED DEFERRED EMPTIED BY STATE".split(),
        "events/Subscriptions/a 4 1 0 its consumers not checked here".split(),
        "orders – – – in use".split(),
    ]


def test_a_table_of_many_receivers_is_cut_and_says_so() -> None:
    rows = {f"queue-{n}": ReceiverStatus(path=f"queue-{n}") for n in range(ROWS_MAX + 2)}
    assert render(view(status(receivers=rows)))[-1] == "  and 2 more rows"


def test_a_steered_entity_is_one_line() -> None:
    steered = entity("orders", "failed over", forced=True, frozen=True)
    assert entity_line(steered) == "orders: failed over, forced, frozen"


def test_foreign_text_cannot_rule_the_terminal() -> None:
    hostile = entity("or\x1b[2Jders\nall is well", "suspect", last_error="\x07\u202eevil")
    text = "\n".join(render(view(status(hostile))))
    assert not any(sign in text for sign in "\x1b\x07\u202e")
    assert visible("a\tb\n c") == "a b c"


def test_durations_sizes_and_columns() -> None:
    spans = (0, 59.9, 60, 3_599, 3_600, 90_000)
    words = ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "1 d 1 h"]
    assert [duration(span) for span in spans] == words
    assert [size(count) for count in (0, 1_023, 1_024, 5 * 2**20, 3 * 2**30)] == [
        "0 B",
        "1023 B",
        "1.0 KB",
        "5.0 MB",
        "3.0 GB",
    ]
    assert aligned([["a", "12"], ["bbb", "7", "x"]], right={1}) == ["a    12", "bbb   7  x"]


def test_who_says_so_and_who_pings_is_in_the_row_of_the_entity() -> None:
    said, by = "4 other hosts since 17:00:12 UTC", "another host"
    down = entity("orders", "failed over", evidence=said, pinger=by, next_ping_in_s=7.0)
    lines = render(view(status(down, fleet=FleetStatus(hosts=4))))
    assert f"  ! failed over: orders (also: {said})" in lines
    assert any(f"also: {said}, next ping in 7 s, pinged by {by}" in line for line in lines)
    assert lines[-1] == "  4 other hosts on the notice board"
