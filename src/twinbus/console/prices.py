"""Price books as files, and the commands of `twinbus prices`: show and import."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from twinbus.console.declaration import argument, command, command_group, flag, option
from twinbus.console.options import PricesOption
from twinbus.console.output import (
    UNPRICED,
    Output,
    OutputOption,
    WrongUse,
    aligned,
    dim_headed,
    paint,
    show,
)
from twinbus.cost.prices import (
    NEEDED_METERS,
    Meter,
    PriceBook,
    PriceBookError,
    load,
    read_json,
    standard,
)
from twinbus.wording import visible

if TYPE_CHECKING:
    from twinbus.cost.retail_prices import Imported

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""All prices of Service Bus in all regions are 2 MB."""

ASIDE_SHOWN_MAX: Final = 20
"""Kinds of items set aside to list; `--output json` has all."""

app = command_group("Show the price book, or import one from Azure's prices.")


def book_of(path: Path | None) -> PriceBook:
    """Return the book of --prices, or the newest that ships; WrongUse if it cannot be read."""
    if path is None:
        return standard()
    try:
        return load(path, _today())
    except PriceBookError as error:
        raise WrongUse(visible(error)) from None


@command(app, "twinbus prices show --prices our-prices.json --output json", name="show")
def show_prices(prices: PricesOption = None, output: OutputOption = Output.TEXT) -> int:
    """Show every price with its region, source and date.

    A book older than 180 days gets a warning.
    """
    book = book_of(prices)
    today = _today()
    return show(output, {**_plain(book), "warnings": book.warnings(today)}, _lines(book, today))


@command(
    app,
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
    from twinbus.cost.retail_prices import book_from

    try:
        made = book_from(
            [(path.name, _document(path)) for path in files],
            retrieved=_retrieved_on(files, retrieved),
            region=region,
            currency=currency,
            like=None if fewer_tiers else standard(),
        )
    except PriceBookError as error:
        raise WrongUse(visible(error)) from None
    target = to or Path(f"prices-{made.book.region}-{made.book.retrieved}.json")
    _write(target, made.book.document())
    unpriced = [key for key, meter in made.book.meters.items() if not meter.priced]
    document = {
        "written": str(target),
        "taken": made.taken,
        "set_aside": [aside._asdict() for aside in made.set_aside],
        "not_priced": unpriced,
        "book": _plain(made.book),
    }
    return show(output, document, _imported(made, target, unpriced))


def _today() -> date:
    return datetime.now(UTC).date()


def _document(path: Path) -> object:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise PriceBookError(
                f"{path}: {path.stat().st_size:,} bytes, at most {FILE_BYTES_MAX:,}; ask the API"
                " with $filter=serviceName eq 'Service Bus'"
            )
        # The API and some shells put a byte order mark in front.
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise PriceBookError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PriceBookError(f"{path}: it is not UTF-8") from None
    return read_json(text, str(path))


def _retrieved_on(files: Sequence[Path], text: str | None) -> date:
    """Return the day of --retrieved, or the day of the oldest file."""
    if text is None:
        oldest_s = min(path.stat().st_mtime for path in files)
        return min(datetime.fromtimestamp(oldest_s, UTC).date(), _today())
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise PriceBookError(
            f"--retrieved must be a day like 2026-10-05; got {text!r:.60}"
        ) from None
    if day > _today():
        raise PriceBookError(f"--retrieved must not be after today, {_today()}; got {text}")
    return day


def _write(target: Path, document: Mapping[str, object]) -> None:
    """Write the book atomically; refuse to replace a file that is not a price book."""
    if target.exists():
        try:
            load(target)
        except PriceBookError:
            raise WrongUse(
                f"--to {target} exists and is not a price book: give another file"
            ) from None
    import tempfile

    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as directory:
            made = Path(directory) / target.name
            with made.open("w", encoding="utf-8") as file:
                file.write(json.dumps(document, indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
            made.replace(target)
    except OSError as error:
        raise WrongUse(f"--to {target}: {error.strerror}; give another place") from None


def _plain(book: PriceBook) -> dict[str, Any]:
    return {"name": book.name, "age_days": book.age_days(_today()), **book.document()}


def _lines(book: PriceBook, today: date) -> Iterator[str]:
    yield paint(visible(book.name), "bold")
    yield from aligned(
        [
            ("  source", visible(book.source)),
            ("  retrieved", f"{book.retrieved}, {(today - book.retrieved).days} days ago"),
            ("  region", visible(book.region)),
            ("  currency", book.currency),
        ]
    )
    yield ""
    rows = [row for meter in book.meters.values() for row in _rows(meter)]
    yield from dim_headed(("meter", ">from", ">price", "for"), rows)
    for meter in book.meters.values():
        if meter.source:
            when = f", {meter.retrieved}" if meter.retrieved else ""
            yield f"{visible(meter.name)}: {visible(meter.source)}{when}"
    for line in book.warnings(today):
        yield paint(f"warning: {line}", "yellow")


def _rows(meter: Meter) -> Iterator[tuple[object, ...]]:
    if not meter.tiers:
        yield meter.name, "", UNPRICED, meter.unit
    for index, tier in enumerate(meter.tiers):
        name, unit = ("", "") if index else (meter.name, meter.unit)
        yield name, tier.start, tier.price, unit


def _imported(made: Imported, target: Path, unpriced: Sequence[str]) -> Iterator[str]:
    book = made.book
    yield (
        f"{target}: prices of {visible(book.region)} in {book.currency} of {book.retrieved},"
        f" from {made.taken} items"
    )
    for key in unpriced:
        yield f"not priced: {book.meter(key).name} ({NEEDED_METERS[key]})"
    if made.set_aside:
        yield f"set aside: {len(made.set_aside)} items"
        counted = Counter((aside.meter_name, aside.reason) for aside in made.set_aside)
        rows = [
            (f"  {count}", visible(name) or "(no name)", visible(reason))
            for (name, reason), count in counted.most_common(ASIDE_SHOWN_MAX)
        ]
        yield from aligned(rows, right={0})
        if len(counted) > ASIDE_SHOWN_MAX:
            more = len(counted) - ASIDE_SHOWN_MAX
            yield f"  and {more} more kinds; --output json lists each item"
    yield f"use it with --prices {target}, or TWINBUS_PRICES={target}"
