"""`twinbus page` in a process: what it serves, and under load."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from azure.servicebus import ServiceBusMessage

from tests.browser import many_pairs
from tests.end_to_end.page_process import LIMIT_S, ServedPage, paged
from tests.end_to_end.paired_program import running
from tests.ledger_reading import read
from tests.official_sdk import administration, client
from tests.processes import ENTRY, ServedBroker, line_of, run_twinbus, started, until
from twinbus.control.sockets import ask, sockets_in
from twinbus.run_directory import VARIABLE

pytestmark = pytest.mark.end_to_end


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
    environment = broker.environment(run_directory)
    with (
        running(run_directory, *sides, "contoso", "orders") as program,
        paged(environment, "--ledger", str(tmp_path)) as page,
    ):
        until(lambda: page.pairs() and page.pairs()[0]["entities"])
        before = status_of(environment)
        least = before["status"]["entities"]["orders"]["sent"]
        # The page asks once a second, and shows what it knows until an answer came.
        (pair,) = until(lambda: at_least(page.pairs(), least))
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


def test_a_real_queue_is_pruned_and_a_real_syphon_gets_its_rate(
    broker: ServedBroker, run_directory: Path
) -> None:
    sides = broker.connection_string("contoso"), broker.connection_string("contoso-dr")
    environment = broker.environment(run_directory)
    used, spare, full = (f"pruned/x-servicebus-transfer/{number}" for number in (0, 7, 8))
    with (
        running(run_directory, *sides, "pruned", "orders"),
        started("-c", ENTRY, "syphon", "run", "--label", "pruned", environment=environment),
        paged(environment) as page,
    ):
        with administration(sides[1]) as admin, client(sides[1]) as sdk:
            admin.create_queue(spare)
            admin.create_queue(full)
            with sdk.get_queue_sender(full) as sender:
                sender.send_messages(ServiceBusMessage("it stays"))
        ids = until(lambda: ids_by_kind(page, {"pair", "syphon"}))

        prune = {"action": "prune", "pair": ids["pair"]}
        tried = page.ask("POST", "/api/actions", {**prune, "dry_run": True})
        assert (tried[0], tried[1]["queues"]) == (200, [spare])
        assert {used, spare, full} <= names(sides[1])
        # Whatever a script asks for: a queue in use and one that holds something are kept.
        done = page.ask("POST", "/api/actions", {**prune, "queues": [used, spare, full]})
        assert (done[0], done[1]["text"]) == (200, "deleted 1 empty backlog queue")
        assert {used, spare, full} & names(sides[1]) == {used, full}

        rate = {"action": "rate", "pair": ids["pair"]}
        assert page.ask("POST", "/api/actions", {**rate, "value": "50"})[0] == 200
        asked = "syphon", "status", "--pair", "pruned", "--output", "json"
        (syphon,) = json.loads(run_twinbus(*asked, environment=environment).stdout)["syphons"]
        limits = {one["limit"] for one in syphon["status"]["queues"].values()}
        assert limits == {"at most 50/s: the rate is set"}
        until(lambda: shown_limit(page) in limits)
        refused = page.ask("POST", "/api/actions", {**rate, "value": "fast"})
        assert refused[0] == 409
        assert "a rate is a number of messages a second, or adaptive" in refused[1]["text"]
        assert shown_limit(page) in limits
        assert page.stop() == 0


def ids_by_kind(page: ServedPage, kinds: set[str]) -> dict[str, str]:
    """The id of what is shown of each kind, once all of them run and have queues."""
    found = {one["kind"]: one["id"] for one in page.pairs() if one["state"] == "running"}
    queues = [one["queues"] for one in page.pairs() if one["kind"] == "pair"]
    return found if found.keys() == kinds and all(queues) else {}


def shown_limit(page: ServedPage) -> str:
    (syphon,) = (one["syphon"] for one in page.pairs() if one["kind"] == "syphon")
    return str(syphon["limit"])


def names(side: str) -> set[str]:
    with administration(side) as admin:
        return {queue.name for queue in admin.list_queues()}


def at_least(pairs: list[Any], sent: int) -> list[Any]:
    """The pairs, once the first one shows so many sends."""
    return pairs if pairs[0]["entities"][0]["sent"] >= sent else []


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
            place, _, port = page.host.partition(":")
            stranger = socket.create_connection((place, int(port)), timeout=LIMIT_S)
            stranger.sendall(b"GET /api/view HTTP/1.1\r\nHost: ")
            stream = http.client.HTTPConnection(page.host, timeout=LIMIT_S)
            stream.request("GET", "/api/stream", headers={"Authorization": f"Bearer {page.token}"})
            answer = stream.getresponse()
            assert answer.readline() == b"event: view\n"
            with stranger, suppress(ConnectionResetError):
                # A request that does not end is cut off; the stream goes on.
                assert stranger.recv(1) == b""
            while answer.readline() != b"event: head\n":
                pass
            assert page.stop() == 0
            answer.read()
            stream.close()
        (control,) = sockets_in(run_directory)
        first = ask(control, "status")["entities"]["orders"]["sent"]
        until(lambda: ask(control, "status")["entities"]["orders"]["sent"] > first)


def test_beyond_loopback_names_tokens_and_tls_are_needed(
    run_directory: Path, tmp_path: Path
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "ops.example")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    tokens = {"operator": "operator-0123456789abcdef", "viewer": "viewer-0123456789abcdef"}
    for role, token in tokens.items():
        (tmp_path / role).write_text(f"{token}\n")
    context = ssl.create_default_context()
    authority.configure_trust(context)

    def asked(port: int, token: str, host: str, method: str = "GET") -> tuple[int, bytes]:
        line = http.client.HTTPSConnection("localhost", port, timeout=LIMIT_S, context=context)
        headers = {
            "Host": f"{host}:{port}", "Authorization": f"Bearer {token}", "X-Twinbus-Page": "1",
            "Content-Type": "application/json",
        }  # fmt: skip
        target = "/api/view" if method == "GET" else "/api/actions"
        line.request(method, target, "{}" if method == "POST" else None, headers)
        answer = line.getresponse()
        found = answer.status, answer.read()
        line.close()
        return found

    with paged(
        {VARIABLE: str(run_directory)}, "--host", "0.0.0.0", "--name", "ops.example",
        "--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"),
        "--operator-token-file", str(tmp_path / "operator"),
        "--viewer-token-file", str(tmp_path / "viewer"),
    ) as page:  # fmt: skip
        assert page.address.startswith("https://")
        assert "token" not in page.address
        port = int(page.host.rpartition(":")[2])
        for role, token in tokens.items():
            status, body = asked(port, token, "ops.example")
            assert (status, json.loads(body)["role"]) == (200, role)
        assert asked(port, tokens["viewer"], "ops.example", "POST")[0] == 403
        assert asked(port, tokens["operator"], "ops.example", "POST")[0] == 404
        assert asked(port, "guess", "ops.example")[0] == 401
        assert asked(port, tokens["operator"], "localhost")[0] == 421
        plain = http.client.HTTPConnection("localhost", port, timeout=LIMIT_S)
        plain.request("GET", "/api/view", headers={"Host": f"ops.example:{port}"})
        with pytest.raises((OSError, http.client.HTTPException)):
            plain.getresponse()
        plain.close()
        assert page.stop() == 0


PAIRS, ENTITIES, EVENTS_PER_S = 50, 40, 20
MEASURED_S = 30.0
CORE_SHARE_MAX = 0.10
MEMORY_MAX_MB = 150


@pytest.fixture
def hosts(run_directory: Path) -> Iterator[Path]:
    """A directory with the sockets of many pairs."""
    numbers = map(str, (PAIRS, ENTITIES, EVENTS_PER_S))
    with started(many_pairs.__file__, *numbers, environment={VARIABLE: str(run_directory)}) as host:
        assert line_of(host) == "ready\n"
        yield run_directory


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@pytest.mark.soak
def test_many_pairs_cost_little_and_are_shown_every_second(hosts: Path) -> None:
    with paged({VARIABLE: str(hosts)}) as page:
        until(lambda: len(page.pairs()) == PAIRS)
        stream = http.client.HTTPConnection(page.host, timeout=60)
        stream.request("GET", "/api/stream", headers={"Authorization": f"Bearer {page.token}"})
        answer = stream.getresponse()
        pid, heads, events = page.process.pid, [], 0
        ends = time.monotonic() + 5 + MEASURED_S
        began, used, first_mb = 0.0, 0.0, 0.0
        while time.monotonic() < ends:
            line = answer.readline()
            if not began and time.monotonic() > ends - MEASURED_S:
                began, used, first_mb = time.monotonic(), processor_s(pid), memory_mb(pid)
            if began and line == b"event: head\n":
                heads.append(time.monotonic())
            events += bool(began) and line == b"event: event\n"
        took_s = time.monotonic() - began
        share, size_mb = (processor_s(pid) - used) / took_s, memory_mb(pid)
        stream.close()
        seen = f"{share:.1%} of a core, {size_mb:.0f} MB (from {first_mb:.0f} MB), {events} events"
        assert share <= CORE_SHARE_MAX, seen
        assert size_mb <= MEMORY_MAX_MB, seen
        assert len(heads) >= MEASURED_S * 0.8
        assert events >= EVENTS_PER_S * MEASURED_S * 0.5
