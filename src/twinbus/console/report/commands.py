"""The commands of `twinbus report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from twinbus.console.declaration import command, command_group, setting
from twinbus.console.options import (
    AccessOptions,
    PricesOption,
    ReportOptions,
    SettlementOption,
    counting_rule,
)
from twinbus.console.prices import book_of
from twinbus.cost.arithmetic import parse_duration
from twinbus.servicebus.names import DETECTION_MAX_S

app = command_group("Report a ledger's charges, availability and conservation.")


@dataclass(frozen=True, kw_only=True)
class PeekOptions(AccessOptions):
    peek: Annotated[
        str | None,
        setting(
            "secondary",
            help="Connection string of the secondary, or sb://HOST: peek into its backlog queues,"
            " which changes nothing. `none`: do not peek.",
        ),
    ] = None
    detection_window: Annotated[str, setting("detection-window")] = "10min"

    def facts(self) -> dict[str, Any]:
        # Service Bus has no longer window.
        window_s = parse_duration(self.detection_window, "--detection-window", most=DETECTION_MAX_S)
        is_none = self.peek in {None, "", "none"}
        secondary = None if is_none else self.side(self.peek, "secondary")
        return {"secondary": secondary, "detection_s": int(window_s)}


@command(
    app,
    "twinbus report charges ./ledger --since 2026-11-01 \\\n  --settlement counted",
    exit_status="0 done, 1 failed, 2 usage error.",
)
def charges(
    given: ReportOptions, prices: PricesOption = None, settlement: SettlementOption = "free"
) -> int:
    """Show billed operations and their cost by the price book.

    The report compares the documented arithmetic with the ledger and lists its assumptions.
    """
    return _run(given, "charges", book=book_of(prices), rule=counting_rule(settlement))


@command(
    app,
    "twinbus report availability ./ledger --since 24h \\\n  --output html --to outage.html",
    exit_status="0 done, 1 failed, 2 usage error, 3 an entity is still failed over.",
)
def availability(given: ReportOptions) -> int:
    """Show failovers, saved and raised sends, and the backlog."""
    return _run(given, "availability")


@command(
    app,
    "twinbus report conservation ./ledger --since 7d",
    exit_status="0 nothing is lost, 1 something is lost or the report failed (one line says"
    " why), 2 usage error, 3 unknown.",
    note="Put the connection string into TWINBUS_SECONDARY: other users can see a command line.",
)
def conservation(given: ReportOptions, backlog: PeekOptions) -> int:
    """Prove that no message is lost, or name those that are.

    accepted = delivered + waiting + dead-lettered + expired. What cannot be known is called
    unknown: without a peek into the backlog queues, a diverted message without a later record may
    wait there or be lost.
    """
    return _run(given, "conservation", **backlog.facts())


@command(
    app,
    "twinbus report reconciliation ./ledger",
    exit_status="0 both views agree, 1 they differ or the report failed, 2 usage error, 3"
    " unknown: the broker kept no view, or records are missing.",
)
def reconciliation(given: ReportOptions) -> int:
    """Compare the records of clients with the broker's own."""
    return _run(given, "reconciliation")


@command(
    app,
    "twinbus report all ./ledger --since 24h --output html --to ./reports",
    name="all",
    exit_status="that of the worst report. A reconciliation without the broker's view does not"
    " count.",
    note="CSV and HTML are one file for each report, in the directory of --to.",
)
def all_reports(
    given: ReportOptions,
    backlog: PeekOptions,
    prices: PricesOption = None,
    settlement: SettlementOption = "free",
) -> int:
    """Show the four reports, with one start of Spark."""
    return _run(
        given,
        *("conservation", "availability", "charges", "reconciliation"),
        **backlog.facts(),
        book=book_of(prices),
        rule=counting_rule(settlement),
    )


def _run(given: ReportOptions, *kinds: str, **facts: Any) -> int:
    from twinbus.console.report.making import NeededFacts, run

    return run(given, kinds, NeededFacts(**facts))
