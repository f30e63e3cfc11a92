"""A drill of an outage that happened: its length, and what it says of Geo-Replication."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.console.drill.drill_results import PASSED
from twinbus.console.cli import main
from twinbus.console.drill.comparison import compared
from twinbus.console.drill.result import DrillPlan
from twinbus.console.drill.sheet import drill_sheet
from twinbus.console.sheet.text import text_of
from twinbus.console.terminal.output import Output

NAME = "west-europe-2025-11"


def test_a_known_outage_is_played_a_thousand_times_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DrillPlan] = []

    def run(plan: DrillPlan, _: Path, __: Output, *, is_page_wanted: bool) -> int:
        assert not is_page_wanted
        asked.append(plan)
        return 0

    monkeypatch.setattr("twinbus.console.drill.commands.run", run)
    monkeypatch.setattr("sys.argv", ["twinbus", "drill", "--outage", NAME])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert [(plan.outage_s, plan.stands_for) for plan in asked] == [(33.9, NAME)]


def test_its_report_has_the_outage_and_geo_replication_beside_it() -> None:
    # 1,190 messages in 3 + 33.9 + 5 s: 28.4 a second.
    plan = DrillPlan(messages=1_190, outage_s=33.9, failover_interval_s=2.0, stands_for=NAME)
    result = replace(PASSED, plan=plan)
    outage, backlog, geo = compared(result)
    assert outage.startswith("West Europe, 5 November 2025, 17:00 to 02:25 UTC: 9 h 25 min, played")
    # 28.4 a second for 33,898 s are 962,736 messages, and a moved one has two operations more.
    assert "the backlog adds 1,925,471 operations to the month: 1.54 USD" in backlog
    assert "5 to 10 min (Microsoft, " in geo
    assert "8,520 to 17,041 sends" in geo
    # Two regions, 730 hours, 0.9275 each.
    assert "cost 1,354.15 USD a month" in geo
    text = text_of(drill_sheet(result))
    assert "The outage that it stands for" in text
    assert f"--outage {NAME} --failover-interval 2" in text


def test_any_other_drill_compares_nothing() -> None:
    assert compared(PASSED) == ()
    assert "stands for" not in text_of(drill_sheet(PASSED))
