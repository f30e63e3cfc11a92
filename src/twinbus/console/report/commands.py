"""The commands of `twinbus report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

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

if TYPE_CHECKING:
    from twinbus.namespace.namespace import Namespace

app = command_group("Report a ledger's charges, availability and conservation.")

PeekOption = Annotated[
    str | None,
    setting(
        "secondary",
        help="Connection string of the secondary, or sb://HOST: peek into its backlog queues, which"
        " changes nothing. `none`: do not peek.",
    ),
]
DETECTION_WINDOW: Final = "10min"
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
def conservation(
    given: ReportOptions,
    reach: AccessOptions,
    peek: PeekOption = None,
    detection_window: DetectionOption = DETECTION_WINDOW,
) -> int:
    """Prove that no message is lost, or name those that are.

    accepted = delivered + waiting + dead-lettered + expired. What cannot be known is called
    unknown: without a peek into the backlog queues, a diverted message without a later record may
    wait there or be lost.
    """
    return _run(
        given,
        "conservation",
        secondary=_secondary(peek, reach),
        detection_window=detection_window,
    )


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
    reach: AccessOptions,
    peek: PeekOption = None,
    detection_window: DetectionOption = DETECTION_WINDOW,
    prices: PricesOption = None,
    settlement: SettlementOption = "free",
) -> int:
    """Show the four reports, with one start of Spark."""
    return _run(
        given,
        *("conservation", "availability", "charges", "reconciliation"),
        secondary=_secondary(peek, reach),
        detection_window=detection_window,
        book=book_of(prices),
        rule=counting_rule(settlement),
    )


def _run(
    given: ReportOptions, *kinds: str, detection_window: str = DETECTION_WINDOW, **more: Any
) -> int:
    from twinbus.console.report.making import NeededFacts, run

    # Service Bus has no longer window.
    window_s = parse_duration(detection_window, "--detection-window", most=DETECTION_MAX_S)
    return run(given, kinds, NeededFacts(detection_s=int(window_s), **more))


def _secondary(peek: str | None, reach: AccessOptions) -> Namespace | None:
    return None if peek in {None, "", "none"} else reach.side(peek, "secondary")
