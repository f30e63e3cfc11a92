"""Transactions over AMQP: declare, work, discharge, and every way in which one ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tests.unit.broker.fakes import facts
from tests.unit.broker.links.joined import JoinedClient, new_server
from tests.unit.broker.links.transacting import BODY, Transacting, refused
from twinbus.amqp.events import Closed, Detached, Disposed
from twinbus.amqp.message import encode_message
from twinbus.amqp.performatives import (
    Accepted,
    Coordinator,
    Declare,
    Discharge,
    Error,
    Modified,
    Rejected,
    Released,
    Source,
    TransactionalState,
)
from twinbus.broker.engine.settlement import SettlementOutcome
from twinbus.broker.engine.transaction import BrokerTransaction
from twinbus.broker.faults import Fault, FaultKind
from twinbus.broker.links import transactions
from twinbus.broker.links.transactions import LIFETIME_MS
from twinbus.broker.sas import ALL_RIGHTS, Grant
from twinbus.broker.storage.store import Store
from twinbus.servicebus.names import STANDARD_MESSAGE_BYTES
from twinbus.testing.virtual_time import run_virtual

DEAD_LETTER = Rejected(error=Error(condition="com.microsoft:dead-letter"))


@asynccontextmanager
async def opened() -> AsyncIterator[Transacting]:
    world = Transacting()
    await world.open()
    yield world
    await world.server.close()


async def test_sent_messages_are_visible_to_no_one_before_the_discharge() -> None:
    async with opened() as world:
        txn_id = await world.declare()
        for _ in range(2):
            assert await world.send(txn_id) == TransactionalState(txn_id, Accepted())
        assert world.held() == (0, 0)
        assert await world.commit(txn_id) == Accepted()
        assert world.held() == (2, 2)  # The receiver has them.


@pytest.mark.parametrize(
    ("outcome", "echo", "left"),
    [
        (Accepted(), Accepted(), (0, 0)),
        (Modified(delivery_failed=True), Modified(delivery_failed=True), (1, 1)),
        (Modified(undeliverable_here=True), Modified(undeliverable_here=True), (1, 0)),
        (DEAD_LETTER, Rejected(), (0, 0)),
        (Released(), Released(), (1, 1)),
    ],
)
async def test_a_settlement_takes_effect_at_the_discharge(
    outcome: object, echo: object, left: tuple[int, int]
) -> None:
    async with opened() as world:
        (number,) = await world.received(1)
        txn_id = await world.declare()
        (answer,) = await world.dispose(txn_id, number, outcome)
        assert (answer.state, answer.settled) == (TransactionalState(txn_id, echo), False)  # type: ignore[arg-type]
        assert world.held() == (1, 1)
        world.seen.clear()
        assert await world.commit(txn_id) == Accepted()
        (settled,) = world.dispositions(world.seen)
        assert (settled.first, settled.settled) == (number, True)
        assert world.held() == left
        dead = world.queue.dead_letter
        assert dead is not None
        assert len(dead.messages) == (outcome is DEAD_LETTER)


async def test_after_a_rollback_the_receiver_settles_again() -> None:
    async with opened() as world:
        (number,) = await world.received(1)
        for _ in range(2):
            txn_id = await world.declare()
            await world.dispose(txn_id, number)
            await world.send(txn_id)
            assert await world.roll_back(txn_id) == Accepted()
            assert world.held() == (1, 1)
        (answer,) = await world.accept(number)
        assert (answer.state, answer.settled) == (Accepted(), True)
        assert world.held() == (0, 0)


async def test_what_a_client_settled_first_is_abandoned_by_a_rollback() -> None:
    async with opened() as world:
        (number,) = await world.received(1)
        txn_id = await world.declare()
        assert await world.dispose(txn_id, number, settled=True) == []
        assert world.held() == (1, 1)
        await world.roll_back(txn_id)
        (fact,) = facts(world.queue, world.now_ms)
        assert fact[3] == 1
        assert world.held() == (1, 1)  # It was delivered once more.


async def test_a_client_may_settle_what_it_gave_an_outcome_before() -> None:
    async with opened() as world:
        (number,) = await world.received(1)
        txn_id = await world.declare()
        await world.dispose(txn_id, number)
        await world.dispose(txn_id, number, settled=True)
        assert await world.commit(txn_id) == Accepted()
        assert world.held() == (0, 0)


async def test_a_lost_lock_fails_the_discharge_and_nothing_happens() -> None:
    async with opened() as world:
        (number,) = await world.received(1)
        txn_id = await world.declare()
        await world.send(txn_id)
        await world.dispose(txn_id, number)
        (message,) = world.queue.messages.values()
        assert message.lock_token is not None
        world.queue.settle(message.lock_token, SettlementOutcome.ABANDON, world.now_ms)
        condition, text = refused(await world.commit(txn_id))
        assert condition == "amqp:transaction:rollback"
        assert text.startswith("The transaction was rolled back: ")
        assert world.held()[0] == 1


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        b"\x00\x53\x75",
        encode_message(data=bytes(STANDARD_MESSAGE_BYTES)),
        encode_message(data=bytes(2 * STANDARD_MESSAGE_BYTES)),
    ],
    ids=["unreadable", "too large", "too large for the link"],
)
async def test_an_operation_that_is_refused_fails_the_discharge(body: bytes, settled: bool) -> None:
    async with opened() as world:
        txn_id = await world.declare()
        await world.send(txn_id)
        answer = await world.send(txn_id, body=body, settled=settled)
        assert settled or isinstance(answer, Rejected)
        condition, text = refused(await world.commit(txn_id))
        assert condition == "amqp:transaction:rollback"
        assert text.startswith("The transaction was rolled back: ")
        assert world.held() == (0, 0)


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("kind", ["hang", "throttle", "delay"])
async def test_a_send_that_a_fault_keeps_out_fails_the_discharge(
    kind: FaultKind, settled: bool
) -> None:
    async with opened() as world:
        txn_id = await world.declare()
        await world.send(txn_id)
        world.server.faults.add(Fault(kind=kind, entity="q", delay_ms=1 if kind == "delay" else 0))
        answer = await world.send(txn_id, settled=settled)
        while kind == "delay" and not settled and answer is None:
            await asyncio.sleep(0.001)
            states = [one.state for one in await world.exchange() if isinstance(one, Disposed)]
            answer = next(iter(states), None)
        world.server.faults.clear()
        answer = await world.commit(txn_id)
        if kind == "delay" and not settled:
            assert (answer, world.held()[0]) == (Accepted(), 2)
        else:
            assert refused(answer)[0] == "amqp:transaction:rollback"
            assert world.held() == (0, 0)


async def test_a_message_of_many_frames_is_a_part_of_its_transaction() -> None:
    async with opened() as world:
        txn_id = await world.declare()
        body = encode_message(data=bytes(STANDARD_MESSAGE_BYTES - 100))
        # The longest tag that AMQP allows, beside the state: the frames keep to their size.
        number = world.sender.send(body, bytes(32), state=TransactionalState(txn_id))
        answer = await world.answer(world.sender, number)
        assert answer == TransactionalState(txn_id, Accepted())
        assert await world.commit(txn_id) == Accepted()
        assert world.held()[0] == 1


async def test_several_transactions_are_open_side_by_side() -> None:
    async with opened() as world:
        first, second, third = [await world.declare() for _ in range(3)]
        for txn_id in (first, second, third):
            await world.send(txn_id)
        await world.roll_back(second)
        await world.commit(third)
        assert world.held()[0] == 1
        await world.commit(first)
        assert world.held()[0] == 2


@pytest.mark.parametrize("how", ["never", "committed", "rolled back", "other connection"])
async def test_an_id_that_is_not_open_here_is_unknown(how: str) -> None:
    async with opened() as world:
        txn_id = b"never" if how == "never" else await world.declare()
        if how == "committed":
            await world.commit(txn_id)
        elif how == "rolled back":
            await world.roll_back(txn_id)
        other = Transacting(world.server)
        await other.open()
        for answer in (await other.send(txn_id), await other.commit(txn_id)):
            condition, text = refused(answer)
            assert condition == "amqp:transaction:unknown-id"
            assert text == (
                f"The transaction {txn_id.hex()} is not open on this connection. It was never "
                "declared here, or has ended; declare a new one."
            )


async def test_a_settlement_in_an_unknown_transaction_abandons_the_message() -> None:
    async with opened() as world:
        (number,) = await world.received(1)
        (answer,) = await world.dispose(b"never", number)
        assert refused(answer.state)[0] == "amqp:transaction:unknown-id"
        assert answer.settled
        (fact,) = facts(world.queue, world.now_ms)
        assert fact[3] == 1


async def test_a_transaction_is_rolled_back_after_two_minutes() -> None:
    async with opened() as world:
        (number,) = await world.received(1)
        txn_id = await world.declare()
        await world.send(txn_id)
        await world.dispose(txn_id, number)
        world.now_ms += LIFETIME_MS
        for answer in (await world.send(txn_id), await world.commit(txn_id)):
            condition, text = refused(answer)
            assert condition == "amqp:transaction:timeout"
            assert text == (
                f"The transaction {txn_id.hex()} was rolled back: it was open for more than 120 s. "
                "Declare a new one."
            )
        assert world.held() == (1, 1)


def test_a_timer_rolls_back_what_the_client_forgot() -> None:
    async def forget() -> list[int]:
        world, loop = Transacting(), asyncio.get_running_loop()
        began_ms, began = world.now_ms, loop.time()
        world.server.now_ms = lambda: began_ms + int((loop.time() - began) * 1000)  # type: ignore[method-assign]
        await world.open()
        (number,) = await world.received(1)
        await world.dispose(await world.declare(), number, settled=True)
        counts = []
        for wait_s in (LIFETIME_MS / 1000 - 1, 2):
            await asyncio.sleep(wait_s)
            (message,) = world.queue.messages.values()
            counts.append(message.delivery_count)
        await world.server.close()
        return counts

    assert run_virtual(forget()) == [0, 1]


@pytest.mark.parametrize("end", ["link", "session", "connection"])
async def test_the_end_of_the_coordinator_rolls_back(end: str) -> None:
    async with opened() as world:
        unsettled, settled = await world.received(2)
        txn_id = await world.declare()
        await world.send(txn_id)
        await world.dispose(txn_id, unsettled)
        await world.dispose(txn_id, settled, settled=True)
        if end == "link":
            world.coordinator.detach()
        elif end == "session":
            world.client.connection.end_session(world.session)
        else:
            world.client.peer.connection_lost(None)
        if end != "connection":
            await world.exchange()
            assert refused(await world.send(txn_id))[0] == "amqp:transaction:unknown-id"
        kept = facts(world.queue, world.now_ms)
        assert sorted(fact[3] for fact in kept) == [0, 1]


async def test_the_end_of_another_link_leaves_the_transaction_open() -> None:
    async with opened() as world:
        (number,) = await world.received(1)
        txn_id = await world.declare()
        await world.send(txn_id)
        await world.dispose(txn_id, number)
        world.sender.detach()
        world.receiver.detach()
        await world.exchange()
        assert await world.commit(txn_id) == Accepted()
        assert world.held() == (1, 0)


async def test_other_entities_are_refused_but_on_the_session_of_the_coordinator() -> None:
    async with opened() as world:
        elsewhere = await world.sending("other", await world.begin())
        beside = await world.sending("other", world.session)
        txn_id = await world.declare()
        await world.send(txn_id)
        condition, text = refused(await world.send(txn_id, elsewhere))
        assert condition == "amqp:not-allowed"
        assert text.startswith(
            "Local transactions cannot span multiple top-level entities such as queue or topic. "
            "The transaction began on 'q'; 'other' is not a part of it."
        )
        assert refused(await world.commit(txn_id))[0] == "amqp:transaction:rollback"
        txn_id = await world.declare()
        await world.send(txn_id)
        await world.send(txn_id, beside)
        assert await world.commit(txn_id) == Accepted()
        assert (world.held()[0], len(world.other.messages)) == (1, 1)


async def test_a_link_sends_to_another_entity_through_its_own() -> None:
    async with opened() as world:
        properties: dict[object, object] = {"com.microsoft:transfer-destination-address": "other"}
        through = await world.sending("q", await world.begin(), properties)
        (number,) = await world.received(1)
        txn_id = await world.declare()
        await world.dispose(txn_id, number)
        await world.send(txn_id, through)
        assert len(world.other.messages) == 0
        assert await world.commit(txn_id) == Accepted()
        assert (world.held(), len(world.other.messages)) == ((0, 0), 1)
        through.send(BODY, b"plain")
        await world.exchange()
        assert len(world.other.messages) == 2


async def test_limits_name_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as world:
        monkeypatch.setattr(transactions, "OPEN_MAX", 1)
        world.client.peer.budgets.transaction_bytes.limit = len(BODY)
        txn_id = await world.declare()
        condition, text = refused(await world.ask(Declare()))
        assert (condition, text) == (
            "amqp:resource-limit-exceeded",
            "the connection has 1 open transactions, which is the limit; discharge some.",
        )
        await world.send(txn_id)
        condition, text = refused(await world.send(txn_id))
        assert condition == "amqp:resource-limit-exceeded"
        assert "the limit is" in text
        await world.roll_back(txn_id)
        txn_id = await world.declare()
        assert await world.send(txn_id) == TransactionalState(txn_id, Accepted())


async def test_a_right_that_ended_fails_the_discharge() -> None:
    world = Transacting()
    until_s = world.now_ms / 1000 + 60
    grant = Grant(path="", rights=ALL_RIGHTS, expires_at_s=until_s, rule_name="r")
    world.client.peer.grants.put("all", grant)
    await world.open()
    txn_id = await world.declare()
    await world.send(txn_id)
    world.now_ms += 60_000
    condition, text = refused(await world.commit(txn_id))
    assert condition == "amqp:transaction:rollback"
    assert "Unauthorized access" in text
    assert world.held() == (0, 0)
    await world.server.close()


async def test_a_coordinator_needs_a_token() -> None:
    server = new_server()
    client = JoinedClient(server, trusted=False)
    await client.exchange()
    session = client.connection.begin()
    await client.exchange()
    session.attach_sender("tx", source=Source(), target=Coordinator())
    (ended,) = [one for one in await client.exchange() if isinstance(one, Detached)]
    assert ended.error is not None
    assert ended.error.condition == "amqp:unauthorized-access"
    await server.close()


async def test_a_coordinator_answers_with_what_it_can_do() -> None:
    async with opened() as world:
        target = world.coordinator.target
        assert isinstance(target, Coordinator)
        assert target.capabilities == [
            "amqp:local-transactions",
            "amqp:multi-txns-per-ssn",
            "amqp:multi-ssns-per-txn",
        ]


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        (b"", "amqp:decode-error"),
        (b"\x00\x53\x77\x40", "amqp:decode-error"),
        (b"\x00\x53\x77\x00\x53\x24\x45", "amqp:decode-error"),
        (b"\x00\x53\x77\x00\x53\x32\x45", "amqp:decode-error"),
        (b"\x00\x53\x77\x00\x53\x31\xa1\x01x", "amqp:decode-error"),
        (b"\x00\x53\x77\x00\x53\x31\xc0\x04\x01\xa1\x01x", "amqp:not-implemented"),
    ],
)
async def test_a_request_that_is_none_is_refused(body: bytes, condition: str) -> None:
    async with opened() as world:
        number = world.coordinator.send(body, b"r")
        assert refused(await world.answer(world.coordinator, number))[0] == condition
        assert await world.commit(await world.declare()) == Accepted()


async def test_a_request_may_be_written_in_long_forms() -> None:
    async with opened() as world:
        body = b"\x00\x53\x77\x00\xa3\x11amqp:declare:list\xd0\x00\x00\x00\x04\x00\x00\x00\x00"
        number = world.coordinator.send(body, b"r")
        answer = await world.answer(world.coordinator, number)
        txn_id = answer.txn_id  # type: ignore[attr-defined]
        assert len(txn_id) == 16
        assert await world.commit(txn_id) == Accepted()


async def test_an_unexpected_error_inside_a_commit_cuts_the_clients_off_unanswered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as world:

        def fail(_work: BrokerTransaction, _now_ms: int) -> None:
            raise RuntimeError("half-way")

        before = world.server.namespace
        txn_id = await world.declare()
        await world.send(txn_id)
        monkeypatch.setattr(BrokerTransaction, "commit", fail)
        assert await world.ask(Discharge(txn_id, False)) is None
        (closed,) = [one for one in world.seen if isinstance(one, Closed)]
        assert closed.error is not None
        assert "half-way" in (closed.error.description or "")
        assert world.server.namespace is not before


STEPS_MAX = 40
"""More than the transaction below has changes."""


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
async def test_a_commit_that_breaks_at_any_change_leaves_nothing_in_memory(is_done: bool) -> None:
    """A store on disk drops the batch; one in memory undoes what was done so far."""
    steps = 0
    for steps in range(STEPS_MAX):
        async with opened() as world:
            numbers = await world.received(3)
            before = stored(world)
            txn_id = await world.declare()
            await world.send(txn_id)
            for number, outcome in zip(
                numbers, (Accepted(), DEAD_LETTER, Modified(undeliverable_here=True)), strict=True
            ):
                await world.dispose(txn_id, number, outcome)
            await world.send(txn_id)
            with pytest.MonkeyPatch.context() as patch:
                break_at(patch, world.server.store, steps, is_done=is_done)
                if await world.ask(Discharge(txn_id, False)) == Accepted():
                    assert stored(world) != before
                    break
            assert stored(world) == before
            queue = world.server.namespace.get_queue("q")
            assert (len(queue.messages), queue.locked_count) == (3, 0)
    assert 5 <= steps < STEPS_MAX


def stored(world: Transacting) -> list[object]:
    """What a restart would find; delivery counts and all."""
    return [
        (image.kind, image.path, [repr(one) for one in image.messages])
        for image in world.server.store.recover()
    ]


def break_at(patch: pytest.MonkeyPatch, store: Store, step: int, *, is_done: bool) -> None:
    """Raise in the change of this number, before or after it is done."""
    numbers = itertools.count()

    def broken(change: Callable[..., None], *given: object) -> None:
        is_it = next(numbers) == step
        if is_it and not is_done:
            raise RuntimeError("half-way")
        change(*given)
        if is_it:
            raise RuntimeError("half-way")

    for name in ("put", "amend", "remove", "move", "put_message_id"):
        patch.setattr(store, name, partial(broken, getattr(store, name)))
