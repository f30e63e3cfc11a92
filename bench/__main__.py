"""`python -m bench`: run the benchmarks, print the table, write `bench/results/latest.json`."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench.harness import Result, measure, table, write
from bench.processes import exit_on_sigterm

if TYPE_CHECKING:
    from bench.harness import Benchmark

BENCHMARKS = ("broker_send_vs_rabbitmq",)
"""Names of the entries and of the modules that measure them."""

RESULTS = Path(__file__).parent / "results" / "latest.json"


def main() -> int:
    """0: everything asked for was measured; 1: something was not; 2: no such benchmark."""
    parser = argparse.ArgumentParser(prog="bench", description="Ratios against peers.")
    parser.add_argument("--only", metavar="NAME[,NAME]", help="run these and no other")
    only = parser.parse_args().only
    names = only.split(",") if only else list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(
            f"bench: no {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr
        )
        return 2
    exit_on_sigterm()
    results: dict[str, Result] = {}
    for name in names:
        benchmark = cast("Benchmark", import_module(f"bench.{name}"))
        results[name] = measure(name, benchmark)
        write(RESULTS, results, BENCHMARKS)
    print(table(results))
    return int(any(result.ratio is None for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
