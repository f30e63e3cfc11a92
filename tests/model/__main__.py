"""Visits every state of the small worlds and looks for the planted faults: `make model`."""

from __future__ import annotations

import sys

from tests.model.configurations import PLANTED, SMALL, look_for, visit
from tests.model.tlc import why_not


def main() -> int:
    """0: every promise holds, and every planted fault is found."""
    reason = why_not()
    if reason:
        sys.stderr.write(f"model: {reason}\n")
        return 2
    wrong = 0
    for name in SMALL:
        found = visit(name)
        wrong += bool(found.violated)
        sys.stdout.write(f"{name}: {found}\n")
    for bug, (_, broken) in PLANTED.items():
        found = look_for(bug)
        wrong += found.violated != broken
        sys.stdout.write(f"planted: {bug}: {found}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
