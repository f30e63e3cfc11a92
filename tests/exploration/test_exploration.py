"""Every state of small worlds of the shipped cores keeps the promises; planted bugs are found."""

from __future__ import annotations

import sys

import pytest

from tests.exploration.planted import BUGS, planted
from tests.exploration.worlds import LARGE, NO_LIMIT, SMALL, STATES_MAX, WORLDS, explore
from tests.simulation.fleet.mutations import BUGS as FLEET_BUGS
from tests.simulation.mutations import PLANTED, PLANTED_IN_STRICT
from tests.simulation.night.mutations import NIGHT_BUGS

BUGS_MIN = 20

EVENTFUL = {"outage": 300}
"""The least number of states of worlds in which much happens."""


@pytest.mark.parametrize("name", SMALL)
def test_every_state_of_a_small_world_keeps_the_promises(name: str) -> None:
    found = explore(SMALL[name])
    # Seen with `-rP`.
    sys.stdout.write(f"{name}: {found}\n")
    assert not found.violation, found.story()
    assert found.is_complete
    # A world in which nothing happens would keep any promise.
    assert found.states >= EVENTFUL.get(name, 10)


@pytest.mark.soak
@pytest.mark.parametrize("name", LARGE)
def test_every_state_of_a_larger_world_keeps_the_promises(name: str) -> None:
    most = STATES_MAX.get(name, NO_LIMIT)
    found = explore(LARGE[name], states_max=most)
    sys.stdout.write(f"{name}: {found}\n")
    assert not found.violation, found.story()
    assert found.is_complete or found.states >= most


def test_twenty_planted_bugs_are_known() -> None:
    assert len(BUGS) >= BUGS_MIN
    # tests/simulation plants and finds others.
    assert not BUGS.keys() & {*PLANTED, *PLANTED_IN_STRICT, *NIGHT_BUGS, *FLEET_BUGS}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    bug = BUGS[name]
    with planted(bug):
        found = explore(WORLDS[bug.world])
    sys.stdout.write(f"{name}: {found.violation} ({found})\n")
    assert found.violation.startswith(bug.promise), found.story()
