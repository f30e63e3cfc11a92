"""Replays one seed and prints its timeline: python -m tests.simulation 123"""

from __future__ import annotations

import argparse
import sys

from tests.simulation.world import simulate


def main() -> int:
    """0: all checks passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--until", type=int, help="run all seeds from SEED to before this one")
    given = parser.parse_args()
    if given.until is None:
        result = simulate(given.seed)
        sys.stdout.write(result.report() + "\n")
        return 1 if result.violations else 0
    broken = 0
    for seed in range(given.seed, given.until):
        result = simulate(seed)
        if result.violations:
            broken += 1
            sys.stdout.write(f"seed {seed}: {result.violations[0]}\n")
    sys.stdout.write(f"{given.until - given.seed} seeds, {broken} with violations\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
