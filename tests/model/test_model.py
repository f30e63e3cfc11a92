"""The protocol in spec/: every state of small worlds, and the planted faults."""

from __future__ import annotations

import sys

import pytest

from tests.model.configurations import (
    HOME,
    INVARIANTS,
    LARGE,
    PLANTED,
    SLOW,
    SMALL,
    look_for,
    visit,
)
from tests.model.tlc import SPEC, check

LINES_MAX = 300


@pytest.mark.usefixtures("tlc")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] * (name in SLOW)) for name in SMALL]
)
def test_every_state_of_a_small_world_keeps_the_promises(name: str) -> None:
    found = visit(name)
    # Seen with `-rP`.
    sys.stdout.write(f"{name}: {found}\n")
    assert found.violated == "", found.output[-4000:]
    # A world in which nothing happens would keep any promise.
    assert found.distinct > 400


@pytest.mark.usefixtures("tlc")
@pytest.mark.soak
@pytest.mark.parametrize("name", LARGE)
def test_every_state_of_a_larger_world_keeps_the_promises(name: str) -> None:
    found = check(LARGE[name], invariants=INVARIANTS)
    sys.stdout.write(f"{name}: {found}\n")
    assert found.violated == "", found.output[-4000:]


@pytest.mark.usefixtures("tlc")
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_fault_of_the_model_is_found(bug: str) -> None:
    assert look_for(bug).violated == PLANTED[bug][1]


def test_each_promise_has_a_planted_fault() -> None:
    assert {broken for _, broken in PLANTED.values()} == {*INVARIANTS, HOME}


def test_the_protocol_stays_short() -> None:
    lines = sum(len(module.read_text().splitlines()) for module in SPEC.glob("*.tla"))
    assert lines <= LINES_MAX
