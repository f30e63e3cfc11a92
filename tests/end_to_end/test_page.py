"""`twinbus page` as its users run it: a real pair, real HTTP, actions, and the end of both."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.end_to_end.paired_program import running
from tests.official_sdk import administration
from tests.processes import ENTRY, ServedBroker, run_twinbus
from twinbus.control.run_directory import VARIABLE
from twinbus.ledger import read

pytestmark = pytest.mark.end_to_end

LIMIT_S = 60.0
"""No promise, only an end of patience."""


class ServedPage:
    """`twinbus page` in a process, and requests to it."""

    def __init__(self, environment: dict[str, str], *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENTRY, "page", *options],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        parts = urlsplit(self.address)
        self.host, self.token = parts.netloc, parse_qs(parts.query)["token"][0]

    def ask(self, method: str, target: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.host, timeout=LIMIT_S)
        headers = {"Authorization": f"Bearer {self.token}"}
        if body is not None:
            headers |= {"X-Twinbus-Page": "1", "Content-Type": "application/json"}
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)

    def pairs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "/api/view")[1]["pairs"]
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def paged(environment: dict[str, str], *options: str) -> Iterator[ServedPage]:
    page = ServedPage(environment, *options)
    try:
        yield page
    finally:
        if page.process.poll() is None:
            page.process.kill()
            page.process.wait()
        if page.process.stdout is not None:
            page.process.stdout.close()


def until(condition: Callable[[], Any]) -> Any:
    limit = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.1)
    return found


@pytest.fixture
def run_directory() -> Iterator[Path]:
    # Pytest's own directories are too long for the address of a socket.
    directory = Path(tempfile.mkdtemp(prefix="tb-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    directory = tmp_path_factory.mktemp("broker")
    with ServedBroker(directory, "contoso", "contoso-dr", ephemeral=True) as served:
        with administration(served.connection_string("contoso")) as admin:
            admin.create_queue("orders")
        yield served


def texts(page: ServedPage) -> list[str]:
    return [one["text"] for one in page.ask("GET", "/api/events")[1]["events"]]


def status_of(environment: dict[str, str]) -> dict[str, Any]:
    done = run_twinbus("status", "--output", "json", environment=environment)
    (pair,) = json.loads(done.stdout)["pairs"]
    return dict(pair)


def test_a_pair_is_followed_and_steered_and_its_figures_are_those_of_the_commands(
    broker: ServedBroker, run_directory: Path, tmp_path: Path
) -> None:
    sides = broker.connection_string("contoso"), broker.connection_string("contoso-dr")
    environment = {
        VARIABLE: str(run_directory),
        "TWINBUS_PRIMARY": sides[0],
        "TWINBUS_SECONDARY": sides[1],
    }
    with (
        running(run_directory, *sides, "contoso", "orders") as program,
        paged(environment, "--ledger", str(tmp_path)) as page,
    ):
        until(lambda: page.pairs() and page.pairs()[0]["entities"])
        before = status_of(environment)
        (pair,) = page.pairs()
        after = status_of(environment)
        assert (pair["pid"], pair["state"]) == (program.pid, "running")
        for name in ("attention", "safe"):
            assert before[name] == pair[name] == after[name]
        assert before["sends"] == pair["safety"]
        for figure in ("sent", "diverted", "raised"):
            seen = [one["status"]["entities"]["orders"][figure] for one in (before, after)]
            assert seen[0] <= pair["entities"][0][figure] <= seen[1]

        action = {"action": "force-failover", "pair": pair["id"], "path": "orders"}
        done = page.ask("POST", "/api/actions", action)
        assert done[0] == 200, done
        until(lambda: page.pairs()[0]["entities"][0]["diverted"] > 2)
        assert page.ask("GET", "/api/view")[1]["headline"]["level"] == "failed-over"
        assert page.pairs()[0]["entities"][0]["spans"][-1][2] == "forced"
        kinds = [one["kind"] for one in page.ask("GET", "/api/events")[1]["events"]]
        assert "action" in kinds
        unknown = {**action, "path": "nowhere"}
        refused = page.ask("POST", "/api/actions", unknown)
        assert refused[0] == 409
        assert "has no sender for" in refused[1]["text"]

        program.kill()
        program.wait()
        until(lambda: page.pairs()[0]["state"] == "gone")
        assert page.pairs()[0]["why"] == "no longer running"
        command = ("backlog", "list", "--label", "contoso", "--output", "json")
        listed = run_twinbus(*command, environment=environment)
        queues = json.loads(listed.stdout)["queues"]
        backlog = page.ask("GET", f"/api/backlog?pair={pair['id']}")[1]
        shown = {one["path"]: (one["waiting"], one["dead_letters"]) for one in backlog["queues"]}
        assert shown == {
            one["path"]: (
                one["active"] + one["scheduled"] + one["deferred"],
                one["dead_lettered"],
            )
            for one in queues
        }
        assert sum(waiting for waiting, _ in shown.values()) > 0

        drain = {"action": "drain-once", "pair": pair["id"]}
        assert page.ask("POST", "/api/actions", drain)[1]["ok"] is True
        ended = until(lambda: [one for one in texts(page) if one.startswith("drain-once ended")])
        assert "drained: " in ended[0]
        assert page.stop() == 0
    asked = [one for one in read(tmp_path) if one["operation"] == "action"]
    assert [(one["state"], one["outcome"]) for one in asked] == [
        ("force-failover", "ok"),
        ("force-failover", "failed"),
        ("drain-once", "ok"),
    ]


def test_a_killed_page_harms_no_pair_and_a_stream_ends_with_its_page(
    broker: ServedBroker, run_directory: Path
) -> None:
    sides = broker.connection_string("contoso"), broker.connection_string("contoso-dr")
    environment = {VARIABLE: str(run_directory)}
    with running(run_directory, *sides, "contoso", "orders"):
        with paged(environment) as page:
            until(page.pairs)
            page.process.kill()
        with paged(environment) as page:
            stream = http.client.HTTPConnection(page.host, timeout=LIMIT_S)
            stream.request("GET", "/api/stream", headers={"Authorization": f"Bearer {page.token}"})
            answer = stream.getresponse()
            assert answer.readline() == b"event: view\n"
            assert page.stop() == 0
            answer.read()
            stream.close()
        first = status_of(environment)["status"]["entities"]["orders"]["sent"]
        until(lambda: status_of(environment)["status"]["entities"]["orders"]["sent"] > first)
