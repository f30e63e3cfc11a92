"""The commands of `twinbus cost` and `twinbus prices`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from twinbus.console.cost.options import EstimateOptions
from twinbus.console.options import PricesOption
from twinbus.console.terminal.command import argument, command, command_group, flag, option
from twinbus.console.terminal.output import Output, OutputOption

app = command_group("Estimate what a pair costs, by the documented arithmetic.")
prices_app = command_group("Show the price book, or import one from Azure's prices.")


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


@command(prices_app, "twinbus prices show --prices our-prices.json --output json", name="show")
def show_prices(prices: PricesOption = None, output: OutputOption = Output.TEXT) -> int:
    """Show every price with its region, source and date.

    A book older than 180 days gets a warning.
    """
    from twinbus.console.cost import price_books

    return price_books.show_book(prices, output)


@command(
    prices_app,
    "curl -G https://prices.azure.com/api/retail/prices -o page.json \\\n"
    "  --data-urlencode \"\\$filter=serviceName eq 'Service Bus' and \\\n"
    "  armRegionName eq 'uksouth'\"\n"
    "twinbus prices import page.json --to our-prices.json",
    name="import",
)
def import_prices(
    files: Annotated[
        list[Path],
        argument("FILE...", "Answers of the Azure Retail Prices API: a file for each page."),
    ],
    to: Annotated[
        Path | None,
        option("FILE", "File to write. Unset: prices-REGION-DAY.json in this directory."),
    ] = None,
    region: Annotated[str | None, option("NAME", "The region, if the files hold several.")] = None,
    currency: Annotated[
        str | None, option("CODE", "The currency, if the files hold several.")
    ] = None,
    retrieved: Annotated[
        str | None,
        option("DAY", "The day the prices were fetched. Unset: the day of the oldest file."),
    ] = None,
    fewer_tiers: Annotated[
        bool,
        flag("--fewer-tiers", "Accept a meter with fewer tiers than in the book that ships."),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Make a price book from answers of the Azure Retail Prices API.

    The command makes no network call. It writes nothing unless every tier is present, and lists the
    items that no bill of a pair needs.
    """
    from twinbus.console.cost.price_books import import_files

    return import_files(
        files, to, output,
        region=region, currency=currency, retrieved=retrieved, fewer_tiers=fewer_tiers,
    )  # fmt: skip
