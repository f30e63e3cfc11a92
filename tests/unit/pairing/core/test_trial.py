"""One send tries the primary after a recovery that another process has found."""

from __future__ import annotations

import pytest

from tests.unit.pairing.send_world import LIMIT_S, POLICY, QUEUES, World
from twinbus.pairing.core.attempts import (
    CallEnding,
    DivertTo,
    Raise,
    SendDecisions,
    TryPrimary,
    WaitForSecondary,
)
from twinbus.pairing.core.failover import OthersRecovered, PingFailed, SendSucceeded, TimerFired
from twinbus.servicebus.failures import FailureMeaning
from twinbus.status.document import EntityState

TRIAL = TryPrimary(5.0, is_trial=True)


def recovering(timeout: float | None = 60.0) -> World:
    world = World(timeout=timeout)
    world.others_recovered()
    return world


def another(world: World, *, tries_for_others: bool = True) -> SendDecisions:
    return SendDecisions(
        world.entity,
        world.choice,
        POLICY,
        ends_at=60.0,
        is_patient=True,
        tries_for_others=tries_for_others,
    )


def test_the_first_call_tries_the_primary_and_the_others_are_diverted() -> None:
    world = recovering()
    schedule = another(world, tries_for_others=False)
    assert schedule.start(0.0) == [DivertTo(QUEUES[0], 5.0)]
    assert world.start(0.0) == [TRIAL]
    assert world.call.stays
    assert another(world).start(0.0) == [DivertTo(QUEUES[0], 5.0)]
    world.entity.handle(SendSucceeded(), 0.1)
    assert world.entity.state is EntityState.HEALTHY
    assert another(world).start(0.2) == [TryPrimary(5.0)]


@pytest.mark.parametrize("meaning", [*FailureMeaning])
def test_a_call_whose_trial_fails_goes_on_to_the_backlog_unless_its_message_is_refused(
    meaning: FailureMeaning,
) -> None:
    world, error = recovering(), RuntimeError("no")
    world.start(0.0)
    steps = world.primary_fails(5.0, error, meaning)
    if meaning is FailureMeaning.MESSAGE:
        assert steps == [Raise(CallEnding.PRIMARY, error)]
    else:
        assert steps == [DivertTo(QUEUES[0], 5.0)]
    assert world.entity.state is EntityState.FAILED_OVER
    assert not world.entity.may_try


def test_a_trial_leaves_half_of_the_callers_time_to_the_backlog() -> None:
    assert recovering(timeout=1.0).start(0.0) == [TryPrimary(0.5, is_trial=True)]
    assert recovering(timeout=0.9).start(0.0) == [DivertTo(QUEUES[0], 0.9)]


def test_a_trial_makes_no_call_longer() -> None:
    plain, trying = World(), recovering(timeout=None)
    plain.others_recovered()
    plain.call = another(plain, tries_for_others=False)
    assert trying.start(0.0) == [TRIAL]
    bound_s = trying.call.ends_at
    assert bound_s <= LIMIT_S
    trying.primary_fails(5.0)
    assert trying.call.ends_at == bound_s


def test_a_call_that_waits_for_the_secondary_tries_the_primary_when_it_is_said_to_be_back() -> None:
    world = World(timeout=60.0)
    world.others_recovered()
    world.start(0.0)
    world.primary_fails(0.0)
    for _ in range(9):
        if isinstance(world.step, WaitForSecondary):
            break
        world.divert_fails(1.0)
    assert isinstance(world.step, WaitForSecondary)
    world.entity.handle(OthersRecovered(), 2.0)
    assert world.woken(2.0) == [TRIAL]
    assert isinstance(world.primary_fails(3.0)[-1], DivertTo | WaitForSecondary)


def test_a_call_to_an_entity_that_is_unusable_here_tries_too() -> None:
    world = recovering()
    world.entity.handle(TimerFired(), 60.0)
    world.entity.handle(PingFailed(unusable=True, error="no such queue"), 61.0)
    assert world.start(0.0) == [TRIAL]
    assert another(world).start(0.0) == [Raise(CallEnding.UNUSABLE, None)]
    steps = world.primary_fails(1.0, RuntimeError("gone"), FailureMeaning.NOT_FOUND)
    assert [type(step) for step in steps] == [Raise]
    assert steps[0].ending is CallEnding.UNUSABLE  # type: ignore[union-attr]
