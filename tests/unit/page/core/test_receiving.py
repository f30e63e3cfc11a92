"""The page's rows about receivers, processors and twins."""

from __future__ import annotations

import json

from tests.unit.page.asgi import answer
from tests.unit.status.statuses import NOW, entity, status
from twinbus.page.core.model import ShownPair, ShownReceiver, as_json
from twinbus.page.core.receiving import ROWS_MAX
from twinbus.page.core.view import Board
from twinbus.status.document import PairStatus, TwinContents, TwinStatus
from twinbus.status.receiving import ProcessorStatus, ReceiverStatus, ReceivingSideStatus

OPEN = ReceivingSideStatus(states={"open": 2}, delivered=9, reopened=1, silent=1)


def lost(since_s: float) -> ReceivingSideStatus:
    return ReceivingSideStatus(states={"reconnecting": 1}, since_s=since_s, error="refused")


def receiver(**sides: ReceivingSideStatus) -> dict[str, ReceiverStatus]:
    return {"orders": ReceiverStatus(path="orders", receivers=2, sides=sides, handed_out=7)}


def shown(board: Board) -> ShownPair:
    (pair,) = board.table.pairs.values()
    return pair


def rows(found: PairStatus) -> dict[str, ShownReceiver]:
    board = Board(host="web-1")
    board.observe([answer(found)], NOW)
    json.dumps(shown(board), default=as_json)
    return {row.path: row for row in shown(board).receiving}


def test_a_queue_with_receivers_a_processor_and_a_twin_is_one_row() -> None:
    found = rows(
        status(
            entity("orders", twin=TwinStatus("in use", verified=True)),
            receivers=receiver(primary=OPEN, secondary=OPEN),
            processors={
                "orders": ProcessorStatus(path="orders", running=1, concurrency=8, handling=3)
            },
            twins={"orders": TwinContents(waiting=6, active=3, scheduled=2, deferred=1)},
        )
    )
    assert found == {
        "orders": ShownReceiver(
            path="orders", level="healthy", receivers=2, primary="2 open", secondary="2 open",
            handed_out=7, reopened=2, silent=2,
            processor="3 of 8 handlers run; 0 handled, 0 failed",
            twin="in use", waiting=6, contents="3 active, 2 scheduled, 1 deferred",
            emptied_by="its consumers, the syphon",
        )
    }  # fmt: skip


def test_a_row_is_green_only_over_what_was_verified() -> None:
    open_sides = receiver(primary=OPEN, secondary=OPEN)
    unread = entity("orders", twin=TwinStatus("in use"))
    assert rows(status(unread, receivers=open_sides))["orders"].level == "none"
    assert rows(status(unread))["orders"].twin == "in use, not verified"
    assert rows(status(unread))["orders"].waiting is None
    assert rows(status(receivers=open_sides))["orders"].level == "healthy"
    waiting = ReceivingSideStatus(states={"waiting": 1})
    assert rows(status(receivers=receiver(primary=waiting)))["orders"].level == "none"
    away = rows(status(receivers=receiver(primary=lost(5.0), secondary=OPEN)))["orders"]
    assert (away.level, away.reason, away.since) == ("attention", "refused", NOW - 5.0)


def test_a_receiver_that_stays_away_does_not_change_the_document_every_second() -> None:
    board, versions = Board(host="web-1"), []
    for second in range(3):
        found = status(receivers=receiver(primary=lost(5.0 + second)))
        board.observe([answer(found, second)], NOW + second)
        versions.append(dict(board.table.versions))
    assert versions[2] == versions[0]
    assert shown(board).receiving[0].since == NOW - 5.0


def test_many_rows_are_cut_and_the_worst_come_first() -> None:
    many = {f"queue-{n:04}": ReceiverStatus(path=f"queue-{n:04}") for n in range(ROWS_MAX)}
    found = rows(status(receivers={**many, **receiver(primary=lost(1.0))}))
    assert len(found) == ROWS_MAX
    assert next(iter(found)) == "orders"


def test_a_pair_that_is_gone_receives_nothing() -> None:
    board = Board(host="web-1")
    board.observe([answer(status(receivers=receiver(primary=OPEN)))], NOW)
    board.observe([], NOW + 1)
    assert shown(board).receiving == []
