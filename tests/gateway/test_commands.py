"""Commands know a gateway: as a pair healthy and in an outage, in a drill, in the ledger."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.end_to_end.page_process import ServedPage, paged
from tests.gateway.gateway_process import GatewayProcess
from tests.ledger_reading import read
from tests.official_sdk import client
from tests.processes import until
from tests.unit.console.commands import Ran, run
from twinbus import SendAvailabilityOptions, pair_namespaces
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.faults import Fault
from twinbus.console.drill.result import DrillPlan
from twinbus.console.drill.traffic import DrillGateway, DrillTraffic
from twinbus.console.drill.world import ENTITIES, World, create_entities
from twinbus.run_directory import VARIABLE

pytestmark = pytest.mark.end_to_end

WARNING, ATTENTION = 1, 3


@pytest.fixture(autouse=True)
def sockets_here(run_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(run_directory))


@pytest.fixture
def sides() -> Iterator[tuple[EmbeddedBroker, EmbeddedBroker]]:
    with EmbeddedBroker("contoso") as primary, EmbeddedBroker("contoso-dr") as secondary:
        primary.create_queue("orders")
        yield primary, secondary


def send(gateway: GatewayProcess, count: int) -> None:
    with client(gateway.connection_string()) as sdk, sdk.get_queue_sender("orders") as sender:
        for number in range(count):
            sender.send_messages(ServiceBusMessage(f"m{number}"))


def found_by(ran: Ran) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ran.out)
    return document


def metric(gateway: GatewayProcess, name: str, label: str) -> float:
    """The value of the one sample of this name that has a label with this value."""
    url = f"http://localhost:{gateway.port()}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [one for one in lines if one.startswith(f"twinbus_{name}{{") and f'"{label}"' in one]
    return float(line.rpartition(" ")[2])


def orders_of(page: ServedPage) -> dict[str, Any]:
    (pair,) = page.pairs()
    assert (pair["program"], pair["kind"]) == ("gateway gate", "pair")
    entities: list[dict[str, Any]] = pair["entities"]
    return next((one for one in entities if one["path"] == "orders"), {})


def test_status_top_check_page_and_metrics_show_a_gateway_and_its_outage(
    sides: tuple[EmbeddedBroker, EmbeddedBroker],
    run_directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    primary, secondary = sides
    texts = primary.connection_string(), secondary.connection_string()
    options = ("--label", "contoso", "--no-syphon", "--ledger", str(tmp_path / "ledger"))
    with (
        GatewayProcess(tmp_path / "gate", *texts, options) as gateway,
        paged({VARIABLE: str(run_directory)}) as page,
    ):
        send(gateway, 2)
        seen = run(capsys, "status")
        assert (seen.status, seen.err) == (0, "")
        assert f"pid {gateway.process.pid} (gateway gate)" in seen.out
        assert "1 pair, all healthy" in seen.out
        assert run(capsys, "check").out.startswith("TWINBUS OK - contoso.")
        assert until(lambda: orders_of(page).get("sent")) == 2

        primary.add_fault(Fault(kind="hang", entity="orders"))
        send(gateway, 3)
        seen = run(capsys, "status", "--pair", "contoso")
        assert seen.status == ATTENTION
        assert "! failed over: orders" in seen.out
        (top,) = found_by(run(capsys, "top", "--once", "--output", "json"))["pairs"]
        (orders,) = top["entities"]
        assert (top["name"], orders["state"], orders["diverted"]) == ("contoso", "failed over", 3)
        words = ("check", "--secondary", texts[1], "--label", "contoso", "--output", "json")
        checked = run(capsys, *words)
        figures = found_by(checked)["figures"]
        assert checked.status == WARNING
        assert (figures["failed_over"], figures["backlog"]) == (1, 3)
        until(lambda: orders_of(page).get("state") == "failed over")
        assert until(lambda: orders_of(page).get("diverted")) == 3
        stored = {"primary": 2.0, "backlog": 3.0}
        assert {side: metric(gateway, "messages_stored_total", side) for side in stored} == stored

        # A command that steers reaches the gateway as any pair.
        primary.clear_faults()
        assert run(capsys, "mark-healthy", "orders").status == 0
        send(gateway, 1)
        assert run(capsys, "status").status == 0


def test_the_doctor_examines_a_gateway(
    sides: tuple[EmbeddedBroker, EmbeddedBroker],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    primary, secondary = sides
    texts = primary.connection_string(), secondary.connection_string()
    with GatewayProcess(tmp_path / "gate", *texts) as gateway:
        text = gateway.connection_string()
        seen = run(capsys, "doctor", "--gateway", text)
        assert (seen.status, seen.err) == (0, "")
        assert "gate is a gateway" in seen.out
        assert "gateway to primary      the gateway needed no connection for sends yet" in seen.out
        assert seen.out.endswith("fit to be sent through: every check passed\n")
        # With an entity a link is opened, and so a connection to the primary.
        seen = run(capsys, "doctor", "--gateway", text, "--entity", "orders")
        assert seen.status == 0
        assert "ok    gateway right Send      there, on orders" in seen.out
        seen = run(capsys, "doctor", "--gateway", text, "--output", "json")
        checks = {one["check"]: one for one in found_by(seen)["findings"]}
        assert checks["gateway to primary"]["says"] == "the gateway is connected to it"

        key = gateway.connection_string(key="another")
        seen = run(capsys, "doctor", "--gateway", key)
        assert seen.status == 1
        assert "fail  gateway credential      refused: wrong key" in seen.out
        seen = run(capsys, "doctor", "--gateway", texts[0])
        assert (seen.status, "is no gateway of Twinbus" in seen.out) == (1, True)
        primary.stop()
        send(gateway, 1)
        seen = run(capsys, "doctor", "--gateway", text)
        assert seen.status == 0
        assert "warn  gateway to primary      the gateway has lost its connection" in seen.out
        assert "gateway backlog         sends can be diverted" in seen.out
    seen = run(capsys, "doctor", "--gateway", text)
    assert seen.status == 1
    assert "fail  reach gateway" in seen.out
    assert seen.out.endswith("not fit to be sent through: 1 failed\n")


PATIENCE_S = 120.0


class QuickPlan(DrillPlan):
    """A plan without an outage, whose messages are due at once."""

    @property
    def rate(self) -> float:
        return 10_000.0


PLAN = QuickPlan(messages=60, senders=2, gateway=True)


async def test_the_plain_sdk_sends_the_messages_of_a_drill_through_a_gateway() -> None:
    ended: list[int] = []
    with EmbeddedBroker("contoso", "contoso-dr") as broker, World() as world:
        sides = broker.connection_string("contoso"), broker.connection_string("contoso-dr")
        await create_entities(sides[0])
        options = SendAvailabilityOptions(ledger=world.ledger, backlog_queue_count=1)
        async with (
            asyncio.timeout(PATIENCE_S),
            DrillGateway(PLAN, pair_namespaces(*sides, options)) as gateway,
        ):
            traffic = DrillTraffic(PLAN, gateway.client, ended.append)
            await traffic.run()
        sent = [one for one in read(world.ledger) if one["operation"] == "send"]
    assert traffic.begun.is_set()
    assert traffic.began_ms > 0
    assert traffic.sends_returned == PLAN.messages
    assert sorted(ended) == list(range(1, PLAN.messages + 1))
    assert {one["message_id"] for one in sent} == expected_ids()
    assert {one["entity"] for one in sent} == {entity.path for entity in ENTITIES}
    assert all(one.get("client") for one in sent)


def expected_ids() -> set[str]:
    """As the paired senders of a drill name their messages."""
    shares = (PLAN.share(sender) for sender in range(PLAN.senders))
    return {
        f"{entity.path}-{number:06d}"
        for share in shares
        for place, entity in enumerate(ENTITIES)
        for number in share[place :: len(ENTITIES)]
    }
