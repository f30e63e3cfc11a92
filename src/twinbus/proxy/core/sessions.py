"""The sessions of a relayed connection, as far as a fault must know them."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinbus.amqp.performatives import Flow
from twinbus.broker.faults import Direction
from twinbus.proxy.core.links import TO_CLIENT, TO_SERVICE, RelayedLink
from twinbus.proxy.core.numbers import TransferNumbers


@dataclass(slots=True, eq=False)
class RelayedSession:
    channels: dict[Direction, int] = field(default_factory=dict)
    """The channel in frames of each direction, from its BEGIN to its END."""
    numbers: dict[Direction, TransferNumbers] = field(
        default_factory=lambda: {TO_SERVICE: TransferNumbers(), TO_CLIENT: TransferNumbers()}
    )
    links: dict[Direction, dict[int, RelayedLink]] = field(
        default_factory=lambda: {TO_SERVICE: {}, TO_CLIENT: {}}
    )
    """By the handles of each direction."""
    named: dict[tuple[str, bool], RelayedLink] = field(default_factory=dict)
    """Links whose ATTACH the service has not answered, by name and `client_sends`."""
    service_began_at: int = 0
    """The number of the service's first transfer."""
    window: Flow | None = None
    """The service's last word about the windows of the session."""
