"""Runs the official SDK's own tests against `twinbus serve` and holds them to the baseline.

The baseline (tests/conformance/baseline-*.txt) lists tests that passed once and must pass ever
after. `--record` adds the tests that pass now; nothing ever takes one away. Tests that cannot hold
on a local broker or take too long (tests/conformance/left-out.txt, each with its reason) run with
`--everything` only.

The SDK's tests wait for real clocks, so they run side by side. Those that allow a second or two
(tests/conformance/one-by-one.txt) run after the others, one at a time. No test runs twice.

Not in CI: `--only async`, the asyncio tests; `--paired`, which replaces every sender of the data
plane's tests by that of a pair (tests/conformance/paired_senders.py), with `--links own` over links
of our own, which must pass the same; `--guarded`, which replaces
every receiver by a guarded one (guarded_receivers.py; not-guarded.txt names the tests that do not
pass then, and why); and `--gateway`, which puts a `twinbus gateway` between the tests and the
namespace.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.processes import TWINBUS, exit_on_sigterm, serve, wait_until

ROOT = Path(__file__).resolve().parents[1]
BASELINES = ROOT / "tests" / "conformance"
LEFT_OUT = BASELINES / "left-out.txt"
ONE_BY_ONE = BASELINES / "one-by-one.txt"
SUITES = ("data", "admin")
FILES = {
    "async": (
        "async_tests/test_queues_async.py async_tests/test_sessions_async.py "
        "async_tests/test_topic_async.py async_tests/test_subscriptions_async.py "
        "async_tests/test_sb_client_async.py async_tests/test_list_sessions_async.py"
    )
}
"""Test files of what is no suite of its own there."""
PLUGINS = {
    "paired": "tests.conformance.paired_senders",
    "guarded": "tests.conformance.guarded_receivers",
}
"""What replaces a part of the SDK, by the option that asks for it."""
SECONDARY = "secondary"
START_TIMEOUT_S = 60.0
SUITE_TIMEOUT_S = {"data": 900, "admin": 240, "async": 900}
"""The first two together with the unit tests must end within 20 minutes on two cores."""
PAIRED_TIMEOUT_S = 2_400
PARALLEL = ("data", "async")
DATA_WORKERS = "16"
"""They sleep most of the time: twice the suite's own number ends in little more than half."""
PORT = re.compile(r"Endpoint=sb://[^;:]+:(\d+)[^;]*;")
KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
SEND_RULE, LISTEN_RULE = "sender:KEYS", "listener:KEYL"


def arguments() -> tuple[argparse.Namespace, str]:
    """Return what was asked for, and how: `paired`, `guarded`, `gateway` or empty."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=Path, required=True, help="directory of the suite's `run`")
    parser.add_argument("--out", type=Path, default=ROOT / ".ci" / "out")
    parser.add_argument("--only", choices=(*SUITES, *FILES), help="one suite")
    parser.add_argument("--paired", action="store_true", help="replace the senders by paired ones")
    parser.add_argument("--links", choices=("sdk", "own"), default="sdk", help="of paired senders")
    parser.add_argument("--guarded", action="store_true", help="replace the receivers")
    parser.add_argument("--gateway", action="store_true", help="go through a gateway")
    parser.add_argument("--record", action="store_true", help="add what passes to the baseline")
    parser.add_argument("--after", type=Path, help="repeat what broke when this file is there")
    parser.add_argument("--everything", action="store_true", help="what is left out too")
    given = parser.parse_args()
    hows = [how for how in (*PLUGINS, "gateway") if getattr(given, how)]
    if len(hows) > 1:
        parser.error(f"--{' and --'.join(hows)} are {len(hows)} runs")
    how = hows[0] if hows else ""
    if how in PLUGINS and given.only not in PARALLEL:
        parser.error(f"--{how} needs --only with one of {', '.join(PARALLEL)}")
    return given, how


def main() -> int:
    """0: every recorded test passed; 1: some did not, each named above."""
    given, how = arguments()
    plugin = PLUGINS.get(how, "")
    exit_on_sigterm()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    names = [given.only] if given.only else list(SUITES)
    log = out / "serve.log"
    # A namespace each: the administration suite clears the one it is given.
    namespaces = [*names, SECONDARY] if how else names
    command = [*TWINBUS, "serve", *(f"{name}:0" for name in namespaces)]
    command += ["--rule", f"{SEND_RULE}:Send", "--rule", f"{LISTEN_RULE}:Listen", "--ephemeral"]
    broken = False
    with ExitStack() as servers:
        ports = started(command, log, len(namespaces), servers)
        addresses = {
            name: f"127.0.0.1:{port}" for name, port in zip(namespaces, ports, strict=True)
        }
        if given.gateway:
            for name in names:
                sides = addresses[name], addresses[SECONDARY]
                addresses[name] = through_gateway(name, *sides, out, servers)
        suite: Path = given.suite.resolve()
        prepare(suite, out)
        if plugin:
            os.environ["TWINBUS_CONFORMANCE_LINKS"] = given.links
            suite = with_plugin(suite, addresses[SECONDARY], out)
        run = partial(run_suite, suite, out=out, plugin=plugin)

        def first_run(name: str) -> dict[str, str]:
            return run(name, addresses[name], everything=given.everything)

        # Side by side: both wait more than they work, each in a namespace of its own.
        with ThreadPoolExecutor(len(names)) as pool:
            found = dict(zip(names, pool.map(first_run, names), strict=True))
        if found.get("data"):
            address = addresses["data"]
            found["data"] |= run("data", address, only=listed(ONE_BY_ONE))
        for name, outcomes in found.items():
            label = f"{name}-{how}" if how else name
            passed = {test for test, result in outcomes.items() if result == "passed"}
            again = sorted(recorded(label) - passed) if outcomes and given.after else []
            if again:
                # Many wait for locks of seconds, which end early beside other tests.
                while not given.after.exists():
                    time.sleep(1)
                outcomes.update(run(name, addresses[name], only=again))
            broken |= not report(label, outcomes, out, record=given.record)
    return int(broken)


def started(command: Sequence[str], log: Path, count: int, servers: ExitStack) -> list[str]:
    """Start a server that runs as long as `servers`; the ports of its namespaces."""
    process = servers.enter_context(serve(command, log=log))
    wait_until(
        lambda: len(PORT.findall(log.read_text())) == count,
        process=process,
        log=log,
        timeout_s=START_TIMEOUT_S,
    )
    return PORT.findall(log.read_text())


def through_gateway(name: str, primary: str, secondary: str, out: Path, servers: ExitStack) -> str:
    """The address of a gateway to a namespace, with the rules that the tests use."""
    command = [*TWINBUS, "gateway", f"{name}:0", "--label", name]
    command += ["--primary", connection_string(primary)]
    command += ["--secondary", connection_string(secondary)]
    command += ["--rule", f"{SEND_RULE}:Send", "--rule", f"{LISTEN_RULE}:Listen"]
    [port] = started(command, out / f"gateway-{name}.log", 1, servers)
    return f"127.0.0.1:{port}"


def connection_string(address: str) -> str:
    return (
        f"Endpoint=sb://{address};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};"
        "UseDevelopmentEmulator=true"
    )


def prepare(suite: Path, out: Path) -> None:
    """Have the suite fetch what it caches, once: two that run at a time would do it in each other's
    way. A failure shows again, with its words, when the suites run."""
    command = [str(suite / "run"), "--python", sys.executable, "--suite", "admin"]
    command += ["--amqp", "nobody", "--admin", "nobody", "--", "--version"]
    with (out / "prepare.log").open("wb") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)


def with_plugin(suite: Path, secondary: str, out: Path) -> Path:
    """A copy of the suite whose import path also has our plugins and this tree's package."""
    copy = out / "paired-suite"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(suite, copy)
    (copy / "shim" / "tests").symlink_to(ROOT / "tests")
    (copy / "shim" / "twinbus").symlink_to(ROOT / "src" / "twinbus")
    os.environ["TWINBUS_CONFORMANCE_SECONDARY"] = connection_string(secondary)
    return copy


def run_suite(
    suite: Path,
    name: str,
    address: str,
    *,
    out: Path,
    plugin: str = "",
    everything: bool = False,
    only: Sequence[str] = (),
) -> dict[str, str]:
    """Outcome of every test of the suite: `passed`, `skipped`, or why it failed, in one line."""
    files = f"{name}-one-by-one" if only else name
    results = out / f"{files}.xml"
    results.unlink(missing_ok=True)
    chosen = " ".join(node_id(test) for test in only) if only else FILES.get(name, name)
    command = [str(suite / "run"), "--python", sys.executable, "--suite", chosen]
    command += ["--amqp", address, "--admin", address, "--ws", address]
    command += ["--send-rule", SEND_RULE, "--listen-rule", LISTEN_RULE]
    command += ["--", f"--junitxml={results}"]
    if plugin:
        command += ["-p", plugin]
    if not only:
        elsewhere = listed(ONE_BY_ONE) + ([] if everything else listed(LEFT_OUT))
        command += [f"--deselect={node_id(test)}" for test in elsewhere]
        if name in PARALLEL:
            command += ["-n", DATA_WORKERS]
    print(f"conformance {name}: running{', one by one' if only else ''}", flush=True)
    log = out / f"{files}.log"
    timeout_s = PAIRED_TIMEOUT_S if plugin else SUITE_TIMEOUT_S[name]
    with serve(command, log=log) as tests:
        try:
            tests.wait(timeout_s)
        except subprocess.TimeoutExpired:
            print(f"conformance {name}: not done in {timeout_s} s, see {log}")
            return {}
    if not results.exists():
        print(f"conformance {name}: no results; the end of {log} says:")
        print("\n".join(log.read_text(errors="replace").splitlines()[-8:]))
        return {}
    return {test_id(case): outcome(case) for case in ET.parse(results).iter("testcase")}


def node_id(test: str) -> str:
    """What pytest calls a test on its command line."""
    home, _, rest = test.partition("::")
    *module, klass = home.split(".")
    return f"{'/'.join(module)}.py::{klass}::{rest}"


def listed(path: Path) -> list[str]:
    """Tests that a file lists; it says why for each."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split("  ")[0] for line in lines if line and not line.startswith("#")]


def recorded(name: str) -> set[str]:
    return read_baseline(BASELINES / f"baseline-{name}.txt")


def test_id(case: ET.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def outcome(case: ET.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            if kind == "skipped":
                return "skipped"
            return " ".join((found.get("message") or kind).split())[:200]
    return "passed"


def report(name: str, outcomes: dict[str, str], out: Path, *, record: bool) -> bool:
    """Print what changed against the baseline; true if nothing that passed before is broken."""
    before = recorded(name)
    passed = {test for test, result in outcomes.items() if result == "passed"}
    broken, gained = sorted(before - passed), sorted(passed - before)
    for test in broken:
        print(f"conformance {name}: BROKEN {test}: {outcomes.get(test, 'did not run')}")
    for test in sorted(set(outcomes) - before):
        if outcomes[test] not in ("passed", "skipped"):
            print(f"conformance {name}: fails  {test}: {outcomes[test]}")
    for test in gained:
        print(f"conformance {name}: new    {test}{'' if record else ' (--record keeps it)'}")
    if record:
        write_baseline(BASELINES / f"baseline-{name}.txt", before | passed)
    # A suite that yielded nothing is broken even while nothing is recorded.
    failed = len(broken) if outcomes else max(len(broken), 1)
    counts = {"passed": len(passed), "failed": failed}
    (out / f"conformance-{name}.json").write_text(json.dumps(counts))
    skipped = sum(result == "skipped" for result in outcomes.values())
    print(
        f"conformance {name}: {len(passed)} of {len(outcomes)} passed, {skipped} skipped; "
        f"{len(before)} recorded, {len(broken)} broken, {len(gained)} new",
        flush=True,
    )
    return not failed


def read_baseline(path: Path) -> set[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {line for line in lines if line and not line.startswith("#")}


def write_baseline(path: Path, tests: set[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "# Tests of the official SDK that passed against our broker and must pass ever after."
    path.write_text("\n".join([head, *sorted(tests)]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
