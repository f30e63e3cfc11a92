"""`kill -9` under mixed load, again and again: nothing acknowledged is lost, nothing returns.

Fast raw clients send (single messages, batches, sessions) and receive (peek-lock, sessions,
receive-and-delete) all the time; another process does the same with the official SDK. They note
what the broker told them, and after the last restart everything left is drained and compared.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end import sdk_worker
from tests.end_to_end.history import History
from tests.end_to_end.mixed_load import Load, create_queues, load_and_kill
from tests.end_to_end.raw_client import PATIENCE_S
from tests.processes import ServedBroker

REPOSITORY = Path(__file__).parents[2]
ROUNDS = 10
SOAK_ROUNDS = int(os.environ.get("TWINBUS_KILL_ROUNDS", "50"))
RESTART_LIMIT_S = 2.0
LOAD_S = (0.5, 2.5)
"""A round's load lasts some time in this range: kills meet the broker at any point of its work."""


class SdkWorker:
    """The official SDK at work in a process of its own."""

    def __init__(self, broker: ServedBroker, output: Path) -> None:
        self._output = output
        with output.open("wb") as written:
            self._process = subprocess.Popen(
                [sys.executable, "-m", sdk_worker.__name__, broker.connection_string(), "sdk-"],
                cwd=REPOSITORY,
                stdout=written,
            )

    def stop(self, confirmed: int) -> None:
        """End it, as soon as it has so many confirmations: a busy machine may need longer."""
        ends = time.monotonic() + PATIENCE_S
        while self._output.read_text().count("confirm ") < confirmed and time.monotonic() < ends:
            time.sleep(0.1)
        self._process.terminate()
        assert self._process.wait(120) == 0

    def tell(self, history: History) -> None:
        """Have the worker's notes taken over, in their order."""
        for line in self._output.read_text().splitlines():
            word, key = line.split()
            getattr(history, word)(key)


def kill_again_and_again(directory: Path, rounds: int) -> list[float]:
    """Check that no kill loses or repeats a message; what each restart took, in seconds."""
    chance = random.Random(rounds)
    with ServedBroker(directory, options=("--quiet",)) as broker:
        create_queues(broker)
        load = Load(broker, rounds)
        worker = SdkWorker(broker, directory / "sdk.txt")
        restarts = []
        try:
            for _ in range(rounds):
                asyncio.run(load_and_kill(load, broker, chance.uniform(*LOAD_S)))
                broker.kill9()
                broker.restart()
                restarts.append(broker.start_took_s)
        finally:
            worker.stop(confirmed=rounds + 1)
        worker.tell(load.sdk)
        asyncio.run(load.drain())
        assert "Traceback" not in broker.log()
    for history in load.histories:
        assert history.problems() == []
        assert len(history.confirmed) > rounds, f"{history.name} was hardly used"
    return restarts


@pytest.mark.end_to_end
def test_nothing_acknowledged_is_lost_and_nothing_completed_returns(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, ROUNDS)


@pytest.mark.soak
def test_the_same_holds_for_many_more_kills_and_every_restart_is_quick(tmp_path: Path) -> None:
    restarts = kill_again_and_again(tmp_path, SOAK_ROUNDS)
    assert max(restarts) < RESTART_LIMIT_S, restarts
