"""What a drill was asked to do, when things happened, and what came of it: plain data, no I/O.

Every count comes from the tables over the ledger, in which senders, pings, syphon and receivers
wrote side by side. What the callers themselves were told is kept only to check the ledger by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twinbus.pipeline.report import Report

__all__ = ["DrillPlan", "DrillResult", "Moments", "TookTime", "seconds_between"]

LEAD_S: Final = 3.0
"""Healthy traffic before the kill: enough to see a rate."""
TAIL_S: Final = 5.0
"""Traffic after the primary is back: the ping needs an interval, then sends are seen to return."""
RATE_MAX: Final = 400.0
"""Messages a second that one Python process sends singly beside a broker, Spark's start included,
on two cores. A drill of more messages takes longer; a faster one would measure the machine."""

FAILED_OVER: Final = "failed over"
HEALTHY: Final = "healthy"


@dataclass(frozen=True, kw_only=True)
class DrillPlan:
    """What the command line asked for."""

    messages: int = 3_000
    senders: int = 4
    outage_s: float = 8.0
    failover_interval_s: float = 2.0
    ping_interval_s: float = 1.0
    backlog_queues: int = 4

    @property
    def traffic_s(self) -> float:
        """How long sending goes on, at a steady rate."""
        return max(LEAD_S + self.outage_s + TAIL_S, self.messages / RATE_MAX)

    @property
    def rate(self) -> float:
        """Messages a second, of all senders together."""
        return self.messages / self.traffic_s

    @property
    def kill_after_s(self) -> float:
        """When the primary is killed, from the first message on."""
        return (self.traffic_s - self.outage_s) * LEAD_S / (LEAD_S + TAIL_S)

    def share(self, sender: int) -> range:
        """The numbers of the messages of one sender: every `senders`-th."""
        return range(sender, self.messages, self.senders)


@dataclass(frozen=True, kw_only=True)
class Moments:
    """When the drill itself did something, in unix milliseconds."""

    began_ms: int
    """The first message was due."""
    killed_ms: int
    """The primary got SIGKILL."""
    back_ms: int
    """The primary answered again."""
    ended_ms: int
    """The last message was received."""


@dataclass(frozen=True)
class TookTime:
    """One phase and its length."""

    phase: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class DrillResult:
    """What came of a drill."""

    plan: DrillPlan
    moments: Moments
    tables: Report
    told_accepted: int
    """Messages whose `send_messages` returned: what the ledger must know too."""
    left_behind: frozenset[str] = frozenset()
    """Ids that a peek saw in the backlog at the end: not received, and not lost either."""
    took: tuple[TookTime, ...] = ()
    version: str = ""

    @property
    def lost(self) -> int:
        """Accepted, and neither received nor in the backlog: the receivers emptied the primary.

        Stricter than the table's own answer, which takes the destination's word for a delivery.
        """
        found = self.tables.waiting or 0, self.tables.dead_lettered or 0
        return self.not_received - sum(found)

    @property
    def lost_ids(self) -> tuple[str, ...]:
        """Some of the lost (the tables name so many at most), in order."""
        missing = {*self.tables.lost_ids, *self.tables.not_received_ids}
        return tuple(sorted(missing - self.left_behind))

    @property
    def not_received(self) -> int:
        if self.tables.not_received is None:
            return self.tables.accepted
        return self.tables.not_received

    @property
    def caller_errors(self) -> int:
        """Sends that raised: tried, and no attempt of them was acknowledged."""
        return self.tables.raised + self.tables.received_unaccepted

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the numbers prove nothing, if they do not: a proof needs a whole ledger."""
        return tuple(self._doubts())

    @property
    def passed(self) -> bool:
        """Lost is 0, every accepted message was received, and the ledger is fit to say so."""
        return self.lost == 0 and self.not_received == 0 and not self.doubts

    @property
    def failover_s(self) -> float | None:
        """From the kill until the last of the entities had failed over. None: none did."""
        return self._last_s(FAILED_OVER, self.moments.killed_ms)

    @property
    def recover_s(self) -> float | None:
        """From the primary's first answer until the last entity was healthy. None: none failed."""
        if self.failover_s is None:
            return None
        return self._last_s(HEALTHY, self.moments.back_ms)

    @property
    def drain_s(self) -> float | None:
        """From the first message out of the backlog to the last one settled. None: no backlog."""
        return seconds_between(self.tables.drain_began_ms, self.tables.drain_ended_ms)

    @property
    def drain_rate(self) -> float | None:
        """Messages a second that the syphon forwarded while it drained."""
        return self.tables.forwarded / self.drain_s if self.drain_s else None

    def as_json(self) -> dict[str, Any]:
        """The result for `json.dumps`: the promised keys first, then all that the tables say."""
        tables = self.tables.as_json()
        return {
            "passed": self.passed,
            "accepted": self.tables.accepted,
            "delivered": self.tables.delivered,
            "received": self.tables.received,
            "lost": self.lost,
            "lost_ids": list(self.lost_ids),
            "waiting": self.tables.waiting,
            "dead_lettered": self.tables.dead_lettered,
            "duplicates": self.tables.duplicates,
            "diverted": self.tables.diverted,
            "caller_errors": self.caller_errors,
            "failover_s": _rounded(self.failover_s),
            "recover_s": _rounded(self.recover_s),
            "drain_s": _rounded(self.drain_s),
            "drain_rate": _rounded(self.drain_rate),
            "charges": tables["charges"],
            "operations_by_cause": tables["operations_by_cause"],
            "bill": tables["bill"],
            "doubts": list(self.doubts),
            "plan": vars(self.plan) | {"rate": _rounded(self.plan.rate)},
            "moments": vars(self.moments),
            "took_s": {phase.phase: _rounded(phase.seconds) for phase in self.took},
            "version": self.version,
            "tables": tables,
        }

    def _doubts(self) -> Iterator[str]:
        if self.tables.unrecorded:
            yield f"{self.tables.unrecorded:,} records could not be written to the ledger"
        if self.tables.set_aside:
            yield f"{self.tables.set_aside:,} lines of the ledger cannot be read"
        if self.tables.accepted != self.told_accepted:
            yield (
                f"the ledger has {self.tables.accepted:,} accepted messages,"
                f" and {self.told_accepted:,} sends returned to their callers"
            )
        if not self.tables.accepted:
            yield "no message was accepted at all"
        if self.tables.received is None:
            yield "no receiver wrote to the ledger"

    def _last_s(self, state: str, since_ms: int) -> float | None:
        """From `since_ms` until every entity that entered `state` after it had done so once."""
        first: dict[str, int] = {}
        for change in self.tables.states:
            if change.state == state and change.at_ms >= since_ms and change.entity:
                first.setdefault(change.entity, change.at_ms)
        return seconds_between(since_ms, max(first.values(), default=None))


def seconds_between(began_ms: int | None, ended_ms: int | None) -> float | None:
    """Seconds from one moment to another; None where one is not known."""
    if began_ms is None or ended_ms is None:
        return None
    return (ended_ms - began_ms) / 1000


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
