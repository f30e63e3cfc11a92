"""Which twins are pumped, and what is known of them."""

from __future__ import annotations

from twinbus.servicebus.twins import FoundTwin
from twinbus.status.document import TwinContents
from twinbus.syphon.core.twin_book import IDLE_S, SESSIONS, SUBSCRIPTION, TwinBook

ORDERS = FoundTwin("orders", active=3, waiting=5)
EMPTY = FoundTwin("orders")


def test_a_pump_starts_when_its_twin_holds_messages_and_ends_when_it_was_long_empty() -> None:
    book = TwinBook()
    assert book.listed([EMPTY], {}, 0.0) == ([], [])
    assert book.listed([ORDERS], {}, 60.0) == (["orders"], [])
    assert book.listed([EMPTY], {"orders": True}, 120.0) == ([], [])
    assert book.listed([EMPTY], {"orders": False}, 180.0) == ([], [])
    assert book.listed([EMPTY], {"orders": False}, 180.0 + IDLE_S - 1) == ([], [])
    assert book.listed([EMPTY], {"orders": False}, 180.0 + IDLE_S) == ([], ["orders"])


def test_a_twin_that_fills_again_keeps_its_pump() -> None:
    book = TwinBook()
    book.listed([EMPTY], {"orders": False}, 0.0)
    book.listed([ORDERS], {"orders": False}, 800.0)
    assert book.listed([EMPTY], {"orders": False}, 1_000.0) == ([], [])


def test_a_pump_ends_at_once_when_its_queue_has_lost_the_mark() -> None:
    assert TwinBook().listed([], {"orders": True}, 0.0) == ([], ["orders"])


def test_scheduled_and_deferred_messages_alone_start_no_pump() -> None:
    assert TwinBook().listed([FoundTwin("orders", waiting=5)], {}, 0.0) == ([], [])


def test_subscriptions_sessions_and_other_entities_are_left_to_consumers() -> None:
    book = TwinBook(frozenset({"orders", "sessions"}))
    found = [
        FoundTwin("Orders", active=1, waiting=1),
        FoundTwin("invoices", active=1, waiting=1),
        FoundTwin("sessions", requires_session=True, active=1, waiting=1),
        FoundTwin("events/Subscriptions/all", "events", active=1, waiting=1),
    ]
    assert book.listed(found, {}, 0.0) == (["Orders"], [])
    reasons = {path: one.consumers_only for path, one in book.contents(0.0).items()}
    assert reasons == {
        "Orders": "",
        "invoices": "",
        "sessions": SESSIONS,
        "events/Subscriptions/all": SUBSCRIPTION,
    }


def test_the_wait_counts_from_the_first_listing_in_a_row_that_found_messages() -> None:
    book = TwinBook()
    book.listed([ORDERS], {}, 10.0)
    book.listed([ORDERS], {}, 70.0)
    assert book.contents(100.0)["orders"].waits_s == 90.0
    book.listed([EMPTY], {}, 130.0)
    assert book.contents(200.0)["orders"].waits_s is None
    book.listed([ORDERS], {}, 300.0)
    assert book.contents(301.0)["orders"].waits_s == 1.0


def test_what_a_listing_does_not_count_is_not_known_and_its_wait_goes_on() -> None:
    book = TwinBook()
    counted = FoundTwin("orders", active=3, waiting=6, scheduled=1)
    book.listed([counted], {}, 10.0)
    assert book.contents(20.0)["orders"] == TwinContents(
        waiting=6, active=3, scheduled=1, deferred=2, waits_s=10.0, listed_s=10.0
    )
    uncounted = FoundTwin("orders", active=1, waiting=None)
    book.listed([uncounted], {}, 30.0)
    assert book.contents(40.0)["orders"] == TwinContents(waits_s=30.0, listed_s=10.0)
    assert TwinBook().listed([uncounted], {}, 0.0) == (["orders"], []), "a pump finds out"
