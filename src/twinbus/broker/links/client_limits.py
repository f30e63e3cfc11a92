"""What one client may cost the broker, and for how long.

A client is a stranger until its first valid token: what it can make the broker keep or compute is
small and ends at a deadline. A client that reads slowly, or not at all, must not make the broker
keep what it cannot write: its deliveries wait in their queue, and its own frames, which ask for
answers, wait in its socket. Links end with their token or when they were idle for too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from twinbus.amqp.connection import Connection
from twinbus.amqp.link import Link
from twinbus.broker.access import Admission
from twinbus.broker.links.context import PeerContext
from twinbus.broker.refusals import Refusal
from twinbus.servicebus import conditions
from twinbus.servicebus.conditions import CONNECTION_FORCED, RESOURCE_LIMIT

FRAME_BYTES_MAX = 32 * 1024
SESSIONS_MAX = 16
LINKS_MAX = 16
"""Links of one session. A client without a token needs one session with two links to $cbs; one
that shares a connection among many senders may begin some sessions before its first token."""

RECEIVED_BYTES_MAX = 128 * 1024
"""Bytes of one connection before its first token; a client needs two or three thousand."""


class Probation:
    """One connection's time as a stranger; `end` is called once, whatever becomes of it."""

    def __init__(
        self,
        connection: Connection,
        admission: Admission,
        host: str,
        loop: asyncio.AbstractEventLoop,
        give_up: Callable[[str, str], None],
    ) -> None:
        """`give_up` closes the connection with a condition and a text."""
        self._connection = connection
        self._admission = admission
        self._host = host
        self._loop = loop
        self._give_up = give_up
        self._bytes_left = RECEIVED_BYTES_MAX
        self._timer: asyncio.TimerHandle | None = None
        admission.enter(host)
        connection.restrict(frame_bytes=FRAME_BYTES_MAX, sessions=SESSIONS_MAX, links=LINKS_MAX)

    def start_clock(self) -> None:
        """From now on the client has to open the connection in time."""
        self._limit(self._admission.limits.open_s, "no OPEN came within {:g} s (--open-limit)")

    def opened(self) -> None:
        """From now on the client has to put a token in time."""
        self._stop_clock()
        limit_s = self._admission.limits.token_s
        self._limit(limit_s, "no valid token came within {:g} s (--token-limit)")

    def _limit(self, limit_s: float, text: str) -> None:
        text = text.format(limit_s)
        self._timer = self._loop.call_later(limit_s, self._give_up, CONNECTION_FORCED, text)

    def takes(self, size_bytes: int) -> bool:
        """Count bytes that came; false: they were too many, and the connection is closed."""
        self._bytes_left -= size_bytes
        if self._bytes_left >= 0:
            return True
        text = f"more than {RECEIVED_BYTES_MAX} bytes came before a valid token"
        self._give_up(RESOURCE_LIMIT, text)
        return False

    def end(self) -> None:
        """Lift the limits: a valid token came, or the connection is gone."""
        self._stop_clock()
        self._connection.lift_limits()
        self._admission.trust(self._host)

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


OUTPUT_BYTES_MAX = 1024 * 1024
"""Bytes rendered for one client and not yet written; a turn's deliveries may exceed it once."""

UNWRITTEN_BYTES_MAX = 4 * OUTPUT_BYTES_MAX
"""Bytes of any kind that wait for their commit before the broker stops reading from the client."""

BLOCKED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that wait for the windows of a client's sessions before nothing more is rendered for it. A
client may have thousands of sessions, and give each of them no window."""

TURN_BYTES_MAX = 512 * 1024
"""Bytes taken from one client before the others have their turn. uvloop alone would read eight
megabytes, which is seconds of work if they are small frames."""


class BackPressure:
    __slots__ = (
        "_transport",
        "_turn_bytes",
        "has_unread",
        "is_writable",
        "unwritten_bytes",
        "waits_for_disk",
    )

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._turn_bytes = 0
        self.is_writable = True
        """The transport's buffer takes more."""
        self.waits_for_disk = False
        """Too much of all clients waits for the disk."""
        self.has_unread = False
        """What the client sent waits for its next turn."""
        self.unwritten_bytes = 0
        """Collected, and waiting for its commit."""

    def made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def takes_more(self, rendered_bytes: int) -> bool:
        """Whether to render another delivery; credit alone would not bound the memory used."""
        return self.is_writable and rendered_bytes + self.unwritten_bytes < OUTPUT_BYTES_MAX

    def received(self, size_bytes: int) -> None:
        self._turn_bytes += size_bytes
        if self._turn_bytes >= TURN_BYTES_MAX:
            self.apply()

    def end_turn(self) -> None:
        was_long, self._turn_bytes = self._turn_bytes >= TURN_BYTES_MAX, 0
        if was_long:
            self.apply()

    @property
    def may_read(self) -> bool:
        is_bounded = self.unwritten_bytes < UNWRITTEN_BYTES_MAX
        has_turn = self._turn_bytes < TURN_BYTES_MAX
        is_held = self.waits_for_disk or self.has_unread
        return self.is_writable and is_bounded and has_turn and not is_held

    def apply(self) -> None:
        """Read from the client, or stop it; call after each change."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.may_read:
            transport.resume_reading()
        else:
            transport.pause_reading()


LINGER_S = 2.0
"""How long a connection that the broker closed stays open for the client to read why. A socket that
is closed while the client still sends is reset, which can destroy the CLOSE frame on its way."""


class LinkIdle(Refusal):
    """In Azure's words."""

    condition, status = conditions.DETACH_FORCED, 408
    is_tracked = True

    def __init__(self, link: Link, idle_s: float) -> None:
        # The end that sends is the broker's: its client receives.
        role, origin = ("consumer", "Consumer") if link.sends else ("publisher", "Publisher")
        minutes, seconds = divmod(round(idle_s), 60)
        hours, minutes = divmod(minutes, 60)
        super().__init__(
            f"The link {link.name!r} is force detached by the broker due to errors occurred in "
            f"{role}(link{link.handle}). Detach origin: AmqpMessage{origin}.IdleTimerExpired: "
            f"Idle timeout: {hours:02}:{minutes:02}:{seconds:02}."
        )


class IdleLinks:
    def __init__(self, idle_s: float) -> None:
        self._idle_ms = idle_s * 1000
        self._seen: dict[Link, tuple[int, int]] = {}
        """Delivery count of each link, and the time since when it has not changed."""

    def sweep(self, links: Iterable[Link], now_ms: int) -> list[Link]:
        """Return those of the open links that have been idle for the whole time."""
        seen: dict[Link, tuple[int, int]] = {}
        idle = []
        for link in links:
            count, since_ms = self._seen.get(link, (link.delivery_count, now_ms))
            if count != link.delivery_count:
                count, since_ms = link.delivery_count, now_ms
            if now_ms - since_ms >= self._idle_ms:
                idle.append(link)
            else:
                seen[link] = (count, since_ms)
        self._seen = seen
        return idle


class ExpiryTimer:
    """Calls back at the earliest of the times that it watches, and then watches none."""

    def __init__(self, context: PeerContext, on_expiry: Callable[[], None]) -> None:
        self._context = context
        self._on_expiry = on_expiry
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def watch(self, until_ms: int) -> None:
        """Call back at that time, or sooner."""
        if self._timer is not None:
            if self._at_ms <= until_ms:
                return
            self._timer.cancel()
        self._at_ms = until_ms
        wait_s = max(0.0, (until_ms - self._context.now_ms()) / 1000)
        self._timer = self._context.loop.call_later(wait_s, self._end)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self._on_expiry()
