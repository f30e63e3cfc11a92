"""The Grafana dashboard and the alert rules in a real Prometheus, over a real pair and syphon.

Debian has no Grafana. What it would ask, this asks: the values of its variable, then each panel's
expression with all of them filled in.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.official_sdk import administration
from tests.processes import ENTRY, ServedBroker, line_of, started, until
from tests.promtool import NoPromtool, find_promtool

# A minute of processes: CI checks the names in the files, and their form with promtool.
pytestmark = [pytest.mark.end_to_end, pytest.mark.soak]

DEPLOY = Path(__file__).parents[2] / "deploy"
PATIENCE_S = 120.0
ONLY_IN_TROUBLE = {"twinbus_syphon_blocked"}
"""Series that a healthy syphon does not have."""

PROGRAM = """
import asyncio, contextlib, sys
from azure.servicebus import ServiceBusMessage
from prometheus_client import CollectorRegistry, start_http_server
from twinbus import Namespace, SendAvailabilityOptions, pair_namespaces

async def main(primary, secondary):
    side = Namespace.from_connection_string(primary, name="contoso")
    async with pair_namespaces(side, secondary, SendAvailabilityOptions(ledger="")) as pair:
        registry = CollectorRegistry()
        registry.register(pair.collector())
        server, _ = start_http_server(0, "127.0.0.1", registry)
        print(server.server_port, flush=True)
        diverted, missing = pair.get_queue_sender("orders"), pair.get_queue_sender("nowhere")
        pair.force_failover("orders")
        while True:
            await diverted.send_messages(ServiceBusMessage("x"))
            with contextlib.suppress(Exception):
                await missing.send_messages(ServiceBusMessage("x"))
            await asyncio.sleep(0.5)

asyncio.run(main(*sys.argv[1:]))
"""


class Prometheus:
    """A server that scrapes and evaluates every second."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(
            f"{self._url}{path}?{urllib.parse.urlencode(query)}", timeout=PATIENCE_S
        ) as answer:
            return json.load(answer)["data"]

    def is_there(self) -> bool:
        try:
            self.ask("query", query="vector(1)")
        except OSError:
            return False
        return True

    def has(self, expression: str) -> bool:
        """Whether a query returns anything; an error of HTTP if it is none."""
        return bool(self.ask("query", query=expression)["result"])


@contextmanager
def scraping(directory: Path, *targets: str) -> Iterator[Prometheus]:
    """Prometheus with the rules of deploy/ over some targets, once it answers."""
    try:
        program = find_promtool().with_name("prometheus")
    except NoPromtool as error:
        pytest.skip(str(error))
    rules = directory / "rules.yml"
    shutil.copy(DEPLOY / "prometheus/twinbus.rules.yml", rules)
    times = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    jobs = [{"job_name": "twinbus", "static_configs": [{"targets": targets}]}]
    config = directory / "prometheus.yml"
    # YAML takes JSON.
    config.write_text(
        json.dumps({"global": times, "rule_files": [str(rules)], "scrape_configs": jobs})
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        str(program), f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    with subprocess.Popen(command) as running:
        try:
            server = Prometheus(port)
            until(server.is_there)
            yield server
        finally:
            running.kill()


def panels(pairs: list[str]) -> list[str]:
    """The expressions as Grafana sends them with these pairs chosen."""
    dashboard = json.loads((DEPLOY / "grafana/twinbus.json").read_text())
    found = [one["expr"] for panel in dashboard["panels"] for one in panel.get("targets", ())]
    # A regular expression within a text of PromQL.
    chosen = "|".join(re.escape(pair) for pair in pairs).replace("\\", "\\\\")
    return [text.replace("$__rate_interval", "1m").replace("$pair", chosen) for text in found]


def variable() -> str:
    """The series whose values of the label `pair` the dashboard offers."""
    dashboard = json.loads((DEPLOY / "grafana/twinbus.json").read_text())
    (query,) = (
        one["definition"] for one in dashboard["templating"]["list"] if one["name"] == "pair"
    )
    found = re.fullmatch(r"label_values\((\w+), pair\)", query)
    assert found is not None
    return found[1]


def test_every_panel_shows_a_pair_and_its_syphon_and_every_rule_can_be_evaluated(
    tmp_path: Path, run_directory: Path
) -> None:
    with ServedBroker(tmp_path, "contoso", "contoso-dr", ephemeral=True) as broker:
        sides = broker.connection_string("contoso"), broker.connection_string("contoso-dr")
        with administration(sides[0]) as admin:
            admin.create_queue("orders")
        environment = broker.environment(run_directory)
        syphon = ("syphon", "run", "--label", "contoso", "--metrics", "0", "--backlog-every", "1s")
        with (
            started("-c", PROGRAM, *sides, environment=environment) as program,
            started("-c", ENTRY, *syphon, "--output", "json", environment=environment) as mover,
        ):
            application = f"127.0.0.1:{int(line_of(program))}"
            moves = json.loads(line_of(mover))["url"].removeprefix("http://")
            with scraping(tmp_path, application, moves) as prometheus:
                offered = until(
                    lambda: prometheus.ask("label/pair/values", **{"match[]": variable()})
                )
                assert still_empty(prometheus, panels(offered)) == []
                states = until(lambda: evaluated(prometheus))
    assert len(states) > 10
    # Both programs name the pair alike, or this one would wait for a syphon for ever.
    assert states["TwinbusSyphonStopped"] == "inactive"
    assert states["TwinbusUnprotected"] == "inactive"
    assert states["TwinbusSendsRaise"] != "inactive"


def still_empty(prometheus: Prometheus, asked: list[str]) -> list[str]:
    """Ask until every panel has something to show; return those that stay empty."""
    ends = time.monotonic() + PATIENCE_S
    left = [one for one in asked if not any(name in one for name in ONLY_IN_TROUBLE)]
    assert len(left) > 20
    while left and time.monotonic() < ends:
        left = [one for one in left if not prometheus.has(one)]
        time.sleep(0.5)
    return left


def evaluated(prometheus: Prometheus) -> dict[str, str]:
    """The state of each alert; none while some rule was not evaluated yet."""
    groups = prometheus.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert not [one["lastError"] for one in rules if one["health"] == "err"]
    if any(one["health"] != "ok" for one in rules):
        return {}
    return {one["name"]: one["state"] for one in rules if one["type"] == "alerting"}
