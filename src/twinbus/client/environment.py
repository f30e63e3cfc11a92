"""What a program takes from its machine: clocks, chance, ids, and connections to namespaces.

Parts of the product take an Environment instead of calling these themselves, so that a simulation
runs the same code with its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

from twinbus.client.administration import described_lock_s
from twinbus.client.connection import NamespaceConnection
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import Endpoint
from twinbus.namespace.namespace import Namespace


def _since_boot() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _administration_client(namespace: Namespace) -> Any:
    # Imported late: it loads the SDK's client and its HTTP stack, and a syphon needs neither.
    from twinbus.namespace.administration_client import administration_client

    return administration_client(namespace)


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The real machine, unless a field says otherwise."""

    monotonic: Callable[[], float] = time.monotonic
    since_boot: Callable[[], float] = _since_boot
    """A clock that runs on while the machine is suspended, if it has one: a lock ends by the clock
    of the service, which is not suspended."""
    wall_ns: Callable[[], int] = time.time_ns
    """Nanoseconds since 1970."""
    chance: Callable[[], float] = random.random
    """A number from 0 to 1."""
    choose: Callable[[Sequence[str]], str] = random.choice
    new_id: Callable[[], UUID] = uuid4
    connect: Callable[..., NamespaceConnection] = NamespaceConnection
    lock_duration_s: Callable[[Endpoint, str, BilledRequests], Awaitable[float | None]] = (
        described_lock_s
    )
    """Reads the lock duration of a queue; None: it cannot be read."""
    administer: Callable[[Namespace], Any] = _administration_client
    """Returns an administration client of the SDK, to be entered and left."""

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return self.wall_ns() // 1_000_000


MACHINE: Final = Environment()
