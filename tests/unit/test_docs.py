"""What the documents refer to is there: tests they name, files and headings they link to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from docs_pages import GENERATED, commands_of
from twinbus.console.cli import app

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), ROOT / "deploy" / "README.md", *(ROOT / "docs").rglob("*.md")]
)

_TEST_IN = re.compile(r"`(test_\w+)` in (tests/[\w/]+\.py)")
_FILE = re.compile(r"\b((?:tests|src|bench)/[\w/]+\.py)")
_STOP = re.compile(r"^\d+\. `([\w/]+\.py): (\w+)`", re.MULTILINE)
"""A stop of a walk through the code: a file below src/twinbus, and a function in it."""

_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
_ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def missing(document: Path, text: str) -> list[str]:
    """What a document speaks of and is not there."""
    found = [
        f"{name} in {path}"
        for name, path in _TEST_IN.findall(text)
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text()
    ]
    found += [path for path in _FILE.findall(text) if not (ROOT / path).exists()]
    found += [
        f"{name} in {path}"
        for path, name in _STOP.findall(text)
        if not (file := ROOT / "src" / "twinbus" / path).exists()
        or f"def {name}(" not in file.read_text()
    ]
    found += [link for link in _LINK.findall(text) if text_at(document.parent / link) is None]
    return found + [
        f"{target}#{anchor}"
        for target, anchor in _ANCHOR.findall(text)
        if (page := document.parent / target if target else document).suffix == ".md"
        and (there := text_at(page) if target else text) is not None
        and anchor not in anchors(there)
    ]


def text_at(path: Path) -> str | None:
    """The text of a page, also of one that is written from the code; None: there is nothing."""
    if path.parent == ROOT / "docs" and path.name in GENERATED:
        return generated(path.name)
    if path.suffix != ".md":
        return "" if path.exists() else None
    return path.read_text() if path.exists() else None


@cache
def generated(name: str) -> str:
    return GENERATED[name]()


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub and the site make them."""
    return {_slug(heading) for heading in _HEADING.findall(_FENCED.sub("", text))}


def _slug(heading: str) -> str:
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def uncompiled(text: str) -> Iterator[str]:
    """The first lines of Python blocks that are no Python."""
    for block in _PYTHON.findall(text):
        try:
            compile(block, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            yield f"{block.partition(chr(10))[0]}: {error.msg}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_speaks_of_what_is_there(document: Path) -> None:
    assert missing(document, document.read_text()) == []


@pytest.mark.parametrize("name", GENERATED)
def test_a_page_written_from_the_code_speaks_of_what_is_there(name: str) -> None:
    assert not (ROOT / "docs" / name).exists(), "it is written by `make docs`; remove the file"
    assert missing(ROOT / "docs" / name, generated(name)) == []


def test_the_page_of_commands_has_every_command_with_its_options() -> None:
    text = generated("commands.md")
    for name, command in commands_of(get_command(app), "twinbus"):
        section = text.partition(f"# {name}\n")[2].partition("\n#")[0]
        assert section.count(f"    {name}") or hasattr(command, "commands"), name
        for parameter in command.params:
            assert parameter.opts[0] in section or f"`{parameter.metavar}" in section, (
                name,
                parameter.opts,
            )


def test_the_docs_are_at_most_24_pages_of_40_000_words() -> None:
    pages = list((ROOT / "docs").rglob("*.md"))
    assert len(pages) <= 24, sorted(page.name for page in pages)
    assert sum(len(page.read_text().split()) for page in pages) <= 40_000


def test_docstrings_point_to_pages_that_users_have() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {pointer}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for pointer in re.findall(r"\bSPEC\b|\bdocs/[\w-]+\.md", path.read_text())
        if text_at(ROOT / pointer) is None
    ]
    assert wrong == []


def test_what_is_not_there_is_found() -> None:
    text = (
        "`test_a` in tests/unit/test_docs.py, tests/unit/gone.py, [x](gone.md), [y](#here)\n"
        "[z](#not-here) [z](docs/failures.md#what-counts) [z](docs/failures.md#what-does-not)\n"
        "## Here\n```\n# Not here\n```\n"
        "1. `pair.py: pair_namespaces`: is there\n2. `pair.py: gone`\n3. `gone.py: f`"
    )
    named = [
        *("test_a in tests/unit/test_docs.py", "tests/unit/gone.py"),
        *("gone in pair.py", "f in gone.py", "gone.md"),
        *("#not-here", "docs/failures.md#what-does-not"),
    ]
    assert missing(ROOT / "README.md", text) == named


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_python_of_a_document_is_python(document: Path) -> None:
    assert list(uncompiled(document.read_text())) == []


def test_what_is_no_python_is_found() -> None:
    good, bad = "```python\nawait f()\n```\n", "```python\nwith x\n```\n"
    assert [line.partition(":")[0] for line in uncompiled(good + bad)] == ["with x"]


def test_every_window_of_the_guarantees_has_its_test() -> None:
    lines = (ROOT / "docs" / "guarantees.md").read_text().splitlines()
    windows = [line for line in lines if re.match(r"\| W\d ", line)]
    assert [line[2:4] for line in windows] == [f"W{number}" for number in range(8)]
    for line in windows:
        assert _TEST_IN.search(line) or _FILE.search(line), line
