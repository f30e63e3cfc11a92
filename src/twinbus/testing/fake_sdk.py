"""Clients, senders and receivers like those of `azure.servicebus.aio`, without a network.

They have the surface that a pair uses. A `FakeLink` decides how each call ends: the one of a
`FakeSide` asks a coroutine function of the test, and keeps what it took in memory.

    side = FakeSide()
    side.behaviour = refuses                    # every entity
    side.by_entity["orders"] = hangs            # one entity
    namespace = FakeNamespace("contoso", side)  # what a pair is given

A `FakePair` is a paired client over two of them, with the lines of its ledger; for a `VirtualLoop`:

    async def test() -> None:
        pair = FakePair(failover_interval=10.0)
        pair.primary.behaviour = refuses
        sender = pair.client.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("x"), timeout=60)
        assert pair.elapsed == 10.0
        assert [path for path, _ in pair.secondary.took] == ["contoso/x-servicebus-transfer/0"]
        await pair.client.close()
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions

if TYPE_CHECKING:
    from twinbus.ledger import LineForm

Behaviour = Callable[[Any], Awaitable[None]]
"""Gets what is sent, or None when a link is opened or peeked; returns, raises or waits."""

LinkRole = Literal["sender", "receiver"]

MESSAGE_BYTES: Final = 262_144
"""The largest message that a fake link takes, as the standard tier has it."""


async def accepts(_: Any) -> None:
    """A peer that works."""


async def refuses(_: Any) -> None:
    """A peer that nobody listens at."""
    raise ConnectionRefusedError("refused")


async def hangs(_: Any) -> None:
    """A peer that never answers."""
    await asyncio.Event().wait()


class FakeLink(Protocol):
    """One link to one entity: what each call of the SDK comes to."""

    @property
    def batch_bytes(self) -> int | None:
        """The size of a batch; None: the link does not tell."""

    @property
    def is_cut_off(self) -> bool:
        """Whether the peer has ended the connection."""

    async def open(self) -> None:
        """Attach the link, if that is not done yet."""

    async def send(self, payload: Any) -> None:
        """Return when the peer has stored a message, or a list or batch of them."""

    async def peek(self, count: int, first: int) -> list[Any]:
        """At most `count` messages from sequence number `first` on."""

    async def close(self) -> None:
        """Let the link go."""


class FakeClient:
    """A `ServiceBusClient` whose links a test makes."""

    def __init__(self, connect: Callable[[str, LinkRole], FakeLink]) -> None:
        """`connect` makes the link of a sender or receiver from the entity's path."""
        self._connect = connect

    def get_queue_sender(self, name: str, **_: Any) -> FakeSender:
        return FakeSender(self._connect(name, "sender"))

    get_topic_sender = get_queue_sender

    def get_queue_receiver(self, name: str, **_: Any) -> FakeReceiver:
        return FakeReceiver(self._connect(name, "receiver"))

    async def close(self) -> None:
        """Nothing to close: each sender is closed by its owner."""


class FakeSender:
    """A `ServiceBusSender`: opens its link with the first call, serves one call at a time."""

    def __init__(self, link: FakeLink) -> None:
        self._link = link
        self._in_use = False
        self._max_message_size_on_link = None if link.batch_bytes is None else MESSAGE_BYTES
        # Where a pair looks for the end of a connection that nobody uses.
        transport = SimpleNamespace(reader=_Reader(link), writer=None)
        self._handler = SimpleNamespace(_connection=SimpleNamespace(_transport=transport))

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> Any:
        """Open the link; an empty batch, or None if the link does not tell its size."""
        await self._link.open()
        limit = max_size_in_bytes or self._link.batch_bytes
        if limit is None:
            return None
        from azure.servicebus import ServiceBusMessageBatch

        return ServiceBusMessageBatch(limit)

    async def send_messages(self, message: Any, **_: Any) -> None:
        assert not self._in_use, "two calls on one sender at once"
        self._in_use = True
        try:
            await self._link.send(message)
        finally:
            self._in_use = False

    async def close(self) -> None:
        await self._link.close()


class _Reader:
    """The stream of a connection, as far as a pair looks at it."""

    _exception = None

    def __init__(self, link: FakeLink) -> None:
        self._link = link

    @property
    def _eof(self) -> bool:
        return self._link.is_cut_off


class FakeReceiver:
    """A `ServiceBusReceiver` that only peeks."""

    def __init__(self, link: FakeLink) -> None:
        self._link = link
        self._prefetch_count = 0

    async def __aenter__(self) -> Self:
        await self._link.open()
        return self

    async def peek_messages(self, count: int, *, sequence_number: int) -> list[Any]:
        assert self._prefetch_count == -1, "opening the link would lock a message"
        return await self._link.peek(count, sequence_number)

    async def close(self) -> None:
        await self._link.close()


@dataclass
class FakeSide:
    """One namespace in memory: what its entities do to calls, and what they took."""

    behaviour: Behaviour = accepts
    by_entity: dict[str, Behaviour] = field(default_factory=dict)
    """Entities that behave otherwise, by path."""
    took: list[tuple[str, Any]] = field(default_factory=list)
    """Path and payload of every call that succeeded."""
    opened: int = 0
    """Senders that were made."""
    closed: int = 0
    busy: int = 0
    busiest: int = 0
    """The most calls that were under way at a time."""
    drained: int = 0
    """So many of the calls in `took`, the oldest first, are no longer there to be peeked."""
    peeks: int = 0

    def connect(self, path: str, role: LinkRole) -> FakeLink:
        """A link to one entity, for a `FakeClient`."""
        if role == "sender":
            self.opened += 1
        return _MemoryLink(self, path, role)

    async def meet(self, path: str, payload: Any) -> None:
        """Let the entity do to a call what it does."""
        await self.by_entity.get(path, self.behaviour)(payload)


@dataclass
class _MemoryLink:
    side: FakeSide
    path: str
    role: LinkRole
    batch_bytes: int | None = None
    is_cut_off: bool = False

    async def open(self) -> None:
        await self.side.meet(self.path, None)

    async def send(self, payload: Any) -> None:
        side = self.side
        side.busy += 1
        side.busiest = max(side.busiest, side.busy)
        try:
            await side.meet(self.path, payload)
        finally:
            side.busy -= 1
        side.took.append((self.path, payload))

    async def peek(self, count: int, first: int) -> list[Any]:
        side = self.side
        await side.meet(self.path, None)
        side.peeks += 1
        page: list[Any] = []
        for number, (path, payload) in enumerate(side.took, 1):
            if path == self.path and number >= max(first, side.drained + 1):
                for message in payload if isinstance(payload, list) else [payload]:
                    message.sequence_number = number
                    page.append(message)
        return page[:count]

    async def close(self) -> None:
        if self.role == "sender":
            self.side.closed += 1


class FakeNamespace(Namespace):
    """A namespace whose clients lead to a `FakeSide`."""

    def __init__(self, name: str, side: FakeSide) -> None:
        from azure.core.credentials import AzureNamedKeyCredential

        super().__init__(f"{name}.servicebus.windows.net", AzureNamedKeyCredential("a", "b"))
        self._side = side

    async def resolve(self) -> None:
        """Nothing to look up."""

    def client(self, **options: Any) -> Any:
        """A fake client; a pair turns the SDK's own retries off."""
        assert options["retry_total"] == 0
        return FakeClient(self._side.connect)


class LedgerLines:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        self.lines.append({"operation": operation, **fields})

    def record_message(self, form: LineForm, latency_us: int, message: Any) -> None:
        self.record_messages(form, latency_us, [message])

    def record_messages(self, form: LineForm, latency_us: int, messages: Any) -> None:
        for message_id, size_bytes in messages:
            line = {"latency_us": latency_us, "message_id": message_id, "size_bytes": size_bytes}
            self.lines.append({"operation": form.operation, **form.fields, **line})

    def flush(self) -> None:
        """Nothing to write."""

    def close(self) -> None:
        """Nothing to close."""

    def of(self, operation: str, *names: str) -> list[tuple[Any, ...]]:
        """The given fields of every line of an operation."""
        return [
            tuple(line.get(name) for name in names)
            for line in self.lines
            if line["operation"] == operation
        ]


class FakePair:
    """A paired client with three backlog queues over two fake namespaces."""

    def __init__(self, **options: Any) -> None:
        """`options` are those of SendAvailabilityOptions; made on a running loop."""
        from twinbus.client.connection import Environment
        from twinbus.pairing.observing.recording import Recorder
        from twinbus.pairing.sending.client import PairedClient

        self.primary, self.secondary, self.ledger = FakeSide(), FakeSide(), LedgerLines()
        sides = FakeNamespace("contoso", self.primary), FakeNamespace("dr", self.secondary)
        settings: dict[str, Any] = {
            "backlog_queue_count": 3,
            "failover_interval": 10.0,
            "ping_primary_interval": 60.0,
            "attempt_timeout": 5.0,
        }
        self.client = PairedClient(
            *sides,
            SendAvailabilityOptions(**{**settings, **options}),
            Recorder(self.ledger, *sides),
            Environment(choose=lambda queues: queues[0], chance=lambda: 0.0),
        )
        for path in self.client.state.paths:
            self.client.state.rotation.add(path)
        self._began = self.now

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def elapsed(self) -> float:
        """Seconds since the pair was made."""
        return round(self.now - self._began, 3)

    def state(self, path: str = "orders") -> str:
        """The state of an entity: healthy, suspect, failed over, unusable."""
        return self.client.entity(path).failover.state.value
