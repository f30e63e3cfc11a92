"""Options that commands about work and its money share: `cost estimate`, `plan`, `report charges`.

An option is here with its words; what is written in it is read by the functions below.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from twinbus.console.terminal.output import WrongUse
from twinbus.cost.arithmetic import CountingRule

__all__ = [
    "ClientsOption",
    "EntitiesOption",
    "MessagingUnitsOption",
    "PollOption",
    "PricesOption",
    "RateOption",
    "SettlementOption",
    "SizeOption",
    "counting_rule",
    "require_messaging_units",
]

MESSAGING_UNITS: Final = (1, 2, 4, 8, 16)
"""What can be bought for one Premium namespace."""

RateOption = Annotated[
    str, typer.Option(metavar="RATE", help="Messages, like 500/s, 30000/min or 2M/day.")
]
SizeOption = Annotated[str, typer.Option(metavar="SIZE", help="Of one message, like 2KB or 64KiB.")]
EntitiesOption = Annotated[
    int, typer.Option(metavar="N", help="Queues and topics that are sent to.")
]
ClientsOption = Annotated[
    int, typer.Option(metavar="N", help="Processes that send, each with its pair.")
]
PollOption = Annotated[str, typer.Option(metavar="TIME", help="The option syphon_poll.")]
SettlementOption = Annotated[
    str,
    typer.Option(
        metavar="RULE",
        help="Whether complete, defer and dead-letter are operations: counted, or free as in the"
        " documented model.",
    ),
]
MessagingUnitsOption = Annotated[
    int, typer.Option(metavar="N", help="Of a Premium namespace: 1, 2, 4, 8 or 16.")
]
PricesOption = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        envvar="TWINBUS_PRICES",
        metavar="FILE",
        help="Price book to use; without it the newest that comes with Twinbus.",
        show_default=False,
    ),
]


def counting_rule(settlement: str) -> CountingRule:
    """The rule that --settlement names; WrongUse if there is none of that name."""
    word = settlement.strip().lower()
    if word not in ("free", "counted"):
        raise WrongUse(f"--settlement must be free or counted; got {settlement!r:.60}")
    return CountingRule(count_settlement=word == "counted")


def require_messaging_units(count: int) -> None:
    """WrongUse for a number that Premium namespaces are not sold in."""
    if count not in MESSAGING_UNITS:
        raise WrongUse(
            f"--messaging-units must be one of {', '.join(map(str, MESSAGING_UNITS))}; got {count}"
        )
