"""`twinbus drill`: it passes when nothing is lost, fails when something is, and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from tests.ledger_reading import read
from tests.model.tlc import check, why_not
from tests.model.traces import SPOILED, SPOILED_LEDGERS, constants_of, ledger_trace, recorded
from tests.processes import ENTRY
from twinbus.console.drill.traffic import TIMEOUT_MARGIN_S
from twinbus.console.drill.world import (
    ENTITIES,
    PRIMARY,
    SECONDARY,
    DrillError,
    NamespaceProcess,
    World,
    administration,
    create_entities,
)
from twinbus.planning.question import Traffic
from twinbus.planning.simulation import effect_of

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--messages", "300", "--outage", "3", "--failover-interval", "1")
LIMIT_S = 540.0
"""Under pytest's own, so that the output is seen when a drill hangs."""
STOP_LIMIT_S = 120.0
"""A JVM that is just starting takes its time on a busy machine."""
PROMISED = {
    *"accepted delivered received lost duplicates diverted caller_errors".split(),
    *"failover_s recover_s drain_s charges receive_gap_s twinned".split(),
}


@dataclass(frozen=True)
class Drilled:
    status: int
    stdout: str
    stderr: str
    report: Path

    @property
    def found(self) -> dict[str, Any]:
        """The JSON of stdout, which is nothing else."""
        (line,) = self.stdout.splitlines()
        found: dict[str, Any] = json.loads(line)
        return found


def environment(directory: Path, **more: str) -> dict[str, str]:
    """What the drill and all it starts find around them; temporary files are seen by the test."""
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), **more}


def command(directory: Path, *arguments: str, pump: str = "") -> list[str]:
    report = str(directory / "report")
    start = ["-m", "tests.end_to_end.bad_pumps", pump] if pump else ["-c", ENTRY]
    return [sys.executable, *start, "drill", *arguments, "--report", report]


def drill(directory: Path, *arguments: str, pump: str = "", **more: str) -> Drilled:
    """Run a drill to its end; `pump` names a faulty pump of `bad_pumps`."""
    done = subprocess.run(
        command(directory, *arguments, pump=pump),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(directory, **more),
        cwd=directory,
    )
    sys.stderr.write(done.stderr)
    return Drilled(done.returncode, done.stdout, done.stderr, directory / "report")


def test_an_outage_is_survived_and_the_report_says_so(tmp_path: Path) -> None:
    done = drill(tmp_path, *SMALL, "--senders", "3", "--queues", "3", "--output", "json")
    found = done.found
    assert done.status == 0
    assert found.keys() >= PROMISED
    assert found["accepted"] == found["delivered"] == found["received"] == 300
    assert (found["lost"], found["lost_ids"], found["caller_errors"]) == (0, [], 0)
    assert 0 < found["diverted"] < 300
    assert found["failover_s"] >= 1.0
    assert found["recover_s"] > 0
    assert found["drain_s"] > 0
    calls = {(one["cause"], one["operation"]): one["operations"] for one in found["charges"]}
    assert calls["consumer", "receive"] >= 300
    assert calls["failover", "divert"] == found["diverted"]
    assert calls["syphon", "forward"] == found["diverted"] - found["twinned"] > 0
    received_in_the_outage(found)
    assert json.loads((done.report / "drill.json").read_text()) == found
    labels = {r["namespace"] for r in read(done.report / "ledger") if r.get("namespace")}
    assert labels == {PRIMARY, SECONDARY}, "what Spark moved belongs to the same pair"
    agrees_with_the_planner(found)
    follows_the_protocol(done.report / "ledger")
    page = (done.report / "report.html").read_text()
    assert "Nothing was lost" in page
    assert '<div id="outage"></div>' in page
    assert "starting Spark" in done.stderr
    assert list((tmp_path / "tmp").glob("twinbus-drill-*")) == []


def follows_the_protocol(ledger: Path) -> None:
    """What each process recorded of an entity is what the model in spec/ may do."""
    if why_not():
        # tests/model skips for the same reason, and says so.
        return
    records = [one for one in read(ledger) if one.get("entity") == "payments"]
    sent = {str(one["message_id"]) for one in records if one["operation"] in ("send", "divert")}
    # A few of the messages: the processes have no order among each other, and TLC tries them all.
    trace = ledger_trace("drill", records, "payments", frozenset(sorted(sent)[::12]))
    spoiled = [trace.spoiled(name, SPOILED[name]) for name in SPOILED_LEDGERS]
    run = check(constants_of([trace]), recorded=recorded([trace, *spoiled]))
    assert run.accepted == {"drill"}, trace


def received_in_the_outage(found: dict[str, Any]) -> None:
    """Consumers of entities with a twin went on; those of the other one waited for the primary."""
    moments = found["moments"]
    down_s = (moments["back_ms"] - moments["killed_ms"]) / 1000
    assert found["receive_gap_s"] >= 1.0, "the failover interval"
    assert found["backlog_receive_gap_s"] >= down_s > 3.0
    assert found["twinned"] > 0
    assert found["in_twins"] == 0


# In CI tests/gateway/test_commands.py has its senders, without the drill.
@pytest.mark.soak
def test_a_drill_through_a_gateway_has_the_same_proof(tmp_path: Path) -> None:
    done = drill(tmp_path, *SMALL, "--senders", "3", "--gateway", "--output", "json")
    found = done.found
    assert (done.status, found["doubts"]) == (0, [])
    assert found["client"].startswith("the plain Python SDK (azure-servicebus 7.")
    assert f"the senders use {found['client']}" in done.stderr
    assert found["accepted"] == found["delivered"] == found["received"] == 300
    assert (found["lost"], found["caller_errors"]) == (0, 0)
    assert found["diverted"] > 0
    sent = [one for one in read(done.report / "ledger") if one["operation"] == "send"]
    assert all(one.get("client") for one in sent if one.get("view") == "client")


def agrees_with_the_planner(found: dict[str, Any]) -> None:
    """What the planner's model says of this very outage is what the drill measured.

    Stated error: a tenth, and the traffic of one ping interval, because a drill is one outage and
    an answer may just miss a ping; a second for the detection. The drain's speed is the drill's
    own, for a drill has no rate limit.
    """
    plan, moments = found["plan"], found["moments"]
    down_s = (moments["back_ms"] - moments["killed_ms"]) / 1000
    failover_s, ping_s, rate = (
        plan[name] for name in ("failover_interval_s", "ping_interval_s", "rate")
    )
    traffic = Traffic(
        rate_per_s=rate,
        size_bytes=500,
        entities=len(ENTITIES),
        patience_s=failover_s + TIMEOUT_MARGIN_S,
    )
    effect = effect_of(down_s, failover_s, ping_s, traffic)
    # The restart takes its time on a busy machine: the drill may have sent all before its end.
    left = found["accepted"] - rate * (moments["killed_ms"] - moments["began_ms"]) / 1000
    diverted = min(effect.diverted_s * rate, left)
    error = 0.1 * diverted + ping_s * rate
    assert effect.raised_s * rate == pytest.approx(found["caller_errors"], abs=0.01)
    assert found["diverted"] == pytest.approx(diverted, abs=error)
    assert found["failover_s"] == pytest.approx(failover_s + traffic.gap_s, abs=1.0)
    # What went to twins needs no drain.
    drained = 1 - found["twinned"] / found["diverted"]
    drain_s, error_s = (drained * count / found["drain_rate"] for count in (diverted, error))
    assert found["drain_s"] == pytest.approx(drain_s, abs=error_s)


# A second whole drill. In CI tests/spark/test_pairs.py names what is planted in a ledger.
@pytest.mark.soak
def test_a_message_that_the_syphon_drops_is_named(tmp_path: Path) -> None:
    culprit = tmp_path / "dropped"
    done = drill(
        tmp_path,
        *SMALL,
        pump="DroppingPump",
        BAD_PUMP_FILE=str(culprit),
    )
    (dropped,) = culprit.read_text().split()
    assert done.status == 1
    assert "1 message lost" in done.stdout
    assert f"lost: {dropped}\n" in done.stdout
    found = json.loads((done.report / "drill.json").read_text())
    assert (found["lost"], found["lost_ids"]) == (1, [dropped])
    assert found["received"] == found["accepted"] - 1
    assert list((done.report / "ledger").iterdir())


@pytest.mark.soak  # tests/contract/test_syphon.py has this pump in CI, without the drill
def test_messages_completed_before_they_are_sent_are_named_when_the_syphon_is_killed(
    tmp_path: Path,
) -> None:
    culprit = tmp_path / "completed"
    done = drill(
        tmp_path,
        *SMALL,
        # One queue, so that the bad pump has all of the backlog and leaves no lock behind.
        *("--queues", "1", "--output", "json"),
        pump="HastyPump",
        BAD_PUMP_FILE=str(culprit),
    )
    gone = culprit.read_text().split()
    assert done.status == 1
    assert done.found["lost"] == len(gone) > 0
    assert done.found["lost_ids"] == sorted(gone)
    assert done.found["received"] == done.found["accepted"] - len(gone)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_drill_that_is_stopped_leaves_no_process_and_no_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    mark = f"DRILL_TEST_MARK={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    with subprocess.Popen(
        command(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path, **{name: value}),
        cwd=tmp_path,
    ) as process:
        assert process.stderr is not None
        read_until(process.stderr, "outage")
        assert len(marked(mark)) > 1
        process.send_signal(number)
        _, stderr = process.communicate(timeout=STOP_LIMIT_S)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert list((tmp_path / "tmp").glob("twinbus-drill-*")) == []
    # The JVM ends by itself when the drill is gone; one that is just starting takes its time.
    ends = time.monotonic() + STOP_LIMIT_S
    while marked(mark) and time.monotonic() < ends:
        time.sleep(0.1)
    assert marked(mark) == []


def read_until(stream: IO[str], begin: str) -> None:
    seen = []
    for line in stream:
        seen.append(line)
        if line.startswith(begin):
            return
    pytest.fail(f"no line begins with {begin}:\n{''.join(seen)}")


def marked(mark: str) -> list[str]:
    """The commands of all living processes with the mark in their environment."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (directory / "environ").read_bytes():
                found.append((directory / "cmdline").read_bytes().decode().replace("\0", " "))
        except OSError:
            continue
    return [line for line in found if line]


def test_wrong_use_gets_one_clear_line_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("a file is in the way")
    done = drill(tmp_path)
    assert done.status == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"twinbus: the report cannot be written to {tmp_path / 'report'}: File exists;"
        " name another directory with --report\n"
    )
    for option, value in (("--messages", "0"), ("--senders", "65"), ("--ping-interval", "0.5")):
        refused = drill(tmp_path, option, value)
        assert refused.status == 2
        assert option in refused.stderr


def test_a_killed_namespace_comes_back_on_its_port_with_its_entities() -> None:
    with World() as world:
        world.primary.start()
        first = world.primary.port, world.primary.connection_string
        asyncio.run(create_entities(world.primary.connection_string))
        world.primary.kill()
        world.primary.start()
        assert (world.primary.port, world.primary.connection_string) == first
        assert asyncio.run(queues(world.primary.connection_string)) == ["orders", "payments"]
        directory = world.directory
    assert not directory.exists()
    assert world.primary.pid == 0


async def queues(connection_string: str) -> list[str]:
    async with administration(connection_string) as admin:
        found = [queue.name async for queue in admin.list_queues()]
    assert [entity.path for entity in ENTITIES if not entity.is_topic] == sorted(found)
    return sorted(found)


def test_a_namespace_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a directory should be")
    namespace = NamespaceProcess("contoso", tmp_path, tmp_path / "views")
    with pytest.raises(DrillError, match=r"contoso did not start: twinbus: .*data"):
        namespace.start()
    namespace.stop()
