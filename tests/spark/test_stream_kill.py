"""A driver that is killed in the middle of a batch, and started again, has the same tables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.spark.kept import write_lines
from tests.spark.ledgers import Line, diverted, line, moved, received, sent
from tests.spark.stream_driver import points

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

FILES: tuple[list[Line], ...] = (
    [sent("a"), diverted("b", 1), diverted("c", 2), line("state", None, 1, state="failed over")],
    [*moved("b", 1, out_s=9)[1:], received("a", 3), received("b", 10), received("b", 11)],
)

NOT_REACHED = {f"{table} committed" for table in ("diversions", "states", "raised", "skews")}
"""The second batch adds no rows to these tables, so they get no version."""


def run(ledger: Path, batch: int, point: str) -> tuple[int, str]:
    driver = [sys.executable, "-m", "tests.spark.stream_driver", str(ledger), str(batch), point]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        driver,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=500,
        check=False,
        start_new_session=True,
    )
    return done.returncode, done.stdout


def check_killed_at(ledger: Path, batch: int, point: str) -> None:
    """Kill a driver at a point of a batch, then let one live."""
    for number, lines in enumerate(FILES):
        write_lines(ledger, f"p-{number}.jsonl", lines)
    assert run(ledger, batch, point) == (-signal.SIGKILL, "")
    code, printed = run(ledger, 0, "")
    assert code == 0
    last, kept, rows = json.loads(printed)
    assert last == len(FILES) - 1
    assert kept == rows
    assert len(kept["notable"]) == 2


def test_a_killed_driver_that_is_started_again_has_the_same_tables(tmp_path: Path) -> None:
    # Some tables have a version with the second batch, and no set names it.
    check_killed_at(tmp_path, 1, "fates committed")


@pytest.mark.soak
@pytest.mark.parametrize("point", points())
def test_a_driver_that_is_killed_at_any_step_of_the_first_batch(tmp_path: Path, point: str) -> None:
    check_killed_at(tmp_path, 0, point)


@pytest.mark.soak
@pytest.mark.parametrize("point", [one for one in points() if one not in NOT_REACHED])
def test_a_driver_that_is_killed_at_any_step_of_the_second_batch(
    tmp_path: Path, point: str
) -> None:
    check_killed_at(tmp_path, 1, point)
