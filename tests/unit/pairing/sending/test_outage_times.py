"""How long an outage is felt, and what a user's own classifier changes."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from twinbus.options import Verdict, classify, judge
from twinbus.testing import VirtualLoop
from twinbus.testing.fake_sdk import Behaviour, FakePair, accepts, hangs, refuses

pytestmark = pytest.mark.virtual_time


FAILOVER_S, ATTEMPT_S, PING_S = 10.0, 5.0, 60.0
SENDERS, TASKS = 5, 20
PACE_S = 0.5
INSTANT_S = 0.01
ENTITIES, DOWN = 2_000, 200


async def traffic(pair: FakePair, until_s: float) -> None:
    """Many tasks over several senders, each with one message at a time."""
    numbers = count()
    senders = [pair.client.get_queue_sender("orders") for _ in range(SENDERS)]

    async def send(task: int) -> None:
        while pair.elapsed < until_s:
            message = ServiceBusMessage("x", message_id=f"{task}-{next(numbers)}")
            await senders[task % SENDERS].send_messages(message, timeout=60)
            await asyncio.sleep(PACE_S)

    async with asyncio.TaskGroup() as group:
        for task in range(TASKS):
            group.create_task(send(task))


@pytest.mark.parametrize(
    ("behaviour", "failover_s", "limit_s"),
    [
        (hangs, FAILOVER_S, FAILOVER_S + ATTEMPT_S),
        (hangs, 0.0, ATTEMPT_S),
        (refuses, FAILOVER_S, FAILOVER_S),
        (refuses, 0.0, 0.0),
    ],
    ids=["hangs", "hangs, interval 0", "refuses", "refuses, interval 0"],
)
async def test_callers_are_diverted_in_time_and_all_return_after_the_ping(
    behaviour: Behaviour, failover_s: float, limit_s: float
) -> None:
    outage_s = 1.0

    pair = FakePair(
        failover_interval=failover_s, attempt_timeout=ATTEMPT_S, ping_primary_interval=PING_S
    )
    diverted_at: list[float] = []

    async def stores(payload: object) -> None:
        if payload is not None:
            diverted_at.append(pair.elapsed)

    pair.secondary.behaviour = stores
    running = asyncio.create_task(traffic(pair, until_s=100))
    await asyncio.sleep(outage_s)
    pair.primary.behaviour = behaviour
    # The first attempt that fails begins within one pace of the outage.
    await asyncio.sleep(PACE_S + limit_s + INSTANT_S)
    assert diverted_at, "nothing is diverted in time"
    assert diverted_at[0] >= outage_s + min(failover_s, limit_s)
    await asyncio.sleep(PING_S / 2)
    pair.primary.behaviour = accepts
    await running
    lines = pair.ledger.lines
    healthy = max(n for n, line in enumerate(lines) if line.get("state") == "healthy")
    after = lines[healthy:]
    assert [line for line in after if line["operation"] == "divert"] == []
    back = {line["message_id"].partition("-")[0] for line in after if "message_id" in line}
    assert back == {str(task) for task in range(TASKS)}
    await pair.client.close()


async def test_a_pair_of_many_entities_sleeps_while_nothing_is_sent() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    pair = FakePair(failover_interval=1.0, ping_primary_interval=PING_S)
    pair.primary.behaviour = refuses
    senders = [pair.client.get_queue_sender(f"entity-{n}") for n in range(ENTITIES)]
    began = loop.time()
    sends = (one.send_messages(ServiceBusMessage("x"), timeout=60) for one in senders[:DOWN])
    await asyncio.gather(*sends)
    assert sum(pair.state(f"entity-{n}") == "failed over" for n in range(DOWN)) == DOWN
    # Before the first ping: nobody polls, so time moves a few times in most of a minute.
    await asyncio.sleep(5)
    jumps, ends = loop.jumps, began + PING_S - 1
    await asyncio.sleep(ends - loop.time())
    assert loop.jumps - jumps < 10
    assert len(asyncio.all_tasks()) < 10
    await pair.client.close()


def busy_counts(error: BaseException) -> Verdict:
    return Verdict.COUNTS if isinstance(error, ServiceBusServerBusyError) else classify(error)


def nothing_counts(_: BaseException) -> Verdict:
    return Verdict.IGNORED


def raises(error: BaseException) -> Verdict:
    raise KeyError(type(error).__name__)


def says_yes(_: BaseException) -> Any:
    return True


def says_nothing(_: BaseException) -> Any:
    return None


def test_the_built_in_table_judges_when_there_is_no_other() -> None:
    assert judge(ConnectionResetError(), None) == (Verdict.COUNTS, "")
    assert judge(ValueError(), None) == (Verdict.IGNORED, "")


def test_ones_own_judgement_replaces_it() -> None:
    assert judge(ServiceBusServerBusyError(), busy_counts) == (Verdict.COUNTS, "")
    assert judge(ValueError(), busy_counts) == (Verdict.IGNORED, "")
    assert judge(ConnectionResetError(), nothing_counts) == (Verdict.IGNORED, "")


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (raises, "raised KeyError: 'ConnectionResetError' on ConnectionResetError"),
        (says_yes, "returned True for ConnectionResetError"),
        (says_nothing, "returned None for ConnectionResetError"),
    ],
)
def test_a_mistake_in_it_is_told_in_one_line_and_the_table_judges(own: Any, words: str) -> None:
    verdict, complaint = judge(ConnectionResetError(), own)
    assert verdict is Verdict.COUNTS
    assert complaint.startswith(f"options.classify {words}")
    assert "\n" not in complaint
    assert judge(ValueError(), own)[0] is Verdict.IGNORED


def test_what_ends_the_program_is_not_taken_for_a_mistake() -> None:
    def interrupted(_: BaseException) -> Verdict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(ConnectionResetError(), interrupted)


@pytest.mark.parametrize("own", [raises, says_yes, says_nothing])
async def test_a_mistake_in_it_costs_neither_the_failover_nor_the_sends_own_error(
    own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world = FakePair(classify=own, retry_total=0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(ConnectionRefusedError, match="refused") as caught:
        await sender.send_messages(ServiceBusMessage("x", message_id="hasty"), timeout=1)
    assert caught.value.message_ids == ("hasty",)  # type: ignore[attr-defined]
    await sender.send_messages(ServiceBusMessage("x"), timeout=60)
    assert world.state() == "failed over"
    assert len(world.secondary.took) == 1
    await world.client.close()
    assert [r.message for r in caplog.records if r.levelname == "ERROR"] == [
        judge(ConnectionRefusedError("refused"), own)[1]
    ]


async def test_ones_own_judgement_decides_over_the_failover() -> None:
    world = FakePair(classify=nothing_counts, retry_total=0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(ConnectionRefusedError):
        await sender.send_messages(ServiceBusMessage("x"), timeout=60)
    assert world.state() == "healthy"
    await world.client.close()
