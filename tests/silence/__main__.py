"""Counts the receivers that fall silent: python -m tests.silence

For each fault, 300 guarded receivers and 300 plain ones of the SDK, and then a message for each. A
table says how many did not get theirs within 60 s. Exit code 1: a guarded receiver did not.
"""

from __future__ import annotations

import argparse
import sys

from tests.silence.faults import FAULTS
from tests.silence.world import WHOLE, Outcome, Size, run_beside, table_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.silence", description=__doc__)
    parser.add_argument("--receivers", type=int, default=WHOLE.guarded, help="guarded ones")
    parser.add_argument("--plain", type=int, help="the SDK's; as many as guarded ones by default")
    parser.add_argument("--limit", type=float, default=WHOLE.limit_s, help="seconds")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only this one")
    given = parser.parse_args()
    size = Size(
        guarded=given.receivers,
        connections=min(WHOLE.connections, given.receivers),
        plain=given.receivers if given.plain is None else given.plain,
        limit_s=given.limit,
    )
    found: dict[str, dict[str, Outcome]] = {}
    for name in given.fault or FAULTS:
        found[name] = run_beside(name, size)
        sys.stdout.write(table_of({name: found[name]}).splitlines()[-1] + "\n")
        sys.stdout.flush()
    sys.stdout.write("\n" + table_of(found) + "\n")
    for name, outcomes in found.items():
        for kind, outcome in outcomes.items():
            if outcome.errors:
                sys.stdout.write(f"{name}, {kind}: {dict(outcome.errors)}\n")
    return int(any(outcome["guarded"].silent for outcome in found.values()))


if __name__ == "__main__":
    sys.exit(main())
