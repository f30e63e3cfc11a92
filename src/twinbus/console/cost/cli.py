"""The commands of `twinbus cost`."""

from __future__ import annotations

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
from twinbus.console.terminal.help_text import epilog
from twinbus.console.terminal.output import Output, OutputOption

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def cost() -> None:
    """Estimate what a pair costs, by the documented arithmetic."""


@app.command(
    epilog=epilog(
        "twinbus cost estimate --rate 500/s --size 2KB --entities 40 \\\n"
        "  --clients 20 --outages 2/year --outage-length 40min",
        note="KB is 1024 bytes. The estimate reads no ledger; `twinbus report charges` shows what a"
        " ledger counted.",
    )
)
def estimate(
    rate: RateOption,
    size: SizeOption = "1KB",
    entities: EntitiesOption = 1,
    clients: ClientsOption = 1,
    queues: Annotated[
        int, typer.Option(metavar="N", help="Backlog queues, the option backlog_queue_count.")
    ] = 10,
    ping_interval: Annotated[
        str, typer.Option(metavar="TIME", help="The option ping_primary_interval.")
    ] = "60s",
    poll: PollOption = "15min",
    outages: Annotated[
        str, typer.Option(metavar="OFTEN", help="How often the primary is down.")
    ] = "2/year",
    outage_length: Annotated[
        str, typer.Option(metavar="TIME", help="Length of one outage.")
    ] = "40min",
    tier: Annotated[
        str,
        typer.Option(metavar="TIER", help="Tier of both namespaces: basic, standard or premium."),
    ] = "standard",
    settlement: SettlementOption = "free",
    messaging_units: MessagingUnitsOption = 1,
    connections: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Connections at the peak. Unset: counted from clients, entities and queues.",
            show_default=False,
        ),
    ] = None,
    prices: PricesOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Estimate a month of 30 days, and what the pair adds to it."""
    from twinbus.console.cost import estimate as cost_estimate

    request = cost_estimate.EstimateRequest(
        rate=rate,
        size=size,
        entities=entities,
        clients=clients,
        queues=queues,
        ping_interval=ping_interval,
        poll=poll,
        outages=outages,
        outage_length=outage_length,
        tier=tier,
        settlement=settlement,
        messaging_units=messaging_units,
        connections=connections,
    )
    raise typer.Exit(cost_estimate.run(request, prices, as_json=output is Output.JSON))
