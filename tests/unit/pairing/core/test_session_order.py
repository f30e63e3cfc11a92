"""Which sessions are bound to the backlog: by a divert, until a look shows none of it."""

from __future__ import annotations

import pytest

from twinbus.client import lock_validity
from twinbus.pairing.core.backlog import LEASE_LOCK_S, lease_path, session_queue
from twinbus.pairing.core.session_order import (
    DOUBT_S,
    SHORT,
    WAIT_AGAIN_S,
    Diversion,
    QueueScan,
    SessionKey,
    SessionOrder,
)
from twinbus.servicebus.names import backlog_paths
from twinbus.syphon.lease import lease_address

PATHS = backlog_paths("contoso", 3)
KEY = SessionKey.of("Orders", "s1")
QUEUE = session_queue(PATHS, "orders", "s1")
OTHER = next(path for path in PATHS if path != QUEUE)


def read() -> SessionOrder:
    """An order whose queues were looked through and held nothing."""
    order = SessionOrder(PATHS)
    for queue in PATHS:
        order.finish_scan(order.begin_first_scan(queue, 0.0))
    return order


def bound(how: Diversion = Diversion.STORED, at: float = 10.0) -> SessionOrder:
    order = read()
    order.begin_divert(KEY)
    order.end_divert(KEY, how, at)
    return order


def looked(order: SessionOrder, now: float, *seen: tuple[str, str | None]) -> list[SessionKey]:
    look = QueueScan(QUEUE, now)
    order.add_page(look, seen)
    return order.finish_scan(look)


def test_a_session_is_bound_from_the_first_moment_of_its_first_divert() -> None:
    order = read()
    assert not order.is_bound(KEY)
    order.begin_divert(KEY)
    assert order.is_bound(KEY)
    assert order.is_bound(SessionKey.of("/ORDERS/", "s1")), "paths have no letter case"
    assert not order.is_bound(SessionKey.of("orders", "S1")), "sessions have"


@pytest.mark.parametrize(
    ("how", "is_bound"),
    [(Diversion.STORED, True), (Diversion.DOUBTFUL, True), (Diversion.REFUSED, False)],
)
def test_a_divert_binds_unless_nothing_was_stored(how: Diversion, is_bound: bool) -> None:
    order = bound(how)
    assert order.is_bound(KEY) is is_bound
    assert len(order) == int(is_bound)


def test_a_refused_divert_frees_nothing_that_was_bound_before() -> None:
    order = bound()
    order.begin_divert(KEY)
    order.end_divert(KEY, Diversion.REFUSED, 11.0)
    assert order.is_bound(KEY)


def test_a_look_that_shows_none_of_it_frees_a_session() -> None:
    order = bound(at=10.0)
    assert looked(order, 10.0, ("orders", "s2"), ("invoices", "s1"), ("orders", None)) == [KEY]
    assert not order.is_bound(KEY)


def test_a_look_that_shows_one_of_it_does_not() -> None:
    order = bound()
    assert looked(order, 20.0, ("ORDERS", "s1")) == []
    assert order.is_bound(KEY)


def test_a_look_that_began_before_the_last_divert_ended_does_not() -> None:
    order = bound(at=10.0)
    assert looked(order, 9.9) == []
    assert looked(order, 10.1) == [KEY]


def test_a_look_during_a_divert_does_not() -> None:
    order = bound()
    look = QueueScan(QUEUE, 20.0)
    order.begin_divert(KEY)
    assert order.finish_scan(look) == []
    order.end_divert(KEY, Diversion.STORED, 21.0)
    assert looked(order, 20.5) == []


def test_a_look_into_another_queue_does_not() -> None:
    order = bound()
    assert order.finish_scan(QueueScan(OTHER, 20.0)) == []


def test_a_divert_that_may_still_arrive_is_waited_for() -> None:
    order = bound(Diversion.DOUBTFUL, at=10.0)
    assert looked(order, 10.0 + DOUBT_S - 0.1) == []
    assert order.queues_to_scan(lambda _: True, 10.1) == []
    assert looked(order, 10.0 + DOUBT_S) == [KEY]


def test_only_queues_of_bound_sessions_whose_entity_is_back_are_looked_at() -> None:
    order = bound()
    assert order.queues_to_scan(lambda _: False, 20.0) == []
    assert order.queues_to_scan(lambda path: path == "orders", 20.0) == [QUEUE]
    order.begin_divert(KEY)
    assert order.queues_to_scan(lambda _: True, 20.0) == [], "a divert is in flight"


def test_sessions_that_an_earlier_process_left_are_bound_by_the_first_look() -> None:
    order = SessionOrder(PATHS)
    assert order.is_unscanned(QUEUE)
    assert not order.is_bound(KEY), "the secondary could not be reached: sends use the primary"
    look = order.begin_first_scan(QUEUE, 0.0)
    assert order.is_bound(KEY), "nobody knows yet"
    order.add_page(look, [("orders", "s9")])
    order.finish_scan(look)
    assert not order.is_bound(KEY)
    assert order.is_bound(SessionKey.of("orders", "s9"))


def test_a_first_look_that_breaks_off_binds_what_it_saw_and_no_more() -> None:
    order = SessionOrder(PATHS)
    look = order.begin_first_scan(QUEUE, 0.0)
    order.add_page(look, [("orders", "s9")])
    order.abandon_scan(look)
    assert order.is_unscanned(QUEUE)
    assert not order.is_bound(KEY)
    assert order.is_bound(SessionKey.of("orders", "s9"))


def test_a_session_goes_behind_what_is_left_of_it_wherever_that_is() -> None:
    order = read()
    look = QueueScan(OTHER, 5.0)
    order.add_page(look, [("orders", "s1")])
    order.finish_scan(look)
    assert order.queue_of(KEY) == OTHER
    order.finish_scan(QueueScan(OTHER, 6.0))
    assert order.queue_of(KEY) == QUEUE


def test_a_session_with_messages_in_two_queues_is_free_when_both_have_none() -> None:
    order = bound()
    look = QueueScan(OTHER, 20.0)
    order.add_page(look, [("orders", "s1")])
    order.finish_scan(look)
    assert set(order.queues_to_scan(lambda _: True, 21.0)) == {QUEUE, OTHER}
    assert looked(order, 21.0) == []
    assert order.finish_scan(QueueScan(OTHER, 22.0)) == [KEY]


def test_a_send_waits_for_a_short_backlog_to_drain_but_not_again_and_again() -> None:
    order = bound(at=10.0)
    assert order.worth_waiting(KEY, 11.0)
    assert not order.worth_waiting(KEY, 11.0 + WAIT_AGAIN_S - 0.1)
    assert order.worth_waiting(KEY, 11.0 + WAIT_AGAIN_S)
    looked(order, 30.0, *[("orders", "s1")] * (SHORT + 1))
    assert not order.worth_waiting(KEY, 60.0), "a long backlog is not drained in a moment"


def test_the_two_ends_agree_on_the_lease() -> None:
    for index, path in enumerate(PATHS):
        assert lease_address(path) == (lease_path("contoso"), str(index))
    assert lock_validity.LEASE_LOCK_S == LEASE_LOCK_S
