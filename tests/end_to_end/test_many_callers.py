"""Many callers of one pair, and a pair with ten thousand entities."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.end_to_end import many_entities
from tests.processes import ServedBroker
from twinbus import SendAvailabilityOptions, pair_namespaces
from twinbus.errors import BacklogUnavailableError
from twinbus.pair import Pair

pytestmark = pytest.mark.end_to_end

BOUND_S = 45.0
"""36.2 s, and what a busy machine adds."""

STAYS = SendAvailabilityOptions(retry_total=3, ledger="")
"""The failover interval is longer than the bound: every call ends with the primary's error."""

FAILS_OVER = SendAvailabilityOptions(retry_total=3, failover_interval=6.0, ledger="")
"""Calls leave the primary for a secondary that is down."""


async def ends_of(pair: Pair, callers: int) -> list[tuple[float, BaseException | None]]:
    """How long each of many simultaneous calls took, and its error."""
    loop = asyncio.get_running_loop()
    sender = pair.get_queue_sender("orders")

    async def call(number: int) -> tuple[float, BaseException | None]:
        began, ended = loop.time(), None
        try:
            await sender.send_messages(ServiceBusMessage("x", message_id=f"id-{number}"))
        except Exception as error:  # noqa: BLE001  # the test looks at each
            ended = error
        return loop.time() - began, ended

    calls = [asyncio.create_task(call(number)) for number in range(callers)]
    done, late = await asyncio.wait(calls, timeout=BOUND_S)
    for task in late:
        task.cancel()
    assert not late, f"{len(late)} of {callers} calls have not ended after {BOUND_S:g} s"
    ends = [task.result() for task in done]
    ids = {getattr(error, "message_ids", None) for _, error in ends}
    assert ids == {(f"id-{number}",) for number in range(callers)}
    return ends


@pytest.mark.parametrize("crowds", [(1, 100), (1_000,)], ids=["1 and 100", "1,000"])
async def test_all_callers_without_a_timeout_end_within_the_bound(
    two_brokers: tuple[ServedBroker, ServedBroker],
    crowds: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The pairs share no evidence: those that are to stay would fail over with the others.
    monkeypatch.setenv("TWINBUS_RUN_DIR", "")
    primary, secondary = two_brokers
    kinds = [
        (options, kind, callers)
        for options, kind in ((STAYS, ServiceBusError), (FAILS_OVER, BacklogUnavailableError))
        for callers in crowds
    ]
    async with AsyncExitStack() as stack:
        pairs = [
            await stack.enter_async_context(
                pair_namespaces(primary.connection_string(), secondary.connection_string(), options)
            )
            for options, _, _ in kinds
        ]
        primary.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.to_thread(secondary.kill9)
            crowds_of = zip(pairs, kinds, strict=True)
            ends = await asyncio.gather(
                *(ends_of(pair, callers) for pair, (_, _, callers) in crowds_of)
            )
        finally:
            primary.process.send_signal(signal.SIGCONT)
    for crowd, (_, kind, _) in zip(ends, kinds, strict=True):
        assert max(took_s for took_s, _ in crowd) < BOUND_S
        assert {isinstance(error, kind) for _, error in crowd} == {True}, crowd[0]


MEMORY_MAX_MB = 100
IDLE_CPU_MAX = 0.03
"""Of one processor, while nothing is sent and no ping is due."""


def figures_of(directory: Path, *arguments: str) -> dict[str, float]:
    """What the program measured, which is also printed: it is a result."""
    with ServedBroker(directory, "dr", ephemeral=True) as secondary:
        ended = subprocess.run(
            [sys.executable, many_entities.__file__, secondary.connection_string(), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    sys.stdout.write(f"\n{ended.stdout}")
    figures: dict[str, float] = json.loads(ended.stdout)
    return figures


def test_ten_thousand_entities_cost_little(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        figures = figures_of(tmp_path)
    assert figures["entities"] == many_entities.ENTITIES
    assert figures["failed_over"] == figures["diverted"] == many_entities.DOWN
    assert figures["memory_mb"] < MEMORY_MAX_MB


@pytest.mark.soak  # half a minute of waiting; test_session_routing.py counts wake-ups in CI
def test_ten_thousand_idle_entities_use_no_processor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        figures = figures_of(tmp_path, "--idle")
    assert figures["idle_cpu"] < IDLE_CPU_MAX
    # None for an entity: each has a timer of the loop and nothing that runs.
    assert figures["tasks"] < 10
