"""The options that all reports share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from twinbus.console.options import (
    EntityOption,
    LedgerArgument,
    MasterOption,
    SharedOption,
    SinceOption,
    require_shared_places,
)
from twinbus.console.terminal.command import option
from twinbus.console.terminal.output import WrongUse
from twinbus.console.terminal.times import window_of

if TYPE_CHECKING:
    from twinbus.pipeline.reports.documents import ReportRequest

NO_TABLES: Final = "none"


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options as they were given."""

    ledger: LedgerArgument
    tables: Annotated[
        str | None,
        option(
            "DIR",
            "Location of its tables; unset: _tables inside the ledger. `none`: keep no tables and"
            " read all records.",
        ),
    ] = None
    since: SinceOption = None
    until: Annotated[str | None, option("TIME", "End, exclusive; a day is included whole.")] = None
    entity: EntityOption = None
    output: Annotated[
        Literal["text", "json", "csv", "html"],
        typer.Option(help="Text to read, JSON, one table as CSV, or a page with charts."),
    ] = "text"
    to: Annotated[
        Path | None,
        option(
            "FILE", "Write the report into this file; its answer, one line, is printed as well."
        ),
    ] = None
    master: MasterOption = None
    shared: SharedOption = False

    def request(self) -> ReportRequest:
        """Return the window and the entity; WrongUse if an option is not valid."""
        from twinbus.pipeline.reports.documents import ReportRequest

        if self.entity is not None and not self.entity.strip("/ "):
            raise WrongUse("--entity is empty: name a queue or a topic, or leave it out")
        tables = None if self.tables == NO_TABLES else self.tables
        require_shared_places(self.master, self.ledger, tables, shared=self.shared)
        since_ms, until_ms = window_of(self.since, self.until, datetime.now(UTC))
        entity = None if self.entity is None else self.entity.strip("/ ")
        return ReportRequest(since_ms=since_ms, until_ms=until_ms, entity=entity)
