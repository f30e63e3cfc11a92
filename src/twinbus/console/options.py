"""Options that several commands share, and the functions that check their values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.console.terminal.output import WrongUse
from twinbus.cost.arithmetic import CountingRule

if TYPE_CHECKING:
    from twinbus.namespace.namespace import Namespace

MESSAGING_UNITS: Final = (1, 2, 4, 8, 16)
"""The sizes in which Azure sells a Premium namespace."""

PrimaryOption = Annotated[
    str | None,
    typer.Option(
        "--primary",
        envvar="TWINBUS_PRIMARY",
        metavar="STRING",
        help="Connection string of the primary. Its label is in the names of backlog queues.",
        show_default=False,
    ),
]
SecondaryOption = Annotated[
    str | None,
    typer.Option(
        "--secondary",
        envvar="TWINBUS_SECONDARY",
        metavar="STRING",
        help="Connection string of the secondary, which holds the backlog queues.",
        show_default=False,
    ),
]
LabelOption = Annotated[
    str | None,
    typer.Option(
        "--label", metavar="LABEL", help="The `name` the application gave its primary, if any."
    ),
]
QueueOption = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help="One backlog queue only: its index or path."),
]
QueuesOption = Annotated[
    int,
    typer.Option(
        "--queues", min=1, max=100, metavar="N", help="The application's backlog_queue_count."
    ),
]
EntityOption = Annotated[
    str | None,
    typer.Option(
        "--entity",
        metavar="PATH",
        help="Only messages of this queue or topic.",
        show_default=False,
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="From this day or time (UTC) on, or from this long ago: 2026-11-16, 2026-11-16T05:30,"
        " 90min, 24h.",
        show_default=False,
    ),
]
PairOption = Annotated[
    str | None,
    typer.Option(
        "--pair",
        metavar="NAME",
        help="The pair: the label of its primary for all its processes, or LABEL.PID for one.",
    ),
]
LedgerArgument = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER",
        envvar="TWINBUS_LEDGER",
        help="The ledger: a directory or a Hadoop URL.",
        show_default=False,
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Spark master. Unset: this machine.", show_default=False
    ),
]
RateOption = Annotated[
    str, typer.Option(metavar="RATE", help="Message rate, like 500/s, 30000/min or 2M/day.")
]
SizeOption = Annotated[
    str, typer.Option(metavar="SIZE", help="Size of one message, like 2KB or 64KiB.")
]
EntitiesOption = Annotated[
    int, typer.Option(metavar="N", help="Queues and topics that are sent to.")
]
ClientsOption = Annotated[
    int, typer.Option(metavar="N", help="Sending processes, each with its own pair.")
]
PollOption = Annotated[str, typer.Option(metavar="TIME", help="The option syphon_poll.")]
SettlementOption = Annotated[
    str,
    typer.Option(
        metavar="RULE",
        help="Whether complete, defer and dead-letter count as operations: `counted`, or `free` as"
        " in the documented model.",
    ),
]
MessagingUnitsOption = Annotated[
    int,
    typer.Option(metavar="N", help="Messaging units of a Premium namespace: 1, 2, 4, 8 or 16."),
]
PricesOption = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        envvar="TWINBUS_PRICES",
        metavar="FILE",
        help="Price book. Unset: the newest one that ships with Twinbus.",
        show_default=False,
    ),
]
SharedOption = Annotated[
    bool,
    typer.Option(
        "--shared",
        help="With --master: local paths are directories that all machines of the cluster mount."
        " Without it they are refused there.",
    ),
]


def require_shared_places(master: str | None, *places: str | None, shared: bool) -> None:
    """Raise WrongUse, before Spark starts, for a local path on a cluster without --shared."""
    from twinbus.ledger.record import LedgerError
    from twinbus.pipeline.spark.session import require_shared

    try:
        require_shared(master, places, shared=shared)
    except LedgerError as error:
        raise WrongUse(str(error)) from None


def secondary_of(text: str | None) -> Namespace:
    """Return the namespace of --secondary; WrongUse if it is missing or not valid."""
    from twinbus.console.namespaces import parse_side

    return parse_side(text, "secondary")


def label_of(primary: str | None, label: str | None) -> str | None:
    """Return --label, else the label of --primary; None if neither is given."""
    from twinbus.console.namespaces import parse_side
    from twinbus.namespace.address import namespace_label

    if label is not None:
        try:
            return namespace_label("", 0, label)
        except ValueError as error:
            raise WrongUse(str(error).replace("name must", "--label must", 1)) from None
    return parse_side(primary, "primary").label if primary else None


def counting_rule(settlement: str) -> CountingRule:
    """Return the rule that --settlement names; WrongUse if there is none of that name."""
    word = settlement.strip().lower()
    if word not in ("free", "counted"):
        raise WrongUse(f"--settlement must be free or counted; got {settlement!r:.60}")
    return CountingRule(count_settlement=word == "counted")


def require_messaging_units(count: int) -> None:
    """Raise WrongUse if Azure does not sell a Premium namespace of this size."""
    if count not in MESSAGING_UNITS:
        raise WrongUse(
            f"--messaging-units must be one of {', '.join(map(str, MESSAGING_UNITS))}; got {count}"
        )
