"""What a call needs to send: its messages, and a carrier that brings them to one entity.

The decisions of a call are the same whatever carries it: messages of the SDK (`Outgoing`) with its
senders (`SenderPool`) or with links of our own (`OwnLinks`), or encoded messages and links in a
gateway (`EncodedMessages`, `LinkPool`). tests/contract/test_carriers.py holds all to one contract.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from twinbus.errors import BacklogGuardError
from twinbus.servicebus.twins import DivertMark

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage


class OutgoingMessages(Protocol):
    """The messages of one call."""

    payload: Any
    """What `send_messages` of a carrier takes."""
    suspects: list[Any]
    """Messages that a backlog queue may not take."""

    @property
    def ids(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def measured(self) -> Sequence[tuple[str | None, int | None]]:
        """Return the id and the body size of each message, for the ledger."""

    def diverted(self, limit_bytes: int | None) -> Any:
        """Return copies for a backlog queue with this limit, as `send_messages` takes them.

        BacklogGuardError, before anything is sent, if the queue could not store one of them.
        """

    def twinned(self, limit_bytes: int | None, mark: DivertMark) -> Any:
        """Return the messages as they are, with this mark, for a twin with this limit.

        BacklogGuardError, before anything is sent, if the twin would not take one of them.
        """

    def flaws(self, limit_bytes: int | None) -> list[BacklogGuardError]:
        """Return an error for each suspect that a backlog queue with this limit would not take."""

    def refused_size(self, limit_bytes: int, *, was_sent: bool) -> int | None:
        """Return the size that a link with this limit refuses; None: it may not refuse it."""

    def halves(self) -> Sequence[OutgoingMessages]:
        """Return the same messages in two calls, for a batch too large with its aliases."""

    def by_session(self) -> Mapping[str | None, list[Any]]:
        """Return the messages of each session; under None those without one."""

    def parts(self) -> Sequence[OutgoingMessages]:
        """Return the same messages in one call for each session."""


class Carrier(Protocol):
    """Carries messages to one queue or topic: lease a sender, then attempt an operation with it."""

    @property
    def closed(self) -> bool: ...

    @property
    def limit_bytes(self) -> int | None:
        """The largest message that the entity takes, as the last link reported."""

    def take(self) -> Any | None:
        """Lease a sender for one attempt; None: all are in use."""

    async def lease(self, until: float, is_wanted: Callable[[], bool]) -> Any | None:
        """Wait for a free sender; None: it is not wanted any more, or the time is over.

        OpeningFailed: the link that this call waited for could not be opened.
        """

    async def attempt(
        self,
        pooled: Any,
        operation: Callable[[Any], Awaitable[Any]],
        timeout_s: float,
        *,
        is_late: bool = False,
    ) -> Any:
        """Open the link unless it is open, and carry out one operation on a leased sender.

        TimeoutError after `timeout_s`; CutShort, which is no evidence against the entity, if the
        call `is_late` and had too little time left for an answer. `servicebus.failures` says what
        any other error means.
        """

    def invalidate(self) -> None:
        """Use none of the present links again: what broke one has broken all."""

    def open_ahead(self) -> None:
        """Begin to open a link for the next call; a failure shows when it is used."""

    def wake_all(self) -> None:
        """Let every call that waits in `lease` check whether it still wants a sender."""

    async def close(self, limit_s: float) -> None:
        """Take no more calls; wait up to `limit_s` for those that are under way."""


class SenderCarrier(Carrier, Protocol):
    """Carries what an application's sender sends: messages of the SDK."""

    on_slow: Callable[[], None] | None
    """Called when an attempt takes long, again and again until it ends."""
    on_open_failed: Callable[[Exception], None] | None
    """Called when a link did not open, after every call that waited for it had given up."""
    jitter: Callable[[], float] | None
    """Set: an idle link is kept ready. Numbers from 0 to 1: not all do something at once."""

    @property
    def batch_limit_bytes(self) -> int | None:
        """The largest batch that the entity takes, as the last link reported."""

    def take_ready(self, now: float) -> Any | None:
        """Lease a sender whose link is open; None: `take` must find or open one.

        Every healthy send calls this.
        """

    async def send_ready(
        self, pooled: Any, message: ServiceBusMessage, now: float, timeout_s: float
    ) -> None:
        """Send one message with a sender of `take_ready`; the short form of `attempt`.

        A CancelledError for which `was_carried_out` holds: the message was sent all the same.
        """
