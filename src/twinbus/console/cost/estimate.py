"""`twinbus cost estimate`: checks the options, and prints the month as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from twinbus.console.cost.price_books import book_of
from twinbus.console.options import counting_rule, require_messaging_units
from twinbus.console.terminal.output import WrongUse, print_json
from twinbus.console.terminal.table import aligned, duration, money, paint
from twinbus.cost.bill import BillLine, ServiceTier
from twinbus.cost.estimate import MONTH_DAYS, CostEstimate, Workload, estimate
from twinbus.cost.quantities import (
    QuantityError,
    parse_duration,
    parse_frequency,
    parse_rate,
    parse_size,
)
from twinbus.options import PING_INTERVAL_MAX_S, SYPHON_POLL_MAX_S

CONNECTIONS_MAX: Final = 10_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimateRequest:
    """The options as they were given."""

    rate: str
    size: str
    entities: int
    clients: int
    queues: int
    ping_interval: str
    poll: str
    outages: str
    outage_length: str
    tier: str
    settlement: str
    messaging_units: int
    connections: int | None


def run(request: EstimateRequest, prices: Path | None, *, as_json: bool) -> int:
    """Print the estimate; return the exit status."""
    book = book_of(prices)
    work = _workload(request)
    made = estimate(work, book)
    outdated = book.warnings(datetime.now(UTC).date())
    if as_json:
        document = made.as_json()
        print_json({**document, "warnings": [*document["warnings"], *outdated]})
        return 0
    print("\n".join(_lines(request, work, made, outdated)))
    return 0


def _workload(request: EstimateRequest) -> Workload:
    """Return the options as numbers; WrongUse names the option that is not valid."""
    tier, rule = _tier(request.tier), counting_rule(request.settlement)
    require_messaging_units(request.messaging_units)
    if request.connections is not None and request.connections > CONNECTIONS_MAX:
        raise WrongUse(f"--connections must be at most {CONNECTIONS_MAX:,}")
    try:
        return Workload(
            rate_per_s=parse_rate(request.rate, "--rate"),
            size_bytes=parse_size(request.size, "--size"),
            entities=request.entities,
            clients=request.clients,
            queues=request.queues,
            ping_interval_s=parse_duration(
                request.ping_interval, "--ping-interval", least=1, most=PING_INTERVAL_MAX_S
            ),
            poll_s=parse_duration(request.poll, "--poll", least=1, most=SYPHON_POLL_MAX_S),
            outages_per_year=parse_frequency(request.outages, "--outages"),
            outage_s=parse_duration(request.outage_length, "--outage-length"),
            tier=tier,
            rule=rule,
            messaging_units=request.messaging_units,
            connections=request.connections,
        )
    except QuantityError as error:
        # A parser knows the option's name; the workload names its field, which is called the same.
        raise WrongUse(f"--{str(error).removeprefix('--')}") from None


def _tier(text: str) -> ServiceTier:
    word = text.strip().lower()
    if word not in tuple(ServiceTier):
        raise WrongUse(f"--tier must be {' or '.join(ServiceTier)}; got {text!r:.60}")
    return ServiceTier(word)


def _lines(
    request: EstimateRequest, work: Workload, made: CostEstimate, outdated: list[str]
) -> Iterator[str]:
    currency = made.bill.currency
    yield (
        f"{request.rate} of {request.size}, {_counted(work.entities, 'entity', 'entities')},"
        f" {_counted(work.clients, 'client', 'clients')},"
        f" {_counted(work.queues, 'backlog queue', 'backlog queues')}, {work.tier.capitalize()};"
        f" outages {request.outages} of {duration(float(work.outage_s))}"
    )
    yield (
        f"in a month of {MONTH_DAYS} days: {made.messages:,} messages,"
        f" {made.moved:,} of them by the backlog"
    )
    yield ""
    yield from _table(
        [
            ("cause", "operations", "units of 64 KB", "amount"),
            *(
                (
                    cause.cause,
                    f"{cause.operations:,}",
                    f"{cause.units:,}",
                    money(cause.amount, currency),
                )
                for cause in made.causes
            ),
            ("all", f"{made.operations:,}", f"{made.units:,}", ""),
        ]
    )
    yield ""
    yield from _table(
        [
            ("bill", "quantity", "", "amount"),
            *(_row(line, currency) for line in made.bill.lines),
            ("total", "", "", money(made.bill.total, currency)),
        ],
        right={1, 3},
    )
    yield ""
    yield from _summary(made, work)
    yield ""
    yield "Assumed:"
    yield from (f"  {line}" for line in made.assumptions)
    for warning in (*made.warnings, *outdated):
        yield paint(f"warning: {warning}", "yellow")


def _summary(made: CostEstimate, work: Workload) -> Iterator[str]:
    currency = made.bill.currency
    lacking = f", without {', '.join(made.bill.not_priced)}" if made.bill.not_priced else ""
    yield paint(f"the pair adds {money(made.added, currency)} a month{lacking}", "bold")
    yield (
        f"Premium Geo-Replication instead: {money(made.geo_replication.total, currency)} a month,"
        f" {_counted(work.messaging_units, 'messaging unit', 'messaging units')} in each region"
    )
    idle = made.idle_receives
    yield (
        f"idle syphon: {idle['hour']:,} receives an hour, {idle['day']:,} a day,"
        f" {idle['month']:,} in {MONTH_DAYS} days"
    )
    stages = made.moved_stages
    yield (
        f"a message by the backlog: {sum(stages.values())} units in {len(stages)} stages:"
        f" {', '.join(stages)}"
    )


def _row(line: BillLine, currency: str) -> tuple[str, str, str, str]:
    amount = "included" if line.note.startswith("included") else money(line.amount, currency)
    return line.name, f"{line.quantity:,}", line.unit, amount


def _table(rows: list[tuple[str, str, str, str]], right: set[int] | None = None) -> Iterator[str]:
    head, *body = aligned(rows, right=right or {1, 2, 3})
    yield paint(head, "dim")
    yield from body


def _counted(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"
