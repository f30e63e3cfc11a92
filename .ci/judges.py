"""Runs clients of other languages against `twinbus serve` and holds them to what passed before.

The judges are scripts beside the repository (`run-go`: the official Go SDK's own tests; `run-jms`:
Qpid JMS; `run-amqp`: rhea and raw sockets; `run-rust`: azservicebus). Each makes a network
namespace of its own with Azure's names and ports, so it needs root, and the tools of its language.

What passed once is recorded in tests/conformance/baseline-<judge>.txt (`-gateway`: with a gateway
between) and must pass ever after; `--record` adds what passes now. Tests that do not pass every
time, whatever the broker does, are in judges-left-out.txt, each with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import conformance  # beside this file

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = conformance.BASELINES / "judges-left-out.txt"
JUDGES = {"go": ("go",), "amqp": ("node", "npm"), "jms": ("java", "mvn"), "rust": ("cargo",)}
"""The tools that each needs, beside those of all."""
TOOLS = ("unshare", "socat", "openssl", "curl")
TIME_LIMIT_S = 1_800
"""Of one judge: it builds its client, which takes some minutes the first time."""

STEP = re.compile(r"(?:\x1b\[[0-9;]*m)*(ok|FAIL)\s+(.+?)(?:\s+\[\d+ ms\](.*))?$")
"""A line of a judge that has steps; Maven leaves colours before the first."""


def main() -> int:
    """0: all that was recorded passed, or cannot run here; 1: something else."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judges", type=Path, required=True, help="directory of the scripts")
    parser.add_argument("--out", type=Path, default=ROOT / ".ci" / "out")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "judges")
    parser.add_argument("--only", choices=JUDGES, help="one judge")
    parser.add_argument("--gateway", action="store_true", help="go through a gateway")
    parser.add_argument("--record", action="store_true", help="add what passes to the baseline")
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    broken = False
    for name in [given.only] if given.only else list(JUDGES):
        world = "gateway" if given.gateway else "direct"
        label = f"{name}-gateway" if given.gateway else name
        missing = [tool for tool in (*TOOLS, *JUDGES[name]) if shutil.which(tool) is None]
        if missing or os.geteuid():
            why = f"it needs {', '.join(missing)}" if missing else "it needs root"
            print(f"conformance {label}: not run, {why}")
            continue
        outcomes = judged(given.judges.resolve() / f"run-{name}", world, given.work, out)
        passed_by = conformance.report(label, outcomes, out, record=given.record)
        broken |= not passed_by
    return int(broken)


def judged(script: Path, world: str, work: Path, out: Path) -> dict[str, str]:
    """The outcome of each test or step of a judge: `passed`, `skipped`, or why it failed."""
    work.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"JUDGES_WORK": str(work.resolve())}
    environment["TWINBUS"] = str(Path(sys.executable).with_name("twinbus"))
    print(f"conformance {script.name}: running, {world}", flush=True)
    log = out / f"{script.name}-{world}.log"
    with log.open("w") as file:
        try:
            subprocess.run(
                [str(script), world],
                cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT,
                timeout=TIME_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"conformance {script.name}: not done in {TIME_LIMIT_S} s, see {log}")
            return {}
    events = work / "logs" / f"{script.name}-{world}" / "go.json"
    if script.name == "run-go":
        found = go_outcomes(events.read_text().splitlines()) if events.exists() else {}
    else:
        found = step_outcomes(log.read_text(errors="replace").splitlines())
    left_out = set(conformance.listed(LEFT_OUT))
    return {test: result for test, result in found.items() if test not in left_out}


def go_outcomes(lines: Iterable[str]) -> dict[str, str]:
    """The outcome of each test of a `go test -json` run; those of its parts are in it."""
    outcomes: dict[str, str] = {}
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # A line that a program wrote beside the tests.
        test = event.get("Test", "")
        if not test or "/" in test:
            continue
        name = f"{event.get('Package', '.')} {test}"
        match event.get("Action"):
            case "run":
                outcomes[name] = "not finished"
            case "pass":
                outcomes[name] = "passed"
            case "fail":
                outcomes[name] = "failed"
            case "skip":
                outcomes[name] = "skipped"
    return outcomes


def step_outcomes(lines: Iterable[str]) -> dict[str, str]:
    """The outcome of each step of a judge that prints a line for each."""
    outcomes: dict[str, str] = {}
    for line in lines:
        step = STEP.fullmatch(line.rstrip())
        if step is not None:
            result, name, said = step.groups()
            outcomes[name] = "passed" if result == "ok" else (said or "failed").strip()[:200]
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
