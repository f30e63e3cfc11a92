"""Every way into a gateway and out of it: TLS, WebSocket, keys and tokens, on both sides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType

from tests.contract.certificates import client_context, server_context
from tests.contract.pairs import until
from tests.contract.test_credentials import Fetching, over_tls
from tests.end_to_end.raw_client import RawClient, Refused, message
from tests.gateway.gateway_world import PATIENCE_S, gateway_world
from twinbus import EmbeddedBroker, SendAvailabilityOptions, pair_namespaces
from twinbus.broker.embedded import NamespaceAt
from twinbus.broker.port_access import DEFAULT_KEY, DEFAULT_RULE_NAME, PortAccess
from twinbus.broker.sas import AcceptedToken
from twinbus.gateway import GatewayHost

pytestmark = pytest.mark.contract

WEB_TOKEN = "eyJ0eXAi.eyJhdWQi.c2ln"
RENEWALS = 4
"""The gateway has two links to the primary, and a token for each: each was renewed."""


class Given:
    """A token credential as azure.identity's are, with one token."""

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        return AccessToken(WEB_TOKEN, 2_000_000_000)


def sent_and_received(port: int, credential: Any, transport: TransportType, text: str) -> str:
    """Send a message over TLS and receive it again, with the SDK as its users would have it."""
    with (
        ServiceBusClient(
            "localhost",
            credential,
            custom_endpoint_address=f"sb://localhost:{port}",
            ssl_context=client_context(),
            transport_type=transport,
        ) as client,
        client.get_queue_sender("orders") as sender,
        client.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver,
    ):
        sender.send_messages(ServiceBusMessage(text))
        [found] = receiver.receive_messages(1, max_wait_time=PATIENCE_S)
        return str(found)


async def test_the_sdk_uses_tls_with_a_key_and_websocket_with_a_token() -> None:
    tokens = [AcceptedToken(name="app", text=WEB_TOKEN, rights=frozenset({"Send", "Listen"}))]
    access = PortAccess(tls=server_context(), require_tls=True, tokens=tokens)
    async with gateway_world("orders", access=access) as world:
        key = AzureNamedKeyCredential(DEFAULT_RULE_NAME, DEFAULT_KEY)
        ways: list[tuple[Any, TransportType]] = [
            (key, TransportType.Amqp),
            (Given(), TransportType.AmqpOverWebsocket),
        ]
        # One after the other: each would receive the message of another.
        for credential, transport in ways:
            found = await asyncio.to_thread(
                sent_and_received, world.gateway.port, credential, transport, transport.name
            )
            assert found == transport.name


async def test_a_gateway_that_wants_tokens_reads_them_from_a_file_as_it_changes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens"
    # Long enough for a busy machine to open the links.
    expires = int(time.time()) + 5
    path.write_text(f"app one Send,Listen {expires}\nweak two Send never\n")
    access = PortAccess(token_file=path, require_token=True)
    async with gateway_world("orders", access=access) as world:
        text = world.connection_string()
        with pytest.raises(Refused, match="LocalAuthDisabled"):
            await RawClient.open(text)
        weak = await RawClient.open(text, token="two")
        with pytest.raises(Refused, match="'Listen' claim"):
            await weak.receiver("orders", credit=1)
        short = await RawClient.open(text, token="one")
        await short.sender("orders")
        await short.receiver("orders", credit=1)
        # What sends and what is relayed is detached alike when the token ends.
        async with asyncio.timeout(PATIENCE_S):
            errors = [await short.detached.get() for _ in range(2)]
        assert time.time() >= expires
        assert all("RenewToken" in str(error and error.description) for error in errors)
        new = path.with_suffix(".new")
        new.write_text("app three Send,Listen never\n")
        new.replace(path)
        await short.put_token("three")
        sender = await short.ready_sender("orders")
        await sender.send(message("m"))
        receiver = await short.receiver("orders", credit=1)
        found = await receiver.receive()
        assert found is not None
        assert found.key == "m"
        for client in (weak, short):
            await client.close()


async def test_what_a_token_opened_ends_when_it_is_removed_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("app one Send,Listen never\nother two Send never\nchanged three Send never\n")
    async with gateway_world("orders", access=PortAccess(token_file=path)) as world:
        text = world.connection_string()
        clients = {one: await RawClient.open(text, token=one) for one in ("one", "two", "three")}
        clients["key"] = await RawClient.open(text)
        for client in clients.values():
            await (await client.ready_sender("orders")).send(message("m"))
        receiver = await clients["one"].receiver("orders", credit=1)
        assert await receiver.receive() is not None
        path.with_suffix(".new").write_text("other two Send never\nchanged three Listen never\n")
        path.with_suffix(".new").replace(path)
        await until(lambda: clients["one"].lost and clients["three"].lost)
        assert "the token 'app' is not accepted any more" in str(clients["one"].lost)
        for name in ("two", "key"):
            await (await clients[name].ready_sender("orders")).send(message("m"))
            await clients[name].close()


@asynccontextmanager
async def gateway_with(credential: Fetching, **options: Any) -> AsyncIterator[GatewayHost]:
    """A gateway in front of two namespaces that refuse keys; the primary has `orders`."""
    tokens = [AcceptedToken(name="app", text=WEB_TOKEN, rights=frozenset({"Manage"}))]
    with EmbeddedBroker(
        "contoso", "contoso-dr", tls=server_context(), tokens=tokens, require_token=True
    ) as broker:
        broker.create_queue("orders")
        primary = over_tls(broker, "contoso", credential)
        secondary = over_tls(broker, "contoso-dr", Fetching(text=WEB_TOKEN))
        chosen = SendAvailabilityOptions(backlog_queue_count=1, attempt_timeout=15, **options)
        gateway = GatewayHost(
            NamespaceAt("gate"), pair_namespaces(primary, secondary, chosen), PortAccess()
        )
        await gateway.start()
        try:
            yield gateway
        finally:
            await gateway.close()


async def test_tokens_of_the_gateway_itself_are_renewed_while_its_links_are_open() -> None:
    credential = Fetching(life_s=2, text=WEB_TOKEN)
    async with gateway_with(credential) as gateway:
        client = await RawClient.open(gateway.connection_string())
        sender = await client.ready_sender("orders")
        receiver = await client.receiver("orders", credit=10)
        asked = credential.asked
        async with asyncio.timeout(PATIENCE_S):
            while credential.asked < asked + RENEWALS:
                await sender.send(message("m"))
                found = await receiver.receive()
                assert found is not None
                await receiver.complete(found)
                await asyncio.sleep(0.05)
        assert client.detached.empty()
        status = gateway.pair.status().entities["orders"]
        assert (status.state, status.raised, status.diverted) == ("healthy", 0, 0)
        await client.close()


async def test_a_token_service_that_cannot_be_reached_is_an_outage() -> None:
    """As for a pair: there was no answer (docs/failures.md)."""
    credential = Fetching(text=WEB_TOKEN)
    credential.error = ServiceRequestError("no route to the token service")
    async with gateway_with(credential, failover_interval=0) as gateway:
        client = await RawClient.open(gateway.connection_string())
        sender = await client.ready_sender("orders")
        await sender.send(message("m"))
        assert gateway.pair.status().entities["orders"].diverted == 1
        await client.close()


async def test_a_credential_that_must_be_repaired_is_no_outage() -> None:
    credential = Fetching(text=WEB_TOKEN)
    credential.error = ClientAuthenticationError("the secret of the application has expired")
    async with gateway_with(credential, failover_interval=0) as gateway:
        client = await RawClient.open(gateway.connection_string())
        with pytest.raises(Refused, match="has expired") as caught:
            await client.sender("orders")
        assert caught.value.condition == "amqp:unauthorized-access"
        await client.close()
