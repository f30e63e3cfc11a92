"""The charts of the reports: what they show is what they were given."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from tests.unit.console.report import ledger_reports as made
from twinbus.console.report.availability_sheet import over_time
from twinbus.console.sheet import bars as bar_charts
from twinbus.console.sheet.svg import CHAR_WIDTH, NARROW_WIDTH, WIDTH
from twinbus.console.sheet.timeline import Bar, Marker, Timeline, timeline

SVG = "{http://www.w3.org/2000/svg}"
WORDS = {"delivered": "delivered", "waiting": "waiting", "lost": "lost"}


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def titles(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}title")]


def test_a_share_that_is_small_is_seen_and_all_fill_the_bar() -> None:
    parts = [("lost", 1), ("waiting", 0), ("delivered", 999_999)]
    svg = bar_charts.shares([("orders", parts)], WORDS)
    bars = [
        (element.get("class"), float(element.get("width", 0)))
        for element in ET.fromstring(svg).iter(f"{SVG}rect")
        if element.get("height") == "20"
    ]
    assert [kind for kind, _ in bars] == ["series-lost", "series-0"]
    assert bars[0][1] == 4.0
    assert sum(width for _, width in bars) == WIDTH - 190 - 12 - 80
    assert titles(svg) == ["lost: 1 of 1,000,000", "delivered: 999,999 of 1,000,000"]
    assert "waiting" not in texts(svg)


def test_columns_stand_on_each_other_with_a_readable_axis() -> None:
    days = [("2026-11-16", {"delivered": 30_000, "lost": 10_000}), ("2026-11-17", {"waiting": 1})]
    svg = bar_charts.columns(days, WORDS)
    assert {"0", "10k", "20k", "30k", "40k", "2026-11-16", "2026-11-17"} <= set(texts(svg))
    assert titles(svg)[0] == "2026-11-16, delivered: 30,000"


def test_many_days_have_not_a_name_each() -> None:
    days = [(f"day {number}", {"lost": 1}) for number in range(100)]
    named = [text for text in texts(bar_charts.columns(days, WORDS)) if text.startswith("day")]
    assert 5 <= len(named) <= 11


def test_the_clock_has_round_times_and_the_date_once() -> None:
    svg = over_time(made.AVAILABLE)
    shown = texts(svg)
    assert [text for text in shown if re.fullmatch(r"16 Nov|\d\d:\d\d", text)] == [
        "16 Nov", "00:10", "00:20", "00:30", "00:40", "00:50", "01:00",
    ]  # fmt: skip
    assert "Age of the oldest message in the backlog, minutes" in shown
    assert "several entities failed over" in titles(svg)
    assert shown.count("orders failed over") == 1


def test_a_chart_of_seconds_keeps_its_seconds() -> None:
    plain = Timeline(
        bucket_s=1, bars=[Bar(0, 1, 0)], depth=[], bands=[], markers=[], until_s=10.0
    )  # fmt: skip
    assert {"0 s", "10 s", "Sends per second"} <= set(texts(timeline(plain)))


def test_a_clock_that_begins_in_the_night_says_its_day_first() -> None:
    late = Timeline(
        bucket_s=1, bars=[Bar(0, 1, 0)], depth=[], bands=[], markers=[], until_s=20.0,
        origin_s=made.BEGAN_S - 10,
    )  # fmt: skip
    times = [text for text in texts(timeline(late)) if ":" in text or "Nov" in text]
    assert times == ["15 Nov 23:59:50", "23:59:55", "16 Nov", "00:00:05", "00:00:10"]


def test_a_chart_for_a_phone_keeps_every_letter_inside() -> None:
    entity = "a-queue-with-a-name-that-is-far-too-long-for-a-phone"
    days = [(f"day {number}", {"lost": 5, "delivered": 1_000_000}) for number in range(30)]
    marks = [Marker(4.0, "the primary is gone"), Marker(9.5, "the primary is back again")]
    data = Timeline(
        bucket_s=1, bars=[Bar(0, 1_000_000, 0)], depth=[(1.0, 5)], bands=[], markers=marks,
        until_s=10.0, origin_s=made.BEGAN_S - 5, ages=[(4.0, 400)], width=NARROW_WIDTH,
    )  # fmt: skip
    for svg in (
        bar_charts.bars("Bars", [bar_charts.NamedBar(entity, 3.0, "15,660.14 USD")], NARROW_WIDTH),
        bar_charts.shares([(entity, [("lost", 1), ("delivered", 99_999)])], WORDS, NARROW_WIDTH),
        bar_charts.columns(days, WORDS, NARROW_WIDTH),
        timeline(data),
    ):
        drawn = ET.fromstring(svg)
        assert drawn.get("viewBox", "").startswith(f"0 0 {NARROW_WIDTH} ")
        for text in drawn.iter(f"{SVG}text"):
            x, words = float(text.get("x", "0")), text.text or ""
            length = len(words) * CHAR_WIDTH
            before = {"end": length, "middle": length / 2}.get(text.get("text-anchor", ""), 0.0)
            assert x - before >= -1, words
            assert x - before + length <= NARROW_WIDTH + 1, words
