"""A backlog comes home to a primary that throttles, and live callers see no error (SPEC 6)."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.end_to_end.raw_client import RawClient, RawSender, Refused, batch
from tests.end_to_end.syphon_world import BATCH, stored
from tests.ledger_reading import read
from tests.official_sdk import Faults, administration
from tests.processes import ServedBroker
from twinbus import SendAvailabilityOptions, pair_namespaces
from twinbus.errors import PairingError
from twinbus.pair import Pair

pytestmark = pytest.mark.end_to_end

ENTITIES = [f"orders-{number}" for number in range(40)]
CALLERS = 20
PAUSE_S = 0.2
"""Between two sends of one live caller."""

CALL_S = 30.0
PER_S = 300
"""Sends a second that the primary takes of everybody together."""


@dataclass
class LiveCalls:
    """What live callers saw while the backlog came home."""

    took_s: list[float] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    refused: int = 0
    """Forwards that the primary refused: each could have been a live call."""
    drained_s: float = 0.0

    def __str__(self) -> str:
        took_s = sorted(self.took_s)
        return (
            f"{self.drained_s:.1f} s, {len(took_s)} live calls, {len(self.errors)} errors, "
            f"median {took_s[len(took_s) // 2] * 1000:.0f} ms, "
            f"p95 {took_s[int(len(took_s) * 0.95)] * 1000:.0f} ms, longest {took_s[-1]:.1f} s"
        )


async def fill(primary: str, secondary: str, count: int) -> None:
    """Spread messages to all entities over the backlog queues, as an outage would."""
    options = SendAvailabilityOptions(ledger="")
    async with pair_namespaces(primary, secondary, options) as pair:
        queues = pair.backlog_queues
    for index, queue in enumerate(queues):
        numbers = range(index, count, len(queues))
        messages = [stored(ENTITIES[n // len(queues) % len(ENTITIES)], f"m{n}") for n in numbers]
        connection = await RawClient.open(secondary)
        sender = await connection.sender(queue)
        for at in range(0, len(messages), BATCH):
            await send_until_taken(sender, batch(messages[at : at + BATCH]))
        await connection.close()


async def send_until_taken(sender: RawSender, messages: bytes) -> None:
    """Send a batch, again and again as long as the namespace is busy."""
    while True:
        await sender.room()
        try:
            await sender.send(messages, is_batch=True)
        except Refused as refused:
            if refused.condition != "com.microsoft:server-busy":
                raise
            await asyncio.sleep(0.5)
        else:
            return


async def call(pair: Pair, path: str, calls: LiveCalls, over: asyncio.Event) -> None:
    async with pair.get_queue_sender(path) as sender:
        while not over.is_set():
            began = time.monotonic()
            try:
                await sender.send_messages(ServiceBusMessage("live"), timeout=CALL_S)
            except (ServiceBusError, PairingError) as error:
                calls.errors.append(error)
            calls.took_s.append(time.monotonic() - began)
            await asyncio.sleep(PAUSE_S)


async def bring_home(
    primary: str, secondary: str, count: int, limit_s: float, ledger: Path
) -> LiveCalls:
    """Drain the backlog with the syphon of a pair, while callers of another pair send."""
    calls, over = LiveCalls(), asyncio.Event()
    # One quick retry: throttling that lasts longer than an instant is an error of the caller.
    live = SendAvailabilityOptions(retry_total=1, retry_backoff_factor=0.2, ledger="")
    syphon = SendAvailabilityOptions(enable_syphon=True, ledger=ledger)
    async with pair_namespaces(primary, secondary, live) as pair, asyncio.TaskGroup() as group:
        for path in ENTITIES[:CALLERS]:
            group.create_task(call(pair, path, calls, over))
        try:
            async with asyncio.timeout(limit_s):
                while len(calls.took_s) < 2 * CALLERS:  # noqa: ASYNC110  # their links are open
                    await asyncio.sleep(0.1)
                Faults(primary).add("throttle", per_s=PER_S)
                async with pair_namespaces(primary, secondary, syphon) as draining:
                    while moved(draining) < count:  # noqa: ASYNC110  # it has no event for it
                        await asyncio.sleep(0.1)
        finally:
            over.set()
    records = [each for each in read(ledger) if each["operation"] == "forward"]
    calls.refused = sum(each["outcome"] == "failed" for each in records)
    return calls


def moved(pair: Pair) -> int:
    syphon = pair.status().syphon
    assert syphon is not None
    return sum(state.completed for state in syphon.values())


async def bring_home_by_credits(
    primary: str, secondary: str, count: int, limit_s: float
) -> LiveCalls:
    """Drain by the syphon of the pair that sends, in namespaces that count credits."""
    calls, over = LiveCalls(), asyncio.Event()
    options = SendAvailabilityOptions(enable_syphon=True, ledger="")
    async with pair_namespaces(primary, secondary, options) as pair, asyncio.TaskGroup() as group:
        began = time.monotonic()
        for path in ENTITIES[:CALLERS]:
            group.create_task(call(pair, path, calls, over))
        try:
            async with asyncio.timeout(limit_s):
                while moved(pair) < count:  # noqa: ASYNC110  # it has no event for it
                    await asyncio.sleep(0.1)
        finally:
            over.set()
            calls.drained_s = time.monotonic() - began
    return calls


def drain_beside_live_callers(
    directory: Path, bring: Callable[..., Awaitable[LiveCalls]], count: int, *options: str
) -> tuple[LiveCalls, int]:
    """Run the whole story; return what callers saw and how many messages the primary holds."""
    names = ("contoso", "contoso-dr")

    async def story(primary: str, secondary: str) -> LiveCalls:
        await fill(primary, secondary, count)
        return await bring(primary, secondary, count)

    with ServedBroker(directory, *names, options=options, ephemeral=True) as broker:
        primary, secondary = (broker.connection_string(name) for name in names)
        # With retries: calls and drain may have left the namespace without credits for a while.
        with administration(primary, retry_total=10) as admin:
            for path in ENTITIES:
                admin.create_queue(path, requires_duplicate_detection=True)
            calls = asyncio.run(story(primary, secondary))
            queues = list(admin.list_queues_runtime_properties())
    return calls, sum(queue.active_message_count or 0 for queue in queues)


def test_live_callers_see_no_error_while_a_throttled_primary_takes_the_backlog(
    tmp_path: Path,
) -> None:
    bring = partial(bring_home, limit_s=120.0, ledger=tmp_path / "l")
    calls, held = drain_beside_live_callers(tmp_path, bring, 3_000)
    assert calls.errors == []
    assert held == 3_000 + len(calls.took_s)


@pytest.mark.parametrize(
    "count", [pytest.param(1_000, id="short"), pytest.param(20_000, marks=pytest.mark.soak)]
)
def test_live_callers_see_no_error_while_an_azure_like_primary_takes_the_backlog(
    tmp_path: Path, count: int
) -> None:
    bring = partial(bring_home_by_credits, limit_s=1_200.0)
    calls, held = drain_beside_live_callers(tmp_path, bring, count, "--like", "azure-standard")
    # Seen with `-rP`.
    sys.stdout.write(f"{count} messages in {calls}\n")
    assert calls.errors == []
    assert held == count + len(calls.took_s)


@pytest.mark.soak  # the number of the issue: some minutes
def test_twenty_thousand_messages_come_home_without_an_error(tmp_path: Path) -> None:
    bring = partial(bring_home, limit_s=1_200.0, ledger=tmp_path / "l")
    calls, held = drain_beside_live_callers(tmp_path, bring, 20_000)
    assert calls.errors == []
    assert calls.refused < 20_000 / 10
    assert held == 20_000 + len(calls.took_s)


def test_the_documentation_has_the_row() -> None:
    page = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
    table = page.partition("<!-- coming home -->")[2].partition("<!-- end -->")[0]
    row = table.strip().splitlines()[-1].split(" | ")
    assert row[0] == "| the primary throttles live callers and syphon together"
    assert row[2] == "returns"
