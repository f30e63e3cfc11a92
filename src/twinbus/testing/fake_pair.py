"""A paired client over two fake namespaces, and the lines of its ledger; for a `VirtualLoop`.

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
from typing import TYPE_CHECKING, Any

from twinbus.options import SendAvailabilityOptions
from twinbus.testing.fake_sdk import FakeNamespace, FakeSide

if TYPE_CHECKING:
    from twinbus.ledger import LineForm

__all__ = ["FakePair", "LedgerLines"]


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
        from twinbus.client.environment import Environment
        from twinbus.pairing.sending.client import PairedClient
        from twinbus.pairing.sending.recording import Recorder

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
