"""`twinbus cost estimate`: checks the options, and prints a month as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

from twinbus.console.declaration import command, command_group, flag, option, setting
from twinbus.console.options import (
    PricesOption,
    SettlementOption,
    counting_rule,
    require_messaging_units,
)
from twinbus.console.output import Output, OutputOption, WrongUse, dim_headed, money, paint, show
from twinbus.console.prices import book_of
from twinbus.cost.arithmetic import (
    DAY_S,
    QuantityError,
    parse_duration,
    parse_frequency,
    parse_rate,
    parse_size,
)
from twinbus.cost.bill import BillLine, ServiceTier
from twinbus.options import PING_INTERVAL_MAX_S, SYPHON_POLL_MAX_S
from twinbus.wording import counted, duration

if TYPE_CHECKING:
    from twinbus.cost.estimate import CostEstimate, Workload


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    rate: Annotated[str, option("RATE", "Message rate, like 500/s, 30000/min or 2M/day.")]
    size: Annotated[str, option("SIZE", "Size of one message, like 2KB or 64KiB.")] = "1KB"
    entities: Annotated[int, option("N", "Queues and topics that are sent to.")] = 1
    clients: Annotated[int, option("N", "Sending processes, each with its own pair.")] = 1
    poll: Annotated[str, setting("poll")] = "15min"
    settlement: SettlementOption = "free"
    messaging_units: Annotated[
        int, option("N", "Messaging units of a Premium namespace: 1, 2, 4, 8 or 16.")
    ] = 1


PlanOutput = Literal["text", "json", "html"]


@dataclass(frozen=True, kw_only=True)
class PlanOptions(WorkloadOptions):
    outages: Annotated[
        list[str],
        option(
            "PATTERN",
            "How often the primary is down and for how long: '2/year lognormal 40min', where"
            " 40min is the median; also exponential or fixed, and 'exactly 2/year'; or an outage"
            " that happened, west-europe-2025-11. Repeatable.",
            "--outages",
            "--outage",
        ),
    ]
    sigma: Annotated[float, option("X", "Spread of lognormal lengths (sigma).")] = 1.0
    failover_interval: Annotated[
        str, option("TIMES", "Failover intervals to compare, separated by commas.")
    ] = "0,10s,30s,60s"
    ping_interval: Annotated[
        str, option("TIMES", "Ping intervals to compare, separated by commas.")
    ] = "10s,30s,60s,5min"
    queues: Annotated[str, option("COUNTS", "Numbers of backlog queues to compare.")] = "1,5,10,20"
    backlog_size: Annotated[str, option("SIZE", "Quota of one backlog queue, 1GB to 80GB.")] = "5GB"
    rate_limit: Annotated[str, option("RATE", "Rate at which the syphon sends.")] = "250/s"
    shared_limit: Annotated[
        bool,
        flag(
            "--shared-limit",
            "The rate limit is that of the primary: the application sends first, the syphon"
            " gets what is left.",
        ),
    ] = False
    patience: Annotated[
        str | None,
        option(
            "TIME",
            "Timeout of a send. Unset: the send has no timeout and ends after its retries,"
            " by default four attempts and 11.2 s of back-off.",
        ),
    ] = None
    hang: Annotated[
        str,
        option(
            "TIME",
            "How long an attempt takes to fail: 0 if the connection is refused, up to"
            " attempt_timeout if the primary hangs.",
        ),
    ] = "0s"
    syphons: Annotated[int, option("N", "Programs that run a syphon.")] = 1
    full_years: Annotated[float, option("X", "Accepted share of years with a full backlog.")] = 0.01
    raised_per_million: Annotated[
        float, option("X", "Accepted number of sends that raise before failover, of a million.")
    ] = 1.0
    years: Annotated[int, option("N", "Years to simulate.")] = 4_000
    seed: Annotated[
        int, option("N", "Seed of the simulation; the same seed gives the same figures.")
    ] = 7


CONNECTIONS_MAX: Final = 10_000_000
UNCHANGED: Final = (
    "entities clients queues missing_queues lease standbys twins receivers messaging_units"
    " connections".split()
)
"""The options that the estimate takes as they are."""

app = command_group("Estimate what a pair costs, by the documented arithmetic.")


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(WorkloadOptions):
    queues: Annotated[int, setting("queues")] = 10
    missing_queues: Annotated[
        int, option("N", "Backlog queues that clients search for all month.")
    ] = 0
    lease: Annotated[
        bool,
        setting("lease", "--lease", help="The syphon holds leases, as `syphon run --lease`."),
    ] = False
    standbys: Annotated[int, option("N", "Further syphons that wait for the leases.")] = 0
    twins: Annotated[
        bool,
        flag("--twins", "Each entity has a twin, which takes its messages in an outage."),
    ] = False
    receivers: Annotated[
        int, option("N", "Guarded receivers, and receivers of entities with a twin.")
    ] = 0
    handling: Annotated[
        str, option("TIME", "How long a message is handled, while its lock is renewed.")
    ] = "0s"
    lock_duration: Annotated[str, option("TIME", "Lock duration of the entities.")] = "1min"
    ping_interval: Annotated[str, option("TIME", "The option ping_primary_interval.")] = "60s"
    outages: Annotated[str, option("FREQUENCY", "How often the primary is down.")] = "2/year"
    outage_length: Annotated[str, option("TIME", "Length of one outage.")] = "40min"
    tier: Annotated[str, option("TIER", "Tier of both namespaces: basic, standard or premium.")] = (
        "standard"
    )
    connections: Annotated[
        int | None,
        option(
            "N",
            "Connections at the peak. Unset: counted from clients, entities and queues.",
            min=0,
        ),
    ] = None


@command(
    app,
    "twinbus cost estimate --rate 500/s --size 2KB --entities 40 \\\n"
    "  --clients 20 --outages 2/year --outage-length 40min",
    note="KB is 1024 bytes. The estimate reads no ledger; `twinbus report charges` shows what a"
    " ledger counted.",
)
def estimate(
    given: EstimateOptions, prices: PricesOption = None, output: OutputOption = Output.TEXT
) -> int:
    """Estimate a month of 30 days, and what the pair adds to it."""
    from twinbus.cost.estimate import estimate as cost_estimate

    book = book_of(prices)
    work = _workload(given)
    made = cost_estimate(work, book)
    outdated = book.warnings(datetime.now(UTC).date())
    document = made.as_json()
    document["warnings"] = [*document["warnings"], *outdated]
    return show(output, document, _lines(given, work, made, outdated))


def _workload(given: EstimateOptions) -> Workload:
    """Return the options as numbers; WrongUse names the option that is not valid."""
    from twinbus.cost.estimate import Workload

    tier = given.tier.strip().lower()
    if tier not in tuple(ServiceTier):
        raise WrongUse(f"--tier must be {' or '.join(ServiceTier)}; got {given.tier!r:.60}")
    require_messaging_units(given.messaging_units)
    if given.connections is not None and given.connections > CONNECTIONS_MAX:
        raise WrongUse(f"--connections must be at most {CONNECTIONS_MAX:,}")
    try:
        return Workload(
            rate_per_s=parse_rate(given.rate, "--rate"),
            size_bytes=parse_size(given.size, "--size"),
            ping_interval_s=parse_duration(
                given.ping_interval, "--ping-interval", least=1, most=PING_INTERVAL_MAX_S
            ),
            poll_s=parse_duration(given.poll, "--poll", least=1, most=SYPHON_POLL_MAX_S),
            outages_per_year=parse_frequency(given.outages, "--outages"),
            outage_s=parse_duration(given.outage_length, "--outage-length"),
            handling_s=parse_duration(given.handling, "--handling", most=DAY_S),
            lock_s=parse_duration(given.lock_duration, "--lock-duration", least=5, most=300),
            tier=ServiceTier(tier),
            rule=counting_rule(given.settlement),
            **{name: getattr(given, name) for name in UNCHANGED},
        )
    except QuantityError as error:
        # A parser knows the option's name; the workload names its field, which is called the same.
        raise WrongUse(f"--{str(error).removeprefix('--')}") from None


def _lines(
    given: EstimateOptions, work: Workload, made: CostEstimate, outdated: list[str]
) -> Iterator[str]:
    from twinbus.cost.estimate import MONTH_DAYS

    currency = made.bill.currency
    yield (
        f"{given.rate} of {given.size}, {counted(work.entities, 'entity', 'entities')},"
        f" {counted(work.clients, 'client')},"
        f" {counted(work.queues, 'backlog queue')}, {work.tier.capitalize()};"
        f" outages {given.outages} of {duration(float(work.outage_s))}"
    )
    yield (
        f"in a month of {MONTH_DAYS} days: {made.messages:,} messages,"
        f" {made.moved:,} of them by the {'twins' if work.twins else 'backlog'}"
    )
    yield ""
    yield from dim_headed(
        ("cause", ">operations", ">units of 64 KB", ">amount"),
        [
            *(
                (one.cause, one.operations, one.units, money(one.amount, currency))
                for one in made.causes
            ),
            ("all", made.operations, made.units, ""),
        ],
    )
    yield ""
    yield from dim_headed(
        ("bill", ">quantity", "", ">amount"),
        [
            *(_row(line, currency) for line in made.bill.lines),
            ("total", "", "", money(made.bill.total, currency)),
        ],
    )
    yield ""
    lacking = f", without {', '.join(made.bill.not_priced)}" if made.bill.not_priced else ""
    yield paint(f"the pair adds {money(made.added, currency)} a month{lacking}", "bold")
    yield (
        f"Premium Geo-Replication instead: {money(made.geo_replication.total, currency)} a month,"
        f" {counted(work.messaging_units, 'messaging unit')} in each region"
    )
    idle = made.idle_receives
    yield (
        f"idle syphon: {idle['hour']:,} receives an hour, {idle['day']:,} a day,"
        f" {idle['month']:,} in {MONTH_DAYS} days"
    )
    yield f"with its searches: {made.idle_operations:,} operations in {MONTH_DAYS} days"
    stages = made.moved_stages
    yield (
        f"a message by the {'twin' if work.twins else 'backlog'}:"
        f" {sum(stages.values())} units in {len(stages)} stages:"
        f" {', '.join(stages)}"
    )
    yield ""
    yield "Assumed:"
    yield from (f"  {line}" for line in made.assumptions)
    for warning in (*made.warnings, *outdated):
        yield paint(f"warning: {warning}", "yellow")


def _row(line: BillLine, currency: str) -> tuple[str, str, str, str]:
    amount = "included" if line.note.startswith("included") else money(line.amount, currency)
    return line.name, f"{line.quantity:,}", line.unit, amount
