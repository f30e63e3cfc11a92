"""The lease of a backlog queue: where it is held, and for how long it is valid (SPEC 6).

The lease holder owns a session lock on `<label>/x-twinbus-lease`. The lock ends by the clock of the
service. The holder counts from the time of its *request*, on its own clock, and stops well before
the end.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LEASE_MARK: Final = "x-twinbus-lease"

LEASE_LOCK_S: Final = 30.0
"""Lock duration of the lease queue as it is created: how long a pump that died blocks others. The
rest of a longer lock is not used."""

LOCK_LEAST_S: Final = 5.0
"""The shortest lock that Service Bus grants; assumed for one that is shorter by our clock, because
then one of the two clocks is wrong."""

KEPT_SHARE: Final = 0.8
"""Share of the lock duration for which the lease is valid; the rest allows for clock drift and for
messages on the wire."""

RENEW_SHARE: Final = 0.25
"""Share of the lock duration between two renewals; a failed one can be tried again twice."""


class LeaseAddress(NamedTuple):
    """Where the lease of a backlog queue is held."""

    queue: str
    session: str


def lease_address(backlog_queue: str) -> LeaseAddress:
    """Return session 3 of `contoso/x-twinbus-lease` for `contoso/x-servicebus-transfer/3`."""
    label, _, index = [*backlog_queue.rsplit("/", 2), "", ""][:3]
    return LeaseAddress(f"{label}/{LEASE_MARK}", index or "0")


class LeaseValidity:
    """How long the holder of a lease may act on it."""

    def __init__(self) -> None:
        self.ends_at = float("-inf")
        self.renew_at = float("-inf")

    def __repr__(self) -> str:
        return f"<lease until {self.ends_at:.1f}>"

    def holds(self, now: float) -> bool:
        return now < self.ends_at

    def granted(self, asked_at: float, lock_s: float) -> None:
        """Extend the lease: the service granted a lock of `lock_s`, requested at `asked_at`."""
        lock_s = min(max(lock_s, LOCK_LEAST_S), LEASE_LOCK_S)
        self.ends_at = max(self.ends_at, asked_at + lock_s * KEPT_SHARE)
        self.renew_at = asked_at + lock_s * RENEW_SHARE

    def not_renewed(self, now: float) -> None:
        """Schedule another renewal soon, as long as the lease is valid."""
        self.renew_at = now + max(0.1, (self.ends_at - now) / 4)

    def lost(self) -> None:
        """End the lease: another syphon may hold it."""
        self.ends_at = float("-inf")
