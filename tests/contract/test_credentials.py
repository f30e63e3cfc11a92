"""Every way into a namespace, for senders, administration and the syphon, and every way to fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.servicebus import ServiceBusMessage
from azure.servicebus._base_handler import (
    ServiceBusSASTokenCredential,
    ServiceBusSharedKeyCredential,
)
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from tests.contract.certificates import client_context
from tests.contract.pairs import bodies, drain, embedded, quick, until
from twinbus import (
    EmbeddedBroker,
    MissingRightError,
    Namespace,
    SendAvailabilityOptions,
    pair_namespaces,
)
from twinbus.broker.descriptions import AuthorizationRule, QueueDescription
from twinbus.broker.sas import AcceptedToken
from twinbus.client import connection as connection_module
from twinbus.client.administration import counts_of
from twinbus.client.connection import NamespaceConnection
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.tokens import sign
from twinbus.pair import Pair
from twinbus.servicebus.names import backlog_paths
from twinbus.syphon.host import SyphonHost

pytestmark = pytest.mark.contract

ROOT, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
TOKEN = "eyJ0eXAi.eyJhdWQi.c2ln"
RIGHTS = ("Send", "Listen", "Manage")
RULES = [
    AuthorizationRule(key_name=right, primary_key=f"{right}-key", rights=frozenset({right}))
    for right in RIGHTS
]
BACKLOG = backlog_paths("contoso", 1)


broker = embedded(
    tls=True,
    rules=RULES,
    tokens=[
        AcceptedToken(name="app", text=TOKEN, rights=frozenset({"Manage"})),
        *(
            AcceptedToken(name=right, text=f"{TOKEN}-{right}", rights=frozenset({right}))
            for right in RIGHTS
        ),
    ],
    scope="module",
)


def signature(life_s: float, rule: str = ROOT, key: str = KEY) -> str:
    return sign("sb://localhost", rule, key, int(time.time() + life_s))


def one_queue(**changes: Any) -> SendAvailabilityOptions:
    # Nothing hangs here: an attempt that takes long is a busy machine's, and would be repeated.
    return quick(**{"backlog_queue_count": 1, "attempt_timeout": 15.0, **changes})


class Fetching:
    """A TokenCredential whose answers a test decides."""

    def __init__(self, life_s: float = 3_600, text: str = TOKEN) -> None:
        self.life_s = life_s
        self.text = text
        self.asked = 0
        self.error: Exception | None = None

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return AccessToken(self.text, int(time.time() + self.life_s))


class FetchingSync(Fetching):
    def get_token(self, *scopes: str, **_: Any) -> AccessToken:  # type: ignore[override]
        self.asked += 1
        return AccessToken(self.text, int(time.time() + self.life_s))


def place(broker: EmbeddedBroker, name: str, *, tls: bool = True) -> str:
    return broker.connection_string(name, tls=tls).partition(";")[0]


def over_tls(broker: EmbeddedBroker, name: str, credential: Any) -> Namespace:
    return Namespace(
        f"localhost:{broker.port(name)}", credential, name, ssl_context=client_context()
    )


def by_string(broker: EmbeddedBroker, name: str, rest: str, *, tls: bool = False) -> Namespace:
    end = "" if tls else ";UseDevelopmentEmulator=true"
    options = {"ssl_context": client_context()} if tls else {}
    text = f"{place(broker, name)};{rest}{end}"
    return Namespace.from_connection_string(text, name, **options)


KEY_PARTS = f"SharedAccessKeyName={ROOT};SharedAccessKey={KEY}"

WAYS_IN: dict[str, Callable[[EmbeddedBroker, str], Namespace]] = {
    "key": lambda broker, name: by_string(broker, name, KEY_PARTS),
    "key, TLS": lambda broker, name: by_string(broker, name, KEY_PARTS, tls=True),
    "signature": lambda broker, name: by_string(
        broker, name, f"SharedAccessSignature={signature(600)}"
    ),
    "signature, TLS": lambda broker, name: by_string(
        broker, name, f"SharedAccessSignature={signature(600)}", tls=True
    ),
    "AzureSasCredential": lambda broker, name: over_tls(
        broker, name, AzureSasCredential(signature(600))
    ),
    "AzureNamedKeyCredential": lambda broker, name: over_tls(
        broker, name, AzureNamedKeyCredential(ROOT, KEY)
    ),
    "AsyncTokenCredential": lambda broker, name: over_tls(broker, name, Fetching()),
    "TokenCredential": lambda broker, name: over_tls(broker, name, FetchingSync()),
    "the SDK's shared key": lambda broker, name: over_tls(
        broker, name, ServiceBusSharedKeyCredential(ROOT, KEY)
    ),
    "the SDK's signature": lambda broker, name: over_tls(
        broker, name, ServiceBusSASTokenCredential(signature(600), int(time.time()) + 600)
    ),
}


@pytest.mark.parametrize("way", WAYS_IN)
async def test_each_way_in_serves_senders_administration_and_syphon(
    broker: EmbeddedBroker, way: str
) -> None:
    primary, secondary = (WAYS_IN[way](broker, name) for name in ("contoso", "contoso-dr"))
    options = one_queue(enable_syphon=True, syphon_poll=1.0)
    async with pair_namespaces(primary, secondary, options) as pair:
        assert pair.backlog_queues == BACKLOG
        async with pair.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("healthy"))
            pair.force_failover("orders")
            await sender.send_messages(ServiceBusMessage("diverted"))
        text = broker.connection_string("contoso")
        received = await drain(text, "orders", 2, wait_s=10)
    assert sorted(bodies(received)) == ["diverted", "healthy"]
    assert (await counts_of(endpoint_of(secondary), BACKLOG[0])).waiting == 0


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("tls", [True, False])
async def test_pairing_with_an_expired_signature_says_that_it_has_expired(
    broker: EmbeddedBroker, create: bool, tls: bool
) -> None:
    old = f"SharedAccessSignature={signature(-5)}"

    primary = by_string(broker, "contoso", KEY_PARTS)
    secondary = by_string(broker, "contoso-dr", old, tls=tls)
    right = "Manage" if create else "Send"
    options = one_queue(create_backlog_queues=create)
    with pytest.raises(MissingRightError, match=f"{right} right.*expired") as caught:
        async with pair_namespaces(primary, secondary, options):
            raise AssertionError
    assert "\n" not in str(caught.value)


async def test_a_signature_that_expires_under_way_is_no_outage_and_a_new_one_mends_it(
    broker: EmbeddedBroker,
) -> None:
    # Long enough for a busy machine to pair and to send once.
    life_s = 8.0
    credential, expires = AzureSasCredential(signature(life_s)), time.monotonic() + life_s

    primary = over_tls(broker, "contoso", credential)
    secondary = by_string(broker, "contoso-dr", KEY_PARTS)
    options = one_queue(failover_interval=0.0)
    async with (
        pair_namespaces(primary, secondary, options) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("in time"))
        await asyncio.sleep(expires + 1.0 - time.monotonic())
        for _ in range(2):
            with pytest.raises(ServiceBusAuthenticationError) as caught:
                await sender.send_messages(ServiceBusMessage("too late", message_id="id"))
            assert caught.value.message_ids == ("id",)  # type: ignore[attr-defined]
            # Not "Service Bus has encountered an error", which is all that the SDK says.
            assert "expired" in str(caught.value).lower()
        status = pair.status().entities["orders"]
        assert (status.state, status.diverted) == ("healthy", 0)
        credential.update(signature(600))
        await sender.send_messages(ServiceBusMessage("again"))
    received = await drain(broker.connection_string("contoso"), "orders", 2)
    assert bodies(received) == ["in time", "again"]


@pytest.mark.parametrize("is_diverted", [False, True])
async def test_links_that_idle_past_the_end_of_their_token_get_a_new_one_and_no_caller_notices(
    broker: EmbeddedBroker, is_diverted: bool
) -> None:
    """The SDK renews a token only while its link is used, in the last tenth of the token's life."""
    credential = Fetching(life_s=3)
    primary, secondary = (over_tls(broker, name, credential) for name in ("contoso", "contoso-dr"))
    async with (
        pair_namespaces(primary, secondary, one_queue(failover_interval=60.0)) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        if is_diverted:
            pair.force_failover("orders")
        for _ in range(2):
            # Several links, and each of them expires.
            await asyncio.gather(
                *(sender.send_messages(ServiceBusMessage("x"), timeout=60) for _ in range(6))
            )
            await asyncio.sleep(credential.life_s + 1)
        await sender.send_messages(ServiceBusMessage("x"), timeout=60)
        state = pair.status().entities["orders"]
        assert (state.state, state.diverted) == (
            ("failed over", 13) if is_diverted else ("healthy", 0)
        )
    name, queue = ("contoso-dr", BACKLOG[0]) if is_diverted else ("contoso", "orders")
    assert len(await drain(broker.connection_string(name), queue, 13)) == 13


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (ServiceRequestError("no route to the token service"), True),
        (ClientAuthenticationError("the secret of the application has expired"), False),
    ],
)
async def test_a_token_that_cannot_be_fetched_counts_only_where_nobody_answers(
    broker: EmbeddedBroker, error: Exception, counts: bool
) -> None:
    credential = Fetching()
    credential.error = error

    primary = over_tls(broker, "contoso", credential)
    secondary = by_string(broker, "contoso-dr", KEY_PARTS)
    options = one_queue(failover_interval=0.0)
    async with (
        pair_namespaces(primary, secondary, options) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        if counts:
            await sender.send_messages(ServiceBusMessage("diverted"))
            assert pair.status().entities["orders"].diverted == 1
            await drain(broker.connection_string("contoso-dr"), BACKLOG[0], 1)
        else:
            with pytest.raises(ServiceBusError, match="has expired"):
                await sender.send_messages(ServiceBusMessage("x"))
            assert pair.status().entities["orders"].state == "healthy"


async def test_the_syphon_puts_a_new_token_before_the_old_one_ends_and_tries_again_if_there_is_none(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "TOKEN_AGAIN_S", 0.2)
    credential = Fetching(life_s=2)

    line = NamespaceConnection(endpoint_of(over_tls(broker, "contoso", credential)), lambda _: None)
    await line.open()
    try:
        await line.authorize("orders")
        assert credential.asked == 1
        await until(lambda: credential.asked >= 2)
        credential.error = ClientAuthenticationError("not now")
        asked = credential.asked
        await until(lambda: credential.asked >= asked + 2)
        credential.error = None
        asked = credential.asked
        await until(lambda: credential.asked > asked)
        assert await line.request("orders", "peek-message", {"from-sequence-number": 1}) == {}
    finally:
        await line.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# Rights, one at a time


@pytest.fixture(params=["key", "token"])
def by(request: pytest.FixtureRequest) -> str:
    """How a right is proved: by the key of a rule, or by a bearer token."""
    proof: str = request.param
    return proof


def with_right(broker: EmbeddedBroker, name: str, right: str, by: str) -> Namespace:
    if by == "token":
        return over_tls(broker, name, Fetching(text=f"{TOKEN}-{right}"))
    return by_string(broker, name, f"SharedAccessKeyName={right};SharedAccessKey={right}-key")


def rooted(broker: EmbeddedBroker) -> AbstractAsyncContextManager[Pair]:
    primary, secondary = (by_string(broker, name, KEY_PARTS) for name in ("contoso", "contoso-dr"))
    return pair_namespaces(primary, secondary, one_queue())


@pytest.fixture
def backlog(broker: EmbeddedBroker) -> None:
    """What `twinbus backlog create` leaves; some test before may have made it."""

    async def make() -> None:
        async with rooted(broker):
            pass

    asyncio.run(make())


@pytest.mark.parametrize("right", RIGHTS)
async def test_the_primary_needs_send_alone_and_its_lack_is_named_by_the_send_not_by_pairing(
    broker: EmbeddedBroker, right: str, by: str
) -> None:
    primary = with_right(broker, "contoso", right, by)
    secondary = by_string(broker, "contoso-dr", KEY_PARTS)
    async with (
        pair_namespaces(primary, secondary, one_queue()) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        if right == "Listen":
            with pytest.raises(ServiceBusAuthorizationError, match="Send") as caught:
                await sender.send_messages(ServiceBusMessage("x", message_id="id"))
            assert caught.value.message_ids == ("id",)  # type: ignore[attr-defined]
            assert pair.status().entities["orders"].state == "healthy"
        else:
            await sender.send_messages(ServiceBusMessage("x"))
            await drain(broker.connection_string("contoso"), "orders", 1)


@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("create", [True, False])
@pytest.mark.usefixtures("backlog")
async def test_the_secondary_needs_manage_to_create_and_send_alone_where_others_created(
    broker: EmbeddedBroker, right: str, create: bool, by: str
) -> None:
    missing = {True: {"Send", "Listen"}, False: {"Listen"}}[create]

    primary = by_string(broker, "contoso", KEY_PARTS)
    secondary = with_right(broker, "contoso-dr", right, by)
    options = one_queue(create_backlog_queues=create)
    if right in missing:
        needed = "Manage" if create else "Send"
        with pytest.raises(MissingRightError, match=f"the {needed} right") as caught:
            async with pair_namespaces(primary, secondary, options):
                raise AssertionError
        assert "\n" not in str(caught.value)
        return
    async with (
        pair_namespaces(primary, secondary, options) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        assert pair.backlog_queues == BACKLOG
        pair.force_failover("orders")
        await sender.send_messages(ServiceBusMessage("diverted"))
    await drain(broker.connection_string("contoso-dr"), BACKLOG[0], 1)


@pytest.mark.parametrize(
    ("primary_right", "secondary_right", "missing"),
    [("Send", "Listen", None), ("Send", "Send", "Listen"), ("Listen", "Listen", "Send")],
)
@pytest.mark.usefixtures("backlog")
async def test_a_syphon_needs_listen_on_the_secondary_and_send_on_the_primary(
    broker: EmbeddedBroker, primary_right: str, secondary_right: str, missing: str | None, by: str
) -> None:
    async with rooted(broker) as pair, pair.get_queue_sender("orders") as sender:
        pair.force_failover("orders")
        await sender.send_messages(ServiceBusMessage("moved"))
    host = SyphonHost(
        with_right(broker, "contoso", primary_right, by),
        with_right(broker, "contoso-dr", secondary_right, by),
        BACKLOG,
    )
    await host.start()
    try:
        if missing is None:
            await until(lambda: sum(r.pump.completed for r in host.relays) == 1)
        else:
            # What is in the way names the right; the message stays where it is.
            await until(lambda: f"'{missing}' claim" in str(host.status()))
    finally:
        await host.close()
    place, queue = ("contoso", "orders") if missing is None else ("contoso-dr", BACKLOG[0])
    left = await drain(broker.connection_string(place), queue, 1, wait_s=10)
    assert bodies(left) == ["moved"]


async def test_a_key_of_one_entity_opens_that_entity_alone(broker: EmbeddedBroker) -> None:
    own = AuthorizationRule(key_name="own", primary_key="k", rights=frozenset({"Send"}))
    broker.create_queue("private", QueueDescription(authorization_rules=(own,)))

    primary = by_string(broker, "contoso", "SharedAccessKeyName=own;SharedAccessKey=k")
    secondary = by_string(broker, "contoso-dr", KEY_PARTS)
    async with pair_namespaces(primary, secondary, one_queue()) as pair:
        async with pair.get_queue_sender("private") as sender:
            await sender.send_messages(ServiceBusMessage("x"))
        async with pair.get_queue_sender("orders") as sender:
            with pytest.raises(ServiceBusError, match="own"):
                await sender.send_messages(ServiceBusMessage("x"))
        assert pair.status().entities["orders"].state == "healthy"
