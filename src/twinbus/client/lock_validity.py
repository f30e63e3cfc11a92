"""A session lock that stands for a right: where it is held, and for how long it is valid. Pure.

The lock ends by the clock of the service. The holder counts from the time of its *request*, on its
own clock, and stops well before the end. It also stops when it has not heard from the service for a
while: the service frees a session whose connection it has lost, long before the lock ends.

Where only one program may act at a time, the holder writes a mark into the state of the session
before it acts, and another when it has stopped. Whoever gets the lock next reads there whether a
program may still act that does not know yet that it has lost the lock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LEASE_MARK: Final = "x-twinbus-lease"

LEASE_LOCK_S: Final = 200.0
"""Lock duration of the lease queue as it is created: each renewal is billed, so the lock is long.
The holder's machine may die without closing its connection. Then another program takes over when
the lock has ended and it tries again: a syphon within 5 minutes."""

LOCK_ASSUMED_S: Final = 30.0
"""The longest lock that is relied on while the lock duration of the lease queue is not known.
Compared with our clock, the end of a lock can be wrong by the difference of the clocks."""

LOCK_LEAST_S: Final = 5.0
"""The shortest lock that Service Bus grants; assumed for one that is shorter by our clock, because
then one of the two clocks is wrong."""

KEPT_SHARE: Final = 0.8
"""Share of the lock duration for which the lease is valid; the rest allows for clock drift and for
messages on the wire."""

RENEW_SHARE: Final = 0.4
"""Share of the lock duration between two renewals; a failed one can be tried again twice."""

STANDBY_SHARE: Final = 0.125
"""Share of the lock duration between two attempts to get a lease that another program holds."""

SILENCE_S: Final = 24.0
"""How long a lease is valid after the last sign of life of the service, whatever its lock."""

PROOF_S: Final = 6.0
"""Time between two signs of life that the holder asks for; they are not billed."""


STOPPED_MARK: Final = b"given back"
"""The state of a session whose last holder has stopped to act, and said so."""


class LockAddress(NamedTuple):
    """The session whose lock is held."""

    queue: str
    session: str


def lease_queue(label: str) -> str:
    """Return the queue on whose sessions the programs of a label hold their leases."""
    return f"{label}/{LEASE_MARK}"


def relied_on_s(by_clock_s: float, described_s: float | None) -> float:
    """Return the lock duration to rely on.

    `by_clock_s` is the time to the end of the lock by our clock. `described_s` is the lock duration
    in the description of the lease queue, which depends on no clock; None: not known.
    """
    if described_s is not None:
        return described_s
    return min(max(by_clock_s, LOCK_LEAST_S), LOCK_ASSUMED_S)


def handover_s(described_s: float | None) -> float:
    """Return how long a former holder may act after another program got the lock.

    The service may have ended its link while it was cut off. It notices that after this time at
    the latest. `described_s` as above; the time to the end of the lock by a clock that is wrong
    would be too short.
    """
    return SILENCE_S if described_s is None else min(SILENCE_S, KEPT_SHARE * described_s)


def acting_mark(program: str) -> bytes:
    """Return the state of a session whose holder acts; `program` is its name and of nobody else."""
    return f"held by {program}".encode()


def wait_s(mark: object, own_mark: bytes, described_s: float | None) -> float:
    """Return how long the program that got the lock waits before it acts.

    `mark` is the state of the session. None: nobody acted on the lock. Its own mark: nobody else
    has acted since it did, because each writes its mark first, and only with the lock.
    """
    has_stopped = mark is None or mark in (STOPPED_MARK, own_mark)
    return 0.0 if has_stopped else handover_s(described_s)


class LockValidity:
    """How long the holder of a lock may act on it."""

    def __init__(self) -> None:
        self.ends_at = float("-inf")
        self.renew_at = float("-inf")

    def __repr__(self) -> str:
        return f"<lock until {self.ends_at:.1f}>"

    def holds(self, now: float) -> bool:
        return now < self.ends_at

    def granted(self, asked_at: float, lock_s: float) -> None:
        """Extend the lease: the service granted a lock of `lock_s`, requested at `asked_at`."""
        self.ends_at = max(self.ends_at, asked_at + lock_s * KEPT_SHARE)
        self.renew_at = asked_at + lock_s * RENEW_SHARE

    def not_renewed(self, now: float) -> None:
        """Schedule another renewal soon, as long as the lease is valid."""
        self.renew_at = now + max(0.1, (self.ends_at - now) / 4)

    def lost(self) -> None:
        """End the lease: another program may hold it."""
        self.ends_at = float("-inf")
