"""Who pings, in virtual time: one for all, the others seldom, and nobody is relied on."""

from __future__ import annotations

import pytest

from twinbus.fleet.core.pinging import (
    COMPETE_SPACING_S,
    PREFIX,
    SESSION_LENGTH_MAX,
    SHARED_MAX,
    SLOW_INTERVALS,
    STANDBY_MIN_S,
    Act,
    Compete,
    LeaveToOthers,
    Pinging,
    Standing,
    TryOnce,
    ping_session,
)

PING_S = 60.0
ORDERS = frozenset({"orders"})


def watching(*, chance: float = 0.0) -> Pinging:
    pinging = Pinging(PING_S)
    assert pinging.watch(ORDERS, 0.0, chance) == []
    return pinging


def run(pinging: Pinging, standing: Standing, pings: int) -> list[float]:
    """The times at which pings are sent that are due once in an interval."""
    times = (PING_S * number for number in range(1, pings + 1))
    return [now for now in times if pinging.pings("orders", standing, now)]


def taken(pinging: Pinging, until: float) -> list[tuple[float, Act]]:
    acts: list[tuple[float, Act]] = []
    while (due := pinging.due_at) is not None and due <= until:
        acts += [(due, act) for act in pinging.take(due)]
    return acts


@pytest.mark.parametrize("standing", [Standing.HOLDER, Standing.ALONE, Standing.UNSHARED])
def test_the_holder_and_one_that_is_alone_ping_every_interval(standing: Standing) -> None:
    assert run(watching(chance=0.9), standing, 5) == [60.0, 120.0, 180.0, 240.0, 300.0]


@pytest.mark.parametrize("standing", [Standing.STANDBY, Standing.FOLLOWER])
def test_the_others_ping_every_ten_intervals_and_not_all_at_once(standing: Standing) -> None:
    assert run(watching(), standing, 25) == [600.0, 1_200.0]
    first = {run(watching(chance=number / 20), standing, 10)[0] for number in range(20)}
    assert first == {PING_S * number for number in range(1, SLOW_INTERVALS + 1)}


def test_an_entity_that_is_not_known_is_pinged() -> None:
    assert Pinging(PING_S).pings("orders", Standing.STANDBY, 0.0)


def test_a_process_asks_for_the_right_before_its_first_ping_and_the_next_time_ten_s_later() -> None:
    pinging = Pinging(PING_S)
    pinging.watch({"a", "b", "c"}, 0.0, 0.5)
    assert taken(pinging, 30.0) == [
        (7.5, Compete("a")),
        (7.5 + COMPETE_SPACING_S, Compete("b")),
        (7.5 + 2 * COMPETE_SPACING_S, Compete("c")),
    ]


def test_what_is_healthy_again_is_given_back_and_a_new_failover_begins_anew() -> None:
    pinging = watching()
    assert taken(pinging, 1.0) == [(0.0, Compete("orders"))]
    pinging.heard_recovery("orders", 1.0, 0.5)
    assert pinging.watch(frozenset(), 2.0, 0.0) == [LeaveToOthers("orders")]
    assert pinging.due_at is None
    assert pinging.watch(frozenset(), 3.0, 0.0) == []
    pinging.watch(ORDERS, 100.0, 0.0)
    assert taken(pinging, 101.0) == [(100.0, Compete("orders"))]


@pytest.mark.parametrize("standing", [Standing.FOLLOWER, Standing.UNSHARED])
def test_who_has_no_role_or_no_board_asks_again_at_every_ping(standing: Standing) -> None:
    pinging = watching()
    taken(pinging, 0.0)
    pinging.pings("orders", standing, 60.0)
    assert taken(pinging, 60.0) == [(60.0, Compete("orders"))]


def test_who_is_not_about_to_ping_gives_the_right_back_and_asks_again_when_it_is() -> None:
    """A person has frozen the entity: its pings have ended."""
    pinging = watching()
    assert taken(pinging, 0.0) == [(0.0, Compete("orders"))]
    pinging.pings("orders", Standing.HOLDER, 60.0)
    assert taken(pinging, 239.0) == []
    assert taken(pinging, 1_000.0) == [(240.0, LeaveToOthers("orders"))]
    assert pinging.pings("orders", Standing.UNSHARED, 1_000.0)
    assert taken(pinging, 1_000.0) == [(1_000.0, Compete("orders"))]


def test_a_process_that_may_not_send_to_the_entity_leaves_it_to_others_for_ten_intervals() -> None:
    pinging = watching()
    taken(pinging, 0.0)
    assert pinging.not_allowed("orders", 60.0) == LeaveToOthers("orders")
    sent = [pinging.pings("orders", Standing.UNSHARED, 60.0 * number) for number in range(2, 12)]
    assert sent == [True] * 10
    assert taken(pinging, 660.0) == [(660.0, Compete("orders"))]
    assert pinging.not_allowed("unknown", 0.0) is None


def test_a_recovery_is_tried_once_after_a_jitter_and_once_in_an_interval_at_most() -> None:
    pinging = watching()
    taken(pinging, 0.0)
    for now in (10.0, 11.0):
        pinging.heard_recovery("orders", now, 0.4)
    assert taken(pinging, 71.0) == [(12.0, TryOnce("orders"))]
    pinging.pings("orders", Standing.STANDBY, 72.0)
    pinging.heard_recovery("orders", 72.0, 0.0)
    assert taken(pinging, 72.0) == [(72.0, TryOnce("orders"))]
    pinging.heard_recovery("unknown", 72.0, 0.0)
    assert taken(pinging, 72.0) == []


def test_a_recovery_soon_after_a_wrong_one_is_tried_when_the_interval_is_over() -> None:
    pinging = watching()
    taken(pinging, 0.0)
    pinging.heard_recovery("orders", 10.0, 0.0)
    assert taken(pinging, 10.0) == [(10.0, TryOnce("orders"))]
    for now in (12.0, 13.0, 30.0):
        pinging.heard_recovery("orders", now, 0.4)
    assert taken(pinging, 75.0) == [(72.0, TryOnce("orders"))]


def test_a_host_asks_for_a_lease_that_another_has_once_in_a_ping_interval() -> None:
    pinging = watching()
    assert pinging.standby_s == 3 * PING_S
    pinging.watch({f"entity-{number}" for number in range(50)}, 0.0, 0.0)
    assert pinging.standby_s == 50 * PING_S
    quick = Pinging(1.0)
    assert quick.standby_s == STANDBY_MIN_S


def test_a_process_shares_the_pings_of_a_hundred_entities_and_pings_the_rest_itself() -> None:
    pinging = Pinging(PING_S)
    pinging.watch({f"entity-{number:03}" for number in range(SHARED_MAX + 1)}, 0.0, 0.0)
    assert len(taken(pinging, 180.0 - 0.1)) == 180 / COMPETE_SPACING_S
    sent = [
        pinging.pings(f"entity-{number:03}", Standing.STANDBY, 60.0)
        for number in range(SHARED_MAX + 1)
    ]
    assert sent == [False] * SHARED_MAX + [True]


def test_the_session_of_an_entity_is_one_that_the_service_takes() -> None:
    assert ping_session("orders") == "ping/orders"
    longest, other = ping_session("x" * 260), ping_session("x" * 259)
    assert longest.startswith(PREFIX)
    assert len(longest) <= SESSION_LENGTH_MAX
    assert longest != other
