"""How operations are counted, and the documented model of what a pair adds to the bill (SPEC 8).

    an operation               one unit for each started 64 KiB of its message, at least one
    an idle syphon             one receive for each backlog queue and poll: 10 queues polled for
                               15 minutes are 40 an hour, 960 a day, 28,800 in 30 days
    a message by the backlog   four stages: send to the backlog, receive from it, send to the
                               primary, receive there; with settlement counted, six
    any other message          two stages: send, receive; with settlement counted, three

Whether Azure charges the settlement of a lock is published by quotation only, hence the switch.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

__all__ = [
    "UNIT_BYTES",
    "CountingRule",
    "idle_syphon_operations",
    "message_units",
    "moved_message_units",
    "ping_operations",
    "units",
]

UNIT_BYTES: Final = 64 * 1024
"""What one billed operation carries at most."""

SETTLEMENTS: Final = frozenset({"complete", "defer", "dead_letter"})
"""Operations that end a lock: charged or not as the rule says."""

UNCHARGED: Final = frozenset({"state"})
"""Lines of the ledger that are no call to a namespace."""

MOVED_STAGES: Final = 4
MOVED_SETTLEMENTS: Final = 2
DIRECT_STAGES: Final = 2
DIRECT_SETTLEMENTS: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class CountingRule:
    """Which operations are counted, where the published rules leave a choice."""

    count_settlement: bool = False
    """Count complete, defer and dead-letter as operations of their own."""


def units(size_bytes: int | None) -> int:
    """Billed units of one operation: one for each started 64 KiB, at least one."""
    return max(1, -(-(size_bytes or 0) // UNIT_BYTES))


def moved_message_units(size_bytes: int, rule: CountingRule | None = None) -> int:
    """Units of one message that went by the backlog, from its sender to its receiver.

    A settlement carries no message: one unit, whatever the size.
    """
    settled = rule is not None and rule.count_settlement
    return MOVED_STAGES * units(size_bytes) + (MOVED_SETTLEMENTS if settled else 0)


def message_units(size_bytes: int, rule: CountingRule | None = None) -> int:
    """Units of one message that went straight to its entity, from its sender to its receiver."""
    settled = rule is not None and rule.count_settlement
    return DIRECT_STAGES * units(size_bytes) + (DIRECT_SETTLEMENTS if settled else 0)


def idle_syphon_operations(
    *, queue_count: int, poll_s: float | Fraction, period_s: float | Fraction
) -> int:
    """Receives of a syphon that finds nothing for `period_s`: one for each queue and poll."""
    assert poll_s > 0, f"a poll of {poll_s} s"
    return queue_count * int(period_s // poll_s)


def ping_operations(
    *,
    entity_count: int,
    client_count: int,
    interval_s: float | Fraction,
    outage_s: float | Fraction,
) -> int:
    """Pings of an outage: every client pings every failed-over entity once an interval."""
    assert interval_s > 0, f"a ping interval of {interval_s} s"
    return entity_count * client_count * int(outage_s // interval_s)
