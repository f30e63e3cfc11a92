"""Clients that log in with the name and the key of a rule (SASL PLAIN)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.broker.links.joined import JoinedClient, JoinedTransport
from twinbus.amqp.connection import SASL_HEADER
from twinbus.amqp.events import Attached, Detached, Event
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import SaslInit, Source, Target
from twinbus.amqp.types import Symbol
from twinbus.broker.access import Admission, ConnectionLimits
from twinbus.broker.descriptions import AuthorizationRule, QueueDescription
from twinbus.broker.sas import ALL_RIGHTS, AcceptedToken
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.store import MemoryStore

pytestmark = pytest.mark.virtual_time

ROOT = AuthorizationRule(key_name="root", primary_key="k1", rights=ALL_RIGHTS)
SENDER = AuthorizationRule(key_name="sender", primary_key="k2", rights=frozenset({"Send"}))
OWN = AuthorizationRule(
    key_name="own", primary_key="k3", secondary_key="k4", rights=frozenset({"Listen"})
)
TOKEN = AcceptedToken(name="t", text="token", rights=ALL_RIGHTS)


def serving(*, require_token: bool = False) -> BrokerServer:
    server = BrokerServer(
        "b",
        MemoryStore(),
        [ROOT, SENDER],
        tokens=lambda: (TOKEN,),
        require_token=require_token,
        admission=Admission(ConnectionLimits()),
    )
    for path in ("q", "own"):
        rules = (OWN,) if path == "own" else ()
        description = QueueDescription(authorization_rules=rules)
        server.namespace.create_queue(path, description, server.now_ms())
    return server


class LoginClient(JoinedClient):
    def __init__(
        self, server: BrokerServer, name: str, key: str, host: str = "::1", tls: object = None
    ) -> None:
        super().__init__(server, trusted=False, transport=JoinedTransport(host, tls))
        response = f"\0{name}\0{key}".encode()
        init = SaslInit(mechanism=Symbol("PLAIN"), initial_response=response)
        self.peer.data_received(SASL_HEADER + encode_frame(0, init, frame_type=1))
        # What follows is AMQP from its header on, as the client's connection expects it.
        self.peer.connection.take_output(1)

    async def sends_to(self, path: str) -> bool:
        return isinstance(await self._attach(path, receives=False), Attached)

    async def receives_from(self, path: str) -> bool:
        return isinstance(await self._attach(path, receives=True), Attached)

    async def _attach(self, path: str, *, receives: bool) -> Event:
        await self.exchange()
        session = self.connection.begin()
        await self.exchange()
        if receives:
            link = session.attach_receiver(path, source=Source(address=path), target=Target())
            seen = await self.exchange()
            is_open = [each for each in seen if isinstance(each, Attached) and link.source]
        else:
            out = session.attach_sender(path, source=Source(), target=Target(address=path))
            seen = await self.exchange()
            is_open = [each for each in seen if isinstance(each, Attached) and out.target]
        return is_open[0] if is_open else seen[-1]

    def is_limited(self) -> bool:
        return self.peer.probation is not None

    def is_refused(self) -> bool:
        return self.peer.connection.phase.value in ("closing", "closed")


async def test_the_key_of_a_rule_opens_links_without_a_token() -> None:
    server = serving()
    client = LoginClient(server, "sender", "k2")
    assert await client.sends_to("q")
    assert client.peer.probation is None
    assert not await client.receives_from("q")
    await server.close()


@pytest.mark.parametrize(("name", "key"), [("sender", "k1"), ("nobody", "k1"), ("root", "")])
async def test_a_wrong_key_is_refused_at_once(name: str, key: str) -> None:
    server = serving()
    client = LoginClient(server, name, key)
    assert client.is_refused()
    assert client.peer.probation is not None
    await server.close()


@pytest.mark.parametrize(
    ("host", "tls", "is_taken"),
    [("127.0.0.1", None, True), ("192.0.2.1", None, False), ("192.0.2.1", object(), True)],
)
async def test_a_key_is_taken_on_loopback_or_over_tls(
    host: str, tls: object, is_taken: bool
) -> None:
    server = serving()
    assert LoginClient(server, "root", "k1", host, tls).is_refused() is not is_taken
    await server.close()


async def test_a_broker_that_requires_tokens_takes_no_key() -> None:
    server = serving(require_token=True)
    assert LoginClient(server, "root", "k1").is_refused()
    await server.close()


async def test_a_stranger_is_limited_until_the_open_that_follows_its_login() -> None:
    server = serving()
    client = LoginClient(server, "root", "k1")
    assert client.is_limited()
    await client.exchange()
    assert not client.is_limited()
    await server.close()


@pytest.mark.parametrize("key", ["k3", "k4"])
async def test_the_key_of_an_entitys_rule_is_good_for_that_entity_until_it_goes(key: str) -> None:
    server = serving()
    client = LoginClient(server, "own", key)
    assert await client.receives_from("own")
    assert not await client.receives_from("q")
    changed = QueueDescription(
        authorization_rules=(replace(OWN, primary_key="n", secondary_key=""),)
    )
    server.namespace.update("own", changed, server.now_ms())
    server.recheck_grants()
    seen = await client.exchange()
    assert client.is_refused()
    assert not [each for each in seen if isinstance(each, Attached | Detached)]
    assert LoginClient(server, "own", key).is_refused()
    await server.close()
