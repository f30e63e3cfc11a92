"""`twinbus status` and the commands that steer, against pairs in processes of their own."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.paired_program import running
from tests.processes import ENTRY, ServedBroker, line_of, run_twinbus, started, until
from tests.unit.console.commands import run

pytestmark = pytest.mark.end_to_end

COULD_NOT, ASKED_WRONGLY, ATTENTION = 1, 2, 3
PATIENCE_S = 60.0


class Desk:
    """A person at a command line, and the broker of the programs they look after."""

    def __init__(self, broker: ServedBroker, run_directory: Path) -> None:
        self.sides = broker.connection_string("contoso"), broker.connection_string("contoso-dr")
        self.run_directory = run_directory

    def program(self, names: str = "contoso", *queues: str) -> Any:
        return running(self.run_directory, *self.sides, names, *(queues or ("orders", "payments")))

    def types(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"TWINBUS_RUN_DIR": str(self.run_directory)}
        return run_twinbus(*arguments, environment=environment)

    def entities(self) -> dict[str, dict[str, Any]]:
        done = self.types("status", "--output", "json")
        (pair,) = json.loads(done.stdout)["pairs"]
        entities: dict[str, dict[str, Any]] = pair["status"]["entities"]
        return entities

    def one_line(self, status: int, *arguments: str) -> str:
        """The one line with which a command that fails says why."""
        done = self.types(*arguments)
        assert (done.returncode, done.stdout) == (status, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("twinbus: ")
        return line


@pytest.fixture
def desk(broker: ServedBroker, run_directory: Path) -> Desk:
    return Desk(broker, run_directory)


def test_a_pair_is_seen_and_steered_from_outside(desk: Desk) -> None:
    with desk.program() as program:
        seen = desk.types("status")
        assert seen.returncode == 0, seen
        assert f"pid {program.pid} (paired_program.py)" in seen.stdout
        assert "backlog queues: 2 of 2 in rotation" in seen.stdout
        assert "1 pair, all healthy" in seen.stdout

        forced = desk.types("force-failover", "Orders")
        assert forced.returncode == 0, forced
        assert forced.stdout.startswith("orders: failed over, forced; its sends are diverted")
        until(lambda: desk.entities()["orders"]["diverted"] > 0)
        assert desk.entities()["payments"]["state"] == "healthy"
        seen = desk.types("status")
        assert seen.returncode == ATTENTION
        assert "! failed over: orders" in seen.stdout

        assert "its sends go to the primary again" in desk.types("mark-healthy", "orders").stdout
        sent = desk.entities()["orders"]["sent"]
        until(lambda: desk.entities()["orders"]["sent"] > sent)
        assert "frozen" in desk.types("freeze", "payments").stdout
        assert desk.entities()["payments"]["frozen"]
        assert desk.types("unfreeze", "payments").stdout.startswith("payments: healthy; ")
        for verb, state, hold in (
            ("force-failover", "failed over", "forced"),
            ("mark-healthy", "healthy", ""),
            ("freeze", "healthy", "frozen"),
            ("unfreeze", "healthy", ""),
        ):
            done = desk.types(verb, "payments", "--output", "json")
            (steered,) = json.loads(done.stdout)["pairs"]
            assert (done.returncode, steered["pid"]) == (0, program.pid)
            assert steered["entity"]["path"] == "payments"
            assert steered["entity"]["state"] == state
            assert [one for one in ("forced", "frozen") if steered["entity"][one]] == hold.split()
        assert desk.types("status").returncode == 0


def test_a_monitoring_system_gets_a_line_a_level_and_figures(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # In this process: what a command of its own adds is a second of imports.
    monkeypatch.setenv("TWINBUS_RUN_DIR", str(desk.run_directory))
    secondary = desk.sides[1]
    counted = ("check", "--secondary", secondary, "--label", "watched")
    with desk.program("watched", "orders") as program:
        fine = run(capsys, "check", "--pair", "watched")
        assert (fine.status, fine.err) == (0, "")
        assert fine.out.startswith(f"TWINBUS OK - watched.{program.pid}: sends are safe")
        assert " | pairs=1;;;0 unprotected=0;;;0 failed_over=0;;;0 raising=0;;;0 sent=" in fine.out
        assert "backlog=" not in fine.out

        run(capsys, "force-failover", "orders", "--pair", "watched")
        until(lambda: desk.entities()["orders"]["diverted"] > 3)
        seen = run(capsys, *counted, "--output", "json")
        document = json.loads(seen.out)
        assert (seen.status, document["state"]) == (1, "WARNING")
        assert document["figures"]["failed_over"] == 1
        assert document["figures"]["backlog"] > 3
        assert document["figures"]["backlog_age"] > 0
        full = run(capsys, *counted, "--backlog-depth", "1,3")
        assert (full.status, full.err) == (2, "")
        assert full.out.startswith("TWINBUS CRITICAL - backlog: ")
        assert "failed over: orders" in full.out

        # What cannot be found out does not hide what is known to be wrong.
        wrong_key = secondary.replace("SAS_KEY_VALUE", "WRONG")
        unknown = run(capsys, "check", "--secondary", wrong_key)
        assert (unknown.status, unknown.err) == (1, "")
        assert "failed over: orders; " in unknown.out
        assert "key" in unknown.out
    # Where no pair runs, the backlog alone is judged; it has what the program left.
    alone = run(capsys, *counted)
    assert (alone.status, alone.out[:13]) == (0, "TWINBUS OK - ")
    listed = run(capsys, "backlog", "list", "--secondary", secondary, "--output", "json")
    queues = [one for one in json.loads(listed.out)["queues"] if one["label"] == "watched"]
    waiting = sum(one["active"] + one["scheduled"] + one["deferred"] for one in queues)
    assert f" backlog={waiting};;;0 " in alone.out


CONTROLLING_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
"""Without one, Ctrl-C on the terminal would be no signal."""


class Terminal:
    """A terminal of 80 columns and 24 rows with one command in it."""

    def __init__(self, run_directory: Path, *arguments: str) -> None:
        self._master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.settings = termios.tcgetattr(self.slave)
        self.shown = ""
        environment = {**os.environ, "TWINBUS_RUN_DIR": str(run_directory), "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLING_TERMINAL + ENTRY, *arguments],
            stdin=self.slave, stdout=self.slave, stderr=self.slave, env=environment,
            start_new_session=True,
        )  # fmt: skip

    def read_until(self, text: str) -> None:
        until(lambda: text in self._read())

    def press(self, key: bytes) -> int:
        """Press a key; return the exit status with which the command then ends."""
        os.write(self._master, key)
        until(lambda: bool(self._read()) and self.process.poll() is not None)
        self._read()
        return self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self.slave)

    def _read(self) -> str:
        while select.select([self._master], [], [], 0)[0]:
            self.shown += os.read(self._master, 65_536).decode(errors="replace")
        return self.shown


def test_top_follows_a_pair_and_leaves_the_terminal_as_it_was(desk: Desk) -> None:
    with desk.program("watched", "orders"):
        for key, headline in ((b"q", "Healthy: 1 pair, 1 entity"), (b"\x03", "Failed over")):
            terminal = Terminal(desk.run_directory, "top")
            try:
                terminal.read_until(headline)
                desk.types("force-failover", "orders")
                terminal.read_until("Failed over")
                assert terminal.press(key) == 0
                last = terminal.shown.rpartition("Failed over")[2]
                assert "\x1b[?1049h" in terminal.shown
                assert "\x1b[?1049l" in last
                assert "\x1b[?25h" in last
                assert "Traceback" not in terminal.shown
                assert termios.tcgetattr(terminal.slave) == terminal.settings
            finally:
                terminal.close()
        # Without a terminal it prints once, and has the figures of `status`.
        printed = desk.types("top")
        assert (printed.returncode, printed.stderr) == (0, "")
        assert "\x1b" not in printed.stdout
        assert "failed over, forced" in printed.stdout
        before = desk.entities()["orders"]
        document = json.loads(desk.types("top", "--output", "json").stdout)
        after = desk.entities()["orders"]
        (pair,) = document["pairs"]
        (entity,) = pair["entities"]
        for figure in ("sent", "diverted", "raised"):
            assert before[figure] <= entity[figure] <= after[figure]
        assert (entity["state"], entity["forced"]) == (after["state"], after["forced"])
        assert document["headline"]["level"] == "failed-over"


def test_a_wrong_path_or_pair_changes_nothing_and_lists_what_there_is(desk: Desk) -> None:
    with desk.program() as program:
        line = desk.one_line(COULD_NOT, "freeze", "ordrs")
        assert "'ordrs'; it has orders, payments" in line
        assert "ordrs" not in desk.entities()
        line = desk.one_line(COULD_NOT, "freeze", "orders", "--pair", "fabrikam")
        assert f"contoso.{program.pid}" in line
        assert desk.one_line(COULD_NOT, "status", "--pair", "fabrikam")


def test_nobody_runs(desk: Desk) -> None:
    line = desk.one_line(COULD_NOT, "status")
    assert str(desk.run_directory) in line
    assert "TWINBUS_RUN_DIR" in line
    assert desk.one_line(COULD_NOT, "freeze", "orders")
    with desk.program() as program:
        program.kill()
        program.wait()
        assert len(list(desk.run_directory.iterdir())) == 1
        assert desk.one_line(COULD_NOT, "status")
        # What it left behind is gone too.
        assert list(desk.run_directory.iterdir()) == []


def test_several_pairs_are_all_shown_and_steered_by_name(desk: Desk) -> None:
    with desk.program("one+two") as both, desk.program("one") as other:
        shown = desk.types("status")
        assert "3 pairs, all healthy" in shown.stdout
        line = desk.one_line(ASKED_WRONGLY, "freeze", "orders")
        assert "--pair" in line
        assert all(f"one.{program.pid}" in line for program in (both, other))
        steered = desk.types("freeze", "orders", "--pair", "one")
        assert steered.returncode == 0, steered
        assert [line.split(":")[0] for line in steered.stdout.splitlines()] == sorted(
            (f"one.{both.pid}", f"one.{other.pid}"), key=lambda name: int(name.split(".")[1])
        )
        desk.types("freeze", "payments", "--pair", f"one.{other.pid}")
        document = json.loads(desk.types("status", "--output", "json").stdout)
        frozen = {
            (pair["name"], pair["pid"]): {
                path for path, e in pair["status"]["entities"].items() if e["frozen"]
            }
            for pair in document["pairs"]
        }
        assert frozen == {
            ("one", both.pid): {"orders"},
            ("one", other.pid): {"orders", "payments"},
            ("two", both.pid): set(),
        }
        assert document["healthy"] is False


def test_a_stopped_process_is_told_of_and_the_others_are_shown(desk: Desk) -> None:
    with desk.program("one", "orders") as stopped, desk.program("two", "orders"):
        stopped.send_signal(signal.SIGSTOP)
        try:
            shown = desk.types("status")
        finally:
            stopped.send_signal(signal.SIGCONT)
        assert shown.returncode == ATTENTION, shown
        assert "1 pair, all healthy" in shown.stdout
        assert f"one.{stopped.pid}" in shown.stderr
        assert "no answer within" in shown.stderr


def test_watching_ends_with_ctrl_c(desk: Desk) -> None:
    command = ("-c", ENTRY, "status", "--watch", "--output", "json")
    environment = {"TWINBUS_RUN_DIR": str(desk.run_directory)}
    with (
        desk.program("contoso", "orders"),
        started(*command, environment=environment) as watch,
    ):
        # A watch that shows nothing must not hold up the test for ever.
        limit = threading.Timer(PATIENCE_S, watch.kill)
        limit.start()
        first, second = (json.loads(line_of(watch)) for _ in range(2))
        watch.send_signal(signal.SIGINT)
        assert watch.wait() == 0
        limit.cancel()
    assert first["pairs"][0]["pid"] == second["pairs"][0]["pid"]
    assert second["pairs"][0]["up_s"] > first["pairs"][0]["up_s"]
