"""`kill -9` of Spark executors and of Spark drivers while thousands of messages are drained.

Nothing is lost. Duplicates are messages that were sent and not yet completed at a kill: no more
than the windows of the pumps that died, none where the destination detects duplicates, and sessions
stay in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.ledger_reading import read
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
from twinbus.ledger import LedgerWriter
from twinbus.options import SendAvailabilityOptions
from twinbus.syphon.host import drain as drain_here

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.end_to_end]

MASTER = "local-cluster[2,1,1024]"
LIMIT = 100
"""Messages in flight for a queue: what a kill may duplicate of it."""
MESSAGES = 20_000
SOAK_KILLS = int(os.environ.get("TWINBUS_KILL_ROUNDS", "20"))
SOAK_KILLS_EACH = 4
"""In one drain of the soak: Spark gives a task up that failed so often, and another job begins."""
PATIENCE_S = 240.0
END_S = 60.0
"""Executors of a dead driver, and their Python, have ended by then: in seconds, where there is a
processor for them."""


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_killed_executors_lose_nothing_for_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with world(tmp_path) as namespaces, Driver(MASTER, tmp_path / "driver.log") as driver:
        for number in range(SOAK_KILLS // SOAK_KILLS_EACH):
            figures = kill_executors(
                namespaces,
                driver,
                tmp_path / f"e{number}",
                SOAK_KILLS_EACH,
                is_strict=number % 2 == 0,
            )
            with capsys.disabled():
                sys.stdout.write(f"\n{figures}\n")


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_killed_drivers_lose_nothing_for_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with world(tmp_path) as namespaces:
        for number in range(SOAK_KILLS // SOAK_KILLS_EACH):
            figures = kill_drivers(namespaces, tmp_path / f"d{number}", SOAK_KILLS_EACH)
            with capsys.disabled():
                sys.stdout.write(f"\n{figures}\n")


def kill_executors(
    namespaces: World,
    driver: Driver,
    ledger: Path,
    kills: int,
    *,
    is_strict: bool,
    messages: int = MESSAGES,
) -> str:
    """One drain, in the middle of which executors are killed; the figures in one line."""
    namespaces.fill(ledger.name, messages // len(KINDS))
    began = time.monotonic()
    driver.order(namespaces, ledger, limit=LIMIT, strict=is_strict)
    left = []
    for limit in _thresholds(kills, messages):
        namespaces.wait_until_below(limit, PATIENCE_S)
        victim = driver.busy_executor(ledger)
        # Its Python too, as the loss of its machine does: that by itself would end a moment later.
        for pid in (*descendants(victim), victim):
            kill9(pid)
        left.append(namespaces.waiting())
    assert left[-1] > 0, "it was over before the last kill"
    told = driver.answer()
    took_s = time.monotonic() - began

    arrived = namespaces.received()
    # Two of the four queues were the dead executor's.
    window = kills * LIMIT * len(QUEUES) // 2
    twice = check(arrived, ledger.name, window, messages, is_strict=is_strict)
    check_ledger(ledger, twice, told)
    attempts = len({path.name.rsplit("-", 1)[0] for path in ledger.glob("*.jsonl*")})
    order = "strict" if is_strict else "relaxed"
    return (
        f"kill -9 of an executor: {kills} rounds with {left} of {messages} left, {order},"
        f" {attempts} attempts, lost 0, duplicates {twice.total()}, window {window},"
        f" with duplicate detection 0; {took_s:.1f} s"
    )


def kill_drivers(
    namespaces: World,
    place: Path,
    kills: int,
    *,
    first: Driver | None = None,
    messages: int = MESSAGES,
) -> str:
    """One drain by drivers that are killed one after the other; a plain syphon does the rest."""
    namespaces.fill(place.name, messages // len(KINDS))
    left, orphans, took = [], [], []
    with ExitStack() as drivers:
        coming = first
        for number, limit in enumerate(_thresholds(kills, messages)):
            driver = coming or _begin(drivers, place, number)
            if driver is not first:
                driver.__enter__()
            began = time.monotonic()
            driver.order(namespaces, place, limit=LIMIT, strict=True)
            # The next one starts meanwhile, which takes it longer than the rest of the round.
            coming = _begin(drivers, place, number + 1) if number + 1 < kills else None
            namespaces.wait_until_below(limit, PATIENCE_S)
            orphans += driver.helpers
            driver.kill9()
            left.append(namespaces.waiting())
            took.append(time.monotonic() - began)
    killed_at = time.monotonic()
    assert left[-1] > 0, "it was over before the last kill"
    assert len(orphans) >= 4 * kills, "two executors each, with Python"
    # At once, while orphaned tasks may still be at it: the lease and the locks are between them.
    with LedgerWriter(place) as writer:
        work = drain_here(
            namespaces.primary,
            namespaces.secondary,
            QUEUES,
            idle_s=0.2,
            ledger=writer,
            options=SendAvailabilityOptions(session_order="strict"),
        )
        asyncio.run(asyncio.wait_for(work, PATIENCE_S))
    window = kills * LIMIT * len(QUEUES)
    twice = check(namespaces.received(), place.name, window, messages, is_strict=True)
    check_ledger(place, twice, None)
    while any(is_running(pid) for pid in orphans):
        assert time.monotonic() - killed_at < END_S, "executors outlived their driver"
        time.sleep(0.1)
    return (
        f"kill -9 of the driver: {kills} rounds with {left} of {messages} left, strict, lost 0,"
        f" duplicates {twice.total()}, window {window}, with duplicate detection 0;"
        f" {', '.join(f'{each:.1f}' for each in took)} s to each kill"
    )


def _begin(drivers: ExitStack, place: Path, number: int) -> Driver:
    """A driver that is starting; gone with the others, whatever happens."""
    driver = Driver(MASTER, place.with_name(f"{place.name}-{number}.log"))
    drivers.push(driver)
    return driver


def _thresholds(kills: int, messages: int) -> list[int]:
    """What is left at each kill, somewhere in its part of the drain."""
    return [
        int(messages * (1 - (number + random.uniform(0.1, 0.7)) / kills)) for number in range(kills)
    ]


def check(
    arrived: dict[str, list[str]], name: str, window: int, messages: int, *, is_strict: bool
) -> Counter[str]:
    """Nothing is lost, no more is duplicated than may be, the order is kept; the duplicates."""
    numbers = range(messages // len(KINDS))
    wanted = {f"{name}-{kind}-{number:06d}" for kind in KINDS for number in numbers}
    lost = wanted - {key for keys in arrived.values() for key in keys}
    assert not lost, f"{len(lost)} lost: {sorted(lost)[:5]}"
    twice = duplicates(arrived)
    assert twice.total() <= window
    assert len(set(arrived["once"])) == len(arrived["once"]), "despite duplicate detection"
    if is_strict:
        for session in SESSIONS:
            assert arrived[session] == sorted(arrived[session]), f"{session} is out of order"
    return twice


def check_ledger(ledger: Path, twice: Counter[str], told: dict[str, int] | None) -> None:
    """The statistics are the ledger's, and what was completed is not sent again."""
    records = [r for r in read(ledger) if r.get("outcome") == "ok"]
    done = Counter(record["operation"] for record in records)
    assert told in (
        None,
        {"forwarded": done["forward"], "completed": done["complete"], "dead_lettered": 0},
    ), json.dumps(done)
    completed = Counter(r["message_id"] for r in records if r["operation"] == "complete")
    assert all(completed[key] <= 1 for key in twice)
