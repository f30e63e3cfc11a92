"""The commands of `twinbus report`."""

from __future__ import annotations

from typing import Annotated

from twinbus.console.options import AccessOptions, PricesOption, SettlementOption, counting_rule
from twinbus.console.report.options import ReportOptions
from twinbus.console.terminal.command import command, command_group, setting

app = command_group("Report a ledger's charges, availability and conservation.")

PeekOption = Annotated[
    str | None,
    setting(
        "secondary",
        help="Connection string of the secondary, or sb://HOST: peek into its backlog queues, which"
        " changes nothing. `none`: do not peek.",
    ),
]
DetectionOption = Annotated[str, setting("detection-window")]


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
    from twinbus.console.cost.price_books import book_of
    from twinbus.console.report import commands

    return commands.charges(given, book_of(prices), counting_rule(settlement))


@command(
    app,
    "twinbus report availability ./ledger --since 24h \\\n  --output html --to outage.html",
    exit_status="0 done, 1 failed, 2 usage error, 3 an entity is still failed over.",
)
def availability(given: ReportOptions) -> int:
    """Show failovers, saved and raised sends, and the backlog."""
    from twinbus.console.report import commands

    return commands.availability(given)


@command(
    app,
    "twinbus report conservation ./ledger --since 7d",
    exit_status="0 nothing is lost, 1 something is lost or the report failed (one line says"
    " why), 2 usage error, 3 unknown.",
    note="Put the connection string into TWINBUS_SECONDARY: other users can see a command line.",
)
def conservation(
    given: ReportOptions,
    reach: AccessOptions,
    peek: PeekOption = None,
    detection_window: DetectionOption = "10min",
) -> int:
    """Prove that no message is lost, or name those that are.

    accepted = delivered + waiting + dead-lettered + expired. What cannot be known is called
    unknown: without a peek into the backlog queues, a diverted message without a later record may
    wait there or be lost.
    """
    from twinbus.console.report import commands

    secondary = None if peek in {None, "", "none"} else reach.side(peek, "secondary")
    return commands.conservation(given, secondary, commands.detection_s(detection_window))


@command(
    app,
    "twinbus report reconciliation ./ledger",
    exit_status="0 both views agree, 1 they differ or the report failed, 2 usage error, 3"
    " unknown: the broker kept no view, or records are missing.",
)
def reconciliation(given: ReportOptions) -> int:
    """Compare the records of clients with the broker's own."""
    from twinbus.console.report import commands

    return commands.reconciliation(given)


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
    reach: AccessOptions,
    peek: PeekOption = None,
    detection_window: DetectionOption = "10min",
    prices: PricesOption = None,
    settlement: SettlementOption = "free",
) -> int:
    """Show the four reports, with one start of Spark."""
    from twinbus.console.cost.price_books import book_of
    from twinbus.console.report import commands

    return commands.all_reports(
        given,
        None if peek in {None, "", "none"} else reach.side(peek, "secondary"),
        commands.detection_s(detection_window),
        book_of(prices),
        counting_rule(settlement),
    )
