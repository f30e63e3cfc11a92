"""Failover of one entity: timelines, and every cell of its table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.fault_table import BACKLOG_ROWS
from tests.unit.pairing.core.failures_page import PAGE, state_tables, written
from twinbus.pairing.core.failover import (
    EARLY_PING_SHARE,
    LATE_AND_HARMLESS,
    EntityFailover,
    Event,
    ForceFailover,
    Freeze,
    LetOneTry,
    MarkHealthy,
    OthersFailedOver,
    OthersRecovered,
    PingAnswered,
    PingFailed,
    PingLeftOut,
    PrimaryTried,
    Route,
    SendFailed,
    SendPing,
    SendSucceeded,
    StartDiverting,
    StopPinging,
    StopWatching,
    TimerFired,
    Transition,
    Unfreeze,
)
from twinbus.pairing.core.pings import PING_JITTER
from twinbus.status.document import EntityState
from twinbus.testing import VirtualClock

FAILED = SendFailed(counts=True, error="connection refused")
UNUSABLE = PingFailed(unusable=True, error="no such queue")
OTHERS = OthersFailedOver("1 other process since 17:00:12 UTC")


def performed(it: EntityFailover, event: Event, now: float) -> list[object]:
    """What the shell must do, announcements aside."""
    return [action for action in it.handle(event, now) if not isinstance(action, Transition)]


def test_failover_waits_a_quiet_interval_then_pings_until_answered_and_says_why() -> None:
    it, clock = healthy(), VirtualClock()
    assert it.handle(FAILED, 0.0) == (
        Transition(EntityState.HEALTHY, EntityState.SUSPECT, 0.0, "a send failed"),
    )
    assert clock.run(it, until=9.9) == []
    assert clock.run(it, until=70.0, announcements=True) == [
        (10.0, StartDiverting()),
        (
            10.0,
            Transition(EntityState.SUSPECT, EntityState.FAILED_OVER, 10.0, "no success for 10 s"),
        ),
        (70.0, SendPing()),
    ]
    assert it.handle(PingAnswered(), 70.5) == (
        StopPinging(),
        Transition(EntityState.FAILED_OVER, EntityState.HEALTHY, 70.5, "the ping was answered"),
    )
    assert (it.state, it.route, it.timer_at) == (EntityState.HEALTHY, Route.PRIMARY, None)
    assert (it.since, it.reason) == (70.5, "the ping was answered")


def test_with_interval_zero_the_first_failure_fails_over_at_once() -> None:
    it = EntityFailover(failover_interval_s=0, ping_interval_s=PING_S)
    assert it.handle(FAILED, 3.0) == (
        StartDiverting(),
        Transition(EntityState.HEALTHY, EntityState.FAILED_OVER, 3.0, "a send failed"),
    )
    assert (it.route, it.timer_at) == (Route.BACKLOG, 63.0)


def test_others_that_failed_over_end_the_interval_and_are_named() -> None:
    it = healthy()
    for at in (0.0, 1.0, 1.5):
        it.handle(SendFailed(counts=True, error="silence", kind="timeout"), at)
    it.handle(SendFailed(counts=True, error="refused", kind="connection error"), 1.6)
    others = OthersFailedOver("4 other hosts since 17:00:12 UTC")
    reason = "own 3 timeouts, 1 connection error; 4 other hosts since 17:00:12 UTC"
    assert it.handle(others, 2.0) == (
        StartDiverting(),
        Transition(EntityState.SUSPECT, EntityState.FAILED_OVER, 2.0, reason),
    )
    assert it.timer_at == 26.0
    assert performed(pinged(it), PingAnswered(), 26.0) == [StopPinging()]
    assert it.state is EntityState.HEALTHY
    # The next failure begins a new interval: nothing of the failover before is left.
    it.handle(FAILED, 70.0)
    assert (it.state, it.timer_at) == (EntityState.SUSPECT, 80.0)


def test_an_early_failover_is_tested_after_half_an_interval_and_then_pinged_as_any() -> None:
    assert EARLY_PING_SHARE + PING_JITTER <= 0.5
    clock, it = VirtualClock(), after(suspect(), OTHERS, 1.0)
    assert clock.run(it, until=25.0) == [(25.0, SendPing())]
    it.handle(PingFailed(error="refused"), 26.0)
    assert clock.run(it, until=86.0) == [(86.0, SendPing())]
    # The next failover by its own interval begins with a whole one.
    it.handle(PingAnswered(), 87.0)
    again = after(after(it, FAILED, 90.0), TimerFired(), 100.0)
    assert again.timer_at == 160.0


def test_who_leaves_the_first_ping_after_an_early_failover_lets_one_send_try_the_primary() -> None:
    it = after(suspect(), OTHERS, 1.0)
    assert performed(pinged(it), PingLeftOut(), 25.0) == [LetOneTry()]
    assert (it.state, it.may_try) == (EntityState.FAILED_OVER, True)
    it.handle(PrimaryTried(), 26.0)
    assert performed(pinged(it), PingLeftOut(), 85.0) == []
    assert not it.may_try
    assert performed(pinged(failed_over()), PingLeftOut(), 70.0) == []
    by_hand = after(after(suspect(), OTHERS, 1.0), ForceFailover(), 2.0)
    assert performed(pinged(by_hand), PingLeftOut(), 25.0) == []


def test_a_failover_by_the_own_interval_is_evidence_at_once_and_an_early_one_is_not() -> None:
    assert failed_over().is_evidence(FAILOVER_S)
    early = after(suspect(), OTHERS, 1.0)
    assert not early.is_evidence(FAILOVER_S + 1)


def test_an_early_failover_is_evidence_after_a_failed_ping_and_a_whole_interval() -> None:
    late = EntityFailover(failover_interval_s=100.0, ping_interval_s=PING_S)
    late.handle(FAILED, 0.0)
    late.handle(OTHERS, 1.0)
    pinged(late).handle(PingFailed(error="refused"), 25.0)
    assert not late.is_evidence(99.9), "the interval is not over"
    assert late.is_evidence(100.0)


def test_what_answers_or_is_held_by_a_person_is_no_evidence() -> None:
    busy = pinged(failed_over())
    busy.handle(PingFailed(error="the entity is full", counts=False), 71.0)
    assert not busy.is_evidence(71.0)
    pinged(busy).handle(PingFailed(error="refused"), 140.0)
    assert busy.is_evidence(140.0)
    assert not forced().is_evidence(50.0)
    assert not after(failed_over(), ForceFailover(), 20.0).is_evidence(20.0)
    assert not after(failed_over(), Freeze(), 20.0).is_evidence(20.0)
    assert not suspect().is_evidence(5.0)


def test_a_failure_after_the_interval_fails_over_before_its_late_timer() -> None:
    it = suspect()
    assert performed(it, FAILED, 10.0) == [StartDiverting()]
    assert it.handle(TimerFired(), 10.0) == ()
    assert it.timer_at == 70.0


def test_healthy_pings_must_come_in_a_row() -> None:
    clock, it = VirtualClock(), failed_over(healthy_pings=3)
    ends: list[Event] = [PingAnswered(), PingAnswered(), PingFailed(), *[PingAnswered()] * 3]
    for number, end in enumerate(ends, 1):
        assert it.state is EntityState.FAILED_OVER
        due = FAILOVER_S + PING_S * number
        assert clock.run(it, until=due) == [(due, SendPing())]
        it.handle(end, clock.now)
    assert (it.state, it.timer_at) == (EntityState.HEALTHY, None)


def test_not_found_or_disabled_makes_the_entity_unusable_until_a_ping_is_answered() -> None:
    clock, it = VirtualClock(), failed_over()
    assert clock.run(it, until=70) == [(70.0, SendPing())]
    assert performed(it, UNUSABLE, 71.0) == []
    assert (it.state, it.route, it.reason) == (EntityState.UNUSABLE, Route.REFUSED, "no such queue")
    assert clock.run(it, until=131) == [(131.0, SendPing())]
    it.handle(PingFailed(unusable=True, error="disabled"), 132.0)
    assert (it.state, it.reason) == (EntityState.UNUSABLE, "disabled")
    assert (it.last_error, it.last_error_at) == ("disabled", 132.0)
    assert clock.run(it, until=192) == [(192.0, SendPing())]
    assert performed(it, PingAnswered(), 192.0) == [StopPinging()]
    assert it.state is EntityState.HEALTHY


def test_not_found_ends_a_suspicion() -> None:
    it = suspect()
    missing = SendFailed(counts=False, is_missing=True, error="no such queue")
    assert performed(it, missing, 3.0) == []
    assert (it.state, it.timer_at, it.last_error) == (EntityState.HEALTHY, None, "no such queue")
    # A classifier of the user's may count it: then it is evidence of an outage.
    it.handle(SendFailed(counts=True, is_missing=True), 4.0)
    assert it.state is EntityState.SUSPECT


def test_after_a_recovery_of_others_one_send_may_try_the_primary_and_its_success_heals() -> None:
    for it in (failed_over(), unusable()):
        state = it.state
        assert not it.may_try
        assert performed(it, OthersRecovered(), 80.0) == [LetOneTry()]
        assert (it.state, it.may_try) == (state, True)
        it.handle(PrimaryTried(), 81.0)
        it.handle(FAILED, 82.0)
        assert (it.state, it.may_try) == (state, False)
        it.handle(OthersRecovered(), 90.0)
        it.handle(SendSucceeded(), 91.0)
        assert (it.state, it.may_try) == (EntityState.HEALTHY, False)


def test_what_a_person_decides_is_not_tried_for_others() -> None:
    for event in (ForceFailover(), Freeze()):
        it = after(after(failed_over(), OthersRecovered(), 80.0), event, 81.0)
        assert not it.may_try
        assert performed(it, OthersRecovered(), 82.0) == []
        assert not after(it, Unfreeze(), 83.0).may_try


@pytest.mark.parametrize("healthy_pings", [1, 2])
def test_a_forward_of_the_syphon_heals_unless_pings_must_be_answered_in_a_row(
    healthy_pings: int,
) -> None:
    forward = SendSucceeded(is_forward=True)
    for it in (failed_over(healthy_pings), unusable(healthy_pings)):
        state = it.state
        it.handle(forward, 80.0)
        assert it.state is (EntityState.HEALTHY if healthy_pings == 1 else state)
    assert after(suspect(healthy_pings), forward, 1.0).state is EntityState.HEALTHY


def test_an_answer_clears_unusable_before_there_are_enough_to_return() -> None:
    clock, it = VirtualClock(), unusable(healthy_pings=2)
    assert clock.run(it, until=130) == [(130.0, SendPing())]
    assert performed(it, PingAnswered(), 130.0) == [StartDiverting()]
    assert (it.state, it.timer_at, it.answered_pings) == (EntityState.FAILED_OVER, 190.0, 1)


def test_what_is_no_event_is_a_bug_and_says_so() -> None:
    with pytest.raises(AssertionError, match="not an event of a failover"):
        healthy().handle("success", 0.0)  # type: ignore[arg-type]


def test_each_harmless_pair_has_a_reason_and_only_machine_events() -> None:
    assert all(LATE_AND_HARMLESS.values())
    kinds = {kind for _, kind in LATE_AND_HARMLESS}
    assert kinds == {
        SendSucceeded, SendFailed, OthersFailedOver,
        TimerFired, PingAnswered, PingFailed, PingLeftOut,
    }  # fmt: skip
    # A success calms a suspect whatever else holds; it can never be harmless there.
    assert (EntityState.SUSPECT, SendSucceeded) not in LATE_AND_HARMLESS


def test_a_person_can_read_it() -> None:
    it = after(failed_over(), ForceFailover(), 11.0)
    assert repr(it) == "EntityFailover(failed over, forced, timer_at=70.0)"


FAILOVER_S, PING_S = 10.0, 60.0
QUIET_AT = 500.0
"""When events come in a situation without a timer."""

EVENTS: dict[str, Event] = {
    "success": SendSucceeded(),
    "failure": FAILED,
    "own failure": SendFailed(counts=False, error="too large"),
    "others failed over": OthersFailedOver("4 other hosts"),
    "not found": SendFailed(counts=False, is_missing=True, error="no such queue"),
    "timer": TimerFired(),
    "early timer": TimerFired(),
    "ping answered": PingAnswered(),
    "ping failed": PingFailed(error="timed out"),
    "gone": UNUSABLE,
    "ping left out": PingLeftOut(),
    "others recovered": OthersRecovered(),
    "primary tried": PrimaryTried(),
    "force": ForceFailover(),
    "mark healthy": MarkHealthy(),
    "freeze": Freeze(),
    "unfreeze": Unfreeze(),
    "close": StopWatching(),
}


def healthy(healthy_pings: int = 1) -> EntityFailover:
    return EntityFailover(
        failover_interval_s=FAILOVER_S, ping_interval_s=PING_S, healthy_pings=healthy_pings
    )


def suspect(healthy_pings: int = 1) -> EntityFailover:
    return after(healthy(healthy_pings), FAILED, 0.0)


def failed_over(healthy_pings: int = 1) -> EntityFailover:
    return after(suspect(healthy_pings), TimerFired(), FAILOVER_S)


def unusable(healthy_pings: int = 1) -> EntityFailover:
    return after(pinged(failed_over(healthy_pings)), UNUSABLE, FAILOVER_S + PING_S)


def forced() -> EntityFailover:
    return after(healthy(), ForceFailover(), 0.0)


def pinged(it: EntityFailover) -> EntityFailover:
    assert it.timer_at is not None
    return after(it, TimerFired(), it.timer_at)


def frozen(it: EntityFailover) -> EntityFailover:
    return after(it, Freeze(), 100.0)


def after(it: EntityFailover, event: Event, now: float) -> EntityFailover:
    it.handle(event, now)
    return it


SITUATIONS: dict[str, Callable[[], EntityFailover]] = {
    "healthy": healthy,
    "suspect": suspect,
    "failed over": failed_over,
    "failed over, pinged": lambda: pinged(failed_over()),
    "unusable": unusable,
    "unusable, pinged": lambda: pinged(unusable()),
    "forced": forced,
    "forced, pinged": lambda: pinged(forced()),
    "frozen healthy": lambda: frozen(healthy()),
    "frozen suspect": lambda: frozen(suspect()),
    "frozen failed over": lambda: frozen(failed_over()),
    "frozen unusable": lambda: frozen(unusable()),
    "frozen forced": lambda: frozen(forced()),
    "closed": lambda: after(failed_over(), StopWatching(), 100.0),
}
HOLDS = ("forced", "frozen", "closed")
WORDS = {StartDiverting: "divert", LetOneTry: "try", SendPing: "ping", StopPinging: "stop"}


def cell(it: EntityFailover, name: str) -> str:
    """What an event does, in the words of the page."""
    before, timer_at = it.state, it.timer_at
    held = {hold: getattr(it, hold) for hold in HOLDS}
    due = timer_at if timer_at is not None else QUIET_AT
    now = due if name == "timer" else due - 1
    actions = it.handle(EVENTS[name], now)
    announced = [action for action in actions if isinstance(action, Transition)]
    # Every change is announced once, and nothing else is.
    changes = [(before, it.state)] if it.state is not before else []
    assert [(t.before, t.after) for t in announced] == changes
    words = ["." if it.state is before else it.state.value]
    words += [WORDS[type(action)] for action in actions if not isinstance(action, Transition)]
    if it.timer_at != timer_at:
        words.append(timer_word(it, now))
    for hold, was in held.items():
        if getattr(it, hold) != was:
            words.append(f"-{hold}" if was else f"+{hold}")
    text = " ".join(words)
    return "-" if text == "." else text


def timer_word(it: EntityFailover, now: float) -> str:
    if it.timer_at is None:
        return "off"
    if it.state is EntityState.SUSPECT:
        assert it.timer_at == now + FAILOVER_S
        return "f"
    if it.timer_at == now + EARLY_PING_SHARE * PING_S:
        return "e"
    assert it.timer_at == now + PING_S
    return "p"


def test_the_page_has_every_situation_and_no_unknown_event() -> None:
    page = state_tables()
    assert set(page) == set(SITUATIONS)
    assert all(cells.keys() <= EVENTS.keys() for cells in page.values())
    # A new kind of event needs a name here.
    assert {type(event) for event in EVENTS.values()} == set(Event.__args__)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_cell_of_the_state_table_is_what_happens(situation: str, event: str) -> None:
    assert cell(SITUATIONS[situation](), event) == state_tables()[situation].get(event, "-")


def test_the_other_tables_of_the_page_are_what_the_code_has() -> None:
    page = PAGE.read_text()
    assert page == written(page), "rewrite it: python -m tests.unit.pairing.core.failures_page"


def test_every_row_about_backlog_queues_names_tests_that_exist() -> None:
    tests = Path(__file__).parents[3]
    for row in BACKLOG_ROWS:
        for name in row.shown_by:
            file, _, function = name.partition("::")
            assert f"def {function}(" in (tests / file).read_text(), name
