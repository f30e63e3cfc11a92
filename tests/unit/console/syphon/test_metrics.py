"""The metrics and the health of a syphon program, as Prometheus and a supervisor read them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.syphon.core.test_links_and_locks import QUEUE, states
from twinbus.client.peeking import BacklogMeter, QueueDepth
from twinbus.console.syphon.metrics import HttpAddress, MetricsRequest, SyphonMetrics
from twinbus.exposition import metrics_of, text_of
from twinbus.pairing.observing.metrics import BACKLOG_FAMILIES, depth_samples


def asked(path: str, queues: dict[str, Any], *, is_paused: bool = False) -> str:
    """Return the answer of a syphon whose queues are in these states."""

    async def scenario() -> str:
        governor = SimpleNamespace(most_per_s=None)
        group = SimpleNamespace(
            status=lambda: queues, is_paused=is_paused, rate=SimpleNamespace(governor=governor)
        )
        request = MetricsRequest(HttpAddress("127.0.0.1", 0), None, None)
        search, ledger = SimpleNamespace(without_pump=[]), SimpleNamespace(unrecorded=4)
        given = cast("tuple[Any, Any, Any, Any]", (group, search, None, ledger))
        metrics = SyphonMetrics(request, "contoso", *given)
        url = await metrics.start()
        try:
            async with ClientSession() as client, client.get(url + path) as answer:
                return await answer.text()
        finally:
            await metrics.close()

    return asyncio.run(scenario())


def series(text: str) -> dict[tuple[str, ...], float]:
    """Return the value of each series, by name and label values in the order of label names."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_series_of_a_syphon_can_be_scraped() -> None:
    blocked = states(completed=7, problems={"pump": "it failed"}, held={"orders": "full"})
    of = ("contoso", QUEUE)
    assert series(asked("/metrics", blocked, is_paused=True)) == {
        ("twinbus_syphon_paused", "contoso"): 1,
        ("twinbus_syphon_healthy", "contoso"): 0,
        ("twinbus_ledger_unrecorded_total", "contoso"): 4,
        ("twinbus_syphon_messages_total", "forwarded", *of): 0,
        ("twinbus_syphon_messages_total", "completed", *of): 7,
        ("twinbus_syphon_messages_total", "dead_lettered", *of): 0,
        ("twinbus_syphon_in_flight", *of): 5,
        ("twinbus_syphon_held_destinations", *of): 1,
        ("twinbus_syphon_blocked", "pump", *of): 1,
    }


def test_the_depth_and_age_of_each_queue_is_exposed() -> None:
    depths = {QUEUE: QueueDepth(3, 1, 0.0), "empty": QueueDepth(0, 0, None)}
    meter = cast("BacklogMeter", SimpleNamespace(depths=lambda: depths))
    samples = [("contoso", depth_samples(meter))]
    found = series(text_of(metrics_of(BACKLOG_FAMILIES, "pair", samples)).decode())
    assert found.pop(("twinbus_backlog_oldest_seconds", "contoso", QUEUE)) > 1_000_000_000
    assert found == {
        ("twinbus_backlog_messages", "waiting", "contoso", QUEUE): 3,
        ("twinbus_backlog_messages", "dead-lettered", "contoso", QUEUE): 1,
        ("twinbus_backlog_messages", "waiting", "contoso", "empty"): 0,
        ("twinbus_backlog_messages", "dead-lettered", "contoso", "empty"): 0,
        ("twinbus_backlog_oldest_seconds", "contoso", "empty"): 0,
    }


def test_a_name_with_quotes_and_newlines_stays_one_label() -> None:
    found = series(asked("/metrics", {'a"} 1\n\\b': states()[QUEUE]}))
    assert ("twinbus_syphon_in_flight", "contoso", 'a"} 1\n\\b') in found


def test_health_has_the_reasons() -> None:
    assert json.loads(asked("/health", states(problems={"pump": "it failed"}))) == {
        "status": "failed",
        "pair": "contoso",
        "failures": ["it failed"],
        "waits_for": [],
    }
