"""The README's examples do what they say, word for word."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
PRINTED = ("orders is healthy\n", "order 1\n")
"""What each example prints, in the order in which they stand there."""


@pytest.mark.contract
@pytest.mark.parametrize("place", range(len(PRINTED)), ids=["pairing", "broker"])
def test_the_examples_of_the_readme_run_as_printed(place: int) -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(examples) == len(PRINTED)
    done = subprocess.run(
        [sys.executable, "-c", examples[place]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, PRINTED[place], "")


@pytest.mark.contract
def test_the_pictures_of_the_readme_are_there() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README.read_text())
    assert pictures == ["docs/images/outage.svg", "docs/images/page-outage.png"]
    assert all((README.parent / picture).is_file() for picture in pictures)
