"""Soak: the figures of the page are those of the commands, it plays a drill, a tab stays open."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.drill_page import PATIENCE_MS, played_drill
from tests.browser.outage_world import ENTITIES, OutageWorld, Watched, outage_world, watched_pairs
from tests.processes import run_twinbus
from twinbus.page.core.timeline import WINDOW_S

pytestmark = [pytest.mark.end_to_end, pytest.mark.soak, pytest.mark.timeout(7200)]

FIGURES_PATIENCE_MS = 240_000
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
    expect.set_options(timeout=FIGURES_PATIENCE_MS)
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


log = logging.getLogger("twinbus.tests.tab")

PAIRS, ENTITIES_EACH, EVENTS_PER_S = 50, 40, 20
OPEN_S = float(os.environ.get("TWINBUS_TAB_SECONDS", "3600"))
FILL_S = WINDOW_S + 60.0
"""Until every list is at its cap: the spans and sends of the page's window fill for the longest."""

SAMPLE_S = 60.0
COMPARED = 5
"""Samples at the beginning and at the end whose least is compared."""

GROWTH_MAX = 1.25
SERVER_CORES_MAX = 0.10
SERVER_BYTES = "ServerBytes"
SERVER_BYTES_MAX = 150 * 1024 * 1024
COUNT_UPDATES = """() => {
  window.updates = 0;
  let last = 0;
  const count = () => {
    if (performance.now() - last > 100) window.updates += 1;  // One drawing is one update.
    last = performance.now();
  };
  const all = { attributes: true, childList: true, characterData: true, subtree: true };
  new MutationObserver(count).observe(document.getElementById("entities"), all);
}"""


def test_a_tab_that_stays_open_does_not_grow(browser: Browser) -> None:
    least_s = FILL_S + 2 * COMPARED * SAMPLE_S
    assert least_s <= OPEN_S, f"TWINBUS_TAB_SECONDS must be {least_s:.0f} or more"
    with watched_pairs(PAIRS, ENTITIES_EACH, EVENTS_PER_S) as world:
        page, opened = browser.new_page(), time.monotonic()
        page.goto(world.address)
        page.get_by_text(f"{PAIRS} pairs", exact=True).wait_for()
        _follow(page, world, opened, opened + FILL_S)
        began, used = time.monotonic(), _cpu_s(world)
        page.evaluate(COUNT_UPDATES)
        samples = _follow(page, world, opened, opened + OPEN_S)
        took = time.monotonic() - began
        updates, cores = page.evaluate("window.updates"), (_cpu_s(world) - used) / took
        page.close()
    assert updates >= took, "the tab is updated less than once a second"
    full, after = _least(samples[:COMPARED]), _least(samples[-COMPARED:])
    for what, value in full.items():
        assert after[what] <= value * GROWTH_MAX, f"{what}: {value:,} -> {after[what]:,}"
    assert cores <= SERVER_CORES_MAX
    assert max(one[SERVER_BYTES] for one in samples) <= SERVER_BYTES_MAX


def _follow(page: Page, world: Watched, opened: float, until: float) -> list[dict[str, float]]:
    """Leave the tab open until then; return what it and the server hold, once a minute."""
    samples = []
    while (left := until - time.monotonic()) > 0:
        used, began = _cpu_s(world), time.monotonic()
        page.wait_for_timeout(min(left, SAMPLE_S) * 1000)
        cores = (_cpu_s(world) - used) / (time.monotonic() - began)
        samples.append(_size(page, world))
        held = ", ".join(f"{what} {value:,.0f}" for what, value in samples[-1].items())
        open_s = time.monotonic() - opened
        log.info("%5.0f s: %s, server %.1f %% of a core", open_s, held, cores * 100)
    return samples


def _least(samples: list[dict[str, float]]) -> dict[str, float]:
    """What is held at least: a sample may find the tab with a second's documents in its hands."""
    return {what: min(one[what] for one in samples) for what in samples[0]}


def _size(page: Page, world: Watched) -> dict[str, float]:
    """What the tab holds after a garbage collection, and what its server does."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    session.send("HeapProfiler.collectGarbage")
    metrics: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
    session.detach()
    wanted = {"JSHeapUsedSize", "Nodes", "JSEventListeners"}
    held = {one["name"]: one["value"] for one in metrics if one["name"] in wanted}
    return {**held, SERVER_BYTES: _memory_bytes(world)}


def _cpu_s(world: Watched) -> float:
    fields = Path(f"/proc/{world.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_bytes(world: Watched) -> int:
    pages = int(Path(f"/proc/{world.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_drill_is_played_live(browser: Browser, tmp_path: Path) -> None:
    expect.set_options(timeout=PATIENCE_MS)
    with played_drill(tmp_path, "--messages", "1500", "--outage", "10s") as drill:
        page = browser.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(drill.address)
        events = page.get_by_role("list", name="Events")
        expect(events).to_contain_text("killed with SIGKILL")
        expect(page.locator("#headline")).to_have_attribute("data-level", "failed-over")
        expect(page.locator("#entities .span-failed-over")).not_to_have_count(0)
        expect(page.locator("#entities .mark-ping-failed")).not_to_have_count(0)
        expect(page.locator("#cost-facts")).to_contain_text("This outage so far")
        expect(events).to_contain_text("the Spark syphon moves them home")
        expect(events).to_contain_text("Spark brought")
        expect(page.locator("#proof-verdict")).to_contain_text("Nothing lost")
        assert drill.press_enter() == 0
        expect(page.locator("#contact")).to_have_text("no contact")
        assert complaints == []
        page.close()
    assert (tmp_path / "report" / "ledger").is_dir()
    assert (tmp_path / "report" / "drill.json").is_file()
