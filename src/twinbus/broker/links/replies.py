"""The links on which a client reads the responses of `$cbs` and of `$management` nodes."""

from __future__ import annotations

from collections import deque

from twinbus.amqp.link import LinkSession, LinkState, SenderLink
from twinbus.amqp.performatives import Target
from twinbus.broker.links.owner import LinkOwner
from twinbus.servicebus import conditions

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
