"""A pair over a make-believe SDK, on an event loop whose time moves only when nothing else can."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from azure.core.credentials import AzureNamedKeyCredential

from twinbus.ledger import LineForm
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.sending.client import PairedClient
from twinbus.pairing.sending.recording import Recorder

T = TypeVar("T")

Behaviour = Callable[[Any], Awaitable[None]]


class _NoWaiting:
    """A selector that never sleeps: what it would have waited, the clock moves on."""

    def __init__(self, loop: VirtualLoop, inner: selectors.BaseSelector) -> None:
        self._loop, self._inner = loop, inner

    def select(self, timeout: float | None = None) -> Any:
        ready = self._inner.select(0)
        if not ready:
            assert timeout is not None, "everything waits for something that never comes"
            self._loop.now += timeout
        return ready

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time: an hour of waiting takes no time at all."""

    def __init__(self) -> None:
        self.now = 1_000.0
        inner = selectors.DefaultSelector()
        super().__init__(cast("selectors.BaseSelector", _NoWaiting(self, inner)))

    def time(self) -> float:
        return self.now


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario in virtual time; no task may be left at its end."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:

        async def alone() -> T:
            result = await scenario
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"left behind: {left}"
            return result

        return runner.run(alone())


async def takes_it(_: Any) -> None:
    """A peer that works."""


async def refuses(_: Any) -> None:
    raise ConnectionRefusedError("refused")


async def hangs(_: Any) -> None:
    await asyncio.Event().wait()


@dataclass
class FakeSide:
    """One namespace: what its entities do, and what they took and when."""

    behaviour: Behaviour = takes_it
    by_entity: dict[str, Behaviour] = field(default_factory=dict)
    took: list[tuple[str, Any]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    busy: int = 0
    busiest: int = 0
    drained: int = 0
    """Of what was taken so many calls are no longer there, the oldest first."""
    peeks: int = 0

    def get_queue_receiver(self, name: str, **_: Any) -> FakeReceiver:
        return FakeReceiver(self, name)

    def get_queue_sender(self, name: str, **_: Any) -> FakeSender:
        return FakeSender(self, name)

    get_topic_sender = get_queue_sender

    async def close(self) -> None:
        """Nothing to close."""


class FakeSender:
    """What a sender of the SDK is to a pair."""

    def __init__(self, side: FakeSide, name: str) -> None:
        self._side, self._name = side, name
        side.opened += 1
        self._in_use = False

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> None:
        await self._behave(None)

    async def send_messages(self, message: Any) -> None:
        assert not self._in_use, "two calls on one sender at once"
        self._in_use = True
        self._side.busy += 1
        self._side.busiest = max(self._side.busiest, self._side.busy)
        try:
            await self._behave(message)
        finally:
            self._in_use = False
            self._side.busy -= 1
        self._side.took.append((self._name, message))

    async def close(self) -> None:
        self._side.closed += 1

    async def _behave(self, message: Any) -> None:
        await self._side.by_entity.get(self._name, self._side.behaviour)(message)


class FakeReceiver:
    """What a receiver of the SDK is to the census: it opens, peeks and closes."""

    def __init__(self, side: FakeSide, name: str) -> None:
        self._side, self._name = side, name
        self._prefetch_count = 0

    async def __aenter__(self) -> None:
        await self._side.by_entity.get(self._name, self._side.behaviour)(None)

    async def peek_messages(self, count: int, *, sequence_number: int) -> list[Any]:
        assert self._prefetch_count == -1, "it would lock a message"
        await self._side.by_entity.get(self._name, self._side.behaviour)(None)
        self._side.peeks += 1
        page: list[Any] = []
        for number, (name, message) in enumerate(self._side.took, 1):
            if name == self._name and number >= max(sequence_number, self._side.drained + 1):
                for one in message if isinstance(message, list) else [message]:
                    one.sequence_number = number
                    page.append(one)
        return page[:count]

    async def close(self) -> None:
        """Nothing to close."""


class FakeNamespace(Namespace):
    """A namespace whose clients lead to a FakeSide."""

    def __init__(self, name: str, side: FakeSide) -> None:
        super().__init__(f"{name}.servicebus.windows.net", AzureNamedKeyCredential("a", "b"))
        self._side = side

    def client(self, **options: Any) -> Any:
        assert options["retry_total"] == 0
        return self._side


class Notes:
    """A ledger that keeps its lines."""

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


class PairWorld:
    """A paired client with three backlog queues over two make-believe namespaces."""

    def __init__(self, **options: Any) -> None:
        self.primary, self.secondary, self.notes = FakeSide(), FakeSide(), Notes()
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
            Recorder(self.notes, *sides),
            pick=lambda queues: queues[0],
        )
        for path in self.client.state.paths:
            self.client.state.rotation.add(path)
        self._began = self.now

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def elapsed(self) -> float:
        """Seconds since the world began."""
        return round(self.now - self._began, 3)

    def state(self, path: str = "orders") -> str:
        return self.client.entity(path).failover.state.value
