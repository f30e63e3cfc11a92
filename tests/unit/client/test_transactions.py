"""A transaction of the client in virtual time: limits, refusals, lost answers, and its one end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.amqp.events import CreditChanged, Detached, Disposed
from twinbus.amqp.frames import FrameOutput
from twinbus.amqp.link import LinkState
from twinbus.amqp.performatives import (
    Accepted,
    Declare,
    Declared,
    Discharge,
    Error,
    Rejected,
    TransactionalState,
)
from twinbus.amqp.session import Session
from twinbus.amqp.transactions import read_request
from twinbus.client.coordinator import DischargeLink
from twinbus.client.links import UpstreamConnection
from twinbus.client.outcomes import COMPLETE
from twinbus.client.request_node import ConnectionLost, DeliveryRejected
from twinbus.client.transactions import LIFETIME_S, ROLL_BACK_S, Ending, NamespaceTransaction
from twinbus.errors import (
    TransactionError,
    TransactionRolledBackError,
    TransactionUnknownError,
)
from twinbus.servicebus.failures import NamespaceFailure
from twinbus.testing import run_virtual

pytestmark = pytest.mark.virtual_time

ANSWER_S = 5.0
ID = b"id"
BUSY = Rejected(error=Error(condition="com.microsoft:server-busy", description="busy"))
TIMED_OUT = Rejected(error=Error(condition="com.microsoft:timeout", description="no answer"))
UNDONE = Rejected(
    error=Error(
        condition="amqp:transaction:rollback",
        description="The transaction was rolled back: the lock is lost.",
    )
)

Answer = Callable[[Declare | Discharge], object]
"""What the coordinator answers to a request; None: nothing."""


def willing(request: Declare | Discharge) -> object:
    return Declared(ID) if isinstance(request, Declare) else Accepted()


class Pool:
    """The links to an entity."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.users = 0

    async def open(self) -> None:
        await asyncio.sleep(0)

    async def send_messages(self, wire: Any) -> None:
        await asyncio.sleep(0)
        if self.world.refusal is not None:
            raise self.world.refusal
        self.world.sent.append(wire)

    def release(self) -> None:
        self.users -= 1


class World:
    """A transaction on a connection whose coordinator and links are here."""

    def __init__(self, answer: Answer = willing) -> None:
        self.answer = answer
        self.asked: list[Declare | Discharge] = []
        self.ends: list[tuple[Ending, str]] = []
        self.refusal: Exception | None = None
        """What sends raise."""
        self.sent: list[Any] = []
        loop = asyncio.get_running_loop()
        self.session = Session(FrameOutput(), 0)
        self.link = DischargeLink(cast("Any", SimpleNamespace(flush=lambda: None)), self.session)
        self.sender = self.link._link
        self.sender.state = LinkState.OPEN
        self.sender.send = self._ask  # type: ignore[method-assign, assignment]
        self.give_credit(100)
        self.pool = Pool(self)

        async def coordinator() -> DischargeLink:
            return self.link

        connection = SimpleNamespace(
            loop=loop,
            answer_s=ANSWER_S,
            coordinator=coordinator,
            pool=lambda path, splits: self.pool,
        )
        self.work = NamespaceTransaction(
            cast("UpstreamConnection", connection), lambda *end: self.ends.append(end)
        )

    def give_credit(self, credit: int) -> None:
        self.sender.credit = credit
        self.link.handle(CreditChanged(self.sender))

    def _ask(self, payload: bytes, tag: bytes) -> int:
        number = len(self.asked)
        self.sender.credit -= 1
        request = read_request(payload)
        self.asked.append(request)
        state = self.answer(request)
        if state is not None:
            asyncio.get_running_loop().call_soon(self.settle, number, state)
        return number

    def settle(self, number: int, state: object) -> None:
        self.link.answered(Disposed(self.session, True, number, number, True, state))

    async def send(self, count: int = 1) -> None:
        await self.work.send("orders", (b"x", 0), count)

    @property
    def discharges(self) -> list[bool]:
        """Whether each discharge was a rollback."""
        return [one.fail for one in self.asked if isinstance(one, Discharge)]


async def test_it_is_declared_with_its_first_operation_and_discharged_once() -> None:
    world = World()
    await asyncio.gather(world.send(), world.send(2))
    assert [type(one) for one in world.asked] == [Declare]
    assert [wire.state for wire in world.sent] == [TransactionalState(ID)] * 2
    await world.work.commit()
    assert (world.discharges, world.ends) == ([False], [(Ending.COMMITTED, "")])
    assert world.pool.users == 0
    with pytest.raises(TransactionError, match="is committed and takes no more operations"):
        await world.send()


async def test_one_without_operations_asks_nothing() -> None:
    for end in ("commit", "roll_back"):
        world = World()
        await getattr(world.work, end)()
        assert world.asked == []
        assert len(world.ends) == 1


@pytest.mark.parametrize(
    ("state", "wanted", "ending", "text"),
    [
        (UNDONE, TransactionRolledBackError, Ending.ROLLED_BACK, "rolled back: the lock is lost"),
        (BUSY, TransactionRolledBackError, Ending.ROLLED_BACK, "rolled back: busy"),
        # A gateway says so when the answer of its primary is lost.
        (TIMED_OUT, TransactionUnknownError, Ending.UNKNOWN, "lost \\(no answer\\), so it is unkn"),
        (None, TransactionUnknownError, Ending.UNKNOWN, "no answer for 5 s"),
    ],
)
async def test_the_answer_to_a_discharge_decides(
    state: object, wanted: type[Exception], ending: Ending, text: str
) -> None:
    world = World(lambda one: Declared(ID) if isinstance(one, Declare) else state)
    await world.send()
    with pytest.raises(wanted, match=text):
        await world.work.commit()
    assert [one for one, _ in world.ends] == [ending]


async def test_an_answer_that_comes_too_late_changes_nothing() -> None:
    world = World(lambda one: Declared(ID) if isinstance(one, Declare) else None)
    await world.send()
    with pytest.raises(TransactionUnknownError):
        await world.work.commit()
    world.settle(1, Accepted())
    await asyncio.sleep(0)
    assert [one for one, _ in world.ends] == [Ending.UNKNOWN]


async def test_a_link_that_ends_before_the_discharge_rolls_back_and_one_after_it_is_unknown() -> (
    None
):
    before = World()
    await before.send()
    before.link.handle(Detached(before.sender, None, True))
    with pytest.raises(TransactionRolledBackError, match="the namespace closed the coordinator"):
        await before.work.commit()
    after = World(lambda one: Declared(ID) if isinstance(one, Declare) else None)
    await after.send()
    commit = asyncio.create_task(after.work.commit())
    await asyncio.sleep(1)
    after.link.end(ConnectionLost("gone"))
    with pytest.raises(TransactionUnknownError, match="gone"):
        await commit
    waiting = World()
    await waiting.send()
    waiting.sender.credit = 0
    commit = asyncio.create_task(waiting.work.commit())
    await asyncio.sleep(1)
    waiting.link.end(ConnectionLost("gone"))
    with pytest.raises(TransactionRolledBackError, match="gone"):
        await commit


async def test_a_commit_that_is_cancelled_ends_with_the_answer() -> None:
    world = World(lambda one: Declared(ID) if isinstance(one, Declare) else None)
    await world.send()
    commit = asyncio.create_task(world.work.commit())
    await asyncio.sleep(1)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert world.ends == []
    world.settle(1, Accepted())
    await asyncio.sleep(0)
    assert world.ends == [(Ending.COMMITTED, "")]


async def test_a_rollback_waits_a_moment_for_its_answer_and_one_that_hurries_does_not() -> None:
    loop = asyncio.get_running_loop()
    for waits, took_s in ((True, ROLL_BACK_S), (False, 0.0)):
        world = World(lambda one: Declared(ID) if isinstance(one, Declare) else None)
        await world.send()
        began = loop.time()
        await world.work.roll_back(waits=waits)
        assert loop.time() - began == pytest.approx(took_s)
        assert (world.discharges, world.ends[0][0]) == ([True], Ending.ROLLED_BACK)


async def test_the_limits_are_checked_here() -> None:
    full = World()
    await full.send(60)
    with pytest.raises(TransactionError, match="at most 100 messages; it has 60, and 41 would be"):
        await full.send(41)
    with pytest.raises(TransactionRolledBackError, match="at most 100 messages"):
        await full.work.commit()
    old = World()
    await old.send()
    await asyncio.sleep(LIFETIME_S - 1)
    await old.send()
    await asyncio.sleep(1)
    with pytest.raises(TransactionError, match="is open for 120 s; after 120 s a namespace rolls"):
        await old.send()
    slow = World()
    await slow.send()
    await asyncio.sleep(LIFETIME_S)
    with pytest.raises(TransactionRolledBackError, match="open for 120 s"):
        await slow.work.commit()
    assert full.discharges == slow.discharges == [True]


async def test_a_settlement_on_a_link_that_ended_is_refused() -> None:
    world = World()
    link = SimpleNamespace(is_open=False, path="orders")
    with pytest.raises(NamespaceFailure, match="cannot be part of a transaction; receive it again"):
        await world.work.settle(cast("Any", SimpleNamespace(link=link)), COMPLETE)
    with pytest.raises(TransactionRolledBackError, match="receive it again"):
        await world.work.commit()
    assert world.asked == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "refused", "cancelled", "wait", "lose"]),
        st.integers(1, 60),
    ),
    max_size=8,
)
ANSWERS = st.sampled_from([Accepted(), UNDONE, TIMED_OUT, None])


@settings(max_examples=60, deadline=None)
@given(STEPS, ANSWERS, st.booleans())
def test_it_commits_only_if_every_operation_was_taken_and_ends_once_as_told(
    steps: list[tuple[str, int]], answer: object, rolls_back: bool
) -> None:
    """The model: all operations and then the answer, or nothing."""

    async def scenario() -> None:
        def answers(one: Declare | Discharge) -> object:
            return Declared(ID) if isinstance(one, Declare) else Accepted() if one.fail else answer

        world = World(answers)
        total, is_good, declared_at, is_lost = 0, True, None, False
        loop = asyncio.get_running_loop()
        for kind, number in steps:
            if kind == "wait":
                await asyncio.sleep(number * 3)
            elif kind == "lose":
                world.link.end(ConnectionLost("gone"))
                is_lost = True
            else:
                world.refusal = DeliveryRejected("no", "amqp:not-allowed")
                world.refusal = world.refusal if kind == "refused" else None
                is_old = declared_at is not None and loop.time() - declared_at >= LIFETIME_S
                is_good = is_good and not (is_old or is_lost or total + number > 100)
                began = loop.time()
                try:
                    if kind == "cancelled":
                        async with asyncio.timeout(0):
                            await world.send(number)
                    else:
                        await world.send(number)
                    assert is_good
                    assert kind == "send"
                except (TransactionError, NamespaceFailure, TimeoutError):
                    is_good = False
                else:
                    total += number
                declared_at = declared_at if declared_at is not None else began
        if declared_at is not None and world.work._txn_id:
            is_good = is_good and loop.time() - declared_at < LIFETIME_S
        if rolls_back:
            await world.work.roll_back()
            wanted = Ending.ROLLED_BACK
        else:
            error: Exception | None = None
            try:
                await world.work.commit()
            except TransactionError as caught:
                error = caught
            if not is_good or (is_lost and total):
                wanted = Ending.ROLLED_BACK
            elif not total or answer == Accepted():
                wanted = Ending.COMMITTED
            else:
                wanted = Ending.ROLLED_BACK if answer is UNDONE else Ending.UNKNOWN
            told = {
                Ending.COMMITTED: type(None),
                Ending.ROLLED_BACK: TransactionRolledBackError,
                Ending.UNKNOWN: TransactionUnknownError,
            }
            assert type(error) is told[wanted]
        assert [one for one, _ in world.ends] == [wanted]
        assert world.discharges.count(False) <= (not rolls_back and is_good)
        assert world.pool.users == 0

    run_virtual(scenario())
