"""The files of the page: nothing is parsed as HTML, inline, or loaded from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import twinbus

STATIC = Path(twinbus.__file__).parent / "page" / "static"
REPORT = Path(twinbus.__file__).parent / "console" / "sheet" / "page.py"
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
