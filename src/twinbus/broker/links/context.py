"""What connections and links share: owners of links, replies, and their context.

A connection calls the `LinkOwner` of each of its links. Receivers of entities also register with
the `Dispatcher`, which delivers messages to them in turn. `BrokerContext` is
what links may use of the server, `LinkClient` what they may use of their own connection.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar

from twinbus.amqp.budgets import PIECE_BYTES, Budget, BudgetExceeded
from twinbus.amqp.events import DeliveryArrived, DeliveryRun, DeliveryTooLarge, Disposed
from twinbus.amqp.link import Link, LinkSession, LinkState, ReceiverLink, SenderLink
from twinbus.amqp.performatives import Error, Rejected, Target
from twinbus.amqp.types import Symbol
from twinbus.broker.access import Admission
from twinbus.broker.budgets import ClientBudgets
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.engine.limits import CreditAccount
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.faults import FaultPlan
from twinbus.broker.links.dispatch import Dispatcher
from twinbus.broker.links.turns import Steps, Turns
from twinbus.broker.profile import ServiceProfile
from twinbus.broker.refusals import Refusal
from twinbus.broker.sas import AccessPolicy, ConnectionGrants, Grant
from twinbus.broker.storage.store import Store
from twinbus.servicebus import conditions


class LinkOwner:
    """The object behind a link; each kind of link overrides what concerns it."""

    address = ""
    """The node that the link is attached to, as the client named it."""
    is_on_entity = False
    """True for a link that sends to an entity or receives from one."""

    def take(self, event: DeliveryArrived, now_ms: int) -> None:
        """Take a delivery of the client."""

    def take_all(self, events: list[DeliveryArrived], now_ms: int) -> Steps | None:
        """Take deliveries that came one after the other; returns what of it takes long, if any."""
        self.take(events[0], now_ms)
        return self._take_others(events, now_ms) if len(events) > 1 else None

    def _take_others(self, events: list[DeliveryArrived], now_ms: int) -> Steps:
        for event in events[1:]:
            yield None
            if event.link.owner is not self:
                return  # It was closed meanwhile.
            self.take(event, now_ms)

    def take_run(self, run: DeliveryRun, now_ms: int) -> Steps | None:
        """The same for deliveries that came in one read and whose frames look alike."""
        return self.take_all(run.deliveries(), now_ms)

    def refuse_oversize(self, event: DeliveryTooLarge, now_ms: int) -> None:
        """Reject a delivery beyond the link's limit, if its link rejects such."""

    def credit_changed(self) -> None:
        """The client gave credit, asked to drain, or its window takes transfers again."""

    def settled_by_request(self, lock_tokens: list[bytes]) -> None:
        """The client settled deliveries of this link by a request."""

    def may_write_again(self) -> None:
        """The client reads again: deliveries that waited for it can go on."""

    def granted_until_ms(self, now_ms: int) -> int | None:
        """When the right to the link ends, None: never; raises `Unauthorized` if it has ended."""
        return None

    def abandon(self) -> None:
        """Forget the entity without telling the client: the engine is being replaced."""

    def close(self, now_ms: int) -> None:
        """The link was closed, by the client or by the broker."""


NOBODY = LinkOwner()
"""Ignores what concerns a link without an owner."""


def owner_of(link: Link) -> LinkOwner:
    """The object behind a link. A link that was never opened, or is closed, has none."""
    return link.owner if isinstance(link.owner, LinkOwner) else NOBODY


REPLIES_MAX = 1000
"""Responses kept on one link for a client that gives no credit; beyond that, or beyond the bytes of
its connection, the link is detached."""

TAG = b"\0"
"""Responses go out settled, so they need no tag of their own."""


class ReplyLink(LinkOwner):
    """The link on which a client reads responses of one node."""

    def __init__(self, replies: ReplyLinks, link: SenderLink, address: str) -> None:
        """Known to `replies` from now on, until it is closed."""
        self._replies = replies
        self.link = link
        self.address = address.lower()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._held_bytes = 0
        replies.add(self)

    @property
    def reply_to(self) -> str:
        """The address that requests name in reply-to."""
        target = self.link.target
        return str(target.address or "") if isinstance(target, Target) else ""

    def send(self, response: bytes) -> None:
        """Send a response once the client gives credit for it."""
        self._waiting.append(response)
        self._waiting_bytes += len(response)
        self.credit_changed()
        count = len(self._waiting)
        try:
            self._hold()
            is_bounded = count <= REPLIES_MAX
        except BudgetExceeded:
            is_bounded = False
        if not is_bounded:
            text = f"{count} responses wait for credit; read them or send fewer requests"
            self.link.detach(conditions.RESOURCE_LIMIT, text)
            self._drop()

    def _hold(self) -> None:
        """Take what waits from the budget of the connection."""
        held = self._waiting_bytes + PIECE_BYTES * len(self._waiting)
        budget, before = self._replies.held_bytes, self._held_bytes
        if held > before:
            budget.take(held - before)
        else:
            budget.give_back(before - held)
        self._held_bytes = held

    def _drop(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._hold()

    def close(self, now_ms: int) -> None:
        self._drop()
        self._replies.remove(self)

    def credit_changed(self) -> None:
        """Send waiting responses within the credit, once the link is open."""
        link = self.link
        if link.state is not LinkState.OPEN:
            return
        # A client that gives credit and no window must not make the session keep its responses.
        while self._waiting and link.credit > 0 and not link.session.blocks(link):
            response = self._waiting.popleft()
            self._waiting_bytes -= len(response)
            link.send(response, TAG, settled=True)
        if self._waiting_bytes < self._held_bytes:
            self._hold()
        if link.drain:
            link.drained()


class ReplyLinks:
    """The reply links of one connection, found without searching its other links.

    A client may have thousands of links, and each of its requests needs a reply link.
    """

    def __init__(self, held_bytes: Budget | None = None) -> None:
        """`held_bytes` is the budget of the connection."""
        self.held_bytes = held_bytes or Budget("this connection", "bytes")
        self._found: dict[tuple[LinkSession, str, str], dict[ReplyLink, None]] = {}
        """By session and reply-to, and by session and node."""

    def add(self, reply: ReplyLink) -> None:
        for key in _places(reply):
            self._found.setdefault(key, {})[reply] = None

    def remove(self, reply: ReplyLink) -> None:
        for key in _places(reply):
            found = self._found.get(key, {})
            found.pop(reply, None)
            if not found:
                self._found.pop(key, None)

    def find(self, session: LinkSession, reply_to: str | None, node: str) -> ReplyLink | None:
        """The first link for `reply_to`, else for the node."""
        found = None if reply_to is None else self._found.get((session, "to", reply_to))
        found = found or self._found.get((session, "at", node))
        return next(iter(found)) if found else None


def _places(reply: ReplyLink) -> tuple[tuple[LinkSession, str, str], ...]:
    session = reply.link.session
    return (session, "to", reply.reply_to), (session, "at", reply.address)


CBS = "$cbs"

L = TypeVar("L", SenderLink, ReceiverLink)


class PeerContext(Protocol):
    """What one client's connection uses of the broker or gateway that it is connected to."""

    name: str
    loop: asyncio.AbstractEventLoop
    policy: AccessPolicy
    admission: Admission
    faults: FaultPlan
    profile: ServiceProfile
    turns: Turns

    def now_ms(self) -> int: ...
    def wake(self) -> None:
        """Schedule a tick at the end of this loop iteration."""

    def track(self, refusal: Refusal, /) -> None:
        """Add a TrackingId to a refusal's text, where it has none."""

    def resolve(self, path: str) -> object:
        """The entity at `path`; `EntityNotFound` if there is none."""


class BrokerContext(PeerContext, Protocol):
    """What the links of a broker use of its server."""

    store: Store
    engine_log: EngineLog | None
    """Present if the broker writes a ledger."""
    dispatcher: Dispatcher
    namespace: BrokerNamespace
    """This and the dispatcher are replaced after a failed commit."""
    credits: CreditAccount | None
    """Present if the profile limits operations per second."""

    def require_space(self) -> None:
        """Raise `QuotaExceeded` while the disk is nearly full."""

    def distrust(self, error: Exception) -> None:
        """Drop what is not committed and restore the engine: a step of it failed half-way."""


class LinkClient(Protocol):
    """The connection of a link; `twinbus.broker.links.peer` describes the methods."""

    budgets: ClientBudgets
    grants: ConnectionGrants
    replies: ReplyLinks

    @property
    def container_id(self) -> str: ...
    @property
    def takes_more(self) -> bool: ...
    def trust(self, grant: Grant | None = None) -> None: ...
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


class EntityLink(LinkOwner, Generic[L]):
    """A client's link to an entity, which needs a right on it."""

    is_on_entity = True
    right: str

    def __init__(
        self,
        context: BrokerContext,
        client: LinkClient,
        link: L,
        address: str,
        granted_until_ms: int,
    ) -> None:
        self._context = context
        self._client = client
        self.link: L = link
        self.address = address
        self._granted_until_ms = granted_until_ms

    def granted_until_ms(self, now_ms: int) -> int:
        if now_ms >= self._granted_until_ms:
            self._granted_until_ms = self._client.grants.require(self.address, self.right, now_ms)
        return self._granted_until_ms


def rejected(refusal: Refusal) -> Rejected:
    return rejected_with(refusal.condition, refusal.description)


def rejected_with(condition: str, description: str) -> Rejected:
    return Rejected(error=Error(condition=Symbol(condition), description=description))


TOKEN_BYTES = 16
TOKENS_AT_ONCE = 256


class Tokens:
    """Gives new tokens that cannot be guessed: a client that knows one can settle its message.

    Random bytes are fetched for many tokens at once. To fetch 16 takes 2 us, and lets another
    thread have the interpreter for less time than it needs to wake up; it then waits anew
    (`loops.SWITCH_S`). With a fetch for each message of a batch, the commit of another client's
    send waited up to 7 ms for the interpreter.
    """

    def __init__(self) -> None:
        self._fresh: list[bytes] = []

    def __call__(self) -> bytes:
        fresh = self._fresh
        while True:
            try:
                return fresh.pop()
            except IndexError:  # Not asked before: another thread may take the last one.
                chance = os.urandom(TOKEN_BYTES * TOKENS_AT_ONCE)
                starts = range(0, len(chance), TOKEN_BYTES)
                fresh += [chance[start : start + TOKEN_BYTES] for start in starts]

    def forget(self) -> None:
        """Fetch others from now on."""
        self._fresh.clear()


_IDS = Tokens()
# A forked process would give the same ids as this one.
os.register_at_fork(after_in_child=_IDS.forget)


def new_message_id() -> str:
    """An id for a message that came without one, as Azure gives it: 32 hex digits."""
    return _IDS().hex()


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
