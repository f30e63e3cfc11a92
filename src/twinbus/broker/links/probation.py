"""A client before its first valid token: what it may send, and how long it may take.

Whoever reaches the port is a stranger. What it can make the broker keep or compute is small, and
ends at a deadline, until a token shows that somebody gave it a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from twinbus.amqp.connection import Connection
from twinbus.broker.access.admission import Admission
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
        limit_s = self._admission.limits.open_s
        text = f"no OPEN came within {limit_s:g} s (--open-limit)"
        self._timer = self._loop.call_later(limit_s, self._give_up, CONNECTION_FORCED, text)

    def opened(self) -> None:
        """From now on the client has to put a token in time."""
        self._stop_clock()
        limit_s = self._admission.limits.token_s
        text = f"no valid token came within {limit_s:g} s (--token-limit)"
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
