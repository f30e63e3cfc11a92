"""Reports in a browser, with hostile names; and the static files of the page load nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

import twinbus
from tests.unit.console.drill.drill_results import PASSED
from tests.unit.console.report import ledger_reports as made
from twinbus.console.drill.sheet import drill_sheet
from twinbus.console.report.sheets import sheet_of
from twinbus.console.sheet import Sheet, page_of

pytestmark = pytest.mark.end_to_end

HOSTILE = "</script><script>document.title='mine'</script><img src=x onerror=document.title='mine'>"


def hostile() -> Sheet:
    """A report in whose data an entity has a name that is markup."""
    windows = [window._replace(entity=HOSTILE) for window in made.AVAILABLE.windows]
    return sheet_of(replace(made.AVAILABLE, windows=tuple(windows), entities=()))


SHEETS: dict[str, Callable[[], Sheet]] = {
    "drill": lambda: drill_sheet(PASSED),
    "availability": lambda: sheet_of(made.AVAILABLE),
    "hostile": hostile,
    "charges": lambda: sheet_of(made.CHARGES),
    "conservation": lambda: sheet_of(made.LOST),
}


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("name", SHEETS)
def test_a_report_is_whole_on_a_phone_and_a_screen_and_loads_nothing(
    browser: Browser, tmp_path: Path, name: str, width: int
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of(SHEETS[name]()))
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme="dark" if width == 400 else "light"
    )
    loaded: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(file.as_uri())
    assert page.title().startswith("Twinbus ")
    assert (loaded, complaints) == ([file.as_uri()], [])
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert Axe().run(page).violations_count == 0
    if page.locator("#outage").count():
        texts = page.locator("#outage text")
        boxes = [texts.nth(index).bounding_box() for index in range(texts.count())]
        shown = [box for box in boxes if box is not None and box["width"]]
        assert len(shown) >= 4
        assert all(0 <= box["x"] <= box["x"] + box["width"] <= width for box in shown)
        heights = page.locator("#sends-bars rect").evaluate_all(
            "parts => parts.map(part => part.getBBox().height)"
        )
        assert max(heights) == pytest.approx(110, abs=1)
    page.close()


def test_the_outage_of_a_drill_is_drawn_with_its_numbers(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of(drill_sheet(PASSED)))
    page = browser.new_page()
    page.goto(file.as_uri())
    titles = page.locator("#sends-bars title").all_text_contents()
    assert "15 Jan 08:00:05: 0 to the primary, 558 to the backlog or a twin" in titles
    assert page.locator("#outage ol li").all_text_contents()[0] == (
        "primary killed, 15 Jan 08:00:03"
    )
    assert page.locator("#sends-rate").inner_text().endswith(" stored")
    assert page.locator("#outage .bands title").all_text_contents()[0] == "primary down"
    page.close()


STATIC = Path(twinbus.__file__).parent / "page" / "static"
REPORT = Path(twinbus.__file__).parent / "console" / "sheet.py"
FILES = sorted(STATIC.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
LINES_MAX = 500
PARSES_TEXT = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser"
)
INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", re.IGNORECASE)
ELSEWHERE = re.compile(r"(?:https?:)?//[a-z0-9]", re.IGNORECASE)
NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_short_and_names_no_other_host(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LINES_MAX
    assert not ELSEWHERE.findall(text.replace(NAMESPACE, ""))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_sets_text_only_as_text(path: Path) -> None:
    assert not PARSES_TEXT.findall(path.read_text())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_imports_what_is_there_and_uses_elements_that_exist(path: Path) -> None:
    text = path.read_text()
    for names, home in re.findall(r"import \{([^}]*)\} from \"\./([^\"]+)\"", text):
        exported = (STATIC / home).read_text()
        for name in (part.split(" as ")[0].strip() for part in names.split(",")):
            assert re.search(rf"export (async )?(const|function|let) {name}\b", exported), name
    home = REPORT if path.name == "outage.js" else STATIC / "index.html"
    there = set(re.findall(r"\bid=\"([^\"]+)\"", home.read_text()))
    assert set(re.findall(r"byId\(\"([^\"]+)\"\)", text)) <= there


def test_the_page_has_no_inline_script_or_style() -> None:
    assert not INLINE.findall((STATIC / "index.html").read_text())
