"""Backlog queues and their messages as tables."""

from __future__ import annotations

from typing import Any

from twinbus.console.backlog import commands as backlog
from twinbus.console.backlog.queue_contents import QueueContents
from twinbus.console.doctor.rights import Finding, Level, document, line_of, verdict
from twinbus.pairing.core.backlog import BacklogDescription, drift_of
from twinbus.pairing.sdk.administration import Findings

WHERE = "sb://contoso-dr"


def stock(index: int = 0, **changes: Any) -> QueueContents:
    settings: dict[str, Any] = {
        "path": f"contoso/x-servicebus-transfer/{index}",
        "label": "contoso",
        "index": index,
        "active": 0,
        "scheduled": 0,
        "deferred": 0,
        "dead_lettered": 0,
        "size_bytes": 0,
        "max_size_mb": 5_120,
        "drift": (),
    }
    return QueueContents(**{**settings, **changes})


def message(number: int, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "queue": "contoso/x-servicebus-transfer/0",
        "sequence_number": number,
        "state": "active",
        "path": "orders",
        "message_id": f"id-{number}",
        "session_id": None,
        "time_to_live_s": None,
        "scheduled_at": None,
        "enqueued_at": None,
        "age_s": 61.0,
        "body_bytes": 5,
        "delivery_count": 0,
        "problem": "",
    }
    return {**settings, **changes}


def test_the_list_counts_and_names_drift() -> None:
    unsafe = drift_of(BacklogDescription(requires_session=True))
    lines = backlog.queue_lines(
        [
            stock(0, active=1_200, scheduled=3, deferred=4, size_bytes=2_048, oldest_age_s=90.0),
            stock(1, dead_lettered=2, drift=unsafe),
        ],
        WHERE,
    )
    assert lines[0].split() == (
        "BACKLOG QUEUE ACTIVE SCHEDULED DEFERRED DEAD SIZE OLDEST DRIFT".split()
    )
    assert lines[1].split()[1:5] == ["1,200", "3", "4", "0"]
    assert "UNSAFE" in lines[2]
    assert lines[4] == (
        f"{WHERE}: 2 backlog queues, 1,207 messages to forward, 2 dead-lettered"
        " (`twinbus backlog dead-letters`)"
    )
    assert "requires_session is True" in lines[5]
    assert "drained" in backlog.queue_lines([stock()], WHERE)[-1]


def test_peeked_messages_say_where_they_belong_or_what_is_wrong_with_them() -> None:
    found = [message(1), message(2, path=None, problem="no x-ms-path", message_id="x" * 99)]
    lines = backlog.message_lines(found, "a queue", 2)
    assert lines[1].split()[1:5] == ["1", "orders", "id-1", "1"]
    assert "?" in lines[2]
    assert "cannot be delivered: no x-ms-path" in lines[2]
    assert "x" * 99 not in lines[2]
    assert "--max 2 was reached" in lines[-1]
    assert "deferred" in backlog.message_lines([message(3, state="deferred")], "q", 20)[1]
    assert backlog.message_lines([], "q", 2) == ["no such messages in q"]


def test_what_became_of_each_queue_that_was_asked_for() -> None:
    made, there, unsafe, failed = (f"contoso/x-servicebus-transfer/{n}" for n in range(4))
    findings = Findings(
        usable=[made, there],
        drained=[made, there, unsafe],
        left_out={unsafe: "sessions", failed: "409"},
        created=[made],
    )
    states = [backlog.created_row(p, findings)[1] for p in (made, there, unsafe, failed)]
    assert states == ["created", "there", "UNSAFE", "FAILED"]
    rows = [backlog.created_row(p, findings) for p in (made, there, unsafe, failed)]
    lines = backlog.created_lines(rows, findings, WHERE)
    assert f"{WHERE}: 2 of 4 can be used, 1 created" in lines


def test_prune_keeps_what_holds_anything() -> None:
    assert backlog.fate(stock()) == "would be deleted"
    for held in ("active", "scheduled", "deferred", "dead_lettered"):
        assert "kept" in backlog.fate(stock(**{held: 1}))
    assert "1 of 2" in backlog.prune_lines([stock(4), stock(5, active=1)], "contoso", 4)[-1]
    assert "nothing to prune" in backlog.prune_lines([], "contoso", 4)[0]


def test_the_doctors_lines_and_verdict() -> None:
    good = Finding("sides", Level.OK, "two")
    odd = Finding("drift", Level.WARN, "some", "look at it")
    bad = Finding("right", Level.FAIL, "missing\nline two")
    skipped = Finding("ping", Level.SKIP, "not tried")
    assert line_of(odd) == f"warn  {'drift':<22}  some; look at it"
    assert "\n" not in line_of(bad)
    assert verdict([good]) == "fit to be paired: every check passed"
    assert verdict([good, odd]) == "fit to be paired: 1 warning"
    assert verdict([good, skipped]).startswith("no problem was found")
    assert verdict([good, bad, skipped]) == "not fit to be paired: 1 failed, 1 not checked"
    assert document([good, odd])["ok"] is True
    assert document([bad])["ok"] is False
