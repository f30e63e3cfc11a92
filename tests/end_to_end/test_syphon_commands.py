"""`twinbus syphon` as a person types it: processes, brokers in a process, real control sockets."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from prometheus_client.parser import text_string_to_metric_families

from tests.end_to_end import paired_program
from tests.end_to_end.hand_made_world import KEY
from tests.official_sdk import administration, client, receive_count
from tests.processes import ENTRY, ServedBroker, line_of, run_twinbus, started, until
from tests.unit.console.commands import run
from twinbus import Namespace
from twinbus.planning.question import Traffic
from twinbus.planning.simulation import BacklogLevel, next_level
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.end_to_end

COULD_NOT, ASKED_WRONGLY, ATTENTION = 1, 2, 3
PATIENCE_S = 120.0
QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
ENTITIES = ("orders", "events")


class Desk:
    """A person at a command line, with two namespaces in the environment."""

    def __init__(self, broker: ServedBroker, run_directory: Path) -> None:
        self.run_directory = run_directory
        self.primary = broker.connection_string("contoso")
        self.secondary = broker.connection_string("contoso-dr")
        self.environment = broker.environment(run_directory)
        self._renew(self.primary, ENTITIES)
        self._renew(self.secondary, QUEUES)

    @staticmethod
    def _renew(text: str, names: Any) -> None:
        with administration(text) as admin:
            for queue in list(admin.list_queues()):
                admin.delete_queue(queue.name)
            for name in names:
                admin.create_queue(name)

    def divert(self, queue: str, path: str, count: int, prefix: str = "m") -> None:
        with client(self.secondary) as sdk, sdk.get_queue_sender(queue) as sender:
            batch = [
                to_backlog_message(
                    ServiceBusMessage("x", message_id=f"{prefix}-{n}"), path, now_ms=0
                )
                for n in range(count)
            ]
            sender.send_messages(batch)

    def counts(self, side: str, name: str) -> tuple[int, int, int]:
        """Active, deferred and dead messages of a queue."""
        with administration(side) as admin:
            found = admin.get_queue_runtime_properties(name)
        active, dead = found.active_message_count or 0, found.dead_letter_message_count or 0
        return active, (found.total_message_count or 0) - active - dead, dead

    def arrived(self, name: str) -> int:
        return self.counts(self.primary, name)[0]

    def types(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = run_twinbus("syphon", *arguments, environment=self.environment, timeout_s=PATIENCE_S)
        assert "Traceback" not in done.stderr, done.stderr
        assert "SAS_KEY_VALUE" not in done.stdout + done.stderr
        return done

    def drains(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        done = self.types("drain", "--label", "contoso", "--output", "json", *arguments)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def running(self, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
        """`twinbus syphon run` in a process; killed at the end unless it ended by itself."""
        command = ("-c", ENTRY, "syphon", "run", "--label", "contoso", *arguments)
        return started(*command, environment=self.environment, stderr=subprocess.PIPE)

    def status(self) -> dict[str, Any]:
        (syphon,) = json.loads(self.types("status", "--output", "json").stdout)["syphons"]
        status: dict[str, Any] = syphon["status"]
        return status


@pytest.fixture
def desk(broker: ServedBroker, run_directory: Path) -> Desk:
    return Desk(broker, run_directory)


def test_a_syphon_runs_is_paused_and_resumed_and_ends_cleanly(desk: Desk) -> None:
    desk.divert(QUEUES[0], "orders", 20)
    with desk.running() as process:
        assert "2 backlog queues of contoso" in line_of(process)
        until(lambda: desk.arrived("orders") == 20)

        paused = desk.types("pause")
        assert paused.returncode == 0, paused
        assert paused.stdout.startswith(f"contoso.{process.pid}: paused; ")
        desk.divert(QUEUES[1], "orders", 5, "late")
        shown = desk.types("status")
        assert shown.returncode == ATTENTION
        assert "PAUSED" in shown.stdout
        assert "5 messages wait, " in shown.stdout
        assert desk.counts(desk.secondary, QUEUES[1]) == (5, 0, 0)

        assert desk.types("resume").stdout == f"contoso.{process.pid}: resumed\n"
        # It is completed after it has arrived.
        until(lambda: bool(desk.status()["waiting"] == 0))
        assert desk.arrived("orders") == 25
        status = desk.status()
        assert status["queues"][QUEUES[0]]["completed"] == 20
        assert status["queues"][QUEUES[1]]["completed"] == 5
        assert (status["waiting"], status["empty_in_s"]) == (0, 0.0)

        # A queue that another application makes is found by the next count.
        later = QUEUES[0].replace("/0", "/6")
        with administration(desk.secondary) as admin:
            admin.create_queue(later)
        desk.divert(later, "orders", 3, "other")
        status = desk.status()
        assert (list(status["queues"]), status["without_pump"]) == ([*QUEUES, later], [])
        until(lambda: desk.arrived("orders") == 28)
        until(lambda: bool(desk.status()["waiting"] == 0))

        process.send_signal(signal.SIGTERM)
        said, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (0, "")
        assert said.rstrip().endswith("28 messages moved, 0 dead-lettered")
    assert desk.types("status").returncode == COULD_NOT


def test_metrics_and_health_follow_the_syphon(desk: Desk) -> None:
    desk.divert(QUEUES[0], "orders", 3)
    desk.divert(QUEUES[0], "missing", 1)
    arguments = ("--metrics", "0", "--backlog-every", "1s", "--output", "json")
    with desk.running(*arguments) as process:
        url = json.loads(line_of(process))["url"]

        def metrics() -> dict[tuple[str, ...], float]:
            with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as answer:
                families = text_string_to_metric_families(answer.read().decode())
            samples = [sample for family in families for sample in family.samples]
            return {(one.name, *one.labels.values()): one.value for one in samples}

        pair = f"contoso+{Namespace.from_connection_string(desk.secondary).label}"
        of = (pair, QUEUES[0])
        until(lambda: metrics().get(("twinbus_syphon_messages_total", "completed", *of)) == 3)
        until(lambda: metrics().get(("twinbus_backlog_messages", "waiting", *of)) == 1)
        assert metrics()["twinbus_backlog_oldest_seconds", *of] > 0
        # A destination that is missing ends by itself, or by hand: no reason to restart.
        until(lambda: metrics()["twinbus_syphon_held_destinations", *of] == 1)
        with urllib.request.urlopen(f"{url}/health", timeout=PATIENCE_S) as answer:
            health = json.load(answer)
        assert (health["status"], health["failures"]) == ("waiting", [])
        assert "missing" in health["waits_for"][0]

        desk.types("pause")
        assert metrics()["twinbus_syphon_paused", pair] == 1
        busy = desk.types("run", "--label", "contoso", "--metrics", url.removeprefix("http://"))
        assert (busy.returncode, busy.stdout) == (COULD_NOT, "")
        assert "address already in use" in busy.stderr
        assert len(busy.stderr.splitlines()) == 1

        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (0, "")


def test_sigterm_waits_for_what_is_in_flight(desk: Desk) -> None:
    for queue in QUEUES:
        for part in range(4):
            desk.divert(queue, "orders", 100, f"{queue[-1]}{part}")
    # All of them would take it sixteen seconds, of which a busy machine may miss some.
    with desk.running("--rate", "50") as process:
        until(lambda: desk.arrived("orders") > 50)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    waiting = sum(desk.counts(desk.secondary, queue)[0] for queue in QUEUES)
    # Not one is in both places, and none is locked any more: a drain moves the rest at once.
    assert waiting > 0
    assert desk.arrived("orders") + waiting == 800
    code, done = desk.drains("--timeout", "60")
    assert (code, done["forwarded"]) == (0, waiting)


def test_a_drain_keeps_to_its_rate_over_all_queues(desk: Desk) -> None:
    for queue in QUEUES:
        desk.divert(queue, "orders", 100, queue[-1])
        desk.divert(queue, "events", 50, queue[-1])
    code, done = desk.drains("--rate", "100")
    assert (code, done["drained"], done["forwarded"]) == (0, True, 300)
    traffic = Traffic(rate_per_s=1, size_bytes=1)
    planned = next_level(
        BacklogLevel(), 300, 0.0, 60.0, traffic=traffic, drain_per_s=100.0, capacity=1e9
    )
    assert planned.longest_drain_s == 3.0
    # What the planner says, less the slice that comes at once. The rest is for signing in on a busy
    # machine; a drain at a tenth of its rate would take longer.
    assert planned.longest_drain_s * 0.9 <= done["seconds"] < planned.longest_drain_s + 25
    assert (desk.arrived("orders"), desk.arrived("events")) == (200, 100)


def test_a_drain_of_one_entity_leaves_the_others_in_the_backlog(desk: Desk) -> None:
    desk.divert(QUEUES[0], "events", 30, "before")
    desk.divert(QUEUES[0], "Orders", 40)
    desk.divert(QUEUES[1], "events", 10, "alone")
    code, done = desk.drains("--only", "orders")
    assert (code, done["forwarded"], done["queues"]) == (0, 40, QUEUES[:1])
    assert done["not_served"] == 30
    assert (desk.arrived("orders"), desk.arrived("events")) == (40, 0)
    assert desk.counts(desk.secondary, QUEUES[0]) == (0, 30, 0)
    # A queue that holds none of them was not touched: never delivered, in place.
    assert desk.counts(desk.secondary, QUEUES[1]) == (10, 0, 0)

    code, done = desk.drains()
    assert (code, done["forwarded"]) == (0, 40)
    with client(desk.primary) as sdk, sdk.get_queue_receiver("events") as receiver:
        received = Counter(m.message_id for m in receive_count(receiver, 40))
    assert received == Counter(
        [*(f"before-{n}" for n in range(30)), *(f"alone-{n}" for n in range(10))]
    )


def test_a_missing_destination_is_told_of_and_given_up_after_the_grace(desk: Desk) -> None:
    desk.divert(QUEUES[0], "gone", 3)
    desk.divert(QUEUES[0], "orders", 5)
    waited = desk.types("drain", "--label", "contoso", "--timeout", "15")
    assert waited.returncode == COULD_NOT
    assert "not drained in time, 3 messages left: gone is missing" in waited.stderr
    assert "dead-lettered in 5 h 59 min (--grace)" in waited.stderr
    done = desk.types("drain", "--label", "contoso", "--grace", "2")
    assert done.returncode == ATTENTION, done
    assert "3 dead-lettered, `twinbus backlog dead-letters list` says why" in done.stdout
    assert desk.counts(desk.secondary, QUEUES[0]) == (0, 0, 3)


def test_only_one_syphon_at_a_time_where_leases_are_wanted(desk: Desk) -> None:
    with desk.running("--lease") as first:
        until(lambda: desk.types("status").returncode == 0)
        desk.divert(QUEUES[0], "orders", 5)
        until(lambda: desk.arrived("orders") == 5)
        with desk.running("--lease") as standby:
            named = ("status", "--pair", f"contoso.{standby.pid}")
            until(lambda: "another syphon has the lease" in desk.types(*named).stdout)
            until(lambda: desk.types(*named).returncode == 0)
            standby.send_signal(signal.SIGTERM)
            assert standby.wait(PATIENCE_S) == 0
        desk.types("pause")
        desk.divert(QUEUES[0], "orders", 5, "more")
        waits = desk.types("drain", "--label", "contoso", "--lease", "--timeout", "10")
        assert waits.returncode == COULD_NOT
        assert "another syphon has the lease" in waits.stderr
        first.send_signal(signal.SIGTERM)
        first.wait(PATIENCE_S)
    code, done = desk.drains("--lease", "--timeout", "60")
    assert (code, done["forwarded"]) == (0, 5)


def test_without_the_manage_right_the_queues_are_named_by_their_count(
    desk: Desk, broker: ServedBroker
) -> None:
    desk.divert(QUEUES[1], "orders", 5)
    desk.environment |= {
        "TWINBUS_PRIMARY": broker.connection_string("contoso", rule="sender", key=KEY),
        "TWINBUS_SECONDARY": broker.connection_string("contoso-dr", rule="listener", key=KEY),
    }
    refused = desk.types("run", "--label", "contoso")
    assert refused.returncode == COULD_NOT
    assert "needs the Manage right" in refused.stderr
    assert "--queues N" in refused.stderr
    assert "needs the Manage right" in desk.types("drain", "--label", "contoso").stderr
    with desk.running("--queues", "2") as process:
        until(lambda: desk.arrived("orders") == 5)
        # What waits cannot be counted without the right; the rest of the status is there.
        assert desk.status()["waiting"] is None
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("drain", "--rate", "fast"), ASKED_WRONGLY, "like 500/s, 30000/min or 2M/day; got 'fast'"),
        (("run", "--rate", "0"), ASKED_WRONGLY, "at most 1,000,000 a second; got '0'"),
        (("drain", "--only", "/"), ASKED_WRONGLY, "--only"),
        (("drain", "--master", "local[2]"), ASKED_WRONGLY, "--engine spark"),
        (("drain", "--engine", "spark", "--timeout", "5"), ASKED_WRONGLY, "--engine relay"),
        (("drain", "--label", "fabrikam"), COULD_NOT, "no backlog queue of fabrikam"),
        (("pause",), COULD_NOT, "no syphon runs here"),
        (("run", "--metrics", "here"), ASKED_WRONGLY, "an address is HOST:PORT"),
        (("run", "--backlog-every", "1min"), ASKED_WRONGLY, "need --metrics"),
    ],
)
def test_words_that_lead_nowhere(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    status: int,
    said: str,
) -> None:
    # In this process: a process of its own would add a second of imports.
    for name, value in desk.environment.items():
        monkeypatch.setenv(name, value)
    done = run(capsys, "syphon", *arguments)
    assert done.status == status
    (line,) = done.err.splitlines()
    assert line.startswith("twinbus: ")
    assert said in line


def test_the_syphon_of_a_pair_is_paused_over_the_sockets_of_the_pair(desk: Desk) -> None:
    sides = desk.primary, desk.secondary
    with paired_program.running(desk.run_directory, *sides, "contoso", enable_syphon=True) as pair:
        assert "paused" in desk.types("pause", "--pair", "contoso").stdout
        desk.divert(QUEUES[0], "orders", 5)
        shown = desk.types("status")
        assert shown.returncode == ATTENTION
        assert f"contoso, in a pair, pid {pair.pid}" in shown.stdout
        assert desk.counts(desk.secondary, QUEUES[0]) == (5, 0, 0)
        assert desk.types("resume").returncode == 0
        until(lambda: desk.arrived("orders") == 5)
