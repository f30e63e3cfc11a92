"""The relay of a twin: moves its messages to its namesake in the primary.

Consumers receive from a twin too, and whoever comes first has a message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from twinbus.client.administration import NotAnswered
from twinbus.client.connection import MACHINE, Environment
from twinbus.client.request_node import ConnectionLost
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import Endpoint
from twinbus.options import SendAvailabilityOptions
from twinbus.syphon.bookkeeping import OutageLog, RelayLedger
from twinbus.syphon.core.pacing import Pace, Rate
from twinbus.syphon.core.pump import IntakeLimits, Pump
from twinbus.syphon.relay import Relay
from twinbus.transfer.twin_messages import TwinUnpacker

TWIN_LIMITS: Final = IntakeLimits(messages=200, answer_s=10.0)
"""Fewer messages and shorter waits than for a backlog queue: consumers wait for what is held."""


def twin_relay(
    primary: Endpoint,
    secondary: Endpoint,
    path: str,
    options: SendAvailabilityOptions,
    ledger: RelayLedger,
    *,
    rate: Rate,
    on_delivered: Callable[[str], None] | None,
    outages: OutageLog,
    environment: Environment,
) -> Relay:
    """Return the relay that empties a marked queue of the secondary into its namesake."""
    unpacker = TwinUnpacker(path, primary.label, remaining_ttl=options.ttl_policy == "remaining")
    requests = BilledRequests(
        secondary.label,
        cause="syphon",
        side="secondary",
        pair=f"{primary.label}+{secondary.label}",
        ledger=ledger,
    )
    return Relay(
        primary,
        secondary,
        path,
        pump=Pump(
            home=path,
            limits=TWIN_LIMITS,
            poll_s=options.syphon_poll_s,
            pace=Pace(rate),
            draw=environment.chance,
        ),
        ledger=ledger,
        unpack=unpacker.unpack,
        refusal=partial(unmarked, secondary, path, primary.label, requests, environment),
        on_delivered=on_delivered,
        outages=outages,
        environment=environment,
    )


async def unmarked(
    secondary: Endpoint,
    path: str,
    label: str,
    requests: BilledRequests,
    environment: Environment = MACHINE,
) -> str | None:
    """Return why a queue must be left alone; None: it is a twin, or its mark may not be read.

    Asked before each attach: a queue that was deleted and created again, or whose mark was taken
    away, may have traffic of its own. Without the right to read the mark, a person named the twin.
    """
    try:
        found = await environment.is_marked(secondary, path, label, requests)
    except NotAnswered as error:
        raise ConnectionLost(str(error)) from error
    if found is False:
        return f"{path} in {secondary.label} is not marked as a twin of {label}: it is left alone"
    return None
