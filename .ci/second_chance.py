"""Runs tests of real processes that failed in `make test` once more, alone; names them either way.

Such tests watch real clocks while five others share two cores with them. A test of pure logic gets
no second chance: it fails because something is wrong. Exit code 0: all that failed passed now.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

REAL = ("tests.contract.", "tests.end_to_end.", "tests.spark.")
"""Modules whose tests run real processes; the one home of a second chance."""

CHANCES_MAX = 3
"""More failures than this are no matter of a clock."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="junit file of `make test`")
    given = parser.parse_args()
    failed = failures(given.results) if given.results.exists() else []
    if not 0 < len(failed) <= CHANCES_MAX or not all(one.startswith(REAL) for one in failed):
        return 1
    for one in failed:
        print(f"second chance, alone: {one}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", *map(node_id, failed)]
    return subprocess.run(command, check=False).returncode


def failures(results: Path) -> list[str]:
    """Every test that did not pass, as `module::name`."""
    return [
        f"{case.get('classname')}::{case.get('name')}"
        for case in ET.parse(results).iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]


def node_id(test: str) -> str:
    """What pytest calls a test on its command line; xdist writes its group behind the name."""
    module, _, name = test.partition("::")
    path = module.replace(".", "/") + ".py"
    bare, separator, group = name.rpartition("@")
    is_grouped = separator and (group.startswith(("tests/", "spark")) and not group.endswith("]"))
    return f"{path}::{bare if is_grouped else name}"


if __name__ == "__main__":
    sys.exit(main())
