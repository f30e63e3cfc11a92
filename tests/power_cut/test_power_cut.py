"""Power cuts under mixed load: nothing acknowledged is lost, nothing completed comes back.

`kill -9` keeps what the kernel has not yet written; a power cut does not. So the broker's data is
on a disk that forgets what was not synced. The same rounds on a broker that does not sync must find
losses: a check that cannot fail proves nothing.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end import transaction_steps
from tests.end_to_end.mixed_load import Load, create_queues, load_and_kill
from tests.end_to_end.raw_client import Refused
from tests.end_to_end.test_transaction_kill import REPOSITORY, broken
from tests.power_cut.forgetful import ForgetfulDisk
from tests.processes import ServedBroker

ROUNDS = 4
SOAK_ROUNDS = 50
LOAD_S = (0.3, 1.2)
KEPT_SHARES = (0.0, 0.3, 0.7, 1.0)
"""How much of what was not synced is on the disk all the same, torn at the bounds of sectors."""

LAST_LINES = ("950", "19")
"""Where kills begin, and their distance: from before the write of a commit to its answer."""

WITHOUT_SYNC = """
import lmdb
open_synced = lmdb.open
def open_unsynced(*args, **options):
    return open_synced(*args, **{**options, "sync": False, "metasync": False})
lmdb.open = open_unsynced
"""
"""Run before the broker's own code, this makes it one that acknowledges what it has not synced."""


def cut_again_and_again(
    disk: ForgetfulDisk, directory: Path, rounds: int, *, before: str = ""
) -> list[str]:
    """Cut the power under load, `rounds` times; every promise that the broker has broken."""
    chance = random.Random(rounds)
    with ServedBroker(directory, options=("--quiet",), before=before) as broker:
        broker.terminate()
        broker.data = disk.path / "data"
        broker.start()
        create_queues(broker)
        load = Load(broker, rounds)
        for number in range(rounds):
            asyncio.run(load_and_kill(load, broker, chance.uniform(*LOAD_S)))
            broker.kill9()
            disk.cut(chance.randrange(2**32), KEPT_SHARES[number % len(KEPT_SHARES)])
            broker.restart()
        asyncio.run(load.drain())
        assert "Traceback" not in broker.log()
    assert all(
        len(history.confirmed) > rounds for history in load.histories if history.name != "sdk"
    )
    return [problem for history in load.histories for problem in history.problems()]


@pytest.mark.end_to_end
def test_a_power_cut_loses_nothing_acknowledged_and_returns_nothing_completed(
    disk: ForgetfulDisk, tmp_path: Path
) -> None:
    assert cut_again_and_again(disk, tmp_path, ROUNDS) == []


@pytest.mark.soak
def test_the_same_holds_for_many_more_power_cuts(disk: ForgetfulDisk, tmp_path: Path) -> None:
    assert cut_again_and_again(disk, tmp_path, SOAK_ROUNDS) == []


@pytest.mark.end_to_end
def test_a_broker_that_does_not_sync_is_found_out(disk: ForgetfulDisk, tmp_path: Path) -> None:
    try:
        problems = cut_again_and_again(disk, tmp_path, ROUNDS, before=WITHOUT_SYNC)
    except (AssertionError, Refused, RuntimeError) as error:
        # It may have lost its queues, or its store may be damaged so that it does not start.
        if isinstance(error, RuntimeError) and "is damaged" not in str(error):
            raise
        problems = [str(error)]
    assert problems


@pytest.mark.end_to_end
def test_a_transaction_is_whole_or_absent_after_a_power_cut(disk: ForgetfulDisk) -> None:
    module = transaction_steps.__name__
    command = [sys.executable, "-m", module, str(disk.path), *LAST_LINES, "pause"]
    runs: list[dict[str, Any]] = []
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("killed"):
                disk.cut(len(runs), KEPT_SHARES[len(runs) % len(KEPT_SHARES)])
                process.stdin.write("\n")
                process.stdin.flush()
            else:
                runs.append(json.loads(line))
    assert process.returncode == 0
    assert broken(runs) == []
    assert runs[-1]["told"]
