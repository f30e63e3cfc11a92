"""The commands of `twinbus prices`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinbus.console.options import PricesOption
from twinbus.console.terminal.help_text import epilog
from twinbus.console.terminal.output import Output, OutputOption

app = typer.Typer(
    help="Show the price book, or import one from Azure's prices.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(epilog=epilog("twinbus prices show --prices our-prices.json --output json"))
def show(prices: PricesOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show every price with its region, source and date.

    A book older than 180 days gets a warning.
    """
    from twinbus.console.cost import price_books

    raise typer.Exit(price_books.show(prices, as_json=output is Output.JSON))


@app.command(
    "import",
    epilog=epilog(
        "curl -G https://prices.azure.com/api/retail/prices -o page.json \\\n"
        "  --data-urlencode \"\\$filter=serviceName eq 'Service Bus' and \\\n"
        "  armRegionName eq 'uksouth'\"\n"
        "twinbus prices import page.json --to our-prices.json"
    ),
)
def import_prices(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Answers of the Azure Retail Prices API: a file for each page."
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            help="File to write. Unset: prices-REGION-DAY.json in this directory.",
            show_default=False,
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The region, if the files hold several."),
    ] = None,
    currency: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="The currency, if the files hold several."),
    ] = None,
    retrieved: Annotated[
        str | None,
        typer.Option(
            metavar="DAY",
            help="The day the prices were fetched. Unset: the day of the oldest file.",
            show_default=False,
        ),
    ] = None,
    fewer_tiers: Annotated[
        bool,
        typer.Option(
            "--fewer-tiers", help="Accept a meter with fewer tiers than in the book that ships."
        ),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make a price book from answers of the Azure Retail Prices API.

    The command makes no network call. It writes nothing unless every tier is present, and lists the
    items that no bill of a pair needs.
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
