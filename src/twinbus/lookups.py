"""Looks up host names on threads of their own, at most a few for each host.

asyncio looks a name up on the threads of the loop's default executor, which all connections share;
uvloop has four. While the resolver hangs for the primary's name, its attempts would take up all of
them, and a divert to the secondary, whose name is known, would wait for a thread. So what opens
a connection awaits `resolved` first. asyncio then looks the name up again, at a resolver that has
just answered.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

LOOKUPS_MAX: Final = 4
"""Lookups of one host at a time."""

JOINED_S: Final = 2.0
"""A lookup that takes longer is not joined: the resolver may have lost it and answer the next."""


class HostLookups:
    """The lookups of this process that are under way, by host."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.under_way: dict[str, list[tuple[float, Future[None]]]] = {}

    async def resolved(self, host: str) -> None:
        """Return when the host has an address; OSError: it has none.

        Callers share a lookup. A cancelled caller leaves it to the others.
        """
        if needs_lookup(host):
            await asyncio.wrap_future(self._lookup(host))

    def _lookup(self, host: str) -> Future[None]:
        now = self._clock()
        with self._lock:
            lookups = self.under_way.setdefault(host, [])
            if lookups and (len(lookups) >= LOOKUPS_MAX or now - lookups[-1][0] < JOINED_S):
                return lookups[-1][1]
            future: Future[None] = Future()
            # Running, so that no caller that is cancelled cancels it.
            future.set_running_or_notify_cancel()
            lookups.append((now, future))
        # A daemon: a lookup that hangs does not delay the end of the process.
        thread = threading.Thread(
            target=self._run, args=(host, future), name="twinbus-lookup", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self._end(host, future, OSError(f"{host} was not looked up: {error}"))
        return future

    def _run(self, host: str, future: Future[None]) -> None:
        failure: OSError | None = None
        try:
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            failure = error
        except Exception:  # noqa: BLE001, S110  # a name that is none: who connects says so
            pass
        self._end(host, future, failure)

    def _end(self, host: str, future: Future[None], failure: OSError | None) -> None:
        with self._lock:
            left = [one for one in self.under_way[host] if one[1] is not future]
            if left:
                self.under_way[host] = left
            else:
                del self.under_way[host]
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)


def needs_lookup(host: str) -> bool:
    """Whether a resolver is asked for the host: it is no address and not this machine."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower() != "localhost"
    return False


LOOKUPS: Final = HostLookups()
"""Those of all pairs of the process: two pairs of the same primary share its threads."""
