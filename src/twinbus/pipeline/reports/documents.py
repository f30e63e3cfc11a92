"""The four reports as plain data: no Spark in them, and `as_json` for `--output json`.

None means unknown, never 0. The sentences in `unknown` name what is not known and why, those in
`assumed` what was counted by a rule and not from a record. A renderer shows both. A `primary_label`
is the label of the entity's primary; "": not recorded.

    ChargesReport          what was done, in billed units, and what it costs by the price book
    AvailabilityReport     failovers, sends saved and raised, receive gaps, the backlog over time
    ConservationReport     the fate of every accepted message
    ReconciliationReport   the clients' records beside the broker's
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar, Final, NamedTuple

from twinbus.pipeline.reports.values import Bill, Charge, day_of, fields_as_json
from twinbus.pipeline.store.writers import SENDS, WriterGap

DAY_MS: Final = 86_400_000


class ReportVerdict(StrEnum):
    """The answer of a report in one word."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """The window of a report in unix ms, and one entity or all. None: no limit."""

    since_ms: int | None = None
    until_ms: int | None = None
    """The window ends before this."""
    entity: str | None = None

    @property
    def first_day(self) -> date | None:
        """The day (UTC) in which the window begins."""
        return None if self.since_ms is None else day_of(self.since_ms)

    @property
    def last_day(self) -> date | None:
        """The last day (UTC) of the window."""
        return None if self.until_ms is None else day_of(self.until_ms - 1)


@dataclass(frozen=True, kw_only=True)
class ReportScope(ReportRequest):
    """What a report was made from: the ledger, and what was requested of it."""

    ledger: str
    first_ms: int | None = None
    """Time of the first record in scope; None: no record is in scope."""
    last_ms: int | None = None
    records: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Lines of the ledger that are no record, by reason: torn, foreign, of a later version."""
    unrecorded: int = 0
    """Records that processes could not write, by their own count."""
    missing: tuple[str, ...] = ()
    """Sentences on files of the ledger that are not there, were changed or were not read."""
    gaps: tuple[WriterGap, ...] = ()
    """Writers that stopped without an end, also where other evidence closes the gap."""
    remarks: tuple[str, ...] = ()
    """Sentences on files that make nothing unknown: copies, and files of earlier versions."""
    records_from: date | None = None
    """The first day whose records are kept; None: all are. Sums of earlier days are kept too."""

    @property
    def is_whole(self) -> bool:
        """Whether every record that was due could be read."""
        # A line that a crash tore can be the record of an accepted message.
        return not (self.unrecorded or self.missing or any(self.rejected.values()))

    @property
    def unknown_sends(self) -> tuple[WriterGap, ...]:
        """Writers that may have accepted messages without a record."""
        return tuple(gap for gap in self.gaps if gap.is_open and SENDS in gap.doubts)


@dataclass(frozen=True, kw_only=True)
class LedgerReport:
    """The fields of all reports."""

    kind: ClassVar[str]

    scope: ReportScope
    unknown: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def verdict(self) -> ReportVerdict:
        """Good for reports without a judgement of their own."""
        return ReportVerdict.GOOD

    def as_json(self) -> dict[str, Any]:
        """The report for `json.dumps`: amounts are exact strings, days are ISO 8601."""
        return {"report": self.kind, "verdict": self.verdict.value, **fields_as_json(self)}


class ChargeLine(NamedTuple):
    """Operations of one kind on one day: a row of the table of charges."""

    day: date
    namespace: str
    entity: str
    cause: str
    stage: str
    """The step of a message's journey; `cost` has the four that are charged."""
    direction: str
    """"in" and "out", seen from the namespace, or "none" where no message moved."""
    operation: str
    assumed: bool
    """Derived from the deliveries, not recorded."""
    operations: int
    units: int
    bytes: int
    primary_label: str = ""


class DayUnits(NamedTuple):
    """Units of one day by cause, for a chart."""

    day: date
    cause: str
    units: int


class EntityUnits(NamedTuple):
    """All operations on one entity."""

    entity: str
    operations: int
    units: int
    primary_label: str = ""


class PriceLine(NamedTuple):
    """One line of the bill: a meter of a tier, its quantity and its price."""

    tier: str
    meter: str
    quantity: str
    """With its unit."""
    amount: Decimal | None
    """None: the book has no price for it, or the quantity is not known."""
    note: str


class ModelLine(NamedTuple):
    """One number of the documented arithmetic beside the ledger's."""

    name: str
    model: int
    fact: int | None
    note: str


@dataclass(frozen=True, kw_only=True)
class ChargesReport(LedgerReport):
    """What was done, in billed units, and what it costs."""

    kind: ClassVar[str] = "charges"

    operations: int
    units: int
    bytes_in: int
    bytes_out: int
    by_kind: tuple[Charge, ...]
    by_day: tuple[DayUnits, ...] = ()
    by_entity: tuple[EntityUnits, ...] = ()
    """The most units first."""
    entities: int = 0
    """How many there are: `by_entity` may have fewer."""
    lines: tuple[ChargeLine, ...] = ()
    lines_left_out: int = 0
    """Rows past the limit of the report: in every sum, not in `lines`."""
    bill: Bill
    prices: tuple[PriceLine, ...] = ()
    model: tuple[ModelLine, ...] = ()
    recorded_receives: int = 0
    """Units of receives that receivers recorded."""
    broker_receives: int = 0
    """Units of receives that the broker recorded; the bill counts these where there are any."""


class Percentiles(NamedTuple):
    """Durations of something that happened `times` times."""

    times: int
    p50_ms: int
    p95_ms: int
    p99_ms: int
    max_ms: int


class EntityAvailability(NamedTuple):
    """One entity over the whole scope."""

    entity: str
    failovers: int
    failed_over_ms: int
    """Total time inside the scope; up to the last record if it still is."""
    is_failed_over: bool
    """Whether it is failed over at the end of the scope."""
    sends_saved: int
    """Messages that went to the backlog or to the twin instead of being refused."""
    sends_raised: int
    """Messages that were tried and never accepted: their send raised."""
    primary_label: str = ""
    receive_gap_ms: int | None = None
    """The longest receive gap of its failovers; None: not known, or it never failed over."""


class FailoverWindow(NamedTuple):
    """One failover of an entity, as one process recorded it."""

    entity: str
    pair: str
    process: str
    suspect_ms: int | None
    """Time of the first failed send; None: not in the ledger."""
    failed_over_ms: int
    recovered_ms: int | None
    """None: this process has no record of the recovery."""
    reason: str
    sends_saved: int | None
    """Messages that this process diverted meanwhile; None: not counted."""
    process_ended_ms: int | None = None
    """Time at which the process ended while failed over: recorded, or its last sign of life."""
    receive_gap_ms: int | None = None
    """The longest time in which consumers received nothing although a message was due; None: not
    known, because no consumer kept a ledger."""

    @property
    def primary_label(self) -> str:
        """Of the primary that the entity belongs to."""
        return self.pair.partition("+")[0].lower()

    @property
    def ended_ms(self) -> int | None:
        """Time of the recovery or of the process's end; None: still open."""
        return self.process_ended_ms if self.recovered_ms is None else self.recovered_ms

    @property
    def detect_ms(self) -> int | None:
        """From the first failure to the failover."""
        return None if self.suspect_ms is None else self.failed_over_ms - self.suspect_ms

    @property
    def lasted_ms(self) -> int | None:
        """From the failover to the first send to the primary."""
        return None if self.recovered_ms is None else self.recovered_ms - self.failed_over_ms


class Sends(NamedTuple):
    """Acknowledged sends in the `bucket_s` seconds from `at_s` (unix time) on."""

    at_s: int
    to_primary: int
    to_backlog: int
    to_twin: int = 0


class BacklogPoint(NamedTuple):
    """The backlog at the end of the `bucket_s` seconds from `at_s` (unix time) on."""

    at_s: int
    depth: int
    oldest_age_s: int | None


@dataclass(frozen=True, kw_only=True)
class AvailabilityReport(LedgerReport):
    """Failovers by entity, what they saved, and the backlog over time."""

    kind: ClassVar[str] = "availability"

    entities: tuple[EntityAvailability, ...] = ()
    windows: tuple[FailoverWindow, ...]
    windows_left_out: int = 0
    detect: Percentiles | None = None
    """Time from the first failure to the failover. None: no failover is in scope."""
    recover: Percentiles | None = None
    """Time from the failover to the return."""
    bucket_s: int
    sends: tuple[Sends, ...]
    backlog: tuple[BacklogPoint, ...]
    drained: int = 0
    """Messages that left the backlog."""
    drain_ms: int | None = None
    """The time in which messages left it, in whole steps; None: none did."""
    drain_step_s: int = 60

    def as_json(self) -> dict[str, Any]:
        return {**super().as_json(), "receive_gap_ms": self.receive_gap_ms}

    @property
    def drain_per_s(self) -> float | None:
        if not self.drain_ms or not self.drained:
            return None
        return self.drained * 1000 / self.drain_ms

    @property
    def receive_gap_ms(self) -> int | None:
        """The longest receive gap of the failovers in scope; None: not known of any."""
        known = [one.receive_gap_ms for one in self.windows if one.receive_gap_ms is not None]
        return max(known, default=None)

    @property
    def deepest(self) -> BacklogPoint | None:
        return max(self.backlog, key=lambda point: point.depth, default=None)

    @property
    def verdict(self) -> ReportVerdict:
        """Unknown while an entity is failed over."""
        is_open = any(entity.is_failed_over for entity in self.entities)
        return ReportVerdict.UNKNOWN if is_open else ReportVerdict.GOOD


class Sighting(NamedTuple):
    """A message that a peek found in a backlog queue or in its dead-letter queue."""

    destination: str
    """Its `x-ms-path`."""
    message_id: str
    place: str
    """"waiting" or "dead_lettered"."""
    primary_label: str
    """Of the pair that the backlog queue is of."""


class Balance(NamedTuple):
    """Fates of the accepted messages of one entity; their sum is `accepted`."""

    entity: str
    accepted: int
    delivered: int
    waiting: int | None
    dead_lettered: int | None
    expired: int | None
    lost: int | None
    """None while `undecided` is not 0: it would be a guess."""
    undecided: int
    """Diverted, and not peeked since: waiting, expired or lost."""
    received: int | None
    """None: no consumer kept a ledger, and the broker has no view of one."""
    duplicates: int | None
    raised: int
    """Tried and never accepted: the sender got an error; not part of the sum."""
    primary_label: str = ""
    at_twin: int = 0
    """Of the delivered: the twin acknowledged it, and no record says that it left the twin."""
    second_copies: int = 0
    """Copies that receivers completed without handing them out: no duplicates."""
    redeliveries: int = 0
    """Receipts of what a consumer had abandoned, deferred or released: no duplicates."""


class NamedMessage(NamedTuple):
    """A message that was not delivered."""

    entity: str
    message_id: str
    fate: str
    at_ms: int | None
    """When it was accepted."""
    primary_label: str = ""


class DuplicateMessage(NamedTuple):
    """A message that was received, or forwarded, more than once."""

    entity: str
    message_id: str
    times: int
    window: str
    primary_label: str = ""


class AgedBacklog(NamedTuple):
    """Messages that stayed in the backlog for longer than duplicates of them are detected."""

    entity: str
    messages: int
    oldest_ms: int
    detection_ms: int
    primary_label: str = ""


@dataclass(frozen=True, kw_only=True)
class ConservationReport(LedgerReport):
    """Accepted = delivered + waiting + dead-lettered + expired; what is missing is lost, by id."""

    kind: ClassVar[str] = "conservation"

    total: Balance
    entities: tuple[Balance, ...]
    lost_at_least: int
    messages: tuple[NamedMessage, ...]
    """Those lost, dead-lettered and expired, and those undecided, the worst first."""
    messages_left_out: int = 0
    duplicate_windows: Mapping[str, int]
    duplicates: tuple[DuplicateMessage, ...]
    aged: tuple[AgedBacklog, ...] = ()
    peeked_ms: int | None = None
    """Time of the peek into the backlog queues; None: there was none."""
    nameless: int = 0
    """Accepted messages without an id or an entity: they cannot be followed."""
    reused: int = 0
    """Ids that were accepted more than once; each counts as one message."""
    incomplete: tuple[str, ...] = ()
    """Why there must be accepted messages without a record in scope, a sentence each."""

    @property
    def verdict(self) -> ReportVerdict:
        """Good only if it is known of every accepted message that it is not lost.

        A missing file can hold the delivery of a message that looks lost.
        """
        if self.lost_at_least and not self.scope.missing:
            return ReportVerdict.BAD
        scope = self.scope
        is_complete = scope.is_whole and not scope.unknown_sends
        is_complete = is_complete and not self.nameless and not self.incomplete
        return ReportVerdict.GOOD if self.total.lost == 0 and is_complete else ReportVerdict.UNKNOWN


class Agreement(NamedTuple):
    """Operations of one kind at one entity, by both views."""

    entity: str
    operation: str
    clients: int
    broker: int
    only_clients: int
    """Messages that only clients recorded, without those that an unanswered call explains."""
    only_broker: int
    explained: int = 0
    """Operations that only the broker recorded and the ledger explains."""
    primary_label: str = ""


class Difference(NamedTuple):
    """A message on which the views disagree."""

    entity: str
    operation: str
    message_id: str
    ahead: int
    """Operations that clients recorded minus those that the broker recorded."""
    unanswered: int
    """Calls without an answer."""
    explanation: str
    """The reason, where the ledger shows one: no answer, or a record that was not written."""
    primary_label: str = ""


@dataclass(frozen=True, kw_only=True)
class ReconciliationReport(LedgerReport):
    """The clients' view of every operation beside the broker's."""

    kind: ClassVar[str] = "reconciliation"

    rows: tuple[Agreement, ...]
    differences: tuple[Difference, ...]
    differences_left_out: int = 0
    explained: int = 0
    """Differences that the ledger itself explains."""
    unaccounted: int = 0
    """Operations by which the sums of the views differ, beyond all differences found by id."""
    broker_records: int
    is_compared: bool = True
    """False: records in scope were removed, and only sums are left of them."""

    @property
    def unexplained(self) -> int:
        """Messages in only one view, without a reason in the ledger."""
        return sum(row.only_clients + row.only_broker for row in self.rows) + self.unaccounted

    @property
    def verdict(self) -> ReportVerdict:
        """Unknown where records are missing: they would show as differences, or hide one."""
        if not self.broker_records or self.scope.missing or not self.is_compared:
            return ReportVerdict.UNKNOWN
        if self.unexplained:
            return ReportVerdict.BAD
        return ReportVerdict.GOOD if self.scope.is_whole else ReportVerdict.UNKNOWN
