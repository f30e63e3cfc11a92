"""Everything but sending goes to the primary, link by link; rights are checked at the gateway."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from urllib.parse import unquote_plus

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
)
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from starlette.responses import Response

from tests.contract.pairs import until
from tests.end_to_end.raw_client import RawClient, RawReceiver, RawSender, Refused, message
from tests.gateway.gateway_world import GatewayWorld, gateway_world
from tests.official_sdk import async_administration, sas_token
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.message import Properties, decode_map, encode_message, split
from twinbus.amqp.performatives import Source, Target
from twinbus.amqp.types import Int, Symbol
from twinbus.broker.admin.api import AdminRequest
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.links.management import OPERATIONS, SENDING_OPERATIONS
from twinbus.broker.port_access import DEFAULT_KEY
from twinbus.client.links import REOPEN_PAUSE_S
from twinbus.namespace.tokens import sign
from twinbus.servicebus.names import TRANSFER_DESTINATION

pytestmark = pytest.mark.contract

REFUSED = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)


async def test_receive_settle_peek_defer_and_dead_letter() -> None:
    async with gateway_world("orders") as world, world.client() as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages([ServiceBusMessage(f"m{n}") for n in range(5)])
        async with client.get_queue_receiver("orders") as receiver:
            assert [str(one) for one in await receiver.peek_messages(2)] == ["m0", "m1"]
            got: list[ServiceBusReceivedMessage] = []
            while len(got) < 5:
                got += await receiver.receive_messages(5 - len(got), max_wait_time=30)
            await receiver.renew_message_lock(got[0])
            await receiver.dead_letter_message(got[0], reason="bad")
            await receiver.defer_message(got[1])
            await receiver.abandon_message(got[2])
            await receiver.complete_message(got[3])
            await receiver.complete_message(got[4])
            number = got[1].sequence_number
            assert number is not None
            [deferred] = await receiver.receive_deferred_messages(number)
            assert str(deferred) == "m1"
            await receiver.complete_message(deferred)
            [again] = await receiver.receive_messages(1, max_wait_time=30)
            assert (str(again), again.delivery_count) == ("m2", 1)
            await receiver.complete_message(again)
            assert await receiver.receive_messages(1, max_wait_time=0.5) == []
        deleting = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with client.get_queue_receiver(
            "orders", sub_queue="deadletter", receive_mode=deleting
        ) as receiver:
            [dead] = await receiver.receive_messages(1, max_wait_time=30)
            assert (str(dead), dead.dead_letter_reason) == ("m0", "bad")


@pytest.mark.parametrize("credit", [5, 20, 300])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "again"])
async def test_a_receiver_gets_no_more_than_it_gave_credit_for(
    *, credit: int, is_first: bool
) -> None:
    """The primary's deliveries come many to a read, and are handed on one by one."""
    async with gateway_world("orders") as world:
        filling = await RawClient.open(world.primary.connection_string())
        sender = await filling.sender("orders")
        for number in range(2 * credit + 10):
            await sender.room()
            await sender.send(message(f"m{number}"))
        await filling.close()
        raw = await world.raw()
        receiver = await raw.receiver("orders", credit=0)
        if not is_first:
            # The gateway knows by now how large messages are.
            receiver.link.grant(1)
            raw.flush()
            assert await receiver.receive() is not None
        receiver.link.grant(credit)
        raw.flush()
        for _ in range(credit):
            assert await receiver.receive() is not None
        # What had been asked of the primary beyond it would be here before these have answers.
        async with world.client() as client, client.get_queue_receiver("orders") as second:
            [other] = await second.receive_messages(1, max_wait_time=30)
            await second.complete_message(other)
        await raw.put_token(sas_token(world.connection_string(), ""))
        assert await receiver.receive(0.1) is None


@pytest.mark.parametrize("stored", [0, 3, 20, 50])
async def test_a_drain_ends_with_the_credit_or_with_the_messages(stored: int) -> None:
    async with gateway_world("orders") as world:
        raw = await world.raw()
        sender = await raw.ready_sender("orders")
        await asyncio.gather(*(sender.send(message(f"m{number}")) for number in range(stored)))
        receiver = await raw.receiver("orders", credit=0)
        for credit in (20, 25):
            left = min(stored, credit)
            stored -= left
            receiver.link.grant(credit, drain=True)
            raw.flush()
            for _ in range(left):
                assert await receiver.receive() is not None
            await until(lambda: not receiver.link.is_draining)
            assert receiver.link.credit == 0
        assert await receiver.receive(0.1) is None


async def test_sessions_with_state_and_scheduled_messages_with_numbers() -> None:
    async with gateway_world() as world, world.client(retry_total=0) as client:
        world.primary.create_queue("talks", QueueDescription(requires_session=True))
        async with client.get_queue_sender("talks") as sender:
            await sender.send_messages(ServiceBusMessage("s1", session_id="a"))
            later = datetime.now(UTC) + timedelta(hours=1)
            numbers = await sender.schedule_messages(
                ServiceBusMessage("later", session_id="a"), later
            )
            assert len(numbers) == 1
            await sender.cancel_scheduled_messages(numbers)
        async with client.get_queue_receiver(
            "talks", session_id=NEXT_AVAILABLE_SESSION
        ) as receiver:
            assert receiver.session.session_id == "a"
            await receiver.session.set_state(b"half")
            assert await receiver.session.get_state() == b"half"
            await receiver.session.renew_lock()
            [got] = await receiver.receive_messages(1, max_wait_time=30)
            await receiver.complete_message(got)
        with pytest.raises(OperationTimeoutError):
            async with client.get_queue_receiver(
                "talks", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.5
            ):
                pass


async def test_a_link_that_the_primary_detaches_is_detached_here_with_its_condition() -> None:
    async with gateway_world("orders") as world:
        raw = await world.raw()
        await raw.receiver("orders", credit=10)
        async with async_administration(world.primary.connection_string()) as admin:
            await admin.delete_queue("orders")
        async with asyncio.timeout(60):
            error = await raw.detached.get()
        assert error is not None
        assert str(error.condition) == "amqp:not-found"


async def test_links_to_a_dead_primary_are_detached_and_the_client_stays_connected() -> None:
    async with gateway_world("orders") as world:
        raw = await world.raw()
        await raw.receiver("orders", credit=10)
        world.primary.stop()
        async with asyncio.timeout(60):
            error = await raw.detached.get()
        assert error is not None
        assert "connection to the primary" in str(error.description)
        sender = await raw.ready_sender("orders")
        async with asyncio.timeout(60):
            await sender.send(message("diverted"))


async def test_a_management_node_is_open_while_the_primary_is_down_and_works_when_it_is_back() -> (
    None
):
    """The Go SDK opens one with every sender, and sends nothing without it."""
    async with gateway_world("orders") as world:
        world.primary.cut_off()
        raw = await world.raw()
        requests = await raw.sender("orders/$management")
        replies = await raw.receiver("orders/$management", credit=100)
        sender = await raw.ready_sender("orders")
        async with asyncio.timeout(60):
            await sender.send(message("diverted"))
        status, text = await _asked(requests, replies)
        assert (status, "cannot be reached" in text) == (503, True)
        world.primary.serve_again()
        async with asyncio.timeout(60):
            while (await _asked(requests, replies))[0] == 503:  # noqa: ASYNC110  # each asks again
                await asyncio.sleep(0.05)
        # Nothing is in the queue yet, and it is the primary that says so.
        assert (await _asked(requests, replies))[0] == 204
        assert raw.detached.empty()


async def test_a_node_whose_links_are_opened_before_and_after_the_primary_is_back_answers() -> None:
    async with gateway_world("orders") as world:
        world.primary.cut_off()
        raw = await world.raw()
        replies = await raw.receiver("orders/$management", credit=100)
        world.primary.serve_again()
        await asyncio.sleep(REOPEN_PAUSE_S)
        requests = await raw.sender("orders/$management")
        async with asyncio.timeout(60):
            while (await _asked(requests, replies))[0] == 503:  # noqa: ASYNC110  # each asks again
                await asyncio.sleep(0.05)
        assert (await _asked(requests, replies))[0] == 204


async def _asked(requests: RawSender, replies: RawReceiver) -> tuple[int, str]:
    """Status and text of the answer to a peek."""
    await requests.room()
    requests.send_unasked(
        encode_message(
            properties=Properties(message_id="peek"),
            application_properties={"operation": "com.microsoft:peek-message"},
            value={"from-sequence-number": 1, "message-count": Int(1)},
        )
    )
    reply = await replies.receive()
    assert reply is not None
    answer = decode_map(split(reply.payload).application_properties)
    return int(str(answer["statusCode"])), str(answer["statusDescription"])


async def test_rights_are_checked_before_anything_goes_to_the_primary() -> None:
    async with gateway_world("orders") as world:
        async with world.client("sender", retry_total=0) as client:
            with pytest.raises(REFUSED, match="'Listen' claim"):
                async with client.get_queue_receiver("orders") as receiver:
                    await receiver.receive_messages(1, max_wait_time=1)
        async with (
            world.client("listener", retry_total=0) as client,
            client.get_queue_receiver("orders") as receiver,
        ):
            assert await receiver.peek_messages(1) == []
        raw = await world.raw("listener")
        requests = await raw.sender("orders/$management")
        replies = await raw.receiver("orders/$management", credit=10)
        await requests.room()
        for operation in OPERATIONS:
            requests.send_unasked(_request(operation))
            reply = await replies.receive()
            assert reply is not None
            answer = decode_map(split(reply.payload).application_properties)
            assert (answer["statusCode"] == 401) == (operation in SENDING_OPERATIONS), operation


def _request(operation: str) -> bytes:
    return encode_message(
        properties=Properties(message_id=operation),
        application_properties={"operation": operation},
        value={},
    )


async def test_a_node_needs_a_right_to_its_entity() -> None:
    """The gateway would attach with its own credential, and say which entities there are."""
    async with gateway_world("orders", "payments") as world:
        raw = await world.raw(None, "orders")
        for address in ("payments/$management", "ghost/$management"):
            with pytest.raises(Refused, match="'Listen' claim"):
                await raw.receiver(address, credit=1)
            with pytest.raises(Refused, match="'Listen' claim"):
                await raw.sender(address)
        requests = await raw.sender("orders/$management")
        replies = await raw.receiver("orders/$management", credit=10)
        assert (await _asked(requests, replies))[0] == 204


async def test_a_request_that_never_ends_is_given_up_at_two_mebibytes() -> None:
    async with gateway_world("orders") as world:
        raw = await world.raw()
        requests = await raw.sender("orders/$management")
        await requests.room()
        (peer,) = world.server.peers
        held = next(
            link
            for session in peer.connection.sessions.values()
            for link in session.links.values()
            if getattr(link.owner, "address", "") == "orders/$management"
        )
        assert isinstance(held, ReceiverLink)
        requests.link.send(b"x" * (3 * 1024 * 1024), b"tag", settled=True)
        raw.flush()
        error = await asyncio.wait_for(raw.detached.get(), 60)
        assert error is not None
        assert error.condition == "amqp:link:message-size-exceeded"
        assert held.partial_bytes == 0


async def test_administration_needs_the_right_to_manage() -> None:
    async with gateway_world() as world:
        async with async_administration(world.connection_string()) as admin:
            await admin.create_queue("made")
            await admin.create_queue("forwards", forward_to="made")
            names = [queue.name async for queue in admin.list_queues()]
            assert names == ["forwards", "made"]
        async with async_administration(world.primary.connection_string()) as admin:
            assert str((await admin.get_queue("forwards")).forward_to).endswith("made")
        async with async_administration(world.connection_string("sender")) as admin:
            with pytest.raises((ClientAuthenticationError, HttpResponseError)):
                await admin.delete_queue("made")
        world.primary.stop()
        async with async_administration(world.connection_string()) as admin:
            with pytest.raises((HttpResponseError, ServiceBusError), match="did not answer"):
                await admin.get_queue("made")


async def test_administration_of_a_primary_that_hangs_leaves_the_threads_of_the_loop_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection to the secondary needs one of them for its certificates or its token."""
    answers, begun = threading.Event(), threading.Semaphore(0)

    def hang(*_: object) -> Response:
        begun.release()
        answers.wait(60)
        return Response("late")

    monkeypatch.setattr("twinbus.gateway.administration._forward", hang)
    async with gateway_world() as world:
        place, count = f"localhost:{world.gateway.port}", 40
        expires_s = int(time.time()) + 600
        token = sign(f"sb://{place}/", "RootManageSharedAccessKey", DEFAULT_KEY, expires_s)
        lines = "GET /orders HTTP/1.1", f"Host: {place}", f"Authorization: {token}", "", ""
        wires = [
            await asyncio.open_connection("localhost", world.gateway.port) for _ in range(count)
        ]
        try:
            for _, writer in wires:
                writer.write("\r\n".join(lines).encode())
            await until(lambda: begun.acquire(blocking=False))
            async with asyncio.timeout(20):
                for _ in range(count):
                    await asyncio.to_thread(int)
                    await asyncio.sleep(0.01)
        finally:
            answers.set()
        for reader, writer in wires:
            assert (await reader.readline()).split()[1] == b"200"
            writer.close()


async def test_a_path_that_leads_to_another_entity_is_not_handed_on() -> None:
    async with gateway_world("orders", "payments") as world:
        for path in (
            "/orders/../payments",
            "/orders/%2e%2e/payments",
            "/orders/%252e%252e/payments",
        ):
            status, text = await asyncio.to_thread(_delete, world, path)
            assert (status, "is no address of an entity" in text) == (400, True), (path, text)
        raw = await world.raw()
        for address in ("orders/../payments", "orders/../payments/$management"):
            with pytest.raises(Refused, match="is no address of an entity"):
                await raw.receiver(address, credit=1)


def _delete(world: GatewayWorld, path: str) -> tuple[int, str]:
    return _administer(world, "DELETE", path)


def _administer(
    world: GatewayWorld, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, str]:
    """A request with a token that is for `orders` alone."""
    place = f"localhost:{world.gateway.port}"
    expires_s = int(time.time()) + 600
    token = sign(f"sb://{place}/orders", "RootManageSharedAccessKey", DEFAULT_KEY, expires_s)
    connection = HTTPConnection(place, timeout=60)
    connection.request(method, path, body or None, {"Authorization": token, **headers})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


async def test_what_goes_to_the_primary_is_what_was_checked_with_tokens_for_that_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gateway's own credential is good for everything: a client must not lead it elsewhere."""
    sent: list[tuple[AdminRequest, dict[str, str], bytes]] = []

    def keep(_: object, asked: AdminRequest, headers: dict[str, str], body: bytes) -> Response:
        sent.append((asked, headers, body))
        return Response("kept")

    monkeypatch.setattr("twinbus.gateway.administration._forward", keep)
    description = (
        b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescript'
        b'ion xmlns="urn:x"><ForwardTo>%s</ForwardTo></QueueDescription></content></entry>'
    )
    async with gateway_world() as world:
        place = f"sb://localhost:{world.primary.port()}"

        async def put(path: str, forward_to: bytes, before: bytes = b"") -> tuple[int, str]:
            body = before + description % forward_to
            return await asyncio.to_thread(
                _administer, world, "PUT", path, body, **{"Content-Type": "text/xml;charset=utf-7"}
            )

        for elsewhere in (b"orders/../payments", b"sb://h/orders/%2e%2e/payments"):
            status, text = await put("/orders", elsewhere)
            assert (status, "is not the path of a queue or topic" in text) == (400, True)
        assert (await put("/orders", b"payments"))[0] == 401
        assert not sent
        declared = b'<?xml version="1.0" encoding="utf-7"?>'
        # An address with two slashes in front names a host to some readers.
        status, text = await put("//orders%2Fpart/", b"sb://h/orders/other", declared)
        assert (status, text) == (200, "kept")
    [(asked, headers, body)] = sent
    assert asked.raw_path == "/orders/part"
    assert body == description % b"sb://h/orders/other"
    tokens = {
        name: unquote_plus(str(text).partition("sr=")[2].partition("&")[0])
        for name, text in headers.items()
        if str(text).startswith("SharedAccessSignature")
    }
    assert tokens == {
        "Authorization": f"{place}/orders/part",
        "servicebussupplementaryauthorization": f"{place}/orders/other",
    }
    assert "utf-7" not in str(headers)


async def test_a_link_that_sends_on_to_another_entity_needs_the_right_to_send_there() -> None:
    """The primary sends on with the gateway's credential, which is good for both."""
    async with gateway_world("orders", "payments") as world:
        both = await world.raw()
        one = await world.raw(None, "orders")
        for destination in ("payments", "sb://h/payments", "orders/../payments"):
            with pytest.raises(Refused, match=r"'Send' claim|is no queue or topic"):
                await _sender_through(one, "orders", destination)
        sender = await _sender_through(both, "orders", "payments")
        await sender.room()
        await sender.send(message("m"))
        # Without a transaction there is nothing to keep together: it is sent to its destination.
        assert await world.received("payments", 1) == [""]


async def _sender_through(client: RawClient, address: str, destination: str) -> RawSender:
    """A sender that is attached to one entity and sends to another."""
    link = client.session.attach_sender(
        f"through-{destination}",
        source=Source(address="raw"),
        target=Target(address=address),
        properties={Symbol(TRANSFER_DESTINATION): destination},
    )
    sender = RawSender(client, link)
    link.owner = sender
    client.flush()
    await client._attached(link)
    return sender


async def test_an_answer_of_the_primary_that_is_too_long_is_not_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("twinbus.gateway.administration.ANSWER_BYTES_MAX", 100)
    async with (
        gateway_world("orders") as world,
        async_administration(world.connection_string()) as admin,
    ):
        with pytest.raises(HttpResponseError, match="more than 100 bytes"):
            await admin.get_queue("orders")
