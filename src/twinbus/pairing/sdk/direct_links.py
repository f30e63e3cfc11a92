"""Links of a blocking sender, on which a healthy send goes out on its caller's own thread.

A send through the core changes threads twice, which costs half as much as the send itself. A busy
sender to a healthy entity therefore has links of its own beside the core's:

    link = links.take(now)          # None: the core sends this message
    links.send(link, message, timeout_s)

Only the first attempt on the primary is made here. The core decides what follows a failure, and
nothing here is evidence that the core does not get. Each link serves one thread at a time. It opens
in the background, and no call waits for that. The SDK bounds a send only while its link is up, so
the loop's timer cuts off a send that outlives its time.

The links are senders of the sync SDK (`SdkDirectLink`), or of our own client (own_direct_link.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from twinbus.pairing.sdk.sender_pool import IDLE_MAX_S, SENDERS_MAX

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage, ServiceBusSender

log = logging.getLogger("twinbus.pairing")

BUSY_SENDS: Final = 20
BUSY_S: Final = 10.0
"""A sender with so many sends in this time gets a link: a second connection must pay."""

AGAIN_S: Final = 30.0
"""Pause after a link that did not open."""

CHECK_S: Final = 0.25
LATE_S: Final = 0.75
"""The SDK notices the end of a send's time within 0.2 s; a send this late is cut off."""

OPENING_END_S: Final = 5.0
"""How long a close waits for a link that is opening. The thread of one that takes longer closes it
later, and does not delay the end of the process."""

FRAMES_MAX: Final = 16
"""Frames that may wait on an idle link: credit, and signs of life."""

ATTACHED: Final = 3


DIRECT_BYTES: Final = 8 * 1_024
"""The largest body for the SDK's sync sender: it gives up a write after 0.2 s, in which a distant
peer may not take a larger message."""


class DirectLink(Protocol):
    """One open link; it serves one thread at a time."""

    idle_since: float

    def send(self, message: ServiceBusMessage, timeout_s: float) -> None:
        """Send one message; it raises what the SDK raises."""

    def is_usable(self, now: float) -> bool:
        """Whether the link is up. The peer may have ended it while it was idle."""

    def cut_off(self) -> None:
        """End the connection, from any thread: a send that waits on it raises."""

    def abort(self, *, politely: bool = False) -> None:
        """Close a link that no thread uses; politely: the peer is told."""


class DirectLinks:
    """The direct links of one blocking sender; may be used by many threads at once."""

    def __init__(
        self,
        open_link: Callable[[], DirectLink | None],
        loop: asyncio.AbstractEventLoop,
        *,
        bytes_max: int = DIRECT_BYTES,
    ) -> None:
        """`open_link` opens a link; it may block. None: the namespace cannot be reached so.

        `bytes_max` is the largest body for them.
        """
        self._open_link = open_link
        self.bytes_max = bytes_max
        self._loop = loop
        self._lock = threading.Lock()
        self.idle: list[DirectLink] = []
        self.busy: dict[DirectLink, float] = {}
        """Links in use, and when their send must have ended."""
        self.opening: threading.Thread | None = None
        self._sends, self._counted_since = 0, 0.0
        self._not_before = 0.0
        """When the next link may be opened."""
        self._is_watched = False
        self._closed = False

    def take(self, now: float) -> DirectLink | None:
        """Lease an open link; None: there is none, and the core must send."""
        while True:
            try:
                link = self.idle.pop()
            except IndexError:
                self._want_more(now)
                return None
            if link.is_usable(now):
                return link
            link.abort()

    def send(self, link: DirectLink, message: ServiceBusMessage, timeout_s: float) -> None:
        """Send on a leased link; it ends within `timeout_s` and a second. It is given back."""
        self.busy[link] = time.monotonic() + timeout_s + LATE_S
        try:
            link.send(message, timeout_s)
        except BaseException:
            # What broke this one has broken all.
            self.busy.pop(link, None)
            link.abort()
            self._drop_idle()
            raise
        link.idle_since = time.monotonic()
        self.busy.pop(link, None)
        self.idle.append(link)
        if self._closed:
            self._drop_idle()

    def close(self, limit_s: float) -> None:
        """Wait up to `limit_s` for sends in progress, and close all links; idempotent."""
        with self._lock:
            self._closed = True
            opening = self.opening
        ends = time.monotonic() + limit_s
        while self.busy and time.monotonic() < ends:
            time.sleep(0.005)
        for link in tuple(self.busy):
            link.cut_off()
        self._drop_idle(politely=True)
        if opening is not None:
            opening.join(OPENING_END_S)

    def _drop_idle(self, *, politely: bool = False) -> None:
        while True:
            try:
                link = self.idle.pop()
            except IndexError:
                return
            link.abort(politely=politely)

    def _want_more(self, now: float) -> None:
        """Begin to open a link, if this sender is busy enough and none is opening."""
        with self._lock:
            if now - self._counted_since > BUSY_S:
                self._sends, self._counted_since = 0, now
            self._sends += 1
            is_full = len(self.busy) + len(self.idle) >= SENDERS_MAX
            if self._sends < BUSY_SENDS or self.opening is not None or is_full:
                return
            if self._closed or now < self._not_before:
                return
            self._sends = 0
            self.opening = threading.Thread(target=self._open, name="twinbus-open", daemon=True)
            self.opening.start()

    def _open(self) -> None:
        link, not_before = None, math.inf
        try:
            link = self._open_link()
        except Exception as error:  # noqa: BLE001  # the core goes on sending, and judges the entity
            log.debug("a direct link did not open: %r", error)
            not_before = time.monotonic() + AGAIN_S
        with self._lock:
            self.opening = None
            if link is not None and not self._closed:
                self.idle.append(link)
                is_first, self._is_watched = not self._is_watched, True
                if is_first:
                    self._loop.call_soon_threadsafe(self._watch)
                return
            self._not_before = not_before
        if link is not None:
            link.abort(politely=True)

    def _watch(self) -> None:
        """On the loop: cut off sends that are late, and links that no sender uses."""
        now = time.monotonic()
        for link, ends in tuple(self.busy.items()):
            if now > ends:
                link.cut_off()
        for link in tuple(self.idle):
            if now - link.idle_since >= IDLE_MAX_S:
                try:
                    self.idle.remove(link)
                except ValueError:
                    continue
                link.abort()
        with self._lock:
            self._is_watched = not self._closed and bool(self.idle or self.busy)
            if self._is_watched:
                self._loop.call_later(CHECK_S, self._watch)


class SdkDirectLink:
    """One open sender of the sync SDK."""

    def __init__(self, sdk: Any, sock: socket.socket) -> None:
        self.sdk = sdk
        self.idle_since = time.monotonic()
        self._sock = sock
        self._handler = sdk._handler
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    @classmethod
    def opened(cls, sdk: ServiceBusSender) -> SdkDirectLink | None:
        """Open a sender without retries; None: it is not over a socket of its own (WebSocket)."""
        sdk.__enter__()
        connection = getattr(getattr(sdk, "_handler", None), "_connection", None)
        sock = getattr(getattr(connection, "_transport", None), "sock", None)
        if isinstance(sock, socket.socket):
            return cls(sdk, sock)
        sdk.close()
        return None

    def send(self, message: ServiceBusMessage, timeout_s: float) -> None:
        self.sdk.send_messages(message, timeout=timeout_s)

    def is_usable(self, now: float) -> bool:
        if now - self.idle_since >= IDLE_MAX_S:
            return False
        try:
            for _ in range(FRAMES_MAX):
                if not self._poll.poll(0):
                    return True
                self._handler._connection.listen(wait=False)
                if self._handler._link.get_state().value != ATTACHED:
                    return False
        except Exception as error:  # noqa: BLE001  # whatever it is, the core sends instead
            log.debug("a direct link ended while it was idle: %r", error)
        return False

    def cut_off(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def abort(self, *, politely: bool = False) -> None:
        if politely:
            with contextlib.suppress(Exception):
                self.sdk.close()
        self.cut_off()
        self._sock.close()
