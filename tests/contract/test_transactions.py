"""Transactions from Python against the broker: whole, rolled back, unknown, refused; never half."""

# ruff: noqa: PT012  # what a block raises at its end is what is tested
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

import twinbus
from tests.contract.pairs import (
    bodies,
    embedded,
    interrupted,
    locked_count,
    no_thread_left,
    nothing_left,
    paired,
    quick,
    sides,
    until,
)
from tests.ledger_reading import Reading
from tests.official_sdk import client
from twinbus import (
    EmbeddedBroker,
    Fault,
    PairClosedError,
    TransactionError,
    TransactionRolledBackError,
    TransactionUnavailableError,
    TransactionUnknownError,
    blocking,
    transactions,
)
from twinbus.broker.descriptions import QueueDescription
from twinbus.testing import ProxiedNamespace

pytestmark = pytest.mark.contract

WAIT_S = 20.0
NUMBERS = iter(range(1_000_000))

broker = embedded("contoso", "contoso-dr", queues=(), scope="module", test_clock=True)


class Oops(Exception):
    """What an application raises in a transaction."""


class Entities:
    """Two queues of a test's own, and what is in them."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        number = next(NUMBERS)
        self.broker = broker
        self.orders, self.invoices = f"orders-{number}", f"invoices-{number}"
        for name in (self.orders, self.invoices):
            broker.create_queue(name)
        self.text = broker.connection_string("contoso")

    def put(self, *texts: str, queue: str | None = None) -> None:
        with client(self.text) as plain, plain.get_queue_sender(queue or self.orders) as sender:
            sender.send_messages([ServiceBusMessage(text) for text in texts])

    def waiting(self, queue: str) -> list[str]:
        """The bodies of all messages in a queue, locked ones too."""
        with client(self.text) as plain, plain.get_queue_receiver(queue) as receiver:
            return bodies(receiver.peek_messages(200))

    @property
    def contents(self) -> tuple[list[str], list[str]]:
        return self.waiting(self.orders), self.waiting(self.invoices)


@pytest.fixture
def entities(broker: EmbeddedBroker) -> Entities:
    return Entities(broker)


@pytest.fixture
def proxied(broker: EmbeddedBroker) -> Iterator[ProxiedNamespace]:
    with ProxiedNamespace(broker.connection_string("contoso")) as namespace:
        yield namespace


async def one_of(receiver: Any) -> Any:
    [message] = await receiver.receive_messages(1, WAIT_S)
    return message


async def test_a_block_that_ends_commits_sends_to_two_queues(entities: Entities) -> None:
    async with (
        nothing_left(),
        transactions(entities.text) as connection,
        connection.transaction() as t,
    ):
        await t.send_messages(entities.orders, ServiceBusMessage("1"))
        await t.send_messages(entities.invoices, [ServiceBusMessage("2"), {"body": "3"}])
        batch = ServiceBusMessageBatch(1_000)
        batch.add_message(ServiceBusMessage("4"))
        await t.send_messages(entities.invoices, batch)
        assert await asyncio.to_thread(lambda: entities.contents) == ([], [])
    assert await asyncio.to_thread(lambda: entities.contents) == (["1"], ["2", "3", "4"])


async def test_an_exception_rolls_back_and_the_message_can_be_settled_again(
    entities: Entities,
) -> None:
    entities.put("order")
    async with (
        transactions(entities.text) as connection,
        connection.get_queue_receiver(entities.orders) as receiver,
    ):
        message = await one_of(receiver)
        with pytest.raises(Oops):
            async with connection.transaction() as t:
                await t.complete_message(message)
                await t.send_messages(entities.invoices, ServiceBusMessage("half"))
                raise Oops
        assert locked_count(entities.broker, "contoso", entities.orders) == 1
        async with connection.transaction() as t:
            await t.complete_message(message)
            await t.send_messages(entities.invoices, ServiceBusMessage("whole"))
        with pytest.raises(MessageAlreadySettled):
            await receiver.complete_message(message)
    assert await asyncio.to_thread(lambda: entities.contents) == ([], ["whole"])


async def test_each_way_to_settle_takes_effect_at_the_end(entities: Entities) -> None:
    entities.put("complete", "abandon", "defer", "dead-letter")
    async with (
        transactions(entities.text) as connection,
        connection.get_queue_receiver(entities.orders) as receiver,
    ):
        messages: dict[str, Any] = {}
        while len(messages) < 4:
            for one in await receiver.receive_messages(4, WAIT_S):
                messages[str(one)] = one
        async with connection.transaction() as t:
            await t.complete_message(messages["complete"])
            await t.abandon_message(messages["abandon"])
            await t.defer_message(messages["defer"])
            await t.dead_letter_message(messages["dead-letter"], "wrong", "it is")
            assert locked_count(entities.broker, "contoso", entities.orders) == 4
        again = await one_of(receiver)
        assert str(again) == "abandon"
        await receiver.complete_message(again)
        number = messages["defer"].sequence_number
        [deferred] = await receiver.receive_deferred_messages(number)
        with pytest.raises(TransactionRolledBackError, match="received by its sequence number"):
            async with connection.transaction() as t:
                with pytest.raises(TransactionError, match="settle it with its receiver"):
                    await t.complete_message(deferred)
        await receiver.complete_message(deferred)
        async with connection.get_queue_receiver(entities.orders, sub_queue="deadletter") as dead:
            letter = await one_of(dead)
            assert (str(letter), letter.dead_letter_reason) == ("dead-letter", "wrong")
            async with connection.transaction() as t:
                await t.complete_message(letter)
    assert await asyncio.to_thread(lambda: entities.contents) == ([], [])


async def test_a_session_and_a_subscription_take_part(broker: EmbeddedBroker) -> None:
    number = next(NUMBERS)
    broker.create_queue(f"sessions-{number}", QueueDescription(requires_session=True))
    broker.create_topic(f"news-{number}", ["all"])
    async with transactions(broker.connection_string("contoso")) as connection:
        async with connection.transaction() as t:
            message = ServiceBusMessage("s", session_id="a")
            await t.send_messages(f"sessions-{number}", message)
            await t.send_messages(f"news-{number}", ServiceBusMessage("n"))
        for receiver in (
            connection.get_queue_receiver(f"sessions-{number}", session_id="a"),
            connection.get_subscription_receiver(f"news-{number}", "all"),
        ):
            async with receiver, connection.transaction() as t:
                await t.complete_message(await one_of(receiver))
        async with connection.transaction():
            pass  # Nothing is declared, and nothing fails.


async def test_two_receive_entities_are_refused_in_one_line(entities: Entities) -> None:
    entities.put("order")
    async with (
        transactions(entities.text) as connection,
        connection.get_queue_receiver(entities.orders) as receiver,
    ):
        message = await one_of(receiver)
        with pytest.raises(TransactionRolledBackError):
            async with connection.transaction() as t:
                await t.send_messages(entities.invoices, ServiceBusMessage("half"))
                with pytest.raises(ServiceBusError, match="cannot span multiple top-level") as told:
                    await t.complete_message(message)
                assert "Settle before you send" in str(told.value)
                assert "\n" not in str(told.value)
                with pytest.raises(TransactionError, match="an operation of the transaction"):
                    await t.send_messages(entities.invoices, ServiceBusMessage("more"))
    assert await asyncio.to_thread(lambda: entities.contents) == (["order"], [])


@pytest.mark.parametrize(
    ("queue", "wrong", "size"),
    [(None, MessageSizeExceededError, 2_000_000), ("none", MessagingEntityNotFoundError, 1)],
)
async def test_a_refused_send_rolls_back_also_if_the_block_overlooks_it(
    entities: Entities, queue: str | None, wrong: type[Exception], size: int
) -> None:
    async with transactions(entities.text) as connection:
        with pytest.raises(TransactionRolledBackError) as told:
            async with connection.transaction() as t:
                await t.send_messages(entities.invoices, ServiceBusMessage("half"))
                with pytest.raises(wrong):
                    large = ServiceBusMessage("x" * size)
                    await t.send_messages(queue or entities.invoices, large)
        assert len(told.value.message_ids) == 2
    assert await asyncio.to_thread(lambda: entities.contents) == ([], [])


async def test_a_message_of_another_receiver_is_refused(entities: Entities) -> None:
    entities.put("order")
    async with (
        transactions(entities.text) as one,
        transactions(entities.text) as other,
        one.get_queue_receiver(entities.orders) as receiver,
    ):
        message = await one_of(receiver)
        with pytest.raises(TransactionError, match="was received on another connection"):
            async with other.transaction() as t:
                await t.complete_message(message)
        await receiver.complete_message(message)


async def test_the_101st_operation_is_refused_with_the_limit(entities: Entities) -> None:
    async with transactions(entities.text) as connection:
        with pytest.raises(TransactionError, match=r"at most 100 messages; it has 100"):
            async with connection.transaction() as t:
                many = [ServiceBusMessage(str(number)) for number in range(99)]
                await t.send_messages(entities.orders, many)
                await t.send_messages(entities.orders, ServiceBusMessage("99"))
                await t.send_messages(entities.orders, ServiceBusMessage("100"))
        assert await asyncio.to_thread(entities.waiting, entities.orders) == []
        async with connection.transaction() as t:
            await t.send_messages(entities.orders, many)
    assert len(await asyncio.to_thread(entities.waiting, entities.orders)) == 99


async def test_after_two_minutes_the_namespace_has_rolled_back(entities: Entities) -> None:
    async with transactions(entities.text) as connection:
        with pytest.raises(TransactionRolledBackError, match="open for more than 120 s"):
            async with connection.transaction() as t:
                await t.send_messages(entities.orders, ServiceBusMessage("slow"))
                await asyncio.to_thread(entities.broker.advance, timedelta(seconds=121), "contoso")
    assert await asyncio.to_thread(entities.waiting, entities.orders) == []


async def test_a_cancelled_block_leaves_nothing_behind(entities: Entities) -> None:
    async with nothing_left():
        begun = asyncio.Event()

        async def work() -> None:
            async with transactions(entities.text) as connection, connection.transaction() as t:
                await t.send_messages(entities.orders, ServiceBusMessage("half"))
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await asyncio.to_thread(entities.waiting, entities.orders) == []


async def test_operations_that_still_run_at_the_end_roll_back(entities: Entities) -> None:
    entities.broker.add_fault(
        Fault(kind="delay", entity=entities.invoices, delay_ms=300), "contoso"
    )
    async with transactions(entities.text) as connection:
        with pytest.raises(TransactionRolledBackError, match="await them inside the block"):
            async with connection.transaction() as t:
                await t.send_messages(entities.orders, ServiceBusMessage("half"))
                late = asyncio.create_task(
                    t.send_messages(entities.invoices, ServiceBusMessage("late"))
                )
                await asyncio.sleep(0)
        await asyncio.gather(late, return_exceptions=True)
    entities.broker.clear_faults("contoso")
    assert await asyncio.to_thread(lambda: entities.contents) == ([], [])


@pytest.mark.parametrize(
    ("kind", "is_stored"), [("drop_before_commit", False), ("drop_after_commit", True)]
)
async def test_a_discharge_without_an_answer_is_unknown(
    entities: Entities, proxied: ProxiedNamespace, kind: Any, is_stored: bool
) -> None:
    entities.put("order")
    async with (
        nothing_left(),
        transactions(proxied.connection_string) as connection,
        connection.get_queue_receiver(entities.orders) as receiver,
    ):
        message = await one_of(receiver)
        with pytest.raises(TransactionUnknownError, match="it is unknown whether") as told:
            async with connection.transaction() as t:
                await t.complete_message(message)
                named = ServiceBusMessage("invoice", message_id="a")
                await t.send_messages(entities.invoices, named)
                proxied.add_fault(Fault(kind=kind, entity="$coordinator", count=1))
        assert told.value.message_ids == ("a",)
    # All of it or nothing, whichever it was.
    contents = await asyncio.to_thread(lambda: entities.contents)
    assert contents == (([], ["invoice"]) if is_stored else (["order"], []))


async def test_a_connection_lost_before_the_discharge_is_a_rollback(
    entities: Entities, proxied: ProxiedNamespace
) -> None:
    async with transactions(proxied.connection_string) as connection:
        with pytest.raises(TransactionRolledBackError):
            async with connection.transaction() as t:
                await t.send_messages(entities.orders, ServiceBusMessage("half"))
                proxied.cut_off()
                lost = connection.connection
                await until(lambda: lost.is_lost or lost.state == "lost")
                proxied.serve_again()
        async with connection.transaction() as t:
            await t.send_messages(entities.orders, ServiceBusMessage("whole"))
    assert await asyncio.to_thread(entities.waiting, entities.orders) == ["whole"]


async def test_a_pair_refuses_while_the_entity_is_failed_over_and_after_its_end(
    entities: Entities,
) -> None:
    pair = paired(entities.broker)
    async with nothing_left():
        async with pair:
            async with pair.primary.transaction() as t:
                await t.send_messages(entities.orders, ServiceBusMessage("1"))
            assert pair.status().entities[entities.orders].sent == 1
            pair.force_failover(entities.orders)
            with pytest.raises(TransactionUnavailableError, match="needs the primary"):
                async with pair.primary.transaction() as t:
                    await t.send_messages(entities.invoices, ServiceBusMessage("half"))
                    await t.send_messages(entities.orders, ServiceBusMessage("half"))
            connection = pair.primary.transactions()
            begun = connection.transaction()
            await begun.__aenter__()
            await begun.send_messages(entities.invoices, ServiceBusMessage("half"))
        with pytest.raises(PairClosedError):
            pair.primary.transaction()
        with pytest.raises(TransactionRolledBackError) as told:
            await begun.__aexit__(None, None, None)
        assert isinstance(told.value.__cause__, PairClosedError)
    assert await asyncio.to_thread(lambda: entities.contents) == (["1"], [])


async def test_a_failed_send_counts_towards_a_failover(broker: EmbeddedBroker) -> None:
    with EmbeddedBroker("contoso") as primary:
        primary.create_queue("orders")
        async with (
            paired(
                broker,
                primary=primary.connection_string(),
                failover_interval=0,
                attempt_timeout=0.5,
            ) as pair,
            pair.primary.transactions() as connection,
        ):
            async with connection.transaction() as t:
                await t.send_messages("orders", ServiceBusMessage("1"))
            await asyncio.to_thread(primary.cut_off)
            with pytest.raises(ServiceBusError):
                async with connection.transaction() as t:
                    await t.send_messages("orders", ServiceBusMessage("2"))
            with pytest.raises(TransactionUnavailableError):
                async with connection.transaction() as t:
                    await t.send_messages("orders", ServiceBusMessage("3"))


async def test_the_ledger_counts_a_send_when_its_discharge_was_answered(
    entities: Entities, proxied: ProxiedNamespace, tmp_path: Path
) -> None:
    entities.put("order", "other")
    async with (
        paired(entities.broker, primary=proxied.connection_string, ledger=str(tmp_path)) as pair,
        pair.primary.transactions() as connection,
        connection.get_queue_receiver(entities.orders) as receiver,
    ):
        assert entities.orders in pair.status().receivers
        first, second = await one_of(receiver), await one_of(receiver)
        with pytest.raises(Oops):
            async with connection.transaction() as t:
                await t.complete_message(first)
                await t.send_messages(entities.invoices, ServiceBusMessage("x", message_id="back"))
                raise Oops
        async with connection.transaction() as t:
            await t.complete_message(first)
            await t.send_messages(entities.invoices, ServiceBusMessage("x", message_id="sent"))
        with pytest.raises(TransactionUnknownError):
            async with connection.transaction() as t:
                await t.complete_message(second)
                await t.send_messages(entities.invoices, ServiceBusMessage("x", message_id="lost"))
                proxied.add_fault(Fault(kind="drop_after_commit", entity="$coordinator", count=1))
    lines = [one for one in Reading(tmp_path) if one.get("entity", "").startswith(("o", "i"))]
    sends = [(one["message_id"], one["outcome"]) for one in lines if one["operation"] == "send"]
    assert sends == [("back", "failed"), ("sent", "ok"), ("lost", "unknown")]
    settled = [(one["outcome"], one["cause"]) for one in lines if one["operation"] == "complete"]
    assert settled == [(one, "consumer") for one in ("failed", "ok", "unknown")]
    assert len([one for one in lines if one["operation"] == "receive"]) >= 2


def test_blocking_code_commits_and_rolls_back(entities: Entities) -> None:
    entities.put("order")
    with (
        no_thread_left(),
        blocking.transactions(entities.text) as connection,
        connection.get_queue_receiver(entities.orders) as receiver,
    ):
        [message] = receiver.receive_messages(1, WAIT_S)
        with pytest.raises(Oops), connection.transaction() as t:
            t.complete_message(message)
            t.send_messages(entities.invoices, ServiceBusMessage("half"))
            raise Oops
        with connection.transaction() as t:
            t.complete_message(message)
            t.send_messages(entities.invoices, ServiceBusMessage("whole"))
    assert entities.contents == ([], ["whole"])


def test_ctrl_c_in_a_blocking_transaction_rolls_back_and_leaves_nothing(
    entities: Entities,
) -> None:
    namespaces = sides(entities.broker)
    with no_thread_left(), blocking.pair_namespaces(*namespaces, quick()) as pair:
        fault = Fault(kind="hang", entity=entities.invoices)
        number = entities.broker.add_fault(fault, "contoso")
        with (
            pytest.raises(KeyboardInterrupt),
            interrupted(),
            pair.primary.transaction() as t,
        ):
            t.send_messages(entities.orders, ServiceBusMessage("half"))
            t.send_messages(entities.invoices, ServiceBusMessage("hangs"))
        entities.broker.remove_fault(number, "contoso")
        with pair.primary.transaction() as t:
            t.send_messages(entities.orders, ServiceBusMessage("whole"))
    assert entities.contents == (["whole"], [])


def test_transactions_are_public(entities: Entities) -> None:
    made = twinbus.transactions(entities.text)
    assert isinstance(made, twinbus.Transactions)
    with pytest.raises(TransactionError, match="write `async with`"):
        asyncio.run(made.transaction().send_messages("x", ServiceBusMessage("x")))
