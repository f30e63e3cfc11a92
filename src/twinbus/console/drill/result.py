"""The plan of a drill, the times of its events, and its result: plain data, no I/O.

Every count comes from the reports on the ledger that senders, pings, syphon and receivers wrote.
The number of sends that returned is kept only to check the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from twinbus.pipeline.reports.documents import Balance
    from twinbus.pipeline.reports.outage import OutageReport

LEAD_S: Final = 3.0
"""Healthy traffic before the kill: enough to show a rate."""
TAIL_S: Final = 5.0
"""Traffic after the primary is back: the ping needs an interval, and then sends return."""
RATE_MAX: Final = 400.0
"""Messages a second that one Python process sends singly beside a broker, Spark's start included,
on two cores. A drill of more messages takes longer; a faster one would measure the machine."""

KNOWN_OUTAGE_SPEED: Final = 1_000
"""How many times faster a drill plays a known outage: nine hours become half a minute."""

HEALTHY: Final = "healthy"
REDELIVERED: Final = "redelivered"
"""The window of a message that a consumer gave back, or whose lock it lost."""
UNEXPLAINED: Final = "unexplained"

TOTALS: Final = ("accepted", "delivered", "waiting", "dead_lettered")


@dataclass(frozen=True, kw_only=True)
class DrillPlan:
    """The options of the command line."""

    messages: int = 3_000
    senders: int = 4
    outage_s: float = 8.0
    failover_interval_s: float = 2.0
    ping_interval_s: float = 1.0
    backlog_queues: int = 4
    gateway: bool = False
    """The senders know nothing of Twinbus: they send through a gateway."""
    like: str | None = None
    """Whose limits the namespaces have (`twinbus serve --like`)."""
    stands_for: str | None = None
    """The name of the known outage that the drill plays faster."""

    @property
    def traffic_s(self) -> float:
        """Duration of the traffic, at a steady rate."""
        return max(LEAD_S + self.outage_s + TAIL_S, self.messages / RATE_MAX)

    @property
    def rate(self) -> float:
        """Messages a second, of all senders together."""
        return self.messages / self.traffic_s

    @property
    def kill_after_s(self) -> float:
        """From the first message until the primary is killed."""
        return (self.traffic_s - self.outage_s) * LEAD_S / (LEAD_S + TAIL_S)

    def share(self, sender: int) -> range:
        """The numbers of the messages of one sender: every `senders`-th."""
        return range(sender, self.messages, self.senders)


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Times of the drill's own actions, in unix milliseconds."""

    began_ms: int
    """The first message was due."""
    killed_ms: int
    """The primary got SIGKILL."""
    back_ms: int
    """The primary answered again."""
    ended_ms: int
    """The last message was received."""


@dataclass(frozen=True, kw_only=True)
class DrillResult:
    plan: DrillPlan
    moments: Moments
    report: OutageReport
    sends_returned: int
    """Messages whose `send_messages` returned: the ledger must have as many accepted ones."""
    left_behind: frozenset[str] = frozenset()
    """Ids that a peek found in the backlog at the end: neither received nor lost."""
    twins: tuple[str, ...]
    """Entities that have a twin."""
    without_twin: tuple[str, ...]
    """Entities that have only the backlog."""
    in_twins: int = 0
    """Messages that are left in twins at the end."""
    came_again: frozenset[str] = frozenset()
    """Ids of messages that the consumers got twice from one place, with one sequence number: the
    same copy, which was not completed. The ledger has no line of a completion that was not sent."""
    client: str = ""
    """The language and SDK of the senders at a gateway; empty: paired senders of the drill."""
    took_s: Mapping[str, float] = field(default_factory=dict)
    """The length of each phase."""
    version: str = ""

    @property
    def total(self) -> Balance:
        return self.report.conservation.total

    @property
    def received(self) -> int | None:
        """Accepted messages that a receiver got. None: no receiver wrote to the ledger."""
        found = [row.received for row in self.report.conservation.entities]
        known = [number for number in found if number is not None]
        return sum(known) if known else None

    @property
    def lost(self) -> int:
        """Messages that were accepted, not received, and are not in the backlog.

        Stricter than the conservation report, which takes an acknowledgement of the destination
        for a delivery: the receivers emptied the primary.
        """
        return self.not_received - (self.total.waiting or 0) - (self.total.dead_lettered or 0)

    @property
    def lost_ids(self) -> tuple[str, ...]:
        """Ids of lost messages, in order; the report limits their number."""
        return tuple(sorted({*self.report.not_received_ids} - self.left_behind))

    @property
    def not_received(self) -> int:
        return self.total.accepted - (self.received or 0)

    @property
    def duplicates(self) -> int:
        """Messages that were received more than once at one entity, redeliveries not counted."""
        return (self.total.duplicates or 0) - self.redelivered

    @property
    def redelivered(self) -> int:
        """Messages that came again because their completion did not reach the primary."""
        conservation = self.report.conservation
        named = {one.message_id for one in conservation.duplicates if one.window == UNEXPLAINED}
        found = conservation.duplicate_windows.get(REDELIVERED, 0)
        return found + len(named & self.came_again)

    @property
    def diverted(self) -> int:
        """Messages that went to a twin or to a backlog queue."""
        return self.twinned + sum(point.to_backlog for point in self.report.availability.sends)

    @property
    def twinned(self) -> int:
        """Messages that went to a twin."""
        return sum(point.to_twin for point in self.report.availability.sends)

    @property
    def caller_errors(self) -> int:
        """Sends that raised: tried, and no attempt was acknowledged."""
        return self.total.raised

    @property
    def operations_by_cause(self) -> dict[str, int]:
        causes: dict[str, int] = {}
        for kind in self.report.charges.by_kind:
            if not kind.assumed:
                causes[kind.cause] = causes.get(kind.cause, 0) + kind.operations
        return causes

    @property
    def receive_gap_s(self) -> float | None:
        """The longest receive gap of the entities with a twin; None: not known."""
        return self._longest_gap_s(self.twins)

    @property
    def backlog_receive_gap_s(self) -> float | None:
        """The same of the entities that have only the backlog."""
        return self._longest_gap_s(self.without_twin)

    def _longest_gap_s(self, entities: Sequence[str]) -> float | None:
        windows = [one for one in self.report.availability.windows if one.entity in entities]
        gaps = [one.receive_gap_ms for one in windows if one.receive_gap_ms is not None]
        return max(gaps) / 1000 if gaps and len(gaps) == len(windows) else None

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons why the numbers prove nothing: a proof needs a whole ledger."""
        return tuple(self._doubts())

    @property
    def passed(self) -> bool:
        """Whether nothing is lost, everything accepted was received, and the ledger is whole."""
        return self.lost == 0 and self.not_received == 0 and not self.doubts

    @property
    def failover_s(self) -> float | None:
        """From the kill until the last entity had failed over. None: none did."""
        return self._until_last("failed_over_ms", self.moments.killed_ms)

    @property
    def recover_s(self) -> float | None:
        """From the primary's first answer until the last entity was healthy. None: none failed."""
        found = self._until_last("recovered_ms", self.moments.back_ms)
        return None if self.failover_s is None else found

    def _until_last(self, change: str, since_ms: int) -> float | None:
        """From `since_ms` until every entity that changed after it had changed once."""
        first: dict[str, int] = {}
        for window in self.report.availability.windows:
            at_ms = getattr(window, change)
            if at_ms is not None and at_ms >= since_ms:
                first[window.entity] = min(at_ms, first.get(window.entity, at_ms))
        return seconds_between(since_ms, max(first.values(), default=None))

    @property
    def drain_s(self) -> float | None:
        """From the first message out of the backlog to the last one settled. None: no backlog."""
        return seconds_between(self.report.drain_began_ms, self.report.drain_ended_ms)

    @property
    def drain_rate(self) -> float | None:
        return self.report.forwarded / self.drain_s if self.drain_s else None

    def as_json(self) -> dict[str, Any]:
        """The result for `json.dumps`; under `tables`, what the reports say of the ledger."""
        report, charges = self.report, self.report.charges.as_json()
        conservation, over_time = report.conservation.as_json(), report.availability.as_json()
        scope = conservation["scope"]
        both = {
            **self._values("received", "duplicates", "diverted", "operations_by_cause"),
            "charges": charges["by_kind"],
            "bill": charges["bill"],
        }
        tables = {
            **{name: value for name, value in conservation["total"].items() if name != "entity"},
            **both,
            "not_received": self.not_received,
            "not_received_ids": list(report.not_received_ids),
            "lost_at_least": conservation["lost_at_least"],
            "lost_ids": [
                one.message_id for one in report.conservation.messages if one.fate == "lost"
            ],
            "duplicate_windows": conservation["duplicate_windows"],
            "duplicate_ids": conservation["duplicates"],
            **{name: getattr(report, name) for name in ("drain_began_ms", "drain_ended_ms")},
            "forwarded": report.forwarded,
            **{name: over_time[name] for name in ("windows", "bucket_s", "sends", "backlog")},
            "records": scope["records"],
            "rejected": sum(scope["rejected"].values()),
            "unrecorded": scope["unrecorded"],
            "unknown": conservation["unknown"],
            "assumed": charges["assumed"],
        }
        times = self._values(
            *("failover_s", "recover_s", "drain_s", "drain_rate"),
            *("receive_gap_s", "backlog_receive_gap_s"),
        )
        return {
            **self._values("passed", "lost", "caller_errors", "version", "twinned", "in_twins"),
            "redelivered": self.redelivered,
            **{name: getattr(self.total, name) for name in TOTALS},
            **both,
            **{name: _rounded(value) for name, value in times.items()},
            "lost_ids": list(self.lost_ids),
            "doubts": list(self.doubts),
            "client": self.client or None,
            "plan": vars(self.plan) | {"rate": _rounded(self.plan.rate)},
            "moments": vars(self.moments),
            "took_s": {phase: _rounded(seconds) for phase, seconds in self.took_s.items()},
            "tables": tables,
        }

    def _values(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    def _doubts(self) -> Iterator[str]:
        conservation = self.report.conservation
        scope, accepted = conservation.scope, self.total.accepted
        yield from conservation.incomplete
        yield from scope.missing
        yield from (gap.sentence for gap in scope.unknown_sends)
        if self.total.undecided:
            yield f"{self.total.undecided:,} messages are undecided"
        if conservation.nameless:
            yield f"{conservation.nameless:,} accepted messages have no id or no entity"
        if scope.unrecorded:
            yield f"{scope.unrecorded:,} records could not be written to the ledger"
        if rejected := sum(scope.rejected.values()):
            yield f"{rejected:,} lines of the ledger cannot be read"
        if accepted != self.sends_returned:
            yield (
                f"the ledger has {accepted:,} accepted messages,"
                f" and {self.sends_returned:,} sends returned to their callers"
            )
        if not accepted:
            yield "no message was accepted at all"
        if self.received is None:
            yield "no receiver wrote to the ledger"
        if self.in_twins:
            yield f"{self.in_twins:,} messages are left in twins"


def seconds_between(began_ms: int | None, ended_ms: int | None) -> float | None:
    if began_ms is None or ended_ms is None:
        return None
    return (ended_ms - began_ms) / 1000


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
