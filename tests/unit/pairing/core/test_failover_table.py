"""Every row of the state table: the one that docs/failures.md prints, cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.fault_table import BACKLOG_ROWS
from tests.unit.pairing.core.failures_page import PAGE, state_tables, written
from twinbus.pairing.core.failover import (
    EntityFailover,
    Event,
    ForceFailover,
    Freeze,
    MarkHealthy,
    PingAnswered,
    PingFailed,
    SendFailed,
    SendPing,
    SendSucceeded,
    StartDiverting,
    StopPinging,
    StopWatching,
    Transition,
    Unfreeze,
)
from twinbus.status.document import EntityState
from twinbus.timers import TimerFired

FAILOVER_S, PING_S = 10.0, 60.0
QUIET_AT = 500.0
"""When events come in a situation without a timer."""

EVENTS: dict[str, Event] = {
    "success": SendSucceeded(),
    "failure": SendFailed(counts=True, error="refused"),
    "own failure": SendFailed(counts=False, error="too large"),
    "not found": SendFailed(counts=False, is_missing=True, error="no such queue"),
    "timer": TimerFired(),
    "early timer": TimerFired(),
    "ping answered": PingAnswered(),
    "ping failed": PingFailed(error="timed out"),
    "gone": PingFailed(unusable=True, error="no such queue"),
    "force": ForceFailover(),
    "mark healthy": MarkHealthy(),
    "freeze": Freeze(),
    "unfreeze": Unfreeze(),
    "close": StopWatching(),
}


def healthy() -> EntityFailover:
    return EntityFailover(failover_interval_s=FAILOVER_S, ping_interval_s=PING_S)


def suspect() -> EntityFailover:
    return after(healthy(), EVENTS["failure"], 0.0)


def failed_over() -> EntityFailover:
    return after(suspect(), TimerFired(), FAILOVER_S)


def unusable() -> EntityFailover:
    return after(pinged(failed_over()), EVENTS["gone"], FAILOVER_S + PING_S)


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
WORDS = {StartDiverting: "divert", SendPing: "ping", StopPinging: "stop"}


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
