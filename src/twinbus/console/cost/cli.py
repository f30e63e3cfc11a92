"""The commands of `twinbus cost`."""

from __future__ import annotations

import typer

from twinbus.console.cost.options import EstimateOptions
from twinbus.console.options import PricesOption
from twinbus.console.terminal.command import command
from twinbus.console.terminal.output import Output, OutputOption

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def cost() -> None:
    """Estimate what a pair costs, by the documented arithmetic."""


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
    from twinbus.console.cost.estimate import run

    return run(given, prices, output)
