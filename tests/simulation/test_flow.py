"""Worlds with twins and paired receivers, each from its seed: nothing lost, nothing unseen."""

from __future__ import annotations

import re
import sys
from collections import Counter
from random import Random, SystemRandom

import pytest

from tests.simulation.flow.mutations import FLOW_BUGS
from tests.simulation.flow.plan import draw_flow
from tests.simulation.flow.world import simulate_flow
from tests.simulation.mutations import KNOWN_TO_SHOW

SEEDS = 60
CHUNKS = 4
SOAK_SEEDS = 5_000
SOAK_CHUNKS = 5
MUTATION_SEEDS = 30
GIVEN_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def run(seeds: range) -> Counter[str]:
    """Run these worlds; fails with every seed that broke a rule, and how to see it again."""
    facts: Counter[str] = Counter()
    broken = []
    for seed in seeds:
        result = simulate_flow(seed)
        facts.update(result.facts)
        if result.violations:
            broken.append(f"python -m tests.simulation --flow {seed}  # {result.violations[0]}")
    assert not broken, "\n" + "\n".join(broken)
    return facts


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_fails_consumers_get_every_message_and_none_is_completed_unseen(
    chunk: int,
) -> None:
    size = SEEDS // CHUNKS
    facts = run(range(chunk * size, (chunk + 1) * size))
    # Worlds in which nothing happens would pass every check.
    assert facts["handed out"] > 10 * size
    assert facts["from twins"] > 3 * size
    assert facts["second copies"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(SOAK_CHUNKS))
def test_five_thousand_new_worlds_with_twins(chunk: int) -> None:
    start = SystemRandom().randrange(SEEDS, 1 << 31)
    run(range(start, start + SOAK_SEEDS // SOAK_CHUNKS))


@pytest.mark.parametrize("name", FLOW_BUGS)
def test_a_bug_in_receivers_or_twins_is_found(name: str) -> None:
    planted, rule = FLOW_BUGS[name]
    for seed in (*KNOWN_TO_SHOW.get(name, ()), *range(MUTATION_SEEDS)):
        violations = simulate_flow(seed, planted).violations
        if any(text.startswith(f"{rule}:") for text in violations):
            # Seen with `-rP`.
            sys.stdout.write(f"{name}: found by seed {seed}: {violations[0]}\n")
            return
    raise AssertionError(f"{name}: {rule} saw nothing in {MUTATION_SEEDS} seeds")


def test_every_kind_of_world_comes_among_the_seeds() -> None:
    plans = [draw_flow(Random(seed)) for seed in range(SEEDS)]
    assert any(plan.is_calm for plan in plans)
    assert any("replace twin" in {fault.kind for fault in plan.faults} for plan in plans)
    assert any("invoices" in plan.pumped_twins for plan in plans)
    kinds = {(one.entity.path, one.prefetch > 0) for plan in plans for one in plan.consumers}
    assert len(kinds) == 8


def test_a_seed_tells_the_same_story_twice() -> None:
    for seed in range(3):
        # A pair draws the ids of messages that have none from the machine.
        stories = (GIVEN_ID.sub("an id", simulate_flow(seed).report()) for _ in range(2))
        first, second = (story.splitlines() for story in stories)
        differing = [pair for pair in zip(first, second, strict=False) if pair[0] != pair[1]]
        assert not differing[:1]
        assert len(first) == len(second)
