"""The page of a drill: whole, self-contained, and true to its numbers."""

from __future__ import annotations

import re
from typing import Any

from tests.unit.console.drill.drill_results import PASSED, drilled
from tests.unit.console.pages import assert_self_contained
from twinbus.console.drill.result import DrillResult
from twinbus.console.drill.sheet import drill_sheet
from twinbus.console.sheet import page_of
from twinbus.pipeline.reports.values import Charge


def page(result: DrillResult) -> str:
    return page_of(drill_sheet(result))


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    whole = page(PASSED)
    assert_self_contained(whole)
    assert '<div id="outage"></div>' in whole


def test_the_answer_is_on_top_and_what_is_lost_beside_it() -> None:
    good, bad = page(PASSED), page(lossy())
    assert '<div class="headline" data-level="healthy"><div><h1>Nothing was lost</h1>' in good
    assert 'data-level="unprotected"><div><h1>1 message lost</h1>' in bad
    assert bad.index("lost: orders-000007") < bad.index("What happened")


def test_an_id_that_looks_like_markup_stays_text() -> None:
    whole = page(lossy("<script>alert(1)</script>"))
    assert "<script>" not in whole
    assert "&lt;script&gt;" in whole


def lossy(lost_id: str = "orders-000007") -> DrillResult:
    return drilled(received=2_999, not_received_ids=(lost_id,))


def test_the_outage_has_its_moments_its_sends_and_its_backlog() -> None:
    drawn: Any = drill_sheet(PASSED).charts[0]
    data = drawn.data
    (band,) = data["bands"]
    moments = PASSED.moments
    assert band == (moments.killed_ms / 1000, moments.back_ms / 1000, "primary down")
    assert [label for _, label in data["markers"]] == [
        "primary killed",
        "failed over",
        "primary back",
        "ping answered",
        "drain by Spark",
    ]
    assert data["from"] <= data["sends"][0].at_s
    assert data["sends"][0][1:] == (188, 0)
    assert data["depth"][-1] == (data["to"], 0)
    assert sum(sends.to_backlog for sends in data["sends"]) == 558 + 6 * 157


def test_causes_are_bars_in_the_order_in_which_a_message_meets_them() -> None:
    kinds = [Charge(cause, "send", False, 1, 1) for cause in ("consumer", "odd", "application")]
    whole = page(drilled(by_kind=tuple(kinds)))
    section = whole[whole.index("Operations by cause") :]
    places = [section.index(f">{words}<") for words in ("sends to the primary", "odd")]
    assert places == sorted(places)
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", section)]
    assert widths == [100.0, 100.0, 100.0]
