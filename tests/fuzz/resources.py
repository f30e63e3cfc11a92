"""Clients that take what they can get: limits hold, memory comes back, and no one else waits.

Some clients of one broker begin sessions, open links, leave deliveries unfinished, put tokens,
create rules, ask for answers and read none, in any order. After each step a neighbour's send must
be answered within few turns of the loop, and what the clients hold must be within the limits of
docs/security.md. When all have left and the entities are new, the memory is what it was before.
"""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hypothesis import Phase
from hypothesis import strategies as st

from tests.fuzz.engine import create_entities, queues_of
from tests.fuzz.part import Part, run_async
from tests.fuzz.world import MANAGE_TOKEN, FuzzWorld, at_most, message
from tests.unit.broker.links.joined import SLICES_MAX, TICKS, JoinedClient
from twinbus.amqp.events import Disposed
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.link import LinkState, ReceiverLink, SenderLink
from twinbus.amqp.message import BATCH_FORMAT, Properties, encode_message
from twinbus.amqp.performatives import Source, Target, Transfer
from twinbus.amqp.session import Session
from twinbus.amqp.types import UInt
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.topic import Subscription
from twinbus.broker.links import management
from twinbus.broker.links.client_limits import UNWRITTEN_BYTES_MAX
from twinbus.broker.links.context import REPLIES_MAX, ReplyLink, owner_of
from twinbus.broker.sas import AUDIENCE_MAX, GRANTS_MAX

CLIENTS: Final = 3
HEALTHY: Final = "healthy"
SEND_MAX_S: Final = 3.0
"""Processor time of the same, of a step of the others too. Generous: memory is traced here."""
LEFT_BYTES_MAX: Final = 400_000
"""What an example may leave: caches of the process that have a bound of their own."""
RULES_MAX: Final = 2_000
WAVE_STEPS: Final = 100
PIECE: Final = b"x" * 30_000
NAME: Final = "n" * 20_000


@dataclass(frozen=True)
class Step:
    """What one client does next, and how much of it."""

    client: int
    act: str
    number: int


class Taker:
    """One client; when the broker has closed its connection, it comes again."""

    def __init__(self, world: FuzzWorld, number: int) -> None:
        self.world = world
        self._name = f"taker{number}"
        self._count = 0
        self.client: JoinedClient | None = None
        self._session: Session
        self._senders: dict[str, SenderLink] = {}
        self._reads = True

    async def act(self, step: Step, acts: Acts) -> None:
        if self.client is not None and self.client.transport.is_closed:
            self.leave()
        if self.client is None:
            await self._come()
        acts[step.act](self, step.number)
        await self._carry(3)

    def leave(self, _: int = 0) -> None:
        if self.client is not None:
            self.client.peer.connection_lost(None)
            self.client.transport.written = b""  # Timers of the broker know the transport.
        self.client = None
        self._senders.clear()

    async def _come(self) -> None:
        client = self.client = JoinedClient(self.world.front)
        self._reads = True
        await client.exchange(4)
        self._session = client.connection.begin()
        await client.exchange(4)
        self._senders = {
            address: self._session.attach_sender(
                address, source=Source(address="r"), target=Target(address=address)
            )
            for address in ("orders", "news", "orders/$management", "$cbs", RULES_NODE)
        }
        for address in ("orders/$management", "$cbs", RULES_NODE):
            source = Source(address=address)
            self._session.attach_receiver(f"r{address}", source=source, target=Target(address="r"))
        await client.exchange(self.world.opening_turns)

    async def _carry(self, turns: int) -> None:
        client = self.client
        if client is None:
            return
        if self._reads:
            # What takes many slices goes on while the neighbour sends.
            await client.exchange(turns, waits=False)
            return
        if data := client.connection.take_output(1):
            client.peer.data_received(data)
        await _turns(turns)

    # What it does

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _raw(
        self, address: str, payload: bytes, *, more: bool = False, batch: bool = False
    ) -> None:
        """Send a transfer without regard to credit."""
        client, link = self.client, self._senders[address]
        assert client is not None
        if client.transport.is_closed:
            return
        transfer = Transfer(
            handle=UInt(link.handle),
            delivery_id=UInt(self._next()),
            delivery_tag=b"t",
            message_format=UInt(BATCH_FORMAT) if batch else None,
            settled=True,
            more=more,
        )
        client.peer.data_received(encode_frame(self._session.channel, transfer, payload))

    def receivers(self, number: int) -> None:
        for _ in range(1 + number % 200):
            self._session.attach_receiver(
                f"{self._name}-{self._next()}",
                source=Source(address=("orders", "once", "news/subscriptions/all")[number % 3]),
                target=Target(address="me"),
                properties={"p": NAME} if number % 5 == 0 else None,
            )

    def sessions(self, number: int) -> None:
        client = self.client
        assert client is not None
        for _ in range(1 + number % 100):
            client.connection.begin()

    def credit(self, number: int) -> None:
        for link in list(self._session.links.values()):
            if isinstance(link, ReceiverLink) and link.state is LinkState.OPEN:
                link.grant(1 + number % 100)

    def pieces(self, number: int) -> None:
        """A delivery that does not end."""
        address = ("orders", "orders/$management", "news")[number % 3]
        for _ in range(number % 60):
            self._raw(address, PIECE, more=True)

    def empty_pieces(self, number: int) -> None:
        for _ in range(number * 10):
            self._raw("orders", b"", more=True)

    def tokens(self, number: int) -> None:
        """Tokens by names that are long, or many."""
        for _ in range(1 + number % 30):
            length = (300, 5_000, 28_000)[number % 3]
            name = f"sb://b{self._next()}/orders".ljust(length, "/")
            self._request("$cbs", "put-token", {"name": name}, MANAGE_TOKEN)

    def parts(self, number: int) -> None:
        """Addresses that all lead to the same part of a queue."""
        for each in range(number % 100):
            address = f"orders{'/' * (each + 1)}$transfer/$deadletterqueue"
            self._session.attach_receiver(
                f"{self._name}-{self._next()}", source=Source(address=address), target=Target()
            )

    def ask(self, number: int) -> None:
        operation = list(management.OPERATIONS)[number % len(management.OPERATIONS)]
        body = {"message-count": 1_000, "from-sequence-number": 0, "top": 100, "skip": 0}
        for _ in range(number % 100):
            self._request("orders/$management", operation, {}, body)

    def rules(self, number: int) -> None:
        for _ in range(number % 50):
            text = f"n = 5 OR t = '{NAME[: number * 100]}'"
            rule: dict[str, Any] = {"sql-filter": {"expression": text}}
            if number % 4 == 0:
                rule["sql-rule-action"] = {"expression": "SET n = 1"}
            body = {"rule-name": f"{self._name}-{self._next()}", "rule-description": rule}
            self._request(RULES_NODE, "com.microsoft:add-rule", {}, body)

    def publish(self, number: int) -> None:
        for _ in range(1 + number % 20):
            self._raw("news", message("m", application_properties={"t": "x", "n": 5}))

    def batch(self, number: int) -> None:
        part = message("")
        body = (b"\x00\x53\x75\xa0" + bytes((len(part),)) + part) * (1 + number * 5)
        self._raw("orders", body[:60_000], batch=True)

    def stop_reading(self, number: int) -> None:
        client = self.client
        assert client is not None
        self._reads = not self._reads
        if self._reads:
            client.peer.resume_writing()
        else:
            client.peer.pause_writing()

    def _request(self, address: str, operation: str, headers: dict[str, Any], body: Any) -> None:
        payload = encode_message(
            properties=Properties(message_id=f"{self._next()}", reply_to="r"),
            application_properties={"operation": operation, **headers},
            value=body,
        )
        self._raw(address, payload)


RULES_NODE: Final = "news/subscriptions/all/$management"
Acts = dict[str, Callable[[Taker, int], None]]
ACTS: Final[Acts] = {
    "receivers": Taker.receivers,
    "sessions": Taker.sessions,
    "credit": Taker.credit,
    "pieces": Taker.pieces,
    "empty pieces": Taker.empty_pieces,
    "tokens": Taker.tokens,
    "parts": Taker.parts,
    "ask": Taker.ask,
    "rules": Taker.rules,
    "publish": Taker.publish,
    "batch": Taker.batch,
    "stop reading": Taker.stop_reading,
    "leave": Taker.leave,
}
stories = st.lists(
    st.builds(
        Step,
        st.integers(0, CLIENTS - 1),
        st.sampled_from(tuple(ACTS)),
        st.integers(0, 200),
    ),
    min_size=1,
    max_size=30,
)


class Neighbour:
    """A client that sends one message at a time to a queue of its own."""

    def __init__(self, world: FuzzWorld) -> None:
        self.world = world
        self._client = JoinedClient(world.front)
        self._link: SenderLink

    async def come(self) -> None:
        await self._client.exchange()
        session = self._client.connection.begin()
        await self._client.exchange()
        source, target = Source(address="me"), Target(address=HEALTHY)
        self._link = session.attach_sender("mine", source=source, target=target)
        await self._client.exchange(max(TICKS, self.world.opening_turns))

    async def send(self) -> int:
        """Send a message; the turns of the loop until it was accepted."""
        self._link.send(message("mine"), b"t")
        for turns in range(1, 10 * self.world.turns_max):
            if any(isinstance(event, Disposed) for event in await self._client.exchange(1)):
                return turns
        raise AssertionError("a neighbour's send got no answer")

    def leave(self) -> None:
        self._client.peer.connection_lost(None)


def check(story: list[Step]) -> None:
    run_async(play_and_check(story))


async def play_and_check(
    story: list[Step], kind: type[FuzzWorld] = FuzzWorld, acts: Acts | None = None
) -> None:
    """Play a story in a world of this kind; what the clients took must come back."""
    async with kind.running() as world:
        tracemalloc.start()
        try:
            acts = acts or ACTS
            await _play(world, [Step(0, act, 3) for act in acts], acts)  # What is made once.
            before = _held_bytes()
            await _play(world, story, acts)
            left = _held_bytes() - before
        finally:
            tracemalloc.stop()
        assert left < LEFT_BYTES_MAX, f"{left:,} bytes stay after the clients have left"
        world.check_errors()


async def waves_of(kind: type[FuzzWorld], acts: Acts, count: int, seed: int) -> list[int]:
    """Let waves of clients come and go; the resident bytes of this process after each."""
    chance, resident = random.Random(seed), []
    async with kind.running() as world:
        for _ in range(count):
            story = [
                Step(chance.randrange(CLIENTS), chance.choice(list(acts)), chance.randrange(201))
                for _ in range(WAVE_STEPS)
            ]
            await _play(world, story, acts)
            gc.collect()
            resident.append(_resident_bytes())
        world.check_errors()
    return resident


async def _play(world: FuzzWorld, story: list[Step], acts: Acts) -> None:
    namespace = world.server.namespace
    namespace.create_queue(HEALTHY, QueueDescription(), world.server.now_ms())
    neighbour, takers = Neighbour(world), [Taker(world, number) for number in range(CLIENTS)]
    await neighbour.come()
    for step in story:
        began_s = time.thread_time()
        await takers[step.client].act(step, acts)
        turns = await neighbour.send()
        took_s = time.thread_time() - began_s
        assert turns <= world.turns_max, f"a neighbour's send took {turns} turns after {step}"
        assert took_s <= SEND_MAX_S, f"a neighbour's send took {took_s:.1f} s with {step}"
        await _handled(world)
        _check_limits(world)
    for taker in takers:
        taker.leave()
    neighbour.leave()
    await _handled(world)
    await world.settle_down()
    paths = [queue.path for queue in namespace.queues()]
    for path in paths + [topic.path for topic in namespace.topics()]:
        namespace.delete(path, world.server.now_ms())
    await world.server.commit.durable()
    world.store.disk.clear()  # It keeps the messages of entities that are gone.
    create_entities(namespace, world.server.now_ms())


async def _handled(world: FuzzWorld) -> None:
    """Wait until the server has handled what clients have sent, or had when they left."""
    for _ in range(SLICES_MAX):
        if not world.front.turns:
            break
        await asyncio.sleep(0)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _check_limits(world: FuzzWorld) -> None:
    """The limits of docs/security.md that these clients could pass."""
    world.check_limits()
    server = world.server
    for peer in world.front.peers:
        names = peer.grants._by_audience
        at_most("tokens of a connection", len(names), GRANTS_MAX)
        at_most("characters of a token's name", max(map(len, names), default=0), AUDIENCE_MAX)
        at_most("unwritten bytes", peer._pressure.unwritten_bytes, 2 * UNWRITTEN_BYTES_MAX)
        for session in peer.connection.sessions.values():
            for link in session.links.values():
                owner = owner_of(link)
                if isinstance(owner, ReplyLink):
                    at_most("responses that wait", len(owner._waiting), REPLIES_MAX)
    directory = server.namespace._directory
    at_most("parts of entities", len(directory._parts), 2 * len(directory._entities))
    for queue in queues_of(server.namespace):
        at_most(f"memory of {queue.path}", queue.states.memory_bytes, queue.quota_bytes)
        if isinstance(queue, Subscription):
            at_most("rules of a subscription", len(queue.rules), RULES_MAX)


RESOURCES = Part(
    "resources",
    stories,
    check,
    finds=(
        # The second attack: parts by other spellings of an address, and long names of tokens.
        [Step(0, "parts", 99)],
        [Step(0, "tokens", 88)],
        # `urlsplit` keeps the last 128 addresses that it took apart; found by this part.
        [Step(0, "tokens", 89)],
    ),
    short=4,
    round=20,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
