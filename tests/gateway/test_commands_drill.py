"""The senders of `twinbus drill --gateway`: another program, which knows a connection string."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from twinbus import SendAvailabilityOptions, pair_namespaces
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.console.drill import javascript_client as javascript
from twinbus.console.drill.gateway_senders import GatewaySenders
from twinbus.console.drill.javascript_client import (
    JavaScriptClient,
    JavaScriptTraffic,
    NoJavaScript,
    javascript_client,
)
from twinbus.console.drill.result import DrillPlan
from twinbus.console.drill.world import ENTITIES, DrillError, World, create_entities
from twinbus.ledger import read

pytestmark = pytest.mark.end_to_end

PATIENCE_S = 120.0


class QuickPlan(DrillPlan):
    """A plan without an outage, whose messages are due at once."""

    @property
    def rate(self) -> float:
        return 10_000.0


PLAN = QuickPlan(messages=60, senders=2, gateway=True)


@pytest.fixture(scope="module")
def namespaces() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso", "contoso-dr") as broker:
        asyncio.run(create_entities(broker.connection_string("contoso")))
        yield broker


async def drilled(broker: EmbeddedBroker) -> tuple[str, int, set[str], set[str]]:
    """Client, sends that returned, ids and entities that the ledger has."""
    with World() as world:
        options = SendAvailabilityOptions(ledger=world.ledger, backlog_queue_count=1)
        sides = broker.connection_string("contoso"), broker.connection_string("contoso-dr")
        ended: list[int] = []
        async with (
            asyncio.timeout(PATIENCE_S),
            GatewaySenders(PLAN, pair_namespaces(*sides, options), world) as senders,
        ):
            traffic = senders.traffic(ended.append)
            await traffic.run()
            assert traffic.begun.is_set()
            assert traffic.began_ms > 0
        assert sorted(ended) == list(range(1, PLAN.messages + 1))
        sent = [one for one in read(world.ledger) if one["operation"] == "send"]
        assert len({one["client"] for one in sent}) >= 1
        ids, entities = ({one[key] for one in sent} for key in ("message_id", "entity"))
        return senders.client, traffic.sends_returned, ids, entities


def expected_ids() -> set[str]:
    """As the paired senders of a drill name their messages."""
    shares = (PLAN.share(sender) for sender in range(PLAN.senders))
    return {
        f"{entity.path}-{number:06d}"
        for share in shares
        for place, entity in enumerate(ENTITIES)
        for number in share[place :: len(ENTITIES)]
    }


async def test_a_program_in_javascript_sends_the_messages_of_a_drill(
    namespaces: EmbeddedBroker,
) -> None:
    try:
        await javascript_client()
    except NoJavaScript as reason:
        if os.environ.get("CI"):
            pytest.fail(str(reason), pytrace=False)
        pytest.skip(str(reason))
    client, returned, ids, entities = await drilled(namespaces)
    assert client.startswith("JavaScript (@azure/service-bus 7.")
    assert returned == PLAN.messages
    assert ids == expected_ids()
    assert entities == {entity.path for entity in ENTITIES}


async def test_without_node_the_plain_python_sdk_sends_them_and_the_drill_says_why(
    namespaces: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    client, returned, ids, _ = await drilled(namespaces)
    assert client.startswith("Python (azure-servicebus 7.")
    assert client.endswith("there is no node and no npm here)")
    assert (returned, ids) == (PLAN.messages, expected_ids())


def make_tool(directory: Path, name: str, text: str) -> None:
    directory.mkdir(exist_ok=True)
    tool = directory / name
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(0o755)


async def test_an_sdk_that_cannot_be_fetched_is_one_line_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tools, cache = tmp_path / "tools", tmp_path / "cache"
    make_tool(tools, "node", "echo v20.0.0")
    make_tool(tools, "npm", "echo; echo npm error network is down; echo more; exit 7")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    with pytest.raises(NoJavaScript, match=r"^npm ended with 7: npm error network is down$"):
        await javascript_client()
    assert list((cache / "twinbus" / "drill").iterdir()) == []
    make_tool(tools, "node", "echo v18.19.1")
    with pytest.raises(NoJavaScript, match=r"^the SDK needs Node 20, and this is v18\.19\.1$"):
        await javascript_client()


async def test_a_client_that_ends_too_early_ends_the_drill_in_one_line(tmp_path: Path) -> None:
    make_tool(
        tmp_path, "node", """cat > /dev/null; echo '{"beganMs": 5}'; echo oh no >&2; exit 3"""
    )
    client = JavaScriptClient((str(tmp_path / "node"),), "a client")
    log = tmp_path / "client.log"
    text = "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=s3cret;"
    traffic = JavaScriptTraffic(PLAN, client, text, log, lambda _: None)
    with pytest.raises(DrillError, match=r"ended with 3 after 0 of 60 sends: oh no$"):
        await traffic.run()
    assert traffic.began_ms == 5


def test_the_sdk_is_the_one_that_the_tours_have_shown() -> None:
    tours = Path(__file__).parents[1] / "other_languages" / "javascript" / "package-lock.json"
    ours, theirs = (
        json.loads(path.read_text())["packages"]
        for path in (javascript.SOURCES / "package-lock.json", tours)
    )
    assert {name for name, package in ours.items() if name and package != theirs.get(name)} == set()
