"""`python -m bench`: run the benchmarks, print the table, write `bench/results/latest.json`."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench.harness import Progress, Result, measure, table, write
from bench.processes import exit_on_sigterm

if TYPE_CHECKING:
    from bench.harness import Benchmark

BENCHMARKS = (
    "broker_send_vs_rabbitmq",
    "paired_send_vs_sdk",
    "paired_batch_vs_sdk",
    "blocking_send_vs_sdk",
    "own_send_vs_sdk",
    "own_batch_vs_sdk",
    "own_blocking_vs_sdk",
    "paired_receive_vs_sdk",
    "processor_vs_loop",
    "gateway_vs_direct",
    "relay_vs_shovel",
    "relay_vs_shovel4",
    "relay_vs_sdk_loop",
    "spark_drain_vs_relay",
    "drain_harm",
    "ledger_overhead",
    "audit_vs_duckdb",
    "audit_growth_10x",
    "incremental_vs_batch",
)
"""Names of the entries and of the modules that measure them."""

TABLES = (
    "relay_tables",
    "broker_peers",
    "receive_peers",
    "namespace_start",
    "tables_100m",
    "fairness",
)
"""Modules that measure figures without a peer, and print them."""

RESULTS = Path(__file__).parent / "results" / "latest.json"


def main() -> int:
    """0: everything asked for was measured; 1: something was not; 2: no such benchmark."""
    parser = argparse.ArgumentParser(prog="bench", description="Ratios against peers.")
    parser.add_argument("--only", metavar="NAME[,NAME]", help="run these and no other")
    only = parser.parse_args().only
    known = (*BENCHMARKS, *TABLES)
    names = only.split(",") if only else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"bench: no {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    exit_on_sigterm()
    results: dict[str, Result] = {}
    for name in names:
        if name in TABLES:
            continue
        benchmark = cast("Benchmark", import_module(f"bench.{name}"))
        results[name] = measure(name, benchmark)
        write(RESULTS, results, BENCHMARKS)
    if results:
        print(table(results))
    for name in names:
        if name in TABLES:
            _print_tables(name)
    return int(any(result.ratio is None for result in results.values()))


def _print_tables(name: str) -> None:
    progress = Progress(name)
    text: str = import_module(f"bench.{name}").tables(progress)
    progress.clear()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.with_name(f"{name}.txt").write_text(text + "\n")
    print(f"\n{text}")


if __name__ == "__main__":
    sys.exit(main())
