"""The examples of README, landing page and tutorial do what they say, word for word."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCUMENTS = {"README.md": 2, "docs/index.md": 1, "docs/tutorial.md": 2}
"""Documents whose Python blocks are run, and how many each has at least."""

_EXAMPLE = re.compile(
    r"^```python\n(?P<program>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)


def examples(document: str) -> list[tuple[str, str | None]]:
    """Each Python block with the block of text that follows it: what it prints."""
    found = _EXAMPLE.finditer((ROOT / document).read_text())
    return [(one["program"], one["printed"]) for one in found]


@pytest.mark.contract
@pytest.mark.parametrize(
    ("document", "place"),
    [(name, place) for name in DOCUMENTS for place in range(len(examples(name)))],
)
def test_an_example_prints_what_stands_below_it(document: str, place: int) -> None:
    program, printed = examples(document)[place]
    assert printed is not None, "no block of text follows it"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
    # Only an outage is logged, a line for each change.
    logged = [line for line in done.stderr.splitlines() if " -> " in line]
    assert bool(done.stderr) == ("failed over" in printed), done.stderr
    assert "Traceback" not in done.stderr
    assert len(logged) >= 3 * ("failed over" in printed)


def test_no_document_has_lost_its_examples() -> None:
    for document, least in DOCUMENTS.items():
        assert len(examples(document)) >= least, document


@pytest.mark.contract
def test_the_pictures_of_the_readme_are_there() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README.read_text())
    assert pictures == ["docs/images/outage.svg", "docs/images/page-outage.png"]
    assert all((README.parent / picture).is_file() for picture in pictures)
