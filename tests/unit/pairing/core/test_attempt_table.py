"""SPEC 3 as a table: each sentence on attempts and diverting is a line, played and compared.

A script is what happens to one call, each with its time; the result is what the call does, first at
its start and then after each event that it is told of:

    down, busy, gone, off, full, barred, bad, odd   the attempt on the primary failed: unreachable,
                                                    throttled, not found, disabled, quota,
                                                    unauthorized, of the message, of no known kind
    qdown, qbusy ...                                the same of the backlog queue; qdown: its
                                                    connection failed, qlate: it did not answer,
                                                    qfail: it answered with an internal error
    wake                                            a wait is over, or the entity changed
    over, heal, ok, timer, freeze, unusable         told to the entity, not to the call
    stores0, stores1, stores2                       the backlog queue stores another call's message
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.unit.pairing.send_world import BUSY, POLICY, QUEUES, REFUSED, World
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.attempts import (
    CallEnding,
    DivertTo,
    PullQueue,
    Raise,
    RetryPolicy,
    Step,
    TryPrimary,
    WaitForRetry,
    WaitForSecondary,
    backoff_s,
    call_limit_s,
)
from twinbus.pairing.core.failover import Freeze, MarkHealthy, PingFailed, SendSucceeded, TimerFired
from twinbus.servicebus.failures import FailureMeaning

MEANINGS = {
    "down": FailureMeaning.UNREACHABLE,
    "late": FailureMeaning.UNREACHABLE,
    "fail": FailureMeaning.UNREACHABLE,
    "busy": FailureMeaning.BUSY,
    "gone": FailureMeaning.NOT_FOUND,
    "off": FailureMeaning.DISABLED,
    "full": FailureMeaning.QUOTA,
    "barred": FailureMeaning.UNAUTHORIZED,
    "bad": FailureMeaning.MESSAGE,
    "odd": FailureMeaning.OTHER,
}
ONCE = RetryPolicy(0, 0.8, 120, 5)
ATTEMPTS = "Attempts"
COUNTS = "What counts"
DIVERTING = "Diverting"

ROWS: list[tuple[str, str, dict[str, object], str, str]] = [
    # clause, what it says, the call, what happens, what the call does
    (ATTEMPTS, "an attempt is bounded by attempt_timeout", {}, "", "try 5"),
    (ATTEMPTS, "and by the caller's timeout", {"timeout": 2}, "", "try 2"),
    (ATTEMPTS, "a failed attempt is retried with the SDK's back-off, retry_total times",
     {"policy": RetryPolicy(3, 0.5, 120, 5)},
     "0 down, 1 wake, 1 down, 3 wake, 3 down, 7 wake, 7 down",
     "try 5; wait 1; try 5; wait 3; try 5; wait 7; try 5; raise PRIMARY"),
    (ATTEMPTS, "within the caller's timeout: too late is not tried", {"timeout": 3},
     "0 down, 1.6 wake, 1.6 down", "try 3; wait 1.6; try 1.4; raise PRIMARY"),
    (ATTEMPTS, "... nor one that would come when the time ends", {"timeout": 1.6},
     "0 down", "try 1.6; raise PRIMARY"),
    (ATTEMPTS, "a retry has what is left of the caller's time", {"timeout": 4},
     "0 down, 1.6 wake", "try 4; wait 1.6; try 2.4"),
    (ATTEMPTS, "a wait that is broken off for nothing goes on", {},
     "0 down, 1 wake, 1.6 wake", "try 5; wait 1.6; wait 1.6; try 5"),
    (ATTEMPTS, "failed over meanwhile: diverted at once, not raised", {"failover": 1},
     "0 down, 1 timer, 1 wake", "try 5; wait 1.6; divert 0 5"),
    (ATTEMPTS, "failed over by this very failure: diverted", {"failover": 0},
     "0 down", "try 5; divert 0 5"),
    (ATTEMPTS, "failed over while the attempt was under way: diverted when it fails", {},
     "3 over, 5 down", "try 5; divert 0 5"),
    (ATTEMPTS, "patience beyond the failover interval sees no error at all",
     {"timeout": 100, "policy": ONCE}, "0 down, 60 timer, 60 wake", "try 5; wait 100; divert 0 5"),
    (ATTEMPTS, "patience below it gets the primary's error", {"timeout": 50, "policy": ONCE},
     "0 down", "try 5; raise PRIMARY"),
    (ATTEMPTS, "no patience at all: the retries are the bound", {"policy": ONCE},
     "0 down", "try 5; raise PRIMARY"),
    (ATTEMPTS, "waiting for a failover, a recovery is worth another attempt",
     {"timeout": 100, "policy": RetryPolicy(1, 0.8, 120, 5)},
     "0 down, 1.6 wake, 1.6 down, 20 ok, 20 wake",
     "try 5; wait 1.6; try 5; wait 100; try 5"),
    (ATTEMPTS, "also where no retry is allowed", {"timeout": 100, "policy": ONCE},
     "0 down, 20 ok, 20 wake", "try 5; wait 100; try 5"),
    (ATTEMPTS, "an entity that flaps is tried after each recovery, with a back-off",
     {"timeout": 100, "policy": ONCE, "failover": 10},
     "0 down, 2 ok, 2 wake, 2 down, 5 ok, 5 wake, 5.8 wake, 6 down, 9 ok, 9 wake, 9.8 wake",
     "try 5; wait 100; try 5; wait 100; wait 5.8; try 5; wait 100; wait 9.8; try 5"),
    (ATTEMPTS, "... and at once where no time is left for the back-off",
     {"timeout": 5.5, "policy": ONCE, "failover": 3},
     "0 down, 2 ok, 2 wake, 2 down, 5 ok, 5 wake", "try 5; wait 5.5; try 3.5; wait 5.5; try 0.5"),
    (ATTEMPTS, "a freeze ends the hope for a failover", {"timeout": 100, "policy": ONCE},
     "0 down, 1 freeze, 1 wake", "try 5; wait 100; raise PRIMARY"),
    (ATTEMPTS, "a call never outlives its timeout: in the back-off", {"timeout": 2},
     "0 down, 2 wake", "try 2; wait 1.6; raise PRIMARY"),
    (ATTEMPTS, "... waiting for the failover", {"timeout": 100, "policy": ONCE},
     "0 down, 100 wake", "try 5; wait 100; raise PRIMARY"),
    (ATTEMPTS, "... in the backlog", {"timeout": 5, "over": True},
     "5 qfull", "divert 0 5; pull 0, raise BACKLOG"),
    (ATTEMPTS, "... waiting for the secondary", {"timeout": 7, "over": True},
     "1 qdown, 2 qdown, 7 wake", "divert 0 5; turn 1 5; secondary 7; raise BACKLOG"),
    (ATTEMPTS, "... or before anything was tried", {"timeout": 2}, "2 wake",
     "try 2; raise TIMED_OUT"),
    (COUNTS, "throttling is retried", {}, "0 busy", "try 5; wait 1.6"),
    (COUNTS, "not found goes to the caller", {}, "0 gone", "try 5; raise PRIMARY"),
    (COUNTS, "disabled goes to the caller", {}, "0 off", "try 5; raise PRIMARY"),
    (COUNTS, "quota goes to the caller", {}, "0 full", "try 5; raise PRIMARY"),
    (COUNTS, "unauthorized goes to the caller", {}, "0 barred", "try 5; raise PRIMARY"),
    (COUNTS, "too large and bad arguments go to the caller", {}, "0 bad", "try 5; raise PRIMARY"),
    (COUNTS, "what nobody knows goes to the caller", {}, "0 odd", "try 5; raise PRIMARY"),
    (COUNTS, "also when the entity failed over meanwhile", {}, "1 over, 2 bad",
     "try 5; raise PRIMARY"),
    (COUNTS, "a late success of others brings the call back to the primary", {"over": True},
     "0 qbusy, 1 heal, 1 wake", "divert 0 5; wait 1.6; try 5"),
    (DIVERTING, "a failed-over entity is not tried", {"over": True}, "", "divert 0 5"),
    (DIVERTING, "internal error: pulled, another is chosen", {"over": True},
     "1 qfail", "divert 0 5; pull 0, divert 1 5"),
    (DIVERTING, "quota: pulled", {"over": True}, "1 qfull", "divert 0 5; pull 0, divert 1 5"),
    (DIVERTING, "disabled: pulled", {"over": True}, "1 qoff", "divert 0 5; pull 0, divert 1 5"),
    (DIVERTING, "not found: pulled", {"over": True}, "1 qgone", "divert 0 5; pull 0, divert 1 5"),
    (DIVERTING, "no answer for the full time, but another queue answered: pulled",
     {"over": True, "timeout": 9}, "3 stores2, 5 qlate", "divert 0 5; pull 0, divert 1 4"),
    (DIVERTING, "no answer of any: the namespace; none is pulled, one probe at a time",
     {"over": True, "timeout": 30}, "5 qlate, 10 qlate",
     "divert 0 5; turn 1 5; secondary 30"),
    (DIVERTING, "a connection that fails pulls none; the call waits for its turn",
     {"over": True, "timeout": 60}, "1 qdown, 1 qdown, 1.2 wake, 1.2 qdown, 1.4 wake",
     "divert 0 5; turn 1 5; secondary 60; turn 2 5; secondary 60; turn 0 5"),
    (DIVERTING, "a success of another call frees it", {"over": True, "timeout": 60},
     "1 qdown, 1 qdown, 2 stores1, 2 wake", "divert 0 5; turn 1 5; secondary 60; divert 2 5"),
    (DIVERTING, "an answer of any kind: the namespace is there", {"over": True, "timeout": 60},
     "1 qdown, 2 qbarred", "divert 0 5; turn 1 5; divert 2 5"),
    (DIVERTING, "the entity is back: a call that waits goes to the primary", {"over": True},
     "1 qdown, 1 qdown, 2 heal, 2 wake", "divert 0 5; turn 1 5; secondary 36.2; try 5"),
    (DIVERTING, "a connection that fails while others are answered: the same queue again",
     {"over": True}, "1 stores1, 2 qdown", "divert 0 5; divert 0 5"),
    (DIVERTING, "an error of the message pulls none and is raised", {"over": True},
     "1 qbad", "divert 0 5; raise MESSAGE"),
    (DIVERTING, "the caller's own short time pulls none", {"over": True, "timeout": 2},
     "2 qlate", "divert 0 2; raise BACKLOG"),
    (DIVERTING, "throttled: the same queue again, then another, each after a back-off",
     {"over": True, "policy": RetryPolicy(1, 0.5, 120, 5)},
     "0 qbusy, 1 wake, 1 qbusy, 3 wake",
     "divert 0 5; wait 1; divert 0 5; wait 3; divert 1 5"),
    (DIVERTING, "throttled by all: retried within the caller's time, at most 10 s apart",
     {"over": True, "policy": RetryPolicy(0, 0.5, 120, 5), "timeout": 60},
     "0 qbusy, 1 wake, 1 qbusy, 3 wake, 3 qbusy, 7 wake, 7 qbusy, 15 wake, 15 qbusy, 25 wake",
     ("divert 0 5; wait 1; divert 1 5; wait 3; divert 2 5; wait 7; divert 0 5; wait 15;"
      " divert 1 5; wait 25; divert 2 5")),
    (DIVERTING, "throttled: a back-off leaves half of the caller's time for the next attempt",
     {"over": True, "timeout": 2}, "0 qbusy, 1 wake, 1 qbusy, 1.5 wake, 1.5 qbusy, 1.75 wake",
     "divert 0 2; wait 1; divert 0 1; wait 1.5; divert 0 0.5; wait 1.75; divert 0 0.25"),
    (DIVERTING, "throttled: without time for a back-off each other queue is tried once",
     {"over": True, "timeout": 0.3}, "0 qbusy, 0.1 qbusy, 0.2 qbusy",
     "divert 0 0.3; divert 1 0.3; divert 2 0.2; raise BACKLOG"),
    (DIVERTING, "throttled: a back-off that is broken off for nothing goes on, to the call's end",
     {"over": True, "timeout": 60}, "0 qbusy, 1 wake, 1.6 wake, 60 qbusy",
     "divert 0 5; wait 1.6; wait 1.6; divert 0 5; raise BACKLOG"),
    (DIVERTING, "throttled: without a back-off factor a queue is not tried at once",
     {"over": True, "policy": RetryPolicy(0, 0.0, 120, 5)}, "0 qbusy", "divert 0 5; wait 0.2"),
    (DIVERTING, "the only queue lost a connection while others are answered: tried again",
     {"over": True, "policy": ONCE, "timeout": 60, "queues": QUEUES[:1]},
     "1 stores0, 2 qdown, 3.6 wake", "divert 0 5; wait 3.6; divert 0 5"),
    (DIVERTING, "unauthorized there: passed over, not pulled", {"over": True},
     "1 qbarred", "divert 0 5; divert 1 5"),
    (DIVERTING, "of no known kind there: passed over, not pulled", {"over": True},
     "1 qodd", "divert 0 5; divert 1 5"),
    (DIVERTING, "all are pulled: the call waits, and in its turn tries each",
     {"over": True}, "1 qgone, 2 qfull, 3 qfull, 4 wake, 4 qfull, 4 qfull, 4 qgone, 36.2 wake",
     ("divert 0 5; pull 0, divert 1 5; pull 1, divert 2 5; pull 2, secondary 36.2;"
      " turn 0 5; pull 0, turn 1 5; pull 1, turn 2 5; pull 2, secondary 36.2; raise BACKLOG")),
    (DIVERTING, "none takes its message: BacklogUnavailableError at once", {"over": True},
     "1 qbarred, 2 qodd, 3 qbarred", "divert 0 5; divert 1 5; divert 2 5; raise BACKLOG"),
    (DIVERTING, "the search goes on within the caller's timeout", {"over": True, "timeout": 6},
     "4 qfull, 5.5 qgone", "divert 0 5; pull 0, divert 1 2; pull 1, divert 2 0.5"),
    (DIVERTING, "the entity came back: the call goes to the primary", {"over": True},
     "1 heal, 2 qfull", "divert 0 5; pull 0, try 5"),
    (DIVERTING, "... and has all its retries there",
     {"policy": RetryPolicy(1, 0.5, 120, 5), "timeout": 60, "failover": 5},
     "0 down, 1 wake, 1 down, 5 timer, 5 wake, 6 heal, 6 qdown, 6 busy, 7 wake, 7 busy",
     ("try 5; wait 1; try 5; wait 60; divert 0 5; try 5; wait 7; try 5; raise PRIMARY")),
    (DIVERTING, "without a backlog queue sends use the primary", {"queues": (), "over": True},
     "0 down", "try 5; wait 1.6"),
    (DIVERTING, "and nobody waits for a failover that would not help",
     {"queues": (), "timeout": 100, "policy": ONCE}, "0 down", "try 5; raise PRIMARY"),
    ("Ping", "an unusable entity raises instead of filling the backlog", {"over": True},
     "30 unusable, 31 qfull", "divert 0 5; pull 0, raise UNUSABLE"),
    ("Ping", "also for a call that waits", {}, "0 down, 1 over, 31 unusable, 31 wake",
     "try 5; wait 1.6; raise UNUSABLE"),
]  # fmt: skip


def shown(step: Step) -> str:
    match step:
        case TryPrimary(timeout_s):
            return f"try {round(timeout_s, 6):g}"
        case WaitForRetry(until):
            return f"wait {round(until, 6):g}"
        case DivertTo(queue, timeout_s, is_turn):
            word = "turn" if is_turn else "divert"
            return f"{word} {QUEUES.index(queue)} {round(timeout_s, 6):g}"
        case WaitForSecondary(until):
            return f"secondary {round(until, 6):g}"
        case PullQueue(queue):
            return f"pull {QUEUES.index(queue)}"
        case Raise(ending):
            return f"raise {ending.name}"


def told_to_the_entity(world: World, now: float) -> dict[str, Callable[[], object]]:
    def unusable() -> None:
        world.entity.forced = False
        world.entity.timer_at = now
        world.entity.handle(TimerFired(), now)
        world.entity.handle(PingFailed(unusable=True, error="gone"), now)

    return {
        "over": lambda: world.fail_over(now),
        "heal": lambda: world.entity.handle(MarkHealthy(), now),
        "ok": lambda: world.entity.handle(SendSucceeded(), now),
        "timer": lambda: world.entity.handle(TimerFired(), now),
        "freeze": lambda: world.entity.handle(Freeze(), now),
        "unusable": unusable,
    }


def happens(world: World, event: str, now: float) -> list[Step] | None:
    """What the call does about it; None: it is told to the entity alone."""
    tell = told_to_the_entity(world, now).get(event)
    if tell is not None:
        tell()
        return None
    if event == "wake":
        return world.woken(now)
    if event.startswith("stores"):
        world.stores(QUEUES[int(event.removeprefix("stores"))], now)
        return None
    if event in MEANINGS:
        return world.primary_fails(now, meaning=MEANINGS[event])
    return world.divert_fails(
        now,
        MEANINGS[event[1:]],
        timed_out=event == "qlate",
        is_answer=True if event == "qfail" else None,
    )


@pytest.mark.parametrize(
    ("call", "script", "expected"),
    [row[2:] for row in ROWS],
    ids=[f"{clause}: {says}" for clause, says, *_ in ROWS],
)
def test_spec_3(call: dict[str, object], script: str, expected: str) -> None:
    settings = dict(call)
    is_over = settings.pop("over", False)
    failover = settings.pop("failover", 60)
    world = World(failover_interval_s=failover, **settings)  # type: ignore[arg-type]
    if is_over:
        world.fail_over(0.0)
    done = [world.start(0.0)]
    for event in filter(None, script.split(", ")):
        moment, name = event.split()
        steps = happens(world, name, float(moment))
        if steps is not None:
            done.append(steps)
    assert "; ".join(", ".join(map(shown, steps)) for steps in done) == expected
    last = done[-1][-1]
    if isinstance(last, Raise):
        is_of_message = last.ending is CallEnding.MESSAGE
        assert last.error is (REFUSED if is_of_message else world.call.primary_error)
    if "raise BACKLOG" in expected and "q" in script:
        assert world.call.queue_errors
    if "raise PRIMARY" in expected:
        assert world.call.primary_error is REFUSED


UNTIL_DECIDED = replace(POLICY, total=None, failover_interval_s=60)


@pytest.mark.parametrize(("retry", "seconds"), [(1, 1.6), (2, 3.2), (3, 6.4), (7, 102.4), (8, 120)])
def test_the_back_off_is_the_sdks(retry: int, seconds: float) -> None:
    sdk: Any = importlib.import_module("azure.servicebus._base_handler")
    assert backoff_s(POLICY, retry) == pytest.approx(seconds)
    assert backoff_s(POLICY, retry) == sdk._get_backoff_time("exponential", 0.8, 120, retry)


def test_a_thousandth_back_off_does_not_overflow() -> None:
    assert backoff_s(POLICY, 1_000) == 120
    assert backoff_s(RetryPolicy(9, 0.0, 120, 5), 1_000) == 0


def test_jitter_makes_a_back_off_shorter_by_a_fifth_at_most() -> None:
    assert backoff_s(POLICY, 1, 1.0) == pytest.approx(1.28)
    world = World(jitter=lambda: 0.5)
    world.start(0.0)
    [wait] = world.primary_fails(0.0)
    assert isinstance(wait, WaitForRetry)
    assert wait.until == pytest.approx(1.44)


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (POLICY, 36.2),
        (RetryPolicy(0, 0.8, 120, 5), 10),
        (RetryPolicy(2, 1.0, 3.0, 0.5), 2 + 3 + 4 * 0.5),
        (RetryPolicy(1_000, 0.8, 120, 60), 203.2 + 993 * 120 + 1_002 * 60),
        (UNTIL_DECIDED, 60 + 2 * 5 + 31.2),
    ],
)
def test_a_call_without_a_timeout_is_bounded_by_attempts_back_offs_and_one_divert(
    policy: RetryPolicy, seconds: float
) -> None:
    assert call_limit_s(policy) == pytest.approx(seconds)


def test_without_retry_total_a_call_retries_until_the_failover_and_is_diverted() -> None:
    world = World(policy=UNTIL_DECIDED)
    steps, now, attempts = world.start(0.0), 0.0, 0
    while steps == [TryPrimary(5)]:
        attempts += 1
        [wait] = world.primary_fails(now)
        assert isinstance(wait, WaitForRetry)
        now = min(wait.until, 60.0)
        if now == 60.0:
            world.entity.handle(TimerFired(), now)
        steps = world.woken(now)
    assert (attempts, now) == (6, 60.0)
    assert steps == [DivertTo(QUEUES[0], 5)]
    # From now on the divert's own bound holds.
    assert world.divert_fails(61.0) == [DivertTo(QUEUES[1], 5, is_turn=True)]
    assert world.call.ends_at == pytest.approx(60 + 31.2)


@pytest.mark.parametrize("queues", [QUEUES, ()], ids=["it is throttled", "there is no backlog"])
def test_without_retry_total_what_no_failover_ends_is_retried_three_times(
    queues: tuple[str, ...],
) -> None:
    world = World(policy=UNTIL_DECIDED, queues=queues)
    meaning = FailureMeaning.BUSY if queues else FailureMeaning.UNREACHABLE
    steps, now = world.start(0.0), 0.0
    for _ in range(3):
        [wait] = world.primary_fails(now, BUSY, meaning)
        assert isinstance(wait, WaitForRetry)
        now = wait.until
        steps = world.woken(now)
        assert steps == [TryPrimary(5)]
    assert world.primary_fails(now, BUSY, meaning) == [Raise(CallEnding.PRIMARY, BUSY)]


def test_without_retry_total_and_back_off_a_late_retry_still_waits_a_second() -> None:
    world = World(policy=replace(UNTIL_DECIDED, backoff_factor_s=0.0))
    world.start(0.0)
    waits = [world.primary_fails(0.0), world.primary_fails(0.0), world.primary_fails(0.0)]
    assert waits == [[WaitForRetry(0.0)]] * 3
    assert world.primary_fails(0.0) == [WaitForRetry(1.0)]


def test_a_call_without_a_timeout_makes_no_attempt_past_its_bound() -> None:
    [step] = World().start(35.0)
    assert isinstance(step, TryPrimary)
    assert step.timeout_s == pytest.approx(1.2)
    assert World().start(36.2) == [Raise(CallEnding.TIMED_OUT)]


def test_the_policy_is_the_options() -> None:
    assert RetryPolicy.of(SendAvailabilityOptions()) == UNTIL_DECIDED
    given = RetryPolicy.of(SendAvailabilityOptions(retry_total=3))
    assert given == replace(POLICY, failover_interval_s=60)


def test_a_retry_after_server_busy_waits_for_the_next_second_if_the_caller_has_the_time() -> None:
    quick = RetryPolicy(total=3, backoff_factor_s=0.05, backoff_max_s=120, attempt_timeout_s=5)
    for chance, timeout_s, until in (
        (0.0, 30.0, 1.0),
        (1.0, 30.0, 2.0),
        (0.5, 1.0, 0.5),
        (0.0, 0.15, 0.1),
    ):
        world = World(timeout=timeout_s, policy=quick, jitter=partial(float, chance))
        world.start(0.0)
        assert world.primary_fails(0.0, BUSY, FailureMeaning.BUSY) == [WaitForRetry(until)]


def test_what_the_users_classifier_counts_is_retried_too() -> None:
    world = World()
    world.start(0.0)
    odd = RuntimeError("odd")
    assert world.call.primary_failed(odd, FailureMeaning.OTHER, 0.0, counts=True) == [
        WaitForRetry(1.6)
    ]


def test_a_call_stays_until_the_route_leads_elsewhere() -> None:
    world = World()
    world.start(0.0)
    seen = [world.call.stays]
    world.fail_over(1.0)
    seen.append(world.call.stays)
    world.woken(1.0)
    seen.append(world.call.stays)
    assert seen == [True, False, True]


def test_without_a_backlog_a_call_stays_on_the_primary_whatever_the_state() -> None:
    world = World(queues=())
    world.start(0.0)
    world.fail_over(1.0)
    assert world.call.stays
