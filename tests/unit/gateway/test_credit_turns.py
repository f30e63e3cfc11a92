"""Which side of a relayed receiver has the client's credit."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from twinbus.gateway.credit_turns import (
    LOOK_S,
    SILENT_S,
    AnswerDrain,
    ClientCredit,
    CreditTurns,
    DrainSide,
    GrantSide,
    Step,
    Wait,
)
from twinbus.pairing.core.sides import Side

PRIMARY, SECONDARY = Side
WINDOW = 100


class World:
    """Two sides with messages, and a client that gives credit; a drain is answered at once."""

    def __init__(self, primary: int = 0, secondary: int = 0) -> None:
        self.turns = CreditTurns()
        self.now = 100.0
        self.ready = {PRIMARY: primary, SECONDARY: secondary}
        self.is_open = dict.fromkeys(Side, True)
        self.is_hung = dict.fromkeys(Side, False)
        self.out = dict.fromkeys(Side, 0)
        self.credit = 0
        self.is_draining = False
        self.takes_more = True
        self.got = dict.fromkeys(Side, 0)
        self.steps: list[Step] = []

    def step(self) -> Step:
        client = ClientCredit(
            credit=self.credit,
            window=WINDOW,
            takes_more=self.takes_more,
            is_draining=self.is_draining,
        )
        out = {side: self.out[side] for side in Side if self.is_open[side]}
        step = self.turns.next(self.now, client, out)
        self.steps.append(step)
        match step:
            case GrantSide():
                self.out[step.side] = step.credit
                self.deliver(step.side)
            case DrainSide() if self.is_hung[step.side]:
                # Its link is given up and another one is opened.
                self.now += 1
                self.turns.not_answered(step.side, self.now)
                self.out[step.side] = 0
            case DrainSide():
                self.out[step.side] = step.credit
                brought = self.deliver(step.side)
                self.out[step.side] = 0
                self.turns.drained(step, brought, self.now)
            case AnswerDrain():
                self.credit, self.is_draining = 0, False
        assert sum(self.out.values()) <= self.credit or self.takes_less
        return step

    takes_less = False
    """True while the client has taken credit back that was given to a side."""

    def deliver(self, side: Side) -> int:
        if self.is_hung[side] or not self.is_open[side]:
            return 0
        brought = min(self.ready[side], self.out[side])
        self.ready[side] -= brought
        self.out[side] -= brought
        self.credit -= brought
        self.got[side] += brought
        assert self.credit >= 0, "more than the client can take"
        return brought

    def run(self, limit: int = 50) -> Wait:
        """Go on until there is nothing to do but to wait."""
        for _ in range(limit):
            step = self.step()
            if isinstance(step, Wait):
                return step
        raise AssertionError(f"no end: {self.steps[-6:]}")


def test_the_twin_is_looked_at_first_and_the_primary_has_the_credit_then() -> None:
    world = World()
    world.credit = 5
    assert world.run() == Wait(world.now + LOOK_S)
    looked = DrainSide(SECONDARY, 5)
    assert world.steps == [looked, GrantSide(PRIMARY, 5), Wait(world.now + LOOK_S)]


def test_the_primary_is_drained_before_a_look_at_the_twin() -> None:
    world = World()
    world.credit = 1
    world.run()
    world.ready[SECONDARY], world.now = 1, world.now + LOOK_S
    world.steps = []
    world.run()
    assert world.steps[:2] == [DrainSide(PRIMARY, 0), DrainSide(SECONDARY, 1)]
    assert world.got == {PRIMARY: 0, SECONDARY: 1}


@pytest.mark.parametrize("credit", [1, 3, WINDOW])
def test_both_sides_have_their_turns_while_both_have_messages(credit: int) -> None:
    world = World(primary=10 * credit, secondary=10 * credit)
    for _ in range(12):
        world.credit = credit
        world.run()
    assert abs(world.got[PRIMARY] - world.got[SECONDARY]) <= credit
    assert sum(world.got.values()) == 12 * credit


def test_a_twin_that_is_empty_again_costs_one_look_a_second() -> None:
    world = World(secondary=3)
    for _ in range(4):
        world.credit = 1
        world.run()
    assert world.got == {PRIMARY: 0, SECONDARY: 3}
    world.steps = []
    world.ready[PRIMARY] = 100
    for _ in range(10):
        world.credit = 1
        world.run()
    assert [step for step in world.steps if isinstance(step, DrainSide)] == []


@pytest.mark.parametrize("side", Side)
def test_a_side_alone_has_all_the_credit_and_is_not_drained(side: Side) -> None:
    world = World()
    world.is_open[side.other] = False
    world.credit = 7
    assert world.run() == Wait(None)
    assert world.steps[0] == GrantSide(side, 7)


def test_the_credit_returns_to_a_primary_that_comes_back() -> None:
    world = World()
    world.is_open[PRIMARY] = False
    world.credit = 7
    world.run()
    assert world.out == {PRIMARY: 0, SECONDARY: 7}
    world.is_open[PRIMARY] = True
    world.run()
    assert world.out == {PRIMARY: 7, SECONDARY: 0}


@pytest.mark.parametrize("side", Side)
def test_a_side_that_does_not_answer_leaves_the_credit_to_the_other(side: Side) -> None:
    world = World()
    world.credit = 2
    world.run()
    world.is_hung[side] = True
    world.now += LOOK_S
    silent_at = world.now + 1
    until = world.run()
    assert world.out[side.other] == 2
    assert until == Wait(silent_at + SILENT_S)
    world.is_hung[side], world.now = False, silent_at + SILENT_S
    world.run()
    assert world.out == {PRIMARY: 2, SECONDARY: 0}


def test_pauses_of_a_side_that_stays_silent_grow() -> None:
    world = World()
    world.is_hung[PRIMARY] = True
    world.credit = 1
    world.run()
    pauses = []
    for _ in range(4):
        world.now += LOOK_S
        step = world.run()
        assert step.until is not None
        pauses.append(step.until - world.now)
        world.now = step.until
        world.run()
    assert pauses == [SILENT_S, 2 * SILENT_S, 4 * SILENT_S, 4 * SILENT_S]


@pytest.mark.parametrize("ready", [*itertools.product((0, 2, 5), repeat=2)])
@pytest.mark.parametrize("credit", [1, 4, 20])
def test_a_drain_is_answered_when_both_sides_have_brought_what_they_have(
    ready: tuple[int, int], credit: int
) -> None:
    world = World(*ready)
    world.credit, world.is_draining = credit, True
    while world.is_draining:
        world.step()
    assert sum(world.got.values()) == min(credit, sum(ready))
    assert world.out == {PRIMARY: 0, SECONDARY: 0}


def test_a_drain_beyond_the_window_asks_again() -> None:
    world = World(primary=2 * WINDOW, secondary=WINDOW)
    world.credit, world.is_draining = 3 * WINDOW + 1, True
    while world.is_draining:
        world.step()
    assert world.got == {PRIMARY: 2 * WINDOW, SECONDARY: WINDOW}


def test_a_drain_with_no_side_open_is_answered() -> None:
    world = World()
    world.is_open = dict.fromkeys(Side, False)
    world.credit, world.is_draining = 3, True
    assert world.step() == AnswerDrain()


def test_credit_that_the_client_takes_back_is_taken_back_from_the_side() -> None:
    world = World()
    world.credit = 9
    world.run()
    world.credit, world.takes_less = 4, True
    assert world.step() == DrainSide(PRIMARY, 0)
    world.takes_less = False
    world.run()
    assert world.out == {PRIMARY: 4, SECONDARY: 0}


def test_a_client_that_does_not_read_causes_no_frames() -> None:
    world = World(primary=50)
    world.credit, world.takes_more = 10, False
    assert world.run() == Wait(None)
    assert world.got == {PRIMARY: 0, SECONDARY: 0}


def test_a_wide_window_is_not_granted_again_for_each_message() -> None:
    world = World()
    world.credit = 3 * WINDOW
    world.run()
    world.ready[PRIMARY] = WINDOW // 4
    world.deliver(PRIMARY)
    assert isinstance(world.step(), Wait)
    world.ready[PRIMARY] = WINDOW // 2
    world.deliver(PRIMARY)
    assert world.step() == GrantSide(PRIMARY, WINDOW)


@pytest.mark.parametrize("seed", range(200))
def test_no_more_than_the_clients_credit_is_out_whatever_happens(seed: int) -> None:
    """`World` checks it after each step; in the end everything has come."""
    chance = Random(seed)
    world = World(chance.randrange(30), chance.randrange(30))
    for _ in range(200):
        match chance.randrange(8):
            case 0:
                side = chance.choice(list(Side))
                world.is_open[side] = not world.is_open[side]
                world.out[side] = 0
            case 1:
                side = chance.choice(list(Side))
                world.is_hung[side] = not world.is_hung[side]
            case 2:
                world.now += chance.random() * 3
            case 3:
                world.ready[chance.choice(list(Side))] += chance.randrange(4)
            case 4 | 5:
                world.credit += chance.randrange(1, 4)
            case 6:
                world.is_draining = True
            case _:
                world.step()
        for side in Side:
            world.deliver(side)
    world.is_open, world.is_hung = dict.fromkeys(Side, True), dict.fromkeys(Side, False)
    world.is_draining = False
    for _ in range(300):
        world.credit += 1
        world.run()
        world.now += LOOK_S
    assert world.ready == {PRIMARY: 0, SECONDARY: 0}
