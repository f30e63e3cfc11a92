"""Replays one seed and prints its timeline: python -m tests.simulation 123

With --flow a world with twins and consumers.
"""

from __future__ import annotations

import argparse
import sys

from tests.simulation.flow.world import simulate_flow
from tests.simulation.world import simulate as simulate_outage


def main() -> int:
    """0: all checks passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--until", type=int, help="run all seeds from SEED to before this one")
    parser.add_argument("--flow", action="store_true", help="with twins and consumers")
    given = parser.parse_args()
    simulate = simulate_flow if given.flow else simulate_outage
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
