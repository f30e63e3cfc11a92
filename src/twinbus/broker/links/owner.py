"""What stands behind a link: its owner, the reply links, and the turns of the receivers.

A connection calls the `LinkOwner` of each of its links. Receivers of entities also register with
the `Dispatcher`, which delivers messages to them in turn.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from twinbus.amqp.events import DeliveryArrived, DeliveryTooLarge
from twinbus.amqp.link import LinkSession, LinkState, SenderLink
from twinbus.amqp.performatives import Target
from twinbus.broker.engine.queue import Queue
from twinbus.servicebus import conditions


class LinkOwner:
    """The object behind a link; each kind of link overrides what concerns it."""

    address = ""
    """The node that the link is attached to, as the client named it."""
    is_on_entity = False
    """True for a link that sends to an entity or receives from one."""

    def take(self, event: DeliveryArrived, now_ms: int) -> None:
        """Take a delivery of the client."""

    def take_all(self, events: list[DeliveryArrived], now_ms: int) -> None:
        """Take deliveries that came one after the other."""
        for event in events:
            self.take(event, now_ms)

    def refuse_oversize(self, event: DeliveryTooLarge, now_ms: int) -> None:
        """Reject a delivery beyond the link's limit, if its link rejects such."""

    def credit_changed(self) -> None:
        """The client gave credit, asked to drain, or its window takes transfers again."""

    def may_write_again(self) -> None:
        """The client reads again: deliveries that waited for it can go on."""

    def granted_until_ms(self, now_ms: int) -> int | None:
        """When the right to the link ends, None: never; raises `Unauthorized` if it has ended."""
        return None

    def abandon(self) -> None:
        """Let go of the entity without a word: the engine is being replaced."""

    def close(self, now_ms: int) -> None:
        """The link is gone, by the client's wish or ours."""


log = logging.getLogger("twinbus.broker")

TURN = 32
"""Messages one consumer gets before the next has its turn."""


class Consumer(Protocol):
    """A receiver of one queue, as the dispatcher uses it."""

    queue: Queue

    def take_next_session(self, now_ms: int) -> bool:
        """Try to lock the next free session; true when the consumer no longer waits for one."""

    def deliver(self, limit: int, now_ms: int) -> int:
        """Send up to `limit` messages; returns how many."""


class Dispatcher:
    """Delivers messages to the consumers of a namespace's queues."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # Ordered, with a cheap removal: a client that leaves may have had thousands of links.
        self._consumers: dict[Queue, OrderedDict[Consumer, None]] = {}
        self._waiting: dict[Queue, OrderedDict[Consumer, None]] = {}
        self._ready: dict[Queue, None] = {}

    def ready(self, queue: Queue) -> None:
        if queue not in self._ready:
            self._ready[queue] = None
            self._wake()

    def add(self, link: Consumer) -> None:
        self._consumers.setdefault(link.queue, OrderedDict())[link] = None

    def wait_for_session(self, link: Consumer) -> None:
        self._waiting.setdefault(link.queue, OrderedDict())[link] = None

    def receiver_count(self, queue: Queue) -> int:
        """Open receivers of a queue, and those that wait for a session."""
        return len(self._consumers.get(queue, ())) + len(self._waiting.get(queue, ()))

    def remove(self, link: Consumer) -> None:
        for table in (self._consumers, self._waiting):
            links = table.get(link.queue)
            if links is not None and link in links:
                del links[link]
                if not links:
                    del table[link.queue]

    def run(self, now_ms: int) -> None:
        """Deliver from every ready queue, within the credit of its consumers."""
        while self._ready:
            queue, _ = self._ready.popitem()
            try:
                self._grant_sessions(queue, now_ms)
                self._deliver(queue, now_ms)
            except Exception:
                # The other queues have their turn; what was locked here comes back by itself.
                log.exception("%s: its messages could not be delivered", queue.path)

    def _grant_sessions(self, queue: Queue, now_ms: int) -> None:
        waiting = self._waiting.get(queue)
        while waiting:
            link = next(iter(waiting))
            if not link.take_next_session(now_ms):
                return
            waiting.pop(link, None)
        self._waiting.pop(queue, None)

    def _deliver(self, queue: Queue, now_ms: int) -> None:
        consumers = self._consumers.get(queue)
        idle = 0
        while consumers and idle < len(consumers):
            link = next(iter(consumers))
            consumers.move_to_end(link)
            # A full turn may mean that there is more; less means no message or no credit left.
            idle = 0 if link.deliver(TURN, now_ms) == TURN else idle + 1


REPLIES_MAX = 1000
REPLY_BYTES_MAX = 16 * 1024 * 1024
"""Responses kept for a client that gives no credit; beyond that its link is detached. A single
response may be larger."""

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
        if count > REPLIES_MAX or (count > 1 and self._waiting_bytes > REPLY_BYTES_MAX):
            text = f"{count} responses wait for credit; read them or send fewer requests"
            self.link.detach(conditions.RESOURCE_LIMIT, text)

    def close(self, now_ms: int) -> None:
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
        if link.drain:
            link.drained()


class ReplyLinks:
    """The reply links of one connection, found without a look at its other links.

    A client may have thousands of links, and each of its requests needs a reply link.
    """

    def __init__(self) -> None:
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
