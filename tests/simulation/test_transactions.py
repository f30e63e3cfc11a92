"""Worlds of transactions, each from its seed: never half, and nobody is told what is not so."""

from __future__ import annotations

import sys
from collections import Counter
from random import SystemRandom

import pytest

from tests.simulation.transactions.mutations import PLANTED
from tests.simulation.transactions.world import ORDER_COUNT, simulate_transactions

SEEDS = 20
SOAK_SEEDS = 2_000
MUTATION_SEEDS = 100


def run(seeds: range) -> Counter[str | None]:
    told: Counter[str | None] = Counter()
    broken = []
    for seed in seeds:
        result = simulate_transactions(seed)
        told += result.told
        broken += [f"simulate_transactions({seed}): {text}" for text in result.violations]
    assert not broken, "\n".join(broken)
    return told


def test_whatever_fails_a_transaction_is_whole_or_nothing_as_its_application_was_told() -> None:
    told = run(range(SEEDS))
    assert told["committed"] > 0.9 * SEEDS * ORDER_COUNT
    # Worlds in which nothing fails would pass every check.
    assert min(told["rolled back"], told["unknown"], told[None]) > SEEDS // 3


@pytest.mark.soak
def test_two_thousand_new_worlds() -> None:
    start = SystemRandom().randrange(SEEDS, 1 << 31)
    run(range(start, start + SOAK_SEEDS))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    planted, checker = PLANTED[name]
    for seed in range(MUTATION_SEEDS):
        violations = simulate_transactions(seed, planted).violations
        if any(text.startswith(f"{checker}:") for text in violations):
            sys.stdout.write(f"{name}: found by seed {seed}: {violations[0]}\n")
            return
    raise AssertionError(f"{name}: {checker} saw nothing in {MUTATION_SEEDS} seeds")
