"""Estimates the monthly cost of a pair by the documented arithmetic: no ledger, no Spark.

    application   each message: send and receive; for a moved message only the last receive
    failover      each moved message: send to the backlog
    ping          every client pings every entity once an interval while an outage lasts
    syphon        each moved message: receive from the backlog, send to the primary; and the
                  searches for deferred messages
    poll          the receives of an idle syphon: 10 queues are 40 an hour, 28,800 in 30 days
    consumer      with a handling time: the renewals of message locks. A receiver that waits, and
                  the watchdog of a guarded one, cost no operation
    lease         the leases of the syphon and its standbys; none by default
    administration  the syphon's searches for new queues, and those of the clients for backlog
                  queues that are missing all month; of the latter none by default; with twins, the
                  readings of their marks
    board         the looks of the hosts at the notice board, and in an outage their posts; each
                  client counts as a host

A moved message went through the backlog. Its four stages are charged to the same causes as in the
ledger. With twins a message of an outage is not moved: it is sent to the twin and received there,
two stages as ever, and the syphon has nothing to do with it. All counts are whole and exact for the
month; fractions are rounded once, at the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from twinbus.cost.arithmetic import (
    BOARD_LOOK_S,
    BOARD_OUTAGE_LOOK_S,
    BOARD_POST_S,
    DAY_S,
    HOUR_S,
    KB,
    LEASE_RENEW_S,
    LEASE_STANDBY_S,
    TWIN_MARK_S,
    TWIN_MARKS_SINGLE_MAX,
    CountingRule,
    QuantityError,
    board_operations,
    board_outage_operations,
    deferred_search_operations,
    idle_operations,
    idle_syphon_operations,
    lease_operations,
    message_units,
    ping_operations,
    queue_search_operations,
    receiver_checks,
    renewals,
    search_count,
    search_operations,
    twin_mark_operations,
    twin_topic_operations,
    units,
)
from twinbus.cost.bill import (
    MonthlyBill,
    MonthUse,
    ServiceTier,
    bill,
    exact,
    exact_or_none,
    geo_replication_bill,
    operations_meter,
)
from twinbus.cost.prices import PriceBook
from twinbus.wording import counted

MONTH_DAYS: Final = 30
"""The documented 28,800 receives are those of 30 days."""
MONTH_S: Final = MONTH_DAYS * DAY_S

DOCUMENTED: Final = CountingRule()
"""Four stages for a moved message, as documented; settlement not counted."""

SIZE_MAX_BYTES: Final = {
    ServiceTier.BASIC: 256 * KB,
    ServiceTier.STANDARD: 256 * KB,
    ServiceTier.PREMIUM: 100 * KB * KB,
}
"""Maximum message size by tier."""

CREDITS_PER_S: Final = 1_000
"""Limit of a Standard namespace before it throttles: one credit for each send or receive."""

SYPHON_CONNECTIONS: Final = 2
"""Connections of the syphon for each backlog queue: one to each namespace."""

STANDBYS_MAX: Final = 100
COUNT_MAX: Final = 100_000
"""Maximum entities or clients: ten Standard namespaces full of queues."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """The traffic and the outages. Raises QuantityError for values that no namespace can have."""

    rate_per_s: Fraction
    size_bytes: int
    entities: int = 1
    clients: int = 1
    queues: int = 10
    missing_queues: int = 0
    """Backlog queues that are not in use all month, for which every client searches."""
    lease: bool = False
    """Whether the syphon holds a lease of each backlog queue."""
    standbys: int = 0
    """Further syphons that wait for the leases."""
    twins: bool = False
    """Whether each entity has a twin that takes its messages in an outage."""
    receivers: int = 0
    """Guarded receivers, and receivers of entities with a twin."""
    handling_s: Fraction = Fraction(0)
    """How long a message is handled while its lock is renewed."""
    lock_s: Fraction = Fraction(60)
    """Lock duration of the entities."""
    ping_interval_s: Fraction = Fraction(60)
    poll_s: Fraction = Fraction(900)
    outages_per_year: Fraction = Fraction(2)
    outage_s: Fraction = Fraction(2_400)
    tier: ServiceTier = ServiceTier.STANDARD
    rule: CountingRule = DOCUMENTED
    messaging_units: int = 1
    connections: int | None = None
    """Connections at the peak. None: counted from clients, entities and queues."""

    def __post_init__(self) -> None:
        if self.rate_per_s <= 0:
            raise QuantityError(f"rate must be more than 0; got {self.rate_per_s}")
        limit = SIZE_MAX_BYTES[self.tier]
        if not 0 <= self.size_bytes <= limit:
            raise QuantityError(
                f"size must be at most {limit:,} bytes, the largest message of the tier"
                f" {self.tier}; got {self.size_bytes:,}"
            )
        for name in ("entities", "clients"):
            _require_count(name, getattr(self, name), COUNT_MAX)
        _require_count("queues", self.queues, 100)
        if not 0 <= self.receivers <= COUNT_MAX:
            raise QuantityError(f"receivers must be from 0 to {COUNT_MAX:,}; got {self.receivers}")
        if not 0 <= self.missing_queues <= self.queues:
            raise QuantityError(
                f"missing-queues must be from 0 to {self.queues}, the queues there should be;"
                f" got {self.missing_queues}"
            )
        if not 0 <= self.standbys <= STANDBYS_MAX:
            raise QuantityError(f"standbys must be from 0 to {STANDBYS_MAX}; got {self.standbys}")
        if self.standbys and not self.lease:
            raise QuantityError("standbys wait for leases: give --lease too")
        if self.outages_per_year * self.outage_s > 12 * MONTH_S:
            raise QuantityError(
                f"outages, {float(self.outages_per_year):g} a year of {float(self.outage_s):g} s,"
                " are longer than the year: give fewer or shorter ones"
            )

    @property
    def outages_per_month(self) -> Fraction:
        return self.outages_per_year / 12

    @property
    def connections_alone(self) -> int:
        """Connections of the application without a pair: one for each client and entity."""
        return self.clients * self.entities

    @property
    def connections_peak(self) -> int:
        """Connections in an outage: also each client's to the backlog queues, and the syphon's."""
        if self.connections is not None:
            return self.connections
        diverting = self.clients * min(self.entities, self.queues)
        return self.connections_alone + diverting + SYPHON_CONNECTIONS * self.queues


@dataclass(frozen=True, slots=True)
class CauseCost:
    """The cost of one cause in the month."""

    cause: str
    operations: int
    units: int
    bytes_out: int = 0
    amount: Decimal | None = None
    """Added to the causes before it: the application's operations use the free amount first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostEstimate:
    """A month of 30 days."""

    messages: int
    moved: int
    """Messages that went through the backlog, or with twins through these."""
    causes: tuple[CauseCost, ...]
    bill: MonthlyBill
    alone: Decimal
    """The total without a pair."""
    geo_replication: MonthlyBill
    idle_receives: dict[str, int]
    """Receives of an idle syphon in an hour, a day and a month."""
    idle_operations: int
    """All operations of an idle syphon in a month: its receives and its searches."""
    moved_stages: dict[str, int]
    """Units of one message of an outage, by stage."""
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def operations(self) -> int:
        return sum(cause.operations for cause in self.causes)

    @property
    def units(self) -> int:
        return sum(cause.units for cause in self.causes)

    @property
    def added(self) -> Decimal:
        """What the pair adds to the month, without unpriced lines."""
        return self.bill.total - self.alone

    def as_json(self) -> dict[str, Any]:
        """Return the estimate for `json.dumps`; amounts are exact strings."""
        return {
            "month_days": MONTH_DAYS,
            "messages": self.messages,
            "moved": self.moved,
            "operations": self.operations,
            "units": self.units,
            "causes": [
                {**asdict(cause), "amount": exact_or_none(cause.amount)} for cause in self.causes
            ],
            "bill": self.bill.as_json(),
            "without_pair": exact(self.alone),
            "pair_adds": exact(self.added),
            "geo_replication": self.geo_replication.as_json(),
            "idle_receives": self.idle_receives,
            "idle_operations": self.idle_operations,
            "moved_stages": self.moved_stages,
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }


def estimate(work: Workload, prices: PriceBook) -> CostEstimate:
    """Return the estimate of a workload by the documented model and one price book."""
    messages = _whole(work.rate_per_s * MONTH_S)
    moved = min(messages, _whole(work.rate_per_s * work.outage_s * work.outages_per_month))
    causes = tuple(_priced(_counted(work, messages, moved), work, prices))
    use = MonthUse(
        operation_units=sum(cause.units for cause in causes),
        connections_peak=work.connections_peak,
        bytes_out=sum(cause.bytes_out for cause in causes),
        hours=MONTH_S // HOUR_S,
        messaging_units=work.messaging_units,
    )
    alone = MonthUse(
        operation_units=messages * message_units(work.size_bytes, work.rule)
        + _renewals(work, messages),
        connections_peak=min(work.connections_alone, work.connections_peak),
        bytes_out=messages * work.size_bytes,
        hours=use.hours,
        namespaces=1,
        messaging_units=work.messaging_units,
    )
    made = bill(use, work.tier, prices)
    return CostEstimate(
        messages=messages,
        moved=moved,
        causes=causes,
        bill=made,
        alone=bill(alone, work.tier, prices).total,
        geo_replication=geo_replication_bill(
            alone, prices, replicated_bytes=messages * work.size_bytes
        ),
        idle_receives={
            name: idle_syphon_operations(
                queue_count=work.queues, poll_s=work.poll_s, period_s=period_s
            )
            for name, period_s in (("hour", HOUR_S), ("day", DAY_S), ("month", MONTH_S))
        },
        idle_operations=idle_operations(
            queue_count=work.queues, poll_s=work.poll_s, period_s=MONTH_S
        ),
        moved_stages=_moved_stages(work),
        assumptions=(*_assumed(work), *made.assumptions),
        warnings=tuple(_warnings(work, moved)),
    )


def _counted(work: Workload, messages: int, moved: int) -> Iterator[CauseCost]:
    """Yield the causes, without their amounts."""
    one, size = units(work.size_bytes), work.size_bytes
    settled = 1 if work.rule.count_settlement else 0
    direct = messages - moved
    yield CauseCost(
        "application",
        direct * (2 + settled) + moved * (1 + settled),
        direct * (2 * one + settled) + moved * (one + settled),
        messages * size,
    )
    yield CauseCost("failover", moved, moved * one)
    pings = ping_operations(
        entity_count=work.entities,
        client_count=work.clients,
        interval_s=work.ping_interval_s,
        outage_s=work.outage_s,
    )
    pings_a_month = _whole(pings * work.outages_per_month)
    yield CauseCost("ping", pings_a_month, pings_a_month)
    looks = deferred_search_operations(queue_count=work.queues, period_s=MONTH_S)
    pumped = 0 if work.twins else moved
    yield CauseCost(
        "syphon",
        pumped * (2 + settled) + looks,
        pumped * (2 * one + settled) + looks,
        pumped * size,
    )
    polls = idle_syphon_operations(queue_count=work.queues, poll_s=work.poll_s, period_s=MONTH_S)
    yield CauseCost("poll", polls, polls)
    if work.handling_s:
        renewed = _renewals(work, messages)
        yield CauseCost("consumer", renewed, renewed)
    if work.lease:
        leases = lease_operations(
            queue_count=work.queues, standby_count=work.standbys, period_s=MONTH_S
        )
        yield CauseCost("lease", leases, leases)
    searches = queue_search_operations(
        syphon_count=1 + work.standbys, period_s=MONTH_S
    ) + search_operations(
        missing_count=work.missing_queues, client_count=work.clients, period_s=MONTH_S
    )
    if work.twins:
        searches += twin_mark_operations(
            twin_count=work.entities,
            client_count=work.clients,
            receiver_count=work.receivers,
            period_s=MONTH_S,
        ) + twin_topic_operations(syphon_count=1 + work.standbys, period_s=MONTH_S)
    yield CauseCost("administration", searches, searches)
    busy = board_outage_operations(host_count=work.clients, outage_s=work.outage_s)
    looks = board_operations(host_count=work.clients, period_s=MONTH_S)
    looks += _whole(busy * work.outages_per_month)
    yield CauseCost("board", looks, looks)


def _renewals(work: Workload, messages: int) -> int:
    """Return the renewals of message locks; a receiver without a pair makes as many."""
    return messages * renewals(work.handling_s, work.lock_s)


def _priced(causes: Iterator[CauseCost], work: Workload, prices: PriceBook) -> Iterator[CauseCost]:
    key = operations_meter(work.tier)
    before = 0
    for cause in causes:
        amount = prices.meter(key).cost(cause.units, before) if key else Decimal(0)
        before += cause.units
        yield replace(cause, amount=amount)


def _moved_stages(work: Workload) -> dict[str, int]:
    calls = ("send to the", "receive from the")
    one, places = units(work.size_bytes), ("twin",) if work.twins else ("backlog", "primary")
    stages = {f"{call} {place}": one for place in places for call in calls}
    if work.rule.count_settlement:
        stages |= {f"complete in the {place}": 1 for place in places}
    total = sum(stages.values())
    by_rule = message_units(work.size_bytes, work.rule, moved=not work.twins)
    assert total == by_rule, f"{total} units by stage"
    return stages


def _assumed(work: Workload) -> Iterator[str]:
    settlement = "counted" if work.rule.count_settlement else "not counted"
    yield (
        f"a month of {MONTH_DAYS} days, its traffic even; outages of a year spread over 12 months"
    )
    yield "one unit for each started 64 KB of 1024 bytes; batches are counted message by message"
    yield f"each message is received once, by one receiver; settlement is {settlement}"
    yield "all entities fail in an outage, and all its messages are diverted: nobody gives up"
    yield "every ping is charged, answered or not; a send that failed is not"
    yield (
        f"an idle syphon receives once in {float(work.poll_s):g} s and queue, outage or not;"
        " what Azure counts on an idle AMQP link is not published"
    )
    yield (
        "the syphon is a program that runs all month: it searches each queue for deferred messages"
        " every hour, and lists the queues every 15 min; the listings of each minute of an outage"
        " are left out"
    )
    if work.lease:
        yield (
            f"a lease is renewed every {LEASE_RENEW_S} s, and each standby tries to get it every"
            f" {LEASE_STANDBY_S} s; one operation each, which Azure does not publish"
        )
    if work.missing_queues:
        yield (
            f"{work.missing_queues} backlog queues are missing all month: each client lists the"
            f" queues and creates the missing ones {search_count(MONTH_S):,} times at most;"
            " without Manage it opens links instead, which are no operations"
        )
    else:
        yield "every backlog queue is in use, so that no client searches for one"
    yield from _assumed_of_receivers(work)
    yield (
        "each client is on a host of its own, and looks at the notice board every"
        f" {BOARD_LOOK_S // 60} min; in an outage every {BOARD_OUTAGE_LOOK_S} s, and posts every"
        f" {BOARD_POST_S} s. Several on one host share these; board=False saves them"
    )
    yield "the amount of a cause is what it adds to the causes above it"
    if work.connections is None:
        yield (
            "one connection for each client and entity, in an outage one more for each client and"
            " backlog queue it uses, two for each queue of the syphon; receivers come on top"
        )
    yield "data out is what is received, as if every receiver and the syphon were elsewhere"


def _assumed_of_receivers(work: Workload) -> Iterator[str]:
    if work.twins:
        yield (
            "each entity has a twin, which takes all its messages in an outage, and consumers"
            " receive them there: the syphon moves none home"
        )
        yield (
            f"each client reads the marks of its twins at most once in {TWIN_MARK_S} s, up to"
            f" {TWIN_MARKS_SINGLE_MAX} one by one, else by listing queues and topics; a receiver"
            " reads one mark when it is opened"
        )
    if work.receivers:
        checks = receiver_checks(
            receiver_count=work.receivers, side_count=1 + work.twins, period_s=MONTH_S
        )
        yield (
            f"{counted(work.receivers, 'guarded receiver')} that wait cost no operation: the"
            f" watchdog checks their links at most {checks:,} times a month, with frames that are"
            " not billed, as far as is known"
        )
    if work.handling_s:
        yield (
            f"each message is handled for {float(work.handling_s):g} s, and its lock of"
            f" {float(work.lock_s):g} s is renewed at each half until it is settled:"
            f" {counted(renewals(work.handling_s, work.lock_s), 'renewal')}, one operation each,"
            " and as many without a pair"
        )


def _warnings(work: Workload, moved: int) -> Iterator[str]:
    if work.tier is not ServiceTier.PREMIUM and 2 * work.rate_per_s > CREDITS_PER_S:
        yield (
            f"{float(work.rate_per_s):,.6g} messages a second, sent and received, are more than the"
            f" {CREDITS_PER_S:,} credits a second of one namespace: it would throttle"
        )
    if work.tier is ServiceTier.BASIC and moved:
        yield "Basic has no duplicate detection: what a crash repeats is received twice"


def _whole(amount: Fraction) -> int:
    """Round to the nearest whole number, half up."""
    return int(amount + Fraction(1, 2))


def _require_count(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise QuantityError(f"{name} must be from 1 to {most:,}; got {value}")
