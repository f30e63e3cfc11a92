"""Plain messages of one read on their way to a healthy primary, as the bytes that they came in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twinbus.amqp.events import DeliveryArrived
from twinbus.broker.messages.plain import PlainShapes
from twinbus.client.in_flight import RunOwner
from twinbus.gateway.messages import plain_bytes_max, takes_as_it_is

if TYPE_CHECKING:
    from twinbus.amqp.events import DeliveryRun
    from twinbus.amqp.link import ReceiverLink
    from twinbus.broker.messages.plain import PlainShape
    from twinbus.pairing.sending.calls import SendTarget


class RunLink(Protocol):
    """The client's link, which decides what becomes of its deliveries."""

    link: ReceiverLink

    def run_accepted(self, run: DirectRun, first: int, last: int) -> None: ...
    def run_failed(self, run: DirectRun, place: int, error: Exception) -> None: ...


class DirectRun(RunOwner):
    """Deliveries of a client that went to the primary together."""

    __slots__ = ("_link", "_shape", "first_id", "first_number", "payloads", "sent_at")

    def __init__(
        self,
        link: RunLink,
        shape: PlainShape,
        payloads: list[bytes],
        first_id: int,
        sent_at: float,
    ) -> None:
        self._link = link
        self._shape = shape
        self.payloads = payloads
        """Of those without an answer; empty for the others."""
        self.first_id = first_id
        """The client's delivery id of the first."""
        self.first_number = 0
        """The place of the first among those that the link sent directly."""
        self.sent_at = sent_at

    def accepted(self, first: int, last: int) -> None:
        self._link.run_accepted(self, first, last)

    def failed(self, place: int, error: Exception) -> None:
        self._link.run_failed(self, place, error)

    def take(self, first: int, last: int) -> list[bytes]:
        """Remove and return the payloads of these: what was answered takes no memory."""
        taken = self.payloads[first : last + 1]
        self.payloads[first : last + 1] = [b""] * len(taken)
        return taken

    def arrival(self, place: int) -> DeliveryArrived:
        """One of them as it came."""
        (payload,) = self.take(place, place)
        link = self._link.link
        return DeliveryArrived(link, self.first_id + place, b"", 0, False, payload)

    def measured(self, payloads: list[bytes]) -> list[tuple[str | None, int | None]]:
        """Id and body size of these messages, for the ledger."""
        shape = self._shape
        start, end, body_at = shape.id_at, shape.id_end, shape.body_at
        return [(each[start:end].decode(), len(each) - body_at) for each in payloads]


class PlainDeliveries:
    """Finds the deliveries of one link that may pass as they are."""

    __slots__ = ("_shapes", "_target")

    def __init__(self, target: SendTarget) -> None:
        self._target = target
        self._shapes = PlainShapes()

    def count(self, run: DeliveryRun, limit_bytes: int | None) -> tuple[int, PlainShape | None]:
        """How many, from the first on, look alike and need no reading; and their shape.

        `limit_bytes` is what the primary's link takes.
        """
        state, path = self._target.state, self._target.entity.path
        has_own_ids = state.message_ids.own_in_backlog
        most_bytes = plain_bytes_max(path, state.limits.watched, has_own_ids=has_own_ids)
        if limit_bytes is not None:
            most_bytes = min(most_bytes, limit_bytes)
        shapes, data, spans = self._shapes, run.data, run.spans
        shapes.brought(len(spans))
        shape = shapes.shape
        count = 0 if shape is None else shape.count(data, spans, most_bytes)
        if not count:
            _, start, stop = spans[0]
            shape = shapes.learn(data[start:stop])
            count = 0 if shape is None else shape.count(data, spans, most_bytes)
        if shape is None or not takes_as_it_is(shape.fixed):
            return 0, None
        return count, shape
