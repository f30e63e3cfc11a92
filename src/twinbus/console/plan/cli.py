"""`twinbus plan`: the command; `making` simulates and shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinbus.console.cost import PlanOptions, PlanOutput
from twinbus.console.declaration import command, command_group, option
from twinbus.console.options import PricesOption

app = command_group("")


@command(
    app,
    "twinbus plan --rate 500/s --size 2KB --entities 40 --clients 20 \\\n"
    '  --outages "2/year lognormal 40min" --output html --to plan.html',
)
def plan(
    given: PlanOptions,
    prices: PricesOption = None,
    master: Annotated[
        str | None, option("URL", "Simulate on this Spark. Unset: on this machine.")
    ] = None,
    output: Annotated[
        PlanOutput, typer.Option(help="What to print: text, JSON, or a page.")
    ] = "text",
    to: Annotated[Path | None, option("FILE", "Write the plan into this file.")] = None,
) -> int:
    """Simulate outages to choose a pair's options.

    From 200,000 years on Spark does it, if it is installed.
    """
    from twinbus.console.plan.making import run

    return run(given, prices, master=master, output=output, to=to)
