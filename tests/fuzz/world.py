"""A broker without sockets that a fuzzer attacks, an honest neighbour, and what must hold.

Invariants, checked by `FuzzWorld.check`:

- no error but a `Refusal` leaves the code: nothing is raised, nothing is logged as an error;
- nothing is half done: what is in memory is what a restart would find;
- a client that is gone leaves no consumer and no session lock;
- a neighbour's messages arrive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Self

from tests.fuzz.engine import (
    FuzzEngine,
    RecordedStore,
    check_same,
    create_entities,
    queues_of,
)
from tests.unit.broker.links.joined import JoinedClient
from twinbus.amqp.events import DeliveryArrived, Detached, Disposed
from twinbus.amqp.link import LinkState
from twinbus.amqp.message import Properties, decode_properties, encode_message, split
from twinbus.amqp.performatives import Accepted, Source, Target
from twinbus.amqp.session import HANDLE_MAX
from twinbus.amqp.types import Symbol
from twinbus.broker.access import Admission
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.links.receiving import DeliveringLink
from twinbus.broker.profile import LAPTOP
from twinbus.broker.sas import AcceptedToken
from twinbus.broker.server import BrokerServer
from twinbus.gateway.server import GatewayServer

RIGHTS = ("Manage", "Listen", "Send", "Nobody")
TOKENS = tuple(
    AcceptedToken(
        name=right,
        # All of one length, so that one stands in for another in a recording.
        text=f"SharedAccessSignature sr=x&sig=y&se=9999999999&skn={right:_<6}",
        rights=frozenset({right}) if right != "Nobody" else frozenset(),
    )
    for right in RIGHTS
)
MANAGE_TOKEN = TOKENS[0].text
OTHER_TOKENS = tuple(token.text.encode() for token in TOKENS[1:])

MESSAGES_MAX = 100_000
TICKS = 8
"""Loop iterations that one exchange needs, its commit included."""

SESSION = Symbol("com.microsoft:session-filter")
ADDRESSES = ("orders", "talks", "news", "news/subscriptions/all", "once", "orders/$deadletterqueue")


class ErrorLog(logging.Handler):
    """Collects what the broker logs as an error: each is a case that nobody foresaw."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(self.format(record))

    @contextmanager
    def collecting(self, *names: str) -> Iterator[None]:
        """Take the errors of these loggers, and show nothing of them elsewhere."""
        loggers = [logging.getLogger(name) for name in names]
        before = [(logger.level, logger.propagate) for logger in loggers]
        for logger in loggers:
            logger.addHandler(self)
            logger.setLevel(logging.ERROR)
            logger.propagate = False
        try:
            yield
        finally:
            for logger, (level, propagate) in zip(loggers, before, strict=True):
                logger.removeHandler(self)
                logger.setLevel(level)
                logger.propagate = propagate


class FuzzWorld:
    rules: tuple[AuthorizationRule, ...] = ()
    turns_max = 12
    """Turns of the loop in which a neighbour's send is answered; alone it takes three."""
    opening_turns = 4
    """Turns in which the links of a client are open."""

    def __init__(self) -> None:
        self.store = RecordedStore()
        self.server = BrokerServer(
            "b",
            self.store,
            list(self.rules),
            tokens=lambda: TOKENS,
            admission=Admission(),
            # More links on one session than the default: their number must cost a frame nothing.
            profile=replace(LAPTOP, handle_max=HANDLE_MAX),
        )
        create_entities(self.server.namespace, self.server.now_ms())
        self.log = ErrorLog()
        self.errors: list[str] = []

    @property
    def front(self) -> BrokerServer | GatewayServer:
        """What the clients connect to."""
        return self.server

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[Self]:
        world = cls()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, found: world.errors.append(repr(found)))
        with world.log.collecting("twinbus", "uvicorn"):
            yield world
        await world.server.close()

    async def check(self) -> None:
        """Check every invariant that does not depend on what the fuzzer did."""
        await self.server.commit.durable()
        self.check_errors()
        self._check_consumers()
        self.check_stored()
        await self._check_neighbour()
        self.check_errors()

    def check_limits(self) -> None:
        """Check the limits of what the clients are connected to, beside those of every broker."""

    async def settle_down(self) -> None:
        """Let everything end that clients who are gone have begun."""
        for _ in range(5):
            await asyncio.sleep(0)

    def check_errors(self) -> None:
        found = [*self.log.errors, *self.errors]
        assert not found, "\n".join(found)
        assert self.server.engine_failures == 0

    # Nothing half done

    def check_stored(self) -> None:
        """What is in memory is what a restart finds."""
        self.store.take_batch()
        check_same(self.server.namespace, FuzzEngine(self.store.copy()).namespace)

    # Nobody left

    def _check_consumers(self) -> None:
        dispatcher = self.server.dispatcher
        for table in (dispatcher._consumers, dispatcher._waiting):
            for queue, consumers in table.items():
                for consumer in consumers:
                    assert isinstance(consumer, DeliveringLink)
                    peer = consumer._client
                    assert peer in self.server.peers, f"{queue.path} has a consumer of nobody"
        for queue in queues_of(self.server.namespace):
            sessions = queue.states.sessions
            holders = [] if sessions is None else list(sessions._sessions.values())
            for session in holders:
                holder = session.holder
                gone = (
                    isinstance(holder, DeliveringLink) and holder._client not in self.server.peers
                )
                assert not gone, f"{session!r} is held by a client that is gone"

    # Neighbours arrive

    async def _check_neighbour(self) -> None:
        client = JoinedClient(self.server)
        await client.exchange(TICKS)
        session = client.connection.begin()
        await client.exchange(TICKS)
        for number, (target, source) in enumerate(
            (("orders", "orders"), ("talks", "talks"), ("news", "news/subscriptions/safe"))
        ):
            sender = session.attach_sender(
                f"to-{target}", source=Source(address="me"), target=Target(address=target)
            )
            filters = {SESSION: "neighbour"} if target == "talks" else None
            receiver = session.attach_receiver(
                f"from-{target}",
                source=Source(address=source, filter=filters),
                target=Target(address="me"),
                settled=True,
            )
            await client.exchange(TICKS)
            assert sender.state is LinkState.OPEN, f"{target} refuses a neighbour"
            assert receiver.state is LinkState.OPEN, f"{source} refuses a neighbour"
            receiver.grant(MESSAGES_MAX)
            name = f"neighbour-{number}"
            sender.send(message(name, session="neighbour"), name.encode())
            seen = await client.exchange(TICKS)
            assert any(
                isinstance(event, Disposed) and isinstance(event.state, Accepted) for event in seen
            ), f"a neighbour's send to {target} is not accepted: {seen}"
            while not any(_is_of(event, name) for event in seen):
                before = len(seen)
                seen += await client.exchange(TICKS)
                assert len(seen) > before, f"a neighbour's message to {target} does not arrive"
            receiver.detach()
            await client.exchange(TICKS)
        client.peer.connection_lost(None)


def at_most(what: str, held: int, limit: int) -> None:
    assert held <= limit, f"{what}: {held:,}, the limit is {limit:,}"


def _is_of(event: object, name: str) -> bool:
    assert not isinstance(event, Detached), f"a neighbour's link is detached: {event}"
    if not isinstance(event, DeliveryArrived):
        return False
    return decode_properties(split(event.payload).properties).message_id == name


def message(message_id: str, *, session: str | None = None, **sections: Any) -> bytes:
    properties = Properties(message_id=message_id, group_id=session)
    return encode_message(properties=properties, **{"data": b"x", **sections})
