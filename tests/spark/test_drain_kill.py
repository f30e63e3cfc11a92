"""`kill -9` of Spark executors and of the Spark driver, while they drain: nothing is lost.

Duplicates are messages that were sent and not yet completed at the kill: no more than the windows
of the pumps that died, and none where the destination detects duplicates.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.spark.drain_world import (
    KINDS,
    QUEUES,
    SESSIONS,
    Driver,
    World,
    descendants,
    duplicates,
    is_running,
    kill9,
    world,
)
from twinbus.ledger import read
from twinbus.syphon.host import drain as drain_here

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.end_to_end]

MASTER = "local-cluster[2,1,1024]"
LIMIT = 100
"""Messages in flight for a queue: what a kill may duplicate of it."""
EACH = 1_250
"""For each of the four destinations in one round."""
SOAK_EACH = 5_000
SOAK_ROUNDS = int(os.environ.get("TWINBUS_KILL_ROUNDS", "20"))
END_S = 20.0
"""Executors of a dead driver, and their Python, have ended by then."""


def test_a_killed_executor_and_a_killed_driver_lose_nothing(tmp_path: Path) -> None:
    with world(tmp_path) as namespaces, Driver(MASTER, tmp_path / "driver.log") as driver:
        assert all(".zip/twinbus/" in place for place in driver.started["places"])
        for number in range(3):
            executor_round(namespaces, driver, tmp_path / f"e{number}", EACH, number == 2)
        driver_round(namespaces, driver, tmp_path / "d0", EACH)


@pytest.mark.soak
def test_killed_executors_lose_nothing_for_long(tmp_path: Path) -> None:
    with world(tmp_path) as namespaces, Driver(MASTER, tmp_path / "driver.log") as driver:
        for number in range(SOAK_ROUNDS):
            executor_round(namespaces, driver, tmp_path / f"e{number}", SOAK_EACH, number % 2 == 1)


@pytest.mark.soak
def test_killed_drivers_lose_nothing_for_long(tmp_path: Path) -> None:
    with world(tmp_path) as namespaces:
        for number in range(SOAK_ROUNDS):
            with Driver(MASTER, tmp_path / f"driver-{number}.log") as driver:
                driver_round(namespaces, driver, tmp_path / f"d{number}", SOAK_EACH)


def executor_round(
    namespaces: World, driver: Driver, ledger: Path, each: int, is_strict: bool
) -> None:
    """Drain, and kill one of the executors in the middle of it."""
    namespaces.fill(ledger.name, each)
    began = time.monotonic()
    driver.order(namespaces, ledger, limit=LIMIT, strict=is_strict)
    left = namespaces.wait_until_below(_some_of(each), 60)
    victim = driver.busy_executor(ledger)
    # Its Python too, as the loss of its machine does: that by itself would end a moment later.
    for pid in (*descendants(victim), victim):
        kill9(pid)
    assert namespaces.waiting() > 0, "it was over before the kill"
    told = driver.answer()
    took_s = time.monotonic() - began

    arrived = namespaces.received()
    # Two of the four queues were the dead executor's.
    attempts = len(list(ledger.glob("*.jsonl*")))
    words = f"executor killed{' (strict)' if is_strict else ''}, {left} left, {attempts} attempts"
    words += f", {took_s:.0f} s"
    twice = check(arrived, ledger.name, each, window=2 * LIMIT, words=words)
    check_ledger(ledger, twice, told)
    if is_strict:
        for session in SESSIONS:
            assert arrived[session] == sorted(arrived[session]), f"{session} is out of order"


def driver_round(namespaces: World, driver: Driver, ledger: Path, each: int) -> None:
    """Drain, kill the driver in the middle of it, and have another syphon do the rest."""
    namespaces.fill(ledger.name, each)
    driver.order(namespaces, ledger, limit=LIMIT)
    left = namespaces.wait_until_below(_some_of(each), 60)
    orphans = descendants(driver.jvm)
    assert len(orphans) >= 4, "two executors, each with Python"
    driver.kill9()
    killed_at = time.monotonic()
    assert namespaces.waiting() > 0, "it was over before the kill"
    # At once, while orphaned tasks may still be at it: the locks are between them.
    work = drain_here(namespaces.primary, namespaces.secondary, QUEUES, idle_s=0.2)
    asyncio.run(asyncio.wait_for(work, 60))
    check(
        namespaces.received(),
        ledger.name,
        each,
        window=len(QUEUES) * LIMIT,
        words=f"driver killed, {left} left",
    )
    while any(is_running(pid) for pid in orphans):
        assert time.monotonic() - killed_at < END_S, "executors outlived their driver"
        time.sleep(0.1)


def _some_of(each: int) -> int:
    """What is left when the kill comes: somewhere in the middle."""
    return int(each * len(KINDS) * random.uniform(0.4, 0.9))


def check(
    arrived: dict[str, list[str]], name: str, each: int, *, window: int, words: str
) -> Counter[str]:
    """Nothing is lost, and no more is duplicated than may be; the duplicates."""
    wanted = {f"{name}-{kind}-{number:06d}" for kind in KINDS for number in range(each)}
    lost = wanted - {key for keys in arrived.values() for key in keys}
    assert not lost, f"{len(lost)} lost: {sorted(lost)[:5]}"
    twice = duplicates(arrived)
    sys.stdout.write(f"{words}: 0 lost of {len(wanted)}, {twice.total()} duplicates\n")
    assert twice.total() <= window
    assert len(set(arrived["once"])) == len(arrived["once"]), "despite duplicate detection"
    return twice


def check_ledger(ledger: Path, twice: Counter[str], told: dict[str, int]) -> None:
    """The statistics are the ledger's, and what was completed is not sent again."""
    records = [r for r in read(ledger) if r.get("outcome") == "ok"]
    done = Counter(record["operation"] for record in records)
    assert told == {
        "forwarded": done["forward"],
        "completed": done["complete"],
        "dead_lettered": 0,
    }, json.dumps(done)
    completed = Counter(r["message_id"] for r in records if r["operation"] == "complete")
    assert all(completed[key] <= 1 for key in twice)
