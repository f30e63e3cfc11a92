"""The figures of the page are those of the commands; drains and the proof are made from it."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.outage_world import ENTITIES, OutageWorld, outage_world
from tests.processes import run_twinbus

# It starts Spark several times.
pytestmark = [pytest.mark.end_to_end, pytest.mark.soak, pytest.mark.timeout(3_600)]

PATIENCE_MS = 240_000
REPORT_S = 900.0
"""For a report: Spark on a machine that does ten other things."""

SETTLEMENTS = {"complete", "defer", "dead_letter"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OutageWorld]:
    with outage_world(tmp_path, has_syphon=False) as running:
        yield running


def test_the_figures_are_those_of_status_backlog_list_and_report(
    browser: Browser, world: OutageWorld
) -> None:
    expect.set_options(timeout=PATIENCE_MS)
    page = browser.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(world.address)
    headline = page.locator("#headline")
    expect(headline).to_have_attribute("data-level", "healthy")
    world.primary.kill9()
    expect(headline).to_have_attribute("data-level", "failed-over")
    for path in ENTITIES:
        expect(figure(page, path, 1)).not_to_have_text("0")
    world.program.send_signal(signal.SIGUSR1)
    entities = settled(page, world)
    for path, one in entities.items():
        for place, name in enumerate(("sent", "diverted", "raised")):
            expect(figure(page, path, place)).to_have_text(f"{one[name]:,}")
    expect(page.locator("#pair-facts")).to_contain_text("Sends now0/s")
    waiting = [one["active"] + one["deferred"] for one in listed(world)]
    assert sum(waiting) > 0
    expect(page.locator("#backlog-facts")).to_contain_text(f"Waiting{sum(waiting):,}")

    world.primary.restart()
    expect(headline).to_have_attribute("data-level", "healthy")
    events = page.get_by_role("list", name="Events")
    page.get_by_role("button", name="Drain one entity…").click()
    page.get_by_role("dialog").get_by_label("Entity").select_option("orders")
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    expect(events).to_contain_text("only-entity ended: ")
    left = sum(waiting) - entities["orders"]["diverted"]
    assert sum(one["active"] + one["deferred"] for one in listed(world)) == left
    page.get_by_role("button", name="Drain once…").click()
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    expect(events).to_contain_text("drain-once ended: drained")
    expect(page.locator("#backlog-facts")).to_contain_text("Waiting0")

    page.get_by_role("button", name="Make it again…").click()
    page.get_by_role("dialog").get_by_role("button", name="Make it").click()
    ended = re.compile("nothing lost: |the report could not be made")
    expect(events).to_contain_text(ended, timeout=REPORT_S * 1000)
    expect(page.locator("#proof-verdict")).to_contain_text("Nothing lost")
    asked = "report", "conservation", world.ledger
    answered = run_twinbus(*asked, environment=world.environment, timeout_s=REPORT_S)
    assert answered.returncode == 0
    expect(page.locator("#proof-text")).to_have_text(answered.stdout.splitlines()[0])
    world.program.kill()
    expect(page.locator("#pair-chip")).to_have_text("no longer running")
    costs_are_those_of_the_report(page, world)
    assert complaints == []
    page.close()


def settled(page: Page, world: OutageWorld) -> dict[str, Any]:
    """The entities by `twinbus status`, once no send is under way any more."""
    before: list[Any] = []
    while True:
        (pair,) = command(world, "status")["pairs"]
        entities: dict[str, Any] = pair["status"]["entities"]
        names = ("sent", "diverted", "raised")
        now = [one[name] for one in entities.values() for name in names]
        if now == before:
            return entities
        before = now
        page.wait_for_timeout(2_000)


def costs_are_those_of_the_report(page: Page, world: OutageWorld) -> None:
    """By cause but for administration: the page itself counts queues all the time."""
    report = command(world, "report", "charges", world.ledger)
    expected: Counter[str] = Counter()
    for one in report["by_kind"]:
        is_counted = not one["assumed"] and one["operation"] not in SETTLEMENTS
        if is_counted and one["cause"] not in {"administration", "consumer"}:
            expected[one["cause"]] += one["units"]
    assert expected["failover"] > 0
    assert expected["syphon"] > 0
    for cause, units in expected.items():
        row = page.locator("#cost-causes tr").filter(has_text=cause)
        expect(row.locator("td").nth(1)).to_have_text(f"{units:,}")


def figure(page: Page, path: str, place: int) -> Any:
    row = page.locator("#entities > li").filter(
        has=page.get_by_role("button", name=path, exact=True)
    )
    return row.locator(".figures b").nth(place)


def listed(world: OutageWorld) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = command(world, "backlog", "list", "--label", "contoso")["queues"]
    return found


def command(world: OutageWorld, *words: str) -> dict[str, Any]:
    asked = *words, "--output", "json"
    done = run_twinbus(*asked, environment=world.environment, timeout_s=REPORT_S)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
