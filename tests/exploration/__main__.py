"""Explores worlds, or looks for planted bugs: `python -m tests.exploration [NAME ...]`."""

from __future__ import annotations

import sys

from tests.exploration.planted import BUGS, planted
from tests.exploration.worlds import SMALL, WORLDS, explore


def main(names: list[str]) -> None:
    for name in names or SMALL:
        if name in BUGS:
            bug = BUGS[name]
            with planted(bug):
                found = explore(WORLDS[bug.world])
        else:
            found = explore(WORLDS[name])
        sys.stdout.write(f"{name}: {found}\n{found.story()}\n")
        sys.stdout.flush()


main(sys.argv[1:])
