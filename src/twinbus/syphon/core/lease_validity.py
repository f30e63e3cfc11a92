"""The lease of a backlog queue: where it is, and for how long one may rely on it (SPEC 6).

Who pumps a queue under a lease holds the lock of a session on `<label>/x-twinbus-lease`. Only the
service knows the lock's end by its own clock, so the holder counts from the moment at which it
*asked*, on its own clock, and stops a good while before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["LEASE_LOCK_S", "LeaseAddress", "LeaseValidity", "lease_address"]

LEASE_MARK: Final = "x-twinbus-lease"

LEASE_LOCK_S: Final = 30.0
"""Lock duration of the lease queue as it is created: how long a pump that died keeps others out. A
longer one is not relied on."""

LOCK_LEAST_S: Final = 1.0
"""Taken for a lock that by our clock is over already: one of the two clocks is wrong."""

KEPT_SHARE: Final = 0.8
"""Of a lock's time in which the holder acts; the rest is for clocks that run at different rates and
for what is on its way."""

RENEW_SHARE: Final = 0.25
"""Of a lock's time between two renewals, so that one that fails can be tried again twice."""


class LeaseAddress(NamedTuple):
    """Where the lease of a backlog queue is held."""

    queue: str
    session: str


def lease_address(backlog_queue: str) -> LeaseAddress:
    """`contoso/x-servicebus-transfer/3` is leased as session 3 of `contoso/x-twinbus-lease`."""
    label, _, index = [*backlog_queue.rsplit("/", 2), "", ""][:3]
    return LeaseAddress(f"{label}/{LEASE_MARK}", index or "0")


class LeaseValidity:
    """Whether a lease is held, as far as its holder may rely on it."""

    __slots__ = ("ends_at", "renew_at")

    def __init__(self) -> None:
        self.ends_at = float("-inf")
        self.renew_at = float("-inf")

    def __repr__(self) -> str:
        return f"<lease until {self.ends_at:.1f}>"

    def holds(self, now: float) -> bool:
        return now < self.ends_at

    def granted(self, asked_at: float, lock_s: float) -> None:
        """The lock runs for `lock_s` from some moment after `asked_at`."""
        lock_s = min(max(lock_s, LOCK_LEAST_S), LEASE_LOCK_S)
        self.ends_at = max(self.ends_at, asked_at + lock_s * KEPT_SHARE)
        self.renew_at = asked_at + lock_s * RENEW_SHARE

    def not_renewed(self, now: float) -> None:
        """A renewal failed; it is tried again soon, as long as the lease lasts."""
        self.renew_at = now + max(0.1, (self.ends_at - now) / 4)

    def lost(self) -> None:
        """Somebody else may have it."""
        self.ends_at = float("-inf")
