"""`twinbus drill --page`: the page plays the drill, from the kill to the proof."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.drill_page import PATIENCE_MS, played_drill

# It starts Spark.
pytestmark = [pytest.mark.end_to_end, pytest.mark.soak]


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
