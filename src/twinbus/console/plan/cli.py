"""The command `twinbus plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinbus.console.options import (
    ClientsOption,
    EntitiesOption,
    MessagingUnitsOption,
    PollOption,
    PricesOption,
    RateOption,
    SettlementOption,
    SizeOption,
)
from twinbus.console.plan.output import PlanOutput
from twinbus.console.terminal.help_text import epilog


def add_to(app: typer.Typer) -> None:
    """Give the command line this command."""
    app.command(
        epilog=epilog(
            "twinbus plan --rate 500/s --size 2KB --entities 40 --clients 20 \\\n"
            '  --outages "2/year lognormal 40min" --output html --to plan.html'
        )
    )(plan)


def plan(
    rate: RateOption,
    outages: Annotated[
        list[str],
        typer.Option(
            metavar="PATTERN",
            help="How often the primary is down and for how long: '2/year lognormal 40min', where"
            " 40min is the median; also exponential or fixed, and 'exactly 2/year'. Repeatable.",
        ),
    ],
    size: SizeOption = "1KB",
    entities: EntitiesOption = 1,
    clients: ClientsOption = 1,
    sigma: Annotated[
        float,
        typer.Option(metavar="X", help="Spread of lognormal lengths (sigma)."),
    ] = 1.0,
    failover_interval: Annotated[
        str, typer.Option(metavar="TIMES", help="To compare, with commas between.")
    ] = "0,10s,30s,60s",
    ping_interval: Annotated[
        str, typer.Option(metavar="TIMES", help="To compare, with commas between.")
    ] = "10s,30s,60s,5min",
    queues: Annotated[
        str, typer.Option(metavar="COUNTS", help="Backlog queues to compare.")
    ] = "1,5,10,20",
    backlog_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Quota of one backlog queue, 1GB to 80GB.")
    ] = "5GB",
    rate_limit: Annotated[
        str, typer.Option(metavar="RATE", help="Messages that the syphon brings home.")
    ] = "250/s",
    shared_limit: Annotated[
        bool,
        typer.Option(
            "--shared-limit",
            help="The rate limit is the primary's: new messages come first, the syphon has the"
            " rest.",
        ),
    ] = False,
    patience: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long a send tries: the caller's timeout. Without it as long as the retries"
            " last by default, 11.2 s and four attempts.",
            show_default=False,
        ),
    ] = None,
    hang: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long an attempt takes to fail: 0 if the connection is refused, up to"
            " attempt_timeout if the primary hangs.",
        ),
    ] = "0s",
    poll: PollOption = "15min",
    syphons: Annotated[int, typer.Option(metavar="N", help="Programs that run a syphon.")] = 1,
    full_years: Annotated[
        float, typer.Option(metavar="X", help="Accepted share of years with a full backlog.")
    ] = 0.01,
    raised_per_million: Annotated[
        float, typer.Option(metavar="X", help="Sends of a million that may raise in a year.")
    ] = 1.0,
    settlement: SettlementOption = "free",
    messaging_units: MessagingUnitsOption = 1,
    prices: PricesOption = None,
    years: Annotated[int, typer.Option(metavar="N", help="Years to simulate.")] = 4_000,
    seed: Annotated[
        int, typer.Option(metavar="N", help="The same seed gives the same figures, always.")
    ] = 7,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark to use.", show_default="all cores here"),
    ] = None,
    output: Annotated[
        PlanOutput, typer.Option(help="What to print: text, JSON, or a page.")
    ] = PlanOutput.TEXT,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it there instead.", show_default=False),
    ] = None,
) -> None:
    """Simulate outages on Spark to choose a pair's options."""
    from twinbus.console.plan import commands as planner
    from twinbus.console.plan.request import PlanRequest

    asked = PlanRequest(
        rate=rate,
        outages=tuple(outages),
        size=size,
        entities=entities,
        clients=clients,
        sigma=sigma,
        failover_interval=failover_interval,
        ping_interval=ping_interval,
        queues=queues,
        backlog_size=backlog_size,
        rate_limit=rate_limit,
        shared_limit=shared_limit,
        patience=patience,
        hang=hang,
        poll=poll,
        syphons=syphons,
        full_years=full_years,
        raised_per_million=raised_per_million,
        settlement=settlement,
        messaging_units=messaging_units,
        years=years,
        seed=seed,
    )
    raise typer.Exit(planner.run(asked, prices, master=master, output=output, to=to))
