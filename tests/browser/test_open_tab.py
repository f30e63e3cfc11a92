"""50 pairs with 40 entities each and 20 events a second, in a tab that stays open for an hour."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.outage_world import Watched, watched_pairs
from twinbus.page.core.timeline import WINDOW_S

pytestmark = [pytest.mark.end_to_end, pytest.mark.soak, pytest.mark.timeout(7_200)]

log = logging.getLogger("twinbus.tests.tab")

PAIRS, ENTITIES, EVENTS_PER_S = 50, 40, 20
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
    with watched_pairs(PAIRS, ENTITIES, EVENTS_PER_S) as world:
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
