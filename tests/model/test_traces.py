"""What the program did in simulated worlds is what the model in spec/ may do."""

from __future__ import annotations

import sys
from collections.abc import Collection

import pytest

from tests.model.simulated import modelled_seeds, traces_of
from tests.model.tlc import check
from tests.model.traces import SPOILED, Trace, constants_of, recorded, second_holder
from tests.simulation.test_leases import run_rivals

pytestmark = pytest.mark.usefixtures("tlc")

WORLDS = 12
SOAK_WORLDS = 60


def accepted_of(traces: Collection[Trace], **changes: object) -> frozenset[str]:
    """Names of the traces that are behaviours of the model."""
    constants = constants_of(traces, **changes)
    found = check(constants, recorded=recorded(traces))
    sys.stdout.write(f"{len(traces)} traces, {len(found.accepted)} accepted: {found}\n")
    return found.accepted


def test_simulated_worlds_are_behaviours_of_the_model_and_spoiled_ones_are_not() -> None:
    traces = [trace for seed in modelled_seeds(WORLDS) for trace in traces_of(seed)]
    spoilable = max(traces, key=lambda trace: len(trace.actors[0]))
    spoiled = [spoilable.spoiled(name, change) for name, change in SPOILED.items()]
    assert accepted_of([*traces, *spoiled]) == {trace.name for trace in traces}


@pytest.mark.soak
def test_more_simulated_worlds_are_behaviours_of_the_model() -> None:
    traces = [trace for seed in modelled_seeds(SOAK_WORLDS) for trace in traces_of(seed)]
    for start in range(0, len(traces), 10):
        some = traces[start : start + 10]
        assert accepted_of(some) == {trace.name for trace in some}


def test_holders_of_a_lease_are_those_of_the_model_and_two_at_once_are_not() -> None:
    rivals, _ = run_rivals(0)
    traces = [
        Trace(queue, [[["act", frozenset((name, "q") for name in held)] for held in seen[1:]]])
        for queue, seen in rivals.seen.items()
    ]
    spoiled = traces[0].spoiled("a second holder", second_holder)
    accepted = accepted_of([*traces, spoiled], Strict=True)
    assert accepted == {trace.name for trace in traces}
