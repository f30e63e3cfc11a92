"""Counts operations, and models what a pair adds to the bill (docs/costs.md).

    an operation               one unit for each started 64 KiB of its message, at least one
    an idle syphon             one receive for each backlog queue and poll: 10 queues polled for
                               15 minutes are 40 an hour, 960 a day, 28,800 in 30 days
    a message by the backlog   four stages: send to the backlog, receive from it, send to the
                               primary, receive there; with settlement counted, six
    any other message          two stages: send, receive; with settlement counted, three
    a syphon, idle or not      one search for deferred messages in each queue every hour, one for
                               new queues every 15 minutes
    a lease                    one renewal every 80 s; a standby tries to get each every 25 s
    a missing backlog queue    each client searches for it: one listing, and one call to create each
                               queue that is missing; while none is missing there is no search

Azure does not publish whether it charges the settlement of a lock, hence the switch.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

UNIT_BYTES: Final = 64 * 1024
"""Maximum bytes of one billed operation."""

SETTLEMENTS: Final = frozenset({"complete", "defer", "dead_letter"})
"""Operations that end a lock; the rule decides whether they are charged."""

UNCHARGED: Final = frozenset({"action", "state", "writer"})
"""Ledger records that are no call to a namespace."""

CHARGED_THOUGH_FAILED: Final = frozenset({"ping"})
"""Operations that are counted although they failed. Whether a ping that was not answered reached
the service is mostly not known, and an outage has many: the estimate, the report and the page count
each one, as the upper bound."""

MOVED_STAGES: Final = 4
MOVED_SETTLEMENTS: Final = 2
DIRECT_STAGES: Final = 2
DIRECT_SETTLEMENTS: Final = 1

SEARCH_S: Final = 60.0
SEARCH_LONGEST_S: Final = 300.0
SEARCH_SLOW_DOWN: Final = 60.0
SEARCH_JITTER: Final = 0.2
"""The waits between two searches, as `pairing.core.secondary` has them."""


DEFERRED_SEARCH_S: Final = 3_600
QUEUE_SEARCH_S: Final = 900
LEASE_RENEW_S: Final = 80
LEASE_STANDBY_S: Final = 25
"""Times between the requests of a syphon that moves nothing, as `twinbus.syphon` has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountingRule:
    """Which operations are counted where the published rules leave a choice."""

    count_settlement: bool = False
    """Count complete, defer and dead-letter as operations of their own."""


def is_charged(operation: str, outcome: str) -> bool:
    """Return whether an operation with that outcome is counted; what Azure does is not known."""
    return outcome != "failed" or operation in CHARGED_THOUGH_FAILED


def units(size_bytes: int | None) -> int:
    """Return the billed units of one operation: one for each started 64 KiB, at least one."""
    return max(1, -(-(size_bytes or 0) // UNIT_BYTES))


def moved_message_units(size_bytes: int, rule: CountingRule | None = None) -> int:
    """Return the units of one message that went through the backlog, from sender to receiver.

    A settlement carries no message, so it is one unit.
    """
    settled = rule is not None and rule.count_settlement
    return MOVED_STAGES * units(size_bytes) + (MOVED_SETTLEMENTS if settled else 0)


def message_units(size_bytes: int, rule: CountingRule | None = None) -> int:
    """Return the units of one message that went directly to its entity, from sender to receiver."""
    settled = rule is not None and rule.count_settlement
    return DIRECT_STAGES * units(size_bytes) + (DIRECT_SETTLEMENTS if settled else 0)


def idle_syphon_operations(
    *, queue_count: int, poll_s: float | Fraction, period_s: float | Fraction
) -> int:
    """Return the receives of an idle syphon in `period_s`: one for each queue and poll."""
    assert poll_s > 0, f"a poll of {poll_s} s"
    return queue_count * int(period_s // poll_s)


def lease_operations(
    *, queue_count: int, standby_count: int = 0, period_s: float | Fraction
) -> int:
    """Return the requests for leases in `period_s`, the start included.

    The holder and each standby read the lock duration once. The holder accepts a session for each
    queue and renews it; each standby tries to accept it.
    """
    held = 1 + queue_count * (1 + int(period_s // LEASE_RENEW_S))
    return held + standby_count * (1 + queue_count * (1 + int(period_s // LEASE_STANDBY_S)))


def deferred_search_operations(*, queue_count: int, period_s: float | Fraction) -> int:
    """Return the searches for deferred messages in `period_s`, the first one included."""
    return queue_count * (1 + int(period_s // DEFERRED_SEARCH_S))


def queue_search_operations(*, syphon_count: int = 1, period_s: float | Fraction) -> int:
    """Return how often syphons list the backlog queues in `period_s`, the first time included."""
    return syphon_count * (1 + int(period_s // QUEUE_SEARCH_S))


def idle_operations(
    *, queue_count: int, poll_s: float | Fraction, period_s: float | Fraction
) -> int:
    """Return all operations of a syphon without leases that moves nothing: polls and searches."""
    polls = idle_syphon_operations(queue_count=queue_count, poll_s=poll_s, period_s=period_s)
    deferred = deferred_search_operations(queue_count=queue_count, period_s=period_s)
    return polls + deferred + queue_search_operations(period_s=period_s)


def search_count(period_s: float | Fraction) -> int:
    """Return how often at most a client searches in `period_s` for a queue that stays missing."""
    at, count = 0.0, 0
    while True:
        wait_s = max(SEARCH_S, min(SEARCH_LONGEST_S, at / SEARCH_SLOW_DOWN))
        # The shortest that chance makes of it.
        at += wait_s * (1.0 - SEARCH_JITTER)
        if at > period_s:
            return count
        count += 1


def search_operations(*, missing_count: int, client_count: int, period_s: float | Fraction) -> int:
    """Return the administration calls of all clients for queues that stay missing, at most."""
    if not missing_count:
        return 0
    return client_count * search_count(period_s) * (1 + missing_count)


def ping_operations(
    *,
    entity_count: int,
    client_count: int,
    interval_s: float | Fraction,
    outage_s: float | Fraction,
) -> int:
    """Return the pings of an outage: each client pings each failed-over entity every interval."""
    assert interval_s > 0, f"a ping interval of {interval_s} s"
    return entity_count * client_count * int(outage_s // interval_s)
