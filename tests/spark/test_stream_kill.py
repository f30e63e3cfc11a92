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
from twinbus.pipeline.store.increment import kept_tables

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

FILES: tuple[list[Line], ...] = (
    [sent("a"), diverted("b", 1), diverted("c", 2), line("state", None, 1, state="failed over")],
    [*moved("b", 1, out_s=9)[1:], received("a", 3), received("b", 10), received("b", 11)],
)
STEPS = len(kept_tables()) + 3
"""Of a batch: its records, its journeys, each table, the commit."""


def run(ledger: Path, moment: int) -> tuple[int, str]:
    driver = [sys.executable, "-m", "tests.spark.stream_driver", str(ledger), str(moment)]
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


def check_killed_at(ledger: Path, *moments: int) -> None:
    """Kill a driver at each moment, one after the other, then let one live."""
    for number, lines in enumerate(FILES):
        write_lines(ledger, f"p-{number}.jsonl", lines)
    for moment in moments:
        assert run(ledger, moment) == (-signal.SIGKILL, "")
    code, printed = run(ledger, -1)
    assert code == 0
    last, kept, batch = json.loads(printed)
    assert last == len(FILES) - 1
    assert kept == batch
    assert len(kept["notable"]) == 2


def test_a_killed_driver_that_is_started_again_has_the_same_tables(tmp_path: Path) -> None:
    # The first batch is committed; of the second the records, the journeys and some tables are.
    check_killed_at(tmp_path, STEPS + 5)


@pytest.mark.soak
@pytest.mark.parametrize("moment", range(1, 2 * STEPS + 1))
def test_a_driver_that_is_killed_at_any_step(tmp_path: Path, moment: int) -> None:
    # It is killed again a little later in what is left to do.
    check_killed_at(tmp_path, moment, *([3] if moment < STEPS else []))
