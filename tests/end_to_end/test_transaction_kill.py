"""`kill -9` at the lines of a commit: a restart finds the whole transaction, or nothing of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end import transaction_steps
from tests.end_to_end.transaction_steps import MESSAGES

REPOSITORY = Path(__file__).parents[2]
STEP = 43
"""Every so many lines, a prime: loops are met at different lines of their bodies."""

BEFORE = list(range(1, MESSAGES + 1))
AFTER = list(range(MESSAGES + 1, 2 * MESSAGES + 1))


def killed(directory: Path, step: int, *options: str) -> list[dict[str, Any]]:
    """What each child told and left; the last one was not killed."""
    command = [sys.executable, "-m", transaction_steps.__name__, str(directory), "1", str(step)]
    done = subprocess.run(
        [*command, *options], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def broken(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs that left a part of the transaction, or less than the client was told."""
    return [
        run
        for run in runs
        if run["left"] not in (BEFORE, AFTER) or (run["told"] and run["left"] != AFTER)
    ]


def check(directory: Path, step: int) -> None:
    runs = killed(directory, step)
    assert broken(runs) == []
    # Both ends were met, and the discharge is long enough for this to say something.
    assert runs[0]["left"] == BEFORE
    assert runs[-1]["left"] == AFTER
    assert runs[-1]["told"]
    assert runs[-1]["lines"] > 300


@pytest.mark.end_to_end
def test_a_transaction_is_whole_or_absent_wherever_the_broker_is_killed(tmp_path: Path) -> None:
    check(tmp_path, STEP)


@pytest.mark.soak
def test_the_same_holds_at_every_line(tmp_path: Path) -> None:
    check(tmp_path, 1)


@pytest.mark.end_to_end
def test_a_broker_that_commits_in_two_steps_is_found_out(tmp_path: Path) -> None:
    runs = killed(tmp_path, STEP, "two-commits")
    assert broken(runs)
