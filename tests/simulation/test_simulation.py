"""Worlds with faults, each from its seed: nothing lost, nothing stuck."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests.simulation.machine import SimLoop
from tests.simulation.mutations import KNOWN_TO_SHOW, PLANTED, PLANTED_IN_STRICT, forward_twice
from tests.simulation.night.mutations import NIGHT_BUGS
from tests.simulation.night.plan import NIGHTS, draw_world
from tests.simulation.world import simulate

SEEDS = 100
CHUNKS = 10
"""Tests to share the seeds among, so that several workers have something to do."""

SOAK_SEEDS = 10_000
SOAK_CHUNKS = 10
"""Tests to share them among, so that none meets the time limit of one test."""

MUTATION_SEEDS = 200
NIGHT_SEEDS = 1_000
SEEDS_WITH_OTHER_FAULTS = 10

ROOT = Path(__file__).resolve().parents[2]


def run(seeds: range) -> Counter[str]:
    """Run these worlds; fails with every seed that broke a rule, and how to see it again."""
    facts: Counter[str] = Counter()
    broken = []
    for seed in seeds:
        result = simulate(seed)
        facts.update(result.facts)
        if result.violations:
            broken.append(f"make simulate SEED={seed}  # {result.violations[0]}")
    assert not broken, "\n" + "\n".join(broken)
    return facts


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_fails_every_message_is_accounted_for_and_nothing_is_stuck(chunk: int) -> None:
    size = SEEDS // CHUNKS
    facts = run(range(chunk * size, (chunk + 1) * size))
    # Worlds in which nothing happens would pass every check.
    assert facts["send"] > 10 * size
    assert facts["divert"] > 2 * size
    assert facts["forward"] > 2 * size
    assert facts["raised"] > size


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(SOAK_CHUNKS))
def test_ten_thousand_new_worlds(chunk: int) -> None:
    start = SystemRandom().randrange(SEEDS, 1 << 31)
    run(range(start, start + SOAK_SEEDS // SOAK_CHUNKS))


@pytest.mark.parametrize("name", [*PLANTED, *PLANTED_IN_STRICT])
def test_a_planted_bug_is_found(name: str) -> None:
    planted, checker = {**PLANTED, **PLANTED_IN_STRICT}[name]
    # A world that showed it before comes first.
    for seed in (*KNOWN_TO_SHOW.get(name, ()), *range(MUTATION_SEEDS)):
        # The other worlds would take long and show nothing.
        if name in PLANTED_IN_STRICT and "session_order" not in draw_world(Random(seed)).options:
            continue
        violations = simulate(seed, planted).violations
        if any(text.startswith(f"{checker}:") for text in violations):
            # Seen with `-rP`.
            sys.stdout.write(f"{name}: found by seed {seed}: {violations[0]}\n")
            return
    raise AssertionError(f"{name}: {checker} saw nothing in {MUTATION_SEEDS} seeds")


@pytest.mark.parametrize("name", NIGHT_BUGS)
def test_a_bug_of_a_bad_night_is_found(name: str) -> None:
    night, planted, checker = NIGHT_BUGS[name]
    for seed in (*KNOWN_TO_SHOW.get(name, ()), *range(NIGHT_SEEDS)):
        # The other worlds would take long and show nothing.
        if draw_world(Random(seed)).night != night:
            continue
        violations = simulate(seed, planted).violations
        if any(text.startswith(f"{checker}:") for text in violations):
            sys.stdout.write(f"{name}: found by seed {seed}: {violations[0]}\n")
            return
    raise AssertionError(f"{name}: {checker} saw nothing in {NIGHT_SEEDS} seeds")


def test_a_repeat_is_found_though_the_world_has_a_fault_that_did_not_cause_it() -> None:
    """A fault excuses the repeat of a forward only if it hit that very attempt."""
    searched = found = 0
    for seed in range(MUTATION_SEEDS):
        # Faults of the whole secondary could hit any message, and most messages meet none.
        if not any("secondary" in (f.target, f.detail) for f in draw_world(Random(seed)).faults):
            continue
        searched += 1
        violations = simulate(seed, forward_twice).violations
        found += any(text.startswith("forwards:") for text in violations)
        if searched == SEEDS_WITH_OTHER_FAULTS:
            break
    assert searched == SEEDS_WITH_OTHER_FAULTS
    assert found >= searched // 2


def test_every_kind_of_fault_comes_within_three_hundred_seeds() -> None:
    kinds = Counter(fault.kind for seed in range(300) for fault in draw_world(Random(seed)).faults)
    assert set(kinds) == {
        "crash process", "crash namespace", "stop namespace", "partition", "slow", "flaky",
        "refuse", "disable", "delete", "detach idle", "command", "throttle", "late queues",
        "delete queue",
    }  # fmt: skip


def test_every_kind_of_night_comes_clean_and_with_other_faults_within_three_hundred_seeds() -> None:
    plans = [draw_world(Random(seed)) for seed in range(300)]
    assert {plan.night for plan in plans if plan.is_clean} == set(NIGHTS)
    mixed = {plan.night for plan in plans if not plan.is_clean}
    # The primary of the last one is healthy: random faults would hit it.
    assert mixed == {"", *NIGHTS} - {"a healthy primary"}
    assert any(burst.calls == 200 for plan in plans for burst in plan.bursts)


def test_one_world_in_seven_counts_credits_and_runs_out_of_them() -> None:
    seeds = [s for s in range(300) if draw_world(Random(s)).credits_per_s is not None]
    assert 25 <= len(seeds) <= 60
    assert sum(simulate(seed).facts["throttled"] for seed in seeds[:5]) > 0


def test_a_timer_that_is_early_and_set_again_does_not_stop_time() -> None:
    async def wait() -> int:
        loop = asyncio.get_running_loop()
        until, over, runs = loop.time() + 1e-10, asyncio.Event(), 0

        def set_timer() -> None:
            loop.call_at(until, due)
            # With something else to run, asyncio does not wait for a timer that is so near.
            loop.call_soon(lambda: None)

        def due() -> None:
            nonlocal runs
            runs += 1
            if loop.time() >= until or runs > 100:
                over.set()
            else:
                set_timer()

        set_timer()
        await over.wait()
        return runs

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        assert runner.run(wait()) == 1


def test_a_seed_tells_the_same_story_twice() -> None:
    for seed in range(5):
        first, second = (simulate(seed).report().splitlines() for _ in range(2))
        # Line by line: to show how two long texts differ takes pytest minutes.
        differing = [pair for pair in zip(first, second, strict=False) if pair[0] != pair[1]]
        assert not differing[:1]
        assert len(first) == len(second)


def test_a_seed_is_replayed_by_one_command_and_tells_the_same_story_in_any_process() -> None:
    stories = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "11"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        stories.append(done.stdout)
    stories.append(simulate(11).report() + "\n")
    assert len({hash(story) for story in stories}) == 1
    assert stories[0].startswith("seed 11\n")
    assert "\nentities: " in stories[0]
    assert "FAULT" in stories[0]
    assert stories[0].endswith("all checks passed\n")
