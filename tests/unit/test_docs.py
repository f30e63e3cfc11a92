"""What the documents say of the code is there: tests they name, files they link to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

_TEST_IN = re.compile(r"`(test_\w+)` in (tests/[\w/]+\.py)")
_FILE = re.compile(r"\b((?:tests|src|bench)/[\w/]+\.py)")
_STOP = re.compile(r"^\d+\. `([\w/]+\.py): (\w+)`", re.MULTILINE)
"""A stop of a walk through the code: a file below src/twinbus, and a function in it."""

_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


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
    return found + [link for link in _LINK.findall(text) if not (document.parent / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_speaks_of_what_is_there(document: Path) -> None:
    assert missing(document, document.read_text()) == []


def test_what_is_not_there_is_found() -> None:
    text = (
        "`test_a` in tests/unit/test_docs.py, tests/unit/gone.py, [x](gone.md), [y](#here)\n"
        "1. `pair.py: pair_namespaces`: is there\n2. `pair.py: gone`\n3. `gone.py: f`"
    )
    named = [
        *("test_a in tests/unit/test_docs.py", "tests/unit/gone.py"),
        *("gone in pair.py", "f in gone.py", "gone.md"),
    ]
    assert missing(ROOT / "README.md", text) == named


def test_every_window_of_the_guarantees_has_its_test() -> None:
    lines = (ROOT / "docs" / "guarantees.md").read_text().splitlines()
    windows = [line for line in lines if re.match(r"\| W\d ", line)]
    assert [line[2:4] for line in windows] == [f"W{number}" for number in range(8)]
    for line in windows:
        assert _TEST_IN.search(line) or _FILE.search(line), line
