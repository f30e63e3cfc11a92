"""Sends under strict session order, and how long an outage is felt, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import ServiceBusQuotaExceededError, ServiceBusServerBusyError

from twinbus.errors import BacklogUnavailableError, PartialDivertError, ReservedPropertyError
from twinbus.options import Verdict, classify, judge
from twinbus.pairing.core.backlog import session_queue
from twinbus.pairing.core.failover import ForceFailover, MarkHealthy, OthersRecovered
from twinbus.pairing.lifecycle.attaching import ProtectionMonitor
from twinbus.pairing.sdk.outgoing import MessageIds, Outgoing
from twinbus.testing import VirtualLoop
from twinbus.testing.fake_sdk import Behaviour, FakePair, accepts, hangs, refuses

pytestmark = pytest.mark.virtual_time


def message(name: str, session: str | None = "a", **properties: Any) -> ServiceBusMessage:
    return ServiceBusMessage("x", message_id=name, session_id=session, **properties)


class StrictWorld(FakePair):
    """A pair that has peeked its empty backlog queues."""

    async def start(self) -> None:
        assert self.client.session_scan is not None
        await self.client.session_scan.start(self.client.state.paths)
        self.order = self.client.session_scan.order
        self.sender = self.client.get_queue_sender("orders")

    def queue(self, session: str) -> str:
        return session_queue(self.client.state.paths, "orders", session)

    def fail_over(self) -> None:
        self.client.entity("orders").tell(ForceFailover())

    def come_back(self) -> None:
        self.client.entity("orders").tell(MarkHealthy())

    def ids(self, side: str) -> list[tuple[str, list[str]]]:
        """What a side took, call by call: the entity and the ids."""
        took = getattr(self, side).took
        return [(name, [*Outgoing.of(given, name, MessageIds()).ids]) for name, given in took]

    def drain(self) -> None:
        """The syphon has moved all that is in the backlog."""
        self.secondary.drained = len(self.secondary.took)


@asynccontextmanager
async def strict_world(**options: Any) -> AsyncIterator[StrictWorld]:
    """A pair under strict session order, started; closed at the end."""
    world = StrictWorld(session_order="strict", **options)
    await world.start()
    yield world
    await world.client.close()


async def test_a_session_stays_in_the_backlog_until_it_is_drained_and_others_do_not() -> None:
    async with strict_world() as world:
        world.fail_over()
        await world.sender.send_messages(message("a1"))
        world.come_back()
        await world.sender.send_messages(message("a2"))
        await world.sender.send_messages(message("b1", "b"))
        await world.sender.send_messages(message("n1", None))
        assert world.ids("secondary") == [(world.queue("a"), ["a1"]), (world.queue("a"), ["a2"])]
        assert world.ids("primary") == [("orders", ["b1"]), ("orders", ["n1"])]
        await asyncio.sleep(5.0)
        await world.sender.send_messages(message("a3"))
        assert len(world.secondary.took) == 3
        world.drain()
        await asyncio.sleep(5.0)
        assert len(world.order) == 0
        await world.sender.send_messages(message("a4"))
        assert world.ids("primary")[-1] == ("orders", ["a4"])


async def test_nothing_is_looked_at_while_no_session_is_bound_or_the_entity_is_not_back() -> None:
    async with strict_world() as world:
        at_start = world.secondary.peeks
        assert at_start == 3, "one look at each queue"
        await world.sender.send_messages(message("a1"))
        await asyncio.sleep(600.0)
        world.fail_over()
        await world.sender.send_messages(message("a2"))
        await asyncio.sleep(600.0)
        assert world.secondary.peeks == at_start
        world.come_back()
        await asyncio.sleep(60.0)
        looks = world.secondary.peeks - at_start
        # Each look is two peeks: what is there, and that nothing more is.
        assert 40 < looks < 80, looks


async def test_a_send_in_a_short_backlog_waits_a_moment_and_returns_to_the_primary() -> None:
    async with strict_world() as world:
        world.fail_over()
        await world.sender.send_messages(message("a1"))
        world.come_back()
        asyncio.get_running_loop().call_later(0.5, world.drain)
        await world.sender.send_messages(message("a2"))
        assert world.ids("primary") == [("orders", ["a2"])]
        assert 0.5 <= world.elapsed <= 1.0


async def test_a_send_that_timed_out_on_the_primary_is_diverted_and_so_is_the_next() -> None:
    async with strict_world() as world:
        world.primary.behaviour = hangs
        await world.sender.send_messages(message("a1"), timeout=60)
        # Somebody's late success heals the entity: what is in the backlog must not be overtaken.
        world.primary.behaviour = accepts
        world.client.forwarded("orders")
        assert world.state() == "healthy"
        await world.sender.send_messages(message("a2"))
        assert world.ids("secondary") == [(world.queue("a"), ["a1"]), (world.queue("a"), ["a2"])]
        assert world.primary.took == []


@pytest.mark.parametrize("behaviour", [hangs, refuses], ids=["hangs", "refuses"])
async def test_a_session_waits_for_a_lost_secondary_and_uses_its_own_queue(behaviour: Any) -> None:
    async with strict_world() as world:
        world.fail_over()
        world.secondary.behaviour = behaviour
        first = asyncio.create_task(world.sender.send_messages(message("a1"), timeout=60))
        # Messages of several sessions are parted first; each waits for its own queue.
        several = [message("b1", "b"), message("c1", "c")]
        second = asyncio.create_task(world.sender.send_messages(several, timeout=60))
        await asyncio.sleep(20)
        assert not first.done()
        assert not second.done()
        world.secondary.behaviour = accepts
        await asyncio.gather(first, second)
        assert sorted(world.ids("secondary")) == sorted(
            (world.queue(session), [f"{session}1"]) for session in "abc"
        )


async def test_after_a_black_hole_no_session_is_refused_for_the_queue_that_was_tried_in_it() -> (
    None
):
    async with strict_world() as world:
        world.fail_over()
        own, other = world.queue("a"), world.client.get_queue_sender("orders")
        world.secondary.behaviour = hangs
        first = asyncio.create_task(world.sender.send_messages(message("a1"), timeout=60))
        await asyncio.sleep(5.5)
        # The hole ends, and another queue is the first to answer.
        world.secondary.behaviour = accepts
        world.secondary.by_entity[own] = hangs
        world.client.state.divert_succeeded(next(q for q in world.client.state.paths if q != own))
        del world.secondary.by_entity[own]
        await world.sender.send_messages(message("a2"), timeout=60)
        await other.send_messages(message("a3"), timeout=60)
        await first
        assert world.elapsed < 12.0


async def test_a_session_waits_for_a_queue_that_is_silent_alone_until_a_probe_is_answered() -> None:
    async with strict_world() as world:
        world.fail_over()
        own, state = world.queue("a"), world.client.state
        watch = ProtectionMonitor(state)
        watch.start()
        world.secondary.by_entity[own] = hangs
        calls = [
            asyncio.create_task(world.sender.send_messages(message(f"a{n}"), timeout=120))
            for n in range(2)
        ]
        await asyncio.sleep(1.0)
        state.divert_succeeded(next(queue for queue in state.paths if queue != own))
        await asyncio.sleep(5.0)
        assert set(state.rotation.pulled(state.now)) == {own}
        # A call that finds it pulled waits as well.
        calls.append(asyncio.create_task(world.sender.send_messages(message("a2"), timeout=120)))
        await asyncio.sleep(1.0)
        assert not any(call.done() for call in calls)
        del world.secondary.by_entity[own]
        await asyncio.gather(*calls)
        # Pulled at 5 s, probed 5 s later; by time it would return at 35 s.
        assert world.elapsed < 11.0
        await watch.close()
        assert {queue for queue, _ in world.ids("secondary")} == {own}


async def test_the_failure_of_a_sessions_own_queue_raises_at_once_and_no_turn_helps() -> None:
    async def is_full(sent: Any) -> None:
        if sent is not None:
            raise ServiceBusQuotaExceededError(message="full")

    async with strict_world() as world:
        world.fail_over()
        world.secondary.by_entity[world.queue("a")] = is_full
        for name in ("a1", "a2"):
            with pytest.raises(BacklogUnavailableError, match="full"):
                await world.sender.send_messages(message(name), timeout=60)
        assert world.elapsed < 1.0
        assert world.secondary.took == [], "never another queue"


@pytest.mark.parametrize(
    ("behaviour", "is_bound"), [(hangs, True), (refuses, False)], ids=["in doubt", "refused"]
)
async def test_a_divert_that_fails_raises_and_binds_only_if_it_may_have_arrived(
    behaviour: Any, is_bound: bool
) -> None:
    async with strict_world() as world:
        world.fail_over()
        world.secondary.by_entity[world.queue("a")] = behaviour
        with pytest.raises(BacklogUnavailableError) as raised:
            await world.sender.send_messages(message("a1"), timeout=30)
        assert raised.value.message_ids == ("a1",)
        assert world.secondary.took == [], "never another queue"
        world.come_back()
        assert len(world.order) == int(is_bound)
        if is_bound:
            with pytest.raises(BacklogUnavailableError):
                await world.sender.send_messages(message("a2"), timeout=30)
            assert world.primary.took == []
        else:
            await world.sender.send_messages(message("a2"))
            assert world.ids("primary") == [("orders", ["a2"])]


async def test_closing_the_secondary_ends_a_turn_that_waits_for_a_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with strict_world() as world:
        world.fail_over()
        await world.sender.send_messages(message("a1"))
        # The session is bound, the secondary lost, and every sender to its queue in use.
        world.client.state.rotation.secondary.reason = "lost"
        pool = world.client.state.backlog_pool(world.queue("a"))
        take = pool.take
        monkeypatch.setattr(pool, "take", lambda: take() if pool.closed else None)
        call = asyncio.create_task(world.sender.send_messages(message("a2"), timeout=60))
        await asyncio.sleep(1.0)
        await world.client.close_secondary("the secondary is closed")
        with pytest.raises(BacklogUnavailableError, match="the secondary is closed"):
            await call
        assert world.elapsed < 10.0


async def test_a_cancelled_divert_binds() -> None:
    async with strict_world() as world:
        world.fail_over()
        world.secondary.behaviour = hangs
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await world.sender.send_messages(message("a1"))
        world.secondary.behaviour = accepts
        world.come_back()
        await world.sender.send_messages(message("a2"))
        assert world.ids("secondary") == [(world.queue("a"), ["a2"])]


async def test_a_message_that_cannot_be_diverted_binds_nothing() -> None:
    async with strict_world() as world:
        world.fail_over()
        bad = message("a1", application_properties={"x-ms-path": "mine"})
        with pytest.raises(ReservedPropertyError):
            await world.sender.send_messages(bad)
        assert len(world.order) == 0


async def test_a_list_goes_whole_to_the_primary_and_to_the_backlog_session_by_session() -> None:
    async with strict_world() as world:

        def mixed() -> list[ServiceBusMessage]:
            return [message("a1"), message("b1", "b"), message("n1", None), message("a2")]

        await world.sender.send_messages(mixed())
        assert world.ids("primary") == [("orders", ["a1", "b1", "n1", "a2"])]
        world.fail_over()
        await world.sender.send_messages(mixed())
        kept = world.client.state.paths[0]
        assert world.ids("secondary") == [
            (world.queue("a"), ["a1", "a2"]),
            (world.queue("b"), ["b1"]),
            (kept, ["n1"]),
        ]


async def test_a_part_that_fails_after_another_was_stored_is_told_by_the_ids() -> None:
    async with strict_world() as world:
        sessions = ["a", *(s for s in "bcdefgh" if world.queue(s) != world.queue("a"))][:2]
        world.fail_over()
        world.secondary.by_entity[world.queue(sessions[1])] = refuses
        batch = ServiceBusMessageBatch(10_000)
        for name in ("1", "2"):
            for session in sessions:
                batch.add_message(message(session + name, session))
        with pytest.raises(PartialDivertError) as raised:
            await world.sender.send_messages(batch, timeout=30)
        assert raised.value.stored_ids == ("a1", "a2")
        assert raised.value.not_stored_ids == (sessions[1] + "1", sessions[1] + "2")


async def test_a_backlog_that_cannot_be_looked_into_at_the_start_is_looked_into_later() -> None:
    world = StrictWorld(session_order="strict")
    world.secondary.took.append((world.queue("a"), _left("a0")))
    world.secondary.behaviour = refuses
    await world.start()
    await world.sender.send_messages(message("a1"))
    assert world.ids("primary") == [("orders", ["a1"])]
    world.secondary.behaviour = accepts
    await asyncio.sleep(30.0)
    await world.sender.send_messages(message("a2"))
    assert world.ids("secondary")[-1] == (world.queue("a"), ["a2"])


def _left(name: str) -> ServiceBusMessage:
    properties: dict[str | bytes, Any] = {b"x-ms-path": b"orders", b"x-ms-sessionid": b"a"}
    return ServiceBusMessage("x", message_id=name, application_properties=properties)


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


async def test_a_session_in_the_backlog_is_not_overtaken_by_a_send_that_tries_for_others() -> None:
    async with strict_world(failover_interval=0.0) as world:
        world.primary.behaviour = refuses
        await world.sender.send_messages(message("a1"), timeout=20)
        world.primary.behaviour = accepts
        world.client.entity("orders").tell(OthersRecovered())
        await world.sender.send_messages(message("a2"), timeout=20)
        assert (world.state(), world.primary.took) == ("failed over", [])
        await world.sender.send_messages(message("n1", None), timeout=20)
        assert (world.state(), world.ids("primary")) == ("healthy", [("orders", ["n1"])])


def test_what_the_option_names_counts_whatever_ones_own_judgement_is() -> None:
    busy, lost = ServiceBusServerBusyError(), ConnectionResetError()
    for own in (None, nothing_counts, raises):
        assert judge(busy, own, {"throttled"}) == (Verdict.COUNTS, "")
    assert judge(busy, None, {"full"}) == (Verdict.IGNORED, "")
    assert judge(lost, nothing_counts, {"throttled"}) == (Verdict.IGNORED, "")


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
