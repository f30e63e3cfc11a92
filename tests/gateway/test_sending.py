"""Sending through a gateway: stored when acknowledged, refused for good, in order, on record."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)

from tests.contract.pairs import until
from tests.end_to_end.raw_client import RawClient, Refused, message
from tests.gateway.gateway_world import PATIENCE_S, gateway_world
from tests.ledger_reading import read
from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.types import Symbol, Timestamp
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.faults import Fault
from twinbus.client import links
from twinbus.gateway.sending import CREDIT
from twinbus.gateway.server import CLIENT_NAME_MAX

pytestmark = pytest.mark.contract


async def test_messages_lists_and_batches_reach_the_primary() -> None:
    async with gateway_world("orders") as world, world.client() as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("one"))
            await sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])
            batch = await sender.create_message_batch()
            batch.add_message(ServiceBusMessage("four"))
            await sender.send_messages(batch)
        assert await world.received("orders", 4) == ["one", "two", "three", "four"]
        status = world.gateway.pair.status().entities["orders"]
        assert (status.sent, status.diverted, status.raised) == (4, 0, 0)


async def test_an_outage_is_no_error_and_the_backlog_comes_home() -> None:
    async with (
        gateway_world("orders", enable_syphon=True, syphon_poll=1) as world,
        world.client() as client,
    ):
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            world.primary.cut_off()
            # The first waits for the failover, the others are diverted at once.
            await sender.send_messages(ServiceBusMessage("first"))
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
            assert world.gateway.pair.status().entities["orders"].diverted == 3
            world.primary.serve_again()
            bodies = await world.received("orders", 4)
            assert sorted(bodies) == ["a", "b", "before", "first"]
            pair = world.gateway.pair
            await until(lambda: pair.status().entities["orders"].state == "healthy")
            await sender.send_messages(ServiceBusMessage("after"))
        assert await world.received("orders", 1) == ["after"]


async def test_sends_that_find_the_primary_dead_are_diverted() -> None:
    async with gateway_world("orders") as world, world.client() as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("before"))
            world.primary.stop()
            await sender.send_messages(ServiceBusMessage("during"))
        # A link that is opened during the outage is accepted as well.
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("during too"))
        assert world.gateway.pair.status().entities["orders"].diverted == 2


async def test_refusals_carry_the_condition_of_the_primary() -> None:
    async with gateway_world("orders") as world, world.client(retry_total=0) as client:
        with pytest.raises(MessagingEntityNotFoundError):
            async with client.get_queue_sender("ghost") as sender:
                await sender.send_messages(ServiceBusMessage("lost"))
        async with client.get_queue_sender("orders") as sender:
            with pytest.raises(MessageSizeExceededError):
                await sender.send_messages(ServiceBusMessage(b"x" * 400_000))
            disabled = Fault(kind="refuse_send", condition="com.microsoft:entity-disabled", count=1)
            world.primary.add_fault(disabled)
            with pytest.raises(MessagingEntityDisabledError):
                await sender.send_messages(ServiceBusMessage("refused"))
            await sender.send_messages(ServiceBusMessage("taken"))
        assert await world.received("orders", 1) == ["taken"]


async def test_a_rule_without_the_right_to_send_is_refused_here() -> None:
    async with gateway_world("orders") as world, world.client("listener", retry_total=0) as client:
        refused = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)
        with pytest.raises(refused, match="'Send' claim"):
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("never"))
        assert not world.gateway.pair.status().entities


def sent_ids(ledger: Path) -> list[str]:
    """The ids of all sends that a ledger has, in order."""
    files = (file.read_text() for file in ledger.rglob("*.jsonl*"))
    lines = [json.loads(line) for text in files for line in text.splitlines()]
    return [line["message_id"] for line in lines if line["operation"] == "send"]


async def test_every_message_has_an_id_and_the_ledger_knows_it(tmp_path: Path) -> None:
    async with gateway_world("orders", ledger=tmp_path) as world:
        raw = await world.raw()
        sender = await raw.ready_sender("orders")
        await sender.send(encode_message(properties=Properties(subject="no id"), data=b"1"))
        await sender.send(message("mine", b"2"))
        await raw.close()
        assert await world.received("orders", 2) == ["1", "2"]
    ids = sent_ids(tmp_path)
    assert len(ids) == 2
    assert ids[1] == "mine"
    assert len(ids[0]) == 32


async def test_a_hung_primary_bounds_what_the_gateway_holds() -> None:
    async with gateway_world("orders", failover_interval=60, attempt_timeout=8) as world:
        sender = await world.sender("orders")
        await sender.send(message("first"))
        world.primary.add_fault(Fault(kind="hang", entity="orders"))
        sends = []
        for number in range(CREDIT + 100):
            try:
                async with asyncio.timeout(2):
                    await sender.room()
            except TimeoutError:
                break
            sends.append(sender.send(message(f"m{number}", b"x" * 100)))
        assert len(sends) <= CREDIT
        assert not any(send.done() for send in sends)
        world.gateway.pair.force_failover("orders")
        world.primary.clear_faults()


async def test_many_in_flight_are_all_answered_and_stored_once() -> None:
    # Longer than a loaded machine stalls: a late answer is a failed attempt, and the order is
    # promised only while there is none.
    async with gateway_world("orders", attempt_timeout=30) as world:
        raw = await world.raw()
        sender = await raw.sender("orders")
        sends = []
        for number in range(3_000):
            await sender.room()
            sends.append(sender.send(message(f"m{number}")))
        async with asyncio.timeout(60):
            await asyncio.gather(*sends)
        await raw.close()
        receiving = await RawClient.open(world.primary.connection_string())
        receiver = await receiving.receiver("orders", credit=500, settled=True)
        keys = [found.key for _ in sends if (found := await receiver.receive()) is not None]
        await receiving.close()
    # One client's messages keep their order while the entity is healthy.
    assert keys == [f"m{number}" for number in range(3_000)]


async def test_the_link_to_an_entity_is_closed_after_its_last_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "UNUSED_S", 0.0)
    async with gateway_world("orders") as world:
        async with world.client() as client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("one"))
        await until(lambda: not any(each.pools for each in world.server.primary))
        async with world.client() as client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("two"))
        assert await world.received("orders", 2) == ["one", "two"]


async def test_a_client_that_sends_beyond_its_credit_keeps_the_connection_to_the_primary() -> None:
    count = CREDIT + CREDIT
    async with gateway_world("orders", attempt_timeout=30) as world:
        sender = await world.sender("orders")
        await sender.send(message("first"))
        (upstream,) = world.server.primary
        connection = await upstream.opened()
        world.primary.add_fault(Fault(kind="delay", entity="orders", delay_ms=500))
        sends = []
        for number in range(count):
            sender.link.credit = 1
            sends.append(sender.send(message(f"m{number}")))
        async with asyncio.timeout(60):
            await asyncio.gather(*sends)
        assert await upstream.opened() is connection
        assert world.gateway.pair.status().entities["orders"].sent == count + 1


async def test_a_client_whose_sends_the_primary_does_not_answer_in_time_stops_no_other() -> None:
    async with gateway_world("orders", attempt_timeout=30) as world:
        slow, other = await world.sender("orders"), await world.sender("orders")
        await slow.send(message("first"))
        await other.send(message("second"))
        first, *_ = world.server.primary
        transport = (await first.opened()).transport
        assert transport is not None
        assert transport.socket is not None
        transport.socket.pause_reading()
        late = asyncio.ensure_future(slow.send(message("third")))
        async with asyncio.timeout(10):
            for number in range(20):
                await other.send(message(f"m{number}"))
        assert not late.done()
        transport.socket.resume_reading()
        async with asyncio.timeout(10):
            await late
        assert world.gateway.pair.status().entities["orders"].sent == 23


COUNT = 20
IDS = [f"m{number:02}" for number in range(COUNT)]


async def test_what_the_primary_has_overtaken_is_refused_and_not_sent_later() -> None:
    async with gateway_world("orders") as world:
        sender = await world.sender("orders")
        await sender.send(message("first", b"first"))
        world.primary.add_fault(Fault(kind="throttle", entity="orders", count=1))
        sends = [sender.send(message(name, name.encode())) for name in IDS]
        results = await asyncio.gather(*sends, return_exceptions=True)
        # As without a gateway: the client knows that it is not stored, and may send it again.
        assert isinstance(results[0], Refused)
        assert results[0].condition == "com.microsoft:server-busy"
        assert results[1:] == [None] * (COUNT - 1)
        assert await world.received("orders", COUNT) == ["first", *IDS[1:]]
        status = world.gateway.pair.status().entities["orders"]
        assert (status.state, status.sent, status.raised) == ("healthy", COUNT, 1)


async def test_what_is_refused_together_is_sent_again_in_order_before_what_comes_later() -> None:
    async with gateway_world("orders") as world:
        sender = await world.sender("orders")
        await sender.send(message("first", b"first"))
        world.primary.add_fault(Fault(kind="throttle", entity="orders", count=10))
        sends = [sender.send(message(name, name.encode())) for name in IDS[:10]]
        status = world.gateway.pair.status
        async with asyncio.timeout(30):
            while not status().entities["orders"].last_error:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        # The first one waits for its retry: these must not overtake it.
        sends += [sender.send(message(name, name.encode())) for name in IDS[10:]]
        await asyncio.gather(*sends)
        assert await world.received("orders", COUNT + 1) == ["first", *IDS]
        assert status().entities["orders"].diverted == 0


async def test_what_waits_for_a_retry_is_diverted_when_the_entity_fails_over() -> None:
    async with gateway_world("orders") as world:
        sender = await world.sender("orders")
        await sender.send(message("first", b"first"))
        world.primary.add_fault(Fault(kind="throttle", entity="orders"))
        sends = [sender.send(message(name, name.encode())) for name in IDS]
        await asyncio.sleep(0.2)
        world.gateway.pair.force_failover("orders")
        await asyncio.gather(*sends)
        assert world.gateway.pair.status().entities["orders"].diverted == COUNT


SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")


def scheduled(at: object) -> bytes:
    return encode_message(
        message_annotations={SCHEDULED: at}, properties=Properties(message_id="m"), data=b"x"
    )


UNRESTORABLE = {
    "a session id that is too long": message("m", session="s" * 200),
    "a schedule after the year 9999": scheduled(Timestamp(253_402_300_800_000)),
    "a schedule before the year 1": scheduled(Timestamp(-(2**62))),
    "a schedule that is no time": scheduled("tomorrow"),
    "a property with the name of an alias": encode_message(
        properties=Properties(message_id="m"),
        application_properties={"x-ms-path": "payments"},
        data=b"x",
    ),
}


async def test_what_the_syphon_could_not_restore_is_refused_when_it_is_sent() -> None:
    async with gateway_world("orders") as world:
        sender = await world.sender("orders")
        world.gateway.pair.force_failover("orders")
        sends = [sender.send(wire) for wire in UNRESTORABLE.values()]
        results = await asyncio.gather(*sends, return_exceptions=True)
        conditions = {
            name: result.condition if isinstance(result, Refused) else repr(result)
            for name, result in zip(UNRESTORABLE, results, strict=True)
        }
        expected = dict.fromkeys(UNRESTORABLE, "amqp:not-allowed")
        # The backlog queue itself refuses this one.
        expected["a schedule that is no time"] = "amqp:decode-error"
        assert conditions == expected
        assert all(str(result) for result in results)
        assert world.gateway.pair.status().entities["orders"].diverted == 0
        await sender.send(message("good"))
        assert world.gateway.pair.status().entities["orders"].diverted == 1


@pytest.mark.parametrize("name", ["orders ", "or//ders", "orders/$management/x", "a" * 300, "é"])
async def test_a_link_to_what_is_no_name_is_refused(name: str) -> None:
    async with gateway_world() as world:
        raw = await world.raw()
        with pytest.raises(Refused) as caught:
            await raw.sender(name)
        assert caught.value.condition == "amqp:not-allowed"


SESSIONS = ("a", "b", "c")


class SessionSender:
    """A client that sends one message of a session after the other until it is told to stop."""

    def __init__(self, client: ServiceBusClient, session: str) -> None:
        self.sent: list[str] = []
        self.pause_s = 0.05
        self._client = client
        self._session = session
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    async def run(self) -> None:
        async with self._client.get_queue_sender("talks") as sender:
            while not self._stopping:
                name = f"{self._session}-{len(self.sent)}"
                await sender.send_messages(
                    ServiceBusMessage(name, message_id=name, session_id=self._session)
                )
                self.sent.append(name)
                await asyncio.sleep(self.pause_s)


async def test_sessions_arrive_in_order_when_the_primary_is_cut_off_in_mid_stream() -> None:
    async with (
        gateway_world(session_order="strict", enable_syphon=True, syphon_poll=1) as world,
        world.client() as client,
    ):
        world.primary.create_queue("talks", QueueDescription(requires_session=True))
        senders = [SessionSender(client, session) for session in SESSIONS]
        tasks = [asyncio.create_task(sender.run()) for sender in senders]
        pair = world.gateway.pair

        def figures() -> tuple[int, int]:
            entity = pair.status().entities.get("talks")
            return (0, 0) if entity is None else (entity.sent, entity.diverted)

        await until(lambda: figures()[0] > 10)
        world.primary.cut_off()
        await until(lambda: figures()[1] > 10)
        world.primary.serve_again()
        sent = figures()[0]
        # Sessions return to the primary when their backlog has been moved; they go on meanwhile,
        # but not so fast that the syphon, with one message of a session under way, falls behind.
        for sender in senders:
            sender.pause_s = 0.5
        await until(lambda: figures()[0] > sent + 3)
        for sender in senders:
            sender.stop()
        await asyncio.gather(*tasks)
        primary = world.primary.connection_string()
        orders = [
            arrived(primary, session, sender.sent)
            for session, sender in zip(SESSIONS, senders, strict=True)
        ]
        assert await asyncio.gather(*orders) == [sender.sent for sender in senders]


async def arrived(primary: str, session: str, sent: list[str]) -> list[str]:
    """The first arrivals of a session, when all that was sent is there."""
    found: dict[str, None] = {}
    async with (
        asyncio.timeout(PATIENCE_S),
        ServiceBusClient.from_connection_string(primary) as client,
        client.get_queue_receiver("talks", session_id=session) as receiver,
    ):
        while len(found) < len(sent):
            for one in await receiver.receive_messages(50, max_wait_time=1):
                found[str(one)] = None
                await receiver.complete_message(one)
    return list(found)


class NamedClient(RawClient):
    """A client that calls itself something else."""

    container_id = ""

    def __init__(self) -> None:
        super().__init__()
        self.connection.container_id = self.container_id


class HostileClient(NamedClient):
    container_id = "\x1b[2J\nevil\u202e" + "x" * 10_000


def records(ledger: Path, operation: str) -> dict[str, dict[str, Any]]:
    """The records of an operation that succeeded, by message."""
    found = (one for one in read(ledger) if one["operation"] == operation)
    return {one["message_id"]: one for one in found if one["outcome"] == "ok"}


async def send(client: RawClient, *keys: str) -> None:
    sender = await client.ready_sender("orders")
    for key in keys:
        await sender.send(message(key))
    await client.close()


async def test_sends_and_diverts_name_the_client(tmp_path: Path) -> None:
    async with gateway_world("orders", ledger=tmp_path) as world:
        text = world.connection_string()
        await send(await RawClient.open(text), "a", "b")
        async with world.client() as client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("x", message_id="sdk"))
        world.primary.add_fault(Fault(kind="hang", entity="orders"))
        await send(await RawClient.open(text), "diverted")
    sent, diverted = records(tmp_path, "send"), records(tmp_path, "divert")
    assert {key: sent[key]["client"] for key in "ab"} == {"a": "raw-client", "b": "raw-client"}
    # The SDK chooses a name of its own for each connection.
    assert sent["sdk"]["client"] not in {"", "raw-client"}
    assert diverted["diverted"]["client"] == "raw-client"
    failed = [one for one in read(tmp_path) if one.get("outcome") in {"failed", "unknown"}]
    assert {one["client"] for one in failed if one["operation"] == "send"} == {"raw-client"}


async def test_a_name_that_a_client_chose_is_bounded_and_shows_no_control_character(
    tmp_path: Path,
) -> None:
    async with gateway_world("orders", ledger=tmp_path) as world:
        await send(await HostileClient.open(world.connection_string()), "hostile")
        await send(await NamedClient.open(world.connection_string()), "nameless")
    sent = records(tmp_path, "send")
    name = sent["hostile"]["client"]
    assert name.startswith("�[2J evil�xxx")
    assert len(name) == CLIENT_NAME_MAX
    assert "client" not in sent["nameless"]
