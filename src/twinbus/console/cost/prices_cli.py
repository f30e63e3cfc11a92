"""The words of `twinbus prices`, and `--prices` for every command that names money."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinbus.console.options import PricesOption
from twinbus.console.terminal.output import Output, OutputOption

__all__ = ["app"]

app = typer.Typer(
    help="Look at the price book that amounts are made with, or make one from Azure's prices.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(epilog="Example: twinbus prices show --prices our-prices.json --output json")
def show(prices: PricesOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show every price, its region, source and date; a book older than 180 days is pointed out."""
    from twinbus.console.cost import price_books

    raise typer.Exit(price_books.show(prices, as_json=output is Output.JSON))


@app.command(
    "import",
    epilog="Example: curl -G https://prices.azure.com/api/retail/prices --data-urlencode"
    " \"\\$filter=serviceName eq 'Service Bus' and armRegionName eq 'uksouth'\" -o page.json;"
    " twinbus prices import page.json --to our-prices.json",
)
def import_prices(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Answers of the Azure Retail Prices API: one file or each page."
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            help="Where the book goes; without it prices-REGION-DAY.json in this directory.",
            show_default=False,
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The region, where the files hold several."),
    ] = None,
    currency: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="The currency, where the files hold several."),
    ] = None,
    retrieved: Annotated[
        str | None,
        typer.Option(
            metavar="DAY",
            help="When the prices were fetched; without it the day of the oldest file.",
            show_default=False,
        ),
    ] = None,
    fewer_tiers: Annotated[
        bool,
        typer.Option(
            "--fewer-tiers", help="Take a meter with fewer tiers than the book that ships has."
        ),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make a price book from what the Azure Retail Prices API answered; no call is made.

    Nothing is written unless every tier is there; items that no bill of a pair needs are listed.
    """
    from twinbus.console.cost import price_books

    raise typer.Exit(
        price_books.import_files(
            files,
            to,
            region=region,
            currency=currency,
            retrieved=retrieved,
            fewer_tiers=fewer_tiers,
            as_json=output is Output.JSON,
        )
    )
