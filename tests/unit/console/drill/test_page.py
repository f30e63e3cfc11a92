"""The page of a drill: whole, self-contained, and true to its numbers."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tests.unit.console.drill.drill_results import PASSED, drilled
from tests.unit.console.pages import assert_self_contained
from twinbus.console.drill.result import DrillResult
from twinbus.console.drill.sheet import drill_sheet, outage_picture, outage_timeline
from twinbus.console.sheet.bars import NamedBar, bars
from twinbus.console.sheet.page import page_of
from twinbus.console.sheet.svg import WIDTH
from twinbus.console.sheet.timeline import Band, Bar, Marker, Timeline, timeline
from twinbus.pipeline.reports.bill import Charge

SVG = "{http://www.w3.org/2000/svg}"


def page(result: DrillResult) -> str:
    return page_of(drill_sheet(result))


def of_class(svg: str, name: str) -> list[ET.Element]:
    return [element for element in ET.fromstring(svg).iter() if element.get("class") == name]


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    whole = page(PASSED)
    assert_self_contained(whole)
    assert 'class="chart"' in whole


def test_the_answer_is_on_top_and_what_is_lost_beside_it() -> None:
    good, bad = page(PASSED), page(lossy())
    assert '<div class="answer good"><h1>Nothing was lost</h1>' in good
    assert '<div class="answer bad"><h1>1 message lost</h1>' in bad
    assert bad.index("lost: orders-000007") < bad.index("What happened")


def test_an_id_that_looks_like_markup_stays_text() -> None:
    whole = page(lossy("<script>alert(1)</script>"))
    assert "<script" not in whole
    assert "&lt;script&gt;" in whole


def lossy(lost_id: str = "orders-000007") -> DrillResult:
    return drilled(received=2_999, not_received_ids=(lost_id,))


def test_the_outage_is_drawn_in_seconds_from_the_first_send() -> None:
    drawn = outage_timeline(PASSED)
    assert [drawn.bands[0].from_s, drawn.bands[0].to_s] == pytest.approx([3.0, 11.8])
    assert [marker.label for marker in drawn.markers] == [
        "primary killed",
        "failed over",
        "primary back",
        "ping answered",
        "drain by Spark",
    ]
    assert drawn.bars[0] == Bar(0.0, 188, 0)
    assert drawn.depth[-1] == (21.0, 0)
    assert sum(bar.to_backlog for bar in drawn.bars) == 558 + 6 * 157


def test_every_send_is_in_the_picture_which_carries_its_own_style() -> None:
    svg = outage_picture(PASSED)
    assert len(of_class(svg, "primary")) == 8 + 1
    assert len(of_class(svg, "backlog")) == 7 + 1
    assert ET.fromstring(svg).findall(f"{SVG}style")
    titles = " ".join(title.text or "" for title in ET.fromstring(svg).iter(f"{SVG}title"))
    assert "5 s: 558 to the backlog" in titles


def test_bars_are_as_high_as_their_numbers_and_stand_on_each_other() -> None:
    svg = timeline(outage(bars=[Bar(0, 30, 10)]))
    (primary,) = of_class(svg, "primary")[1:]
    (backlog,) = of_class(svg, "backlog")[1:]
    heights = [float(rect.get("height", "0")) for rect in (primary, backlog)]
    assert heights[0] == pytest.approx(3 * heights[1], abs=0.2)
    top = float(backlog.get("y", "0")) + heights[1]
    assert top == pytest.approx(float(primary.get("y", "0")), abs=0.2)


def outage(
    bars: list[Bar] | None = None,
    depth: list[tuple[float, int]] | None = None,
    markers: list[Marker] | None = None,
) -> Timeline:
    return Timeline(
        bucket_s=1,
        bars=bars or [],
        depth=depth or [],
        bands=[Band(3, 5, "down")],
        markers=markers or [],
        until_s=10,
    )


def test_a_drill_with_nothing_to_draw_still_has_axes() -> None:
    svg = timeline(outage())
    assert len(of_class(svg, "axis")) == 2
    assert ">none</text>" in svg


def test_labels_of_moments_that_are_close_do_not_touch() -> None:
    close = [Marker(5.0, "primary back"), Marker(5.1, "ping answered"), Marker(9.9, "drain begun")]
    svg = timeline(outage(markers=close))
    texts = {text.text: text for text in ET.fromstring(svg).iter(f"{SVG}text")}
    assert texts["primary back"].get("y") != texts["ping answered"].get("y")
    assert texts["primary back"].get("y") == texts["drain begun"].get("y")
    assert float(texts["drain begun"].get("x", "0")) < WIDTH - 60


def test_the_depth_is_flat_until_the_second_in_which_it_changed() -> None:
    svg = timeline(outage(depth=[(4.0, 100), (8.0, 0)]))
    (line,) = of_class(svg, "line")
    points = [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
    heights = [y for _, y in points]
    assert len(points) == 6
    assert heights[0] == heights[1] == heights[4] == heights[5]
    assert heights[2] == heights[3] < heights[0]


def test_causes_are_bars_in_the_order_in_which_a_message_meets_them() -> None:
    kinds = [Charge(cause, "send", False, 1, 1) for cause in ("consumer", "odd", "application")]
    whole = page(drilled(by_kind=tuple(kinds)))
    section = whole[whole.index("Operations by cause") :]
    places = [section.index(f">{words}<") for words in ("sends to the primary", "odd")]
    assert places == sorted(places)
    svg = bars("Calls", [NamedBar("a", 100, "100"), NamedBar("b", 50, "50"), NamedBar("c", 0, "0")])
    widths = [float(rect.get("width", "0")) for rect in of_class(svg, "plain")]
    assert widths[1] == pytest.approx(widths[0] / 2, abs=0.1)
    assert widths[2] == 0
