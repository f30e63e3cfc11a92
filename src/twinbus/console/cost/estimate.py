"""`twinbus cost estimate`: what a person wrote, checked; and the month, as a table."""

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

__all__ = ["EstimateRequest", "run"]

PING_INTERVAL_MAX_S: Final = 1_800
POLL_MAX_S: Final = 900
"""As in the options of a pair."""

CONNECTIONS_MAX: Final = 10_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimateRequest:
    """The options as they were written."""

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


def run(asked: EstimateRequest, prices: Path | None, *, as_json: bool) -> int:
    """Print the estimate; returns the exit status."""
    book = book_of(prices)
    work = _workload(asked)
    made = estimate(work, book)
    old = book.warnings(datetime.now(UTC).date())
    if as_json:
        document = made.as_json()
        print_json({**document, "warnings": [*document["warnings"], *old]})
        return 0
    print("\n".join(_lines(asked, work, made, old)))
    return 0


def _workload(asked: EstimateRequest) -> Workload:
    """What was asked, as numbers; WrongUse names the option that makes no sense."""
    tier, rule = _tier(asked.tier), counting_rule(asked.settlement)
    require_messaging_units(asked.messaging_units)
    if asked.connections is not None and asked.connections > CONNECTIONS_MAX:
        raise WrongUse(f"--connections must be at most {CONNECTIONS_MAX:,}")
    try:
        return Workload(
            rate_per_s=parse_rate(asked.rate, "--rate"),
            size_bytes=parse_size(asked.size, "--size"),
            entities=asked.entities,
            clients=asked.clients,
            queues=asked.queues,
            ping_interval_s=parse_duration(
                asked.ping_interval, "--ping-interval", least=1, most=PING_INTERVAL_MAX_S
            ),
            poll_s=parse_duration(asked.poll, "--poll", least=1, most=POLL_MAX_S),
            outages_per_year=parse_frequency(asked.outages, "--outages"),
            outage_s=parse_duration(asked.outage_length, "--outage-length"),
            tier=tier,
            rule=rule,
            messaging_units=asked.messaging_units,
            connections=asked.connections,
        )
    except QuantityError as error:
        # A parser was told the option's name; what the workload refuses is named as the option is.
        raise WrongUse(f"--{str(error).removeprefix('--')}") from None


def _tier(said: str) -> ServiceTier:
    word = said.strip().lower()
    if word not in tuple(ServiceTier):
        raise WrongUse(f"--tier must be {' or '.join(ServiceTier)}; got {said!r:.60}")
    return ServiceTier(word)


def _lines(
    asked: EstimateRequest, work: Workload, made: CostEstimate, old: list[str]
) -> Iterator[str]:
    currency = made.bill.currency
    yield (
        f"{asked.rate} of {asked.size}, {_many(work.entities, 'entity', 'entities')},"
        f" {_many(work.clients, 'client', 'clients')},"
        f" {_many(work.queues, 'backlog queue', 'backlog queues')}, {work.tier.capitalize()};"
        f" outages {asked.outages} of {duration(float(work.outage_s))}"
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
    for warning in (*made.warnings, *old):
        yield paint(f"warning: {warning}", "yellow")


def _summary(made: CostEstimate, work: Workload) -> Iterator[str]:
    currency = made.bill.currency
    lacking = f", without {', '.join(made.bill.not_priced)}" if made.bill.not_priced else ""
    yield paint(f"the pair adds {money(made.added, currency)} a month{lacking}", "bold")
    yield (
        f"Premium Geo-Replication instead: {money(made.geo_replication.total, currency)} a month,"
        f" {_many(work.messaging_units, 'messaging unit', 'messaging units')} in each region"
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
    said = "included" if line.note.startswith("included") else money(line.amount, currency)
    return line.name, f"{line.quantity:,}", line.unit, said


def _table(rows: list[tuple[str, str, str, str]], right: set[int] | None = None) -> Iterator[str]:
    head, *body = aligned(rows, right=right or {1, 2, 3})
    yield paint(head, "dim")
    yield from body


def _many(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"
