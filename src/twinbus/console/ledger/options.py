"""The options that the commands of `twinbus ledger` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from twinbus.console.options import LedgerArgument, MasterOption, SharedOption
from twinbus.console.terminal.command import option
from twinbus.console.terminal.output import Output, OutputOption


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where a ledger and its tables are, and the Spark to use."""

    ledger: LedgerArgument
    tables: Annotated[
        str | None, option("PLACE", "Place of its tables. Unset: LEDGER/_tables.")
    ] = None
    master: MasterOption = None
    shared: SharedOption = False


@dataclass(frozen=True, kw_only=True)
class TablesOptions(PlaceOptions):
    """The options of a task on the tables."""

    output: OutputOption = Output.TEXT
