"""50 pairs with 40 entities each and 20 events a second, in a tab that stays open for an hour."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.outage_world import Watched, watched_pairs

pytestmark = [pytest.mark.end_to_end, pytest.mark.soak, pytest.mark.timeout(7_200)]

PAIRS, ENTITIES, EVENTS_PER_S = 50, 40, 20
OPEN_S = float(os.environ.get("TWINBUS_TAB_SECONDS", "3600"))
SETTLE_S = 60.0
"""Lists fill up to their caps before the tab is measured for the first time."""

GROWTH_MAX = 1.25
SERVER_CORES_MAX = 0.10
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
    with watched_pairs(PAIRS, ENTITIES, EVENTS_PER_S) as world:
        page = browser.new_page()
        page.goto(world.address)
        page.get_by_text(f"{PAIRS} pairs", exact=True).wait_for()
        page.wait_for_timeout(SETTLE_S * 1000)
        before, began, used = _size(page), time.monotonic(), _cpu_s(world)
        page.evaluate(COUNT_UPDATES)
        while time.monotonic() < began + OPEN_S:
            page.wait_for_timeout(1_000)
        took, after = time.monotonic() - began, _size(page)
        updates = page.evaluate("window.updates")
        page.close()
        cores, memory = (_cpu_s(world) - used) / took, _memory_bytes(world)
    assert updates >= took, "the tab is updated less than once a second"
    for what, value in before.items():
        assert after[what] <= value * GROWTH_MAX, f"{what}: {value:,} -> {after[what]:,}"
    assert cores <= SERVER_CORES_MAX
    assert memory <= SERVER_BYTES_MAX


def _size(page: Page) -> dict[str, float]:
    """What the tab holds after a garbage collection."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    session.send("HeapProfiler.collectGarbage")
    metrics: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
    session.detach()
    wanted = {"JSHeapUsedSize", "Nodes", "JSEventListeners"}
    return {one["name"]: one["value"] for one in metrics if one["name"] in wanted}


def _cpu_s(world: Watched) -> float:
    fields = Path(f"/proc/{world.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_bytes(world: Watched) -> int:
    pages = int(Path(f"/proc/{world.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
