"""Small facts of Service Bus on the wire that several shells of the broker share."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from twinbus.amqp.performatives import Error, Rejected
from twinbus.amqp.types import Symbol
from twinbus.broker.refusals import Refusal

UNIX_EPOCH_TICKS = 621_355_968_000_000_000
"""1970-01-01 in .NET ticks of 100 ns since the year 1."""

TICKS_PER_MS = 10_000

CBS = "$cbs"
MANAGEMENT_SUFFIX = "/$management"


def entity_address(address: str) -> str:
    """The path of an AMQP address: `amqps://host:5672/orders`, `/orders` and `orders` are one."""
    if "://" in address:
        address = unquote(urlsplit(address).path)
    return address.strip("/")


def rejected(refusal: Refusal) -> Rejected:
    """The delivery state of a refusal."""
    return rejected_with(refusal.condition, refusal.description)


def rejected_with(condition: str, description: str) -> Rejected:
    """The delivery state of a rejection with that condition."""
    return Rejected(error=Error(condition=Symbol(condition), description=description))
