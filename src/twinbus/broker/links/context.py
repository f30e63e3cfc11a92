"""What connections and links share, and what they may use of their broker.

The server owns one `BrokerContext` and gives it to each connection, which gives it to its links.
`LinkClient` is what a link may use of its own connection.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from twinbus.amqp.events import Disposed
from twinbus.amqp.link import Link, ReceiverLink, SenderLink
from twinbus.amqp.performatives import Error, Rejected
from twinbus.amqp.types import Symbol
from twinbus.broker.access import Admission
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.engine.limits import CreditAccount
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.faults import FaultPlan
from twinbus.broker.links.owner import Dispatcher, LinkOwner, ReplyLinks
from twinbus.broker.profile import ServiceProfile
from twinbus.broker.refusals import Refusal
from twinbus.broker.sas import AccessPolicy, ConnectionGrants
from twinbus.broker.storage.store import Store

CBS = "$cbs"


@dataclass(eq=False, kw_only=True, slots=True)
class BrokerContext:
    name: str
    loop: asyncio.AbstractEventLoop
    store: Store
    policy: AccessPolicy
    admission: Admission
    faults: FaultPlan
    engine_log: EngineLog | None
    """Present if the broker writes a ledger."""
    dispatcher: Dispatcher
    namespace: BrokerNamespace
    """This and the dispatcher are replaced after a failed commit."""
    now_ms: Callable[[], int]
    wake: Callable[[], None]
    """Schedules a tick at the end of this loop iteration."""
    require_space: Callable[[], None]
    """Raises `QuotaExceeded` while the disk is nearly full."""
    track: Callable[[Refusal], None]
    """Adds a TrackingId to a refusal's text, where it has none."""
    profile: ServiceProfile
    credits: CreditAccount | None
    """Present if the profile limits operations per second."""

    def resolve(self, path: str) -> object:
        """The entity at `path`; `EntityNotFound` if there is none."""
        return self.namespace.resolve(path)


class PeerContext(Protocol):
    """What one client's connection uses of the broker or gateway that it is connected to."""

    name: str
    loop: asyncio.AbstractEventLoop
    policy: AccessPolicy
    admission: Admission
    faults: FaultPlan
    profile: ServiceProfile

    def now_ms(self) -> int: ...
    def wake(self) -> None: ...
    def track(self, refusal: Refusal, /) -> None: ...
    def resolve(self, path: str) -> object: ...


class LinkClient(Protocol):
    """The connection of a link; `twinbus.broker.links.peer` describes the methods."""

    grants: ConnectionGrants
    replies: ReplyLinks

    @property
    def container_id(self) -> str: ...
    @property
    def takes_more(self) -> bool: ...
    def trust(self) -> None: ...
    def touch(self) -> None: ...
    def holder(self, link_name: str) -> object | None: ...
    def refuse(self, link: Link, address: str, refusal: Refusal) -> None: ...
    def detach(self, link: Link, refusal: Refusal) -> None: ...
    def log_refusal(self, what: str, refusal: Refusal) -> None: ...
    def later(self, delay_ms: int, action: Callable[[], None]) -> None: ...
    def drop(self) -> None: ...
    def drop_after_commit(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class LinkOpener(Protocol):
    """Opens a client's links to entities and their nodes; each method raises a `Refusal`.

    `$cbs` is not among them: the connection serves it itself.
    """

    def receiving(
        self, client: LinkClient, link: SenderLink, address: str, now_ms: int
    ) -> LinkOwner: ...
    def sending(
        self, client: LinkClient, link: ReceiverLink, address: str, now_ms: int
    ) -> LinkOwner: ...
    def requests(self, client: LinkClient, link: ReceiverLink, address: str) -> LinkOwner: ...
    def replies(self, client: LinkClient, link: SenderLink, address: str) -> LinkOwner: ...
    def settle(self, event: Disposed, now_ms: int) -> None:
        """Settle what the client received."""

    def disconnected(self, client: LinkClient) -> None:
        """The client's connection is gone; its links were closed before."""


def rejected(refusal: Refusal) -> Rejected:
    return rejected_with(refusal.condition, refusal.description)


def rejected_with(condition: str, description: str) -> Rejected:
    return Rejected(error=Error(condition=Symbol(condition), description=description))


LOCK_TOKEN_BYTES = 16
LOCK_TOKENS_AT_ONCE = 256


class LockTokens:
    """Gives fresh tokens that nobody can guess; who knows one can settle its message.

    Random bytes are fetched for many tokens at once: a uuid4 for each would cost 2 us.
    """

    def __init__(self) -> None:
        self._fresh: list[bytes] = []

    def __call__(self) -> bytes:
        if not self._fresh:
            chance = os.urandom(LOCK_TOKEN_BYTES * LOCK_TOKENS_AT_ONCE)
            starts = range(0, len(chance), LOCK_TOKEN_BYTES)
            self._fresh = [chance[start : start + LOCK_TOKEN_BYTES] for start in starts]
        return self._fresh.pop()


def new_message_id() -> str:
    """An id for a message that came without one, as Azure gives it: 32 hex digits."""
    # `uuid4().hex` takes five times as long, a sixth of what such a message costs.
    return os.urandom(16).hex()


MARK = " TrackingId:"


class RefusalTracker:
    def __init__(self, namespace: str, now_ms: Callable[[], int]) -> None:
        self._namespace = namespace
        self._now_ms = now_ms

    def __call__(self, refusal: Refusal) -> None:
        """Extend the refusal's text, once."""
        if not refusal.is_tracked or MARK in refusal.description:
            return
        now = datetime.fromtimestamp(self._now_ms() / 1000, UTC)
        refusal.description += (
            f"{MARK}{uuid.uuid4()}_B, SystemTracker:{self._namespace}, "
            f"Timestamp:{now:%Y-%m-%dT%H:%M:%S}"
        )
