"""Prints the last line of a CI run, in pytest's form: how many tests passed, failed, skipped."""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree as ET
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--status", type=int, required=True)
    parser.add_argument("--seconds", type=int, required=True)
    given = parser.parse_args()
    passed = failed = skipped = 0
    tests = given.out / "tests.xml"
    if tests.exists():
        for suite in ET.parse(tests).iter("testsuite"):
            broken = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            left_out = int(suite.get("skipped", 0))
            passed += int(suite.get("tests", 0)) - broken - left_out
            failed, skipped = failed + broken, skipped + left_out
    for counts in given.out.glob("conformance-*.json"):
        entry = json.loads(counts.read_text())
        passed, failed = passed + entry["passed"], failed + entry["failed"]
    if given.status and not failed:
        failed = 1  # lint, types or the run itself failed, no single test
    words = [f"{failed} failed"] if failed else []
    words += [f"{passed} passed"] if passed else []
    words += [f"{skipped} skipped"] if skipped else []
    print(f"==== {', '.join(words) or 'no tests ran'} in {given.seconds}s ====")


if __name__ == "__main__":
    main()
