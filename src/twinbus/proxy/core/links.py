"""The links of a relayed connection, as far as a fault must know them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.amqp.performatives import Attach, Coordinator, Flow
from twinbus.broker.faults import Direction, Stage
from twinbus.servicebus.names import MANAGEMENT_SUFFIX, entity_address

if TYPE_CHECKING:
    from twinbus.broker.faults import Fault

TO_SERVICE: Final[Direction] = "to_service"
TO_CLIENT: Final[Direction] = "to_client"

OTHER: Final[dict[Direction, Direction]] = {TO_SERVICE: TO_CLIENT, TO_CLIENT: TO_SERVICE}

CBS: Final = "$cbs"
COORDINATOR: Final = "$coordinator"
"""What faults call the node that ends transactions; it has no address."""


class LinkFate(Enum):
    RELAYED = "relayed"
    UNKNOWN = "unknown"
    """The service never saw its attach; what the client sends on it goes no further."""
    DETACHED = "detached"
    """The proxy detached both ends; what they still send goes no further."""


@dataclass(slots=True, eq=False)
class RelayedLink:
    name: str
    address: str
    """The entity or node, without scheme and host."""
    client_sends: bool
    fate: LinkFate = LinkFate.RELAYED
    handles: dict[Direction, int] = field(default_factory=dict)
    """The handle in frames of each direction, from its ATTACH to its DETACH."""
    withheld: int = 0
    """Deliveries that the proxy withheld."""
    is_within_delivery: bool = False
    """More frames of the last delivery follow."""
    fault: Fault | None = None
    """What withholds the delivery that is under way."""
    delivery_id: int | None = None
    """The sender's id of the delivery that is under way."""
    credit: Flow | None = None
    """The last that the service granted."""

    @property
    def stage(self) -> Stage:
        """The stage of its messages."""
        address = self.address.lower()
        if address == CBS or address.endswith(MANAGEMENT_SUFFIX):
            return "request"
        return "send" if self.client_sends else "receive"

    @property
    def withholds(self) -> bool:
        """Whether the delivery that is under way goes no further."""
        return self.fault is not None or self.fate is not LinkFate.RELAYED

    def is_sent_by(self, direction: Direction) -> bool:
        """Whether its messages go this way."""
        return self.client_sends == (direction == TO_SERVICE)


def link_of(attach: Attach) -> RelayedLink:
    """The link that a client's ATTACH begins."""
    client_sends = not attach.role
    terminus = attach.target if client_sends else attach.source
    if isinstance(terminus, Coordinator):
        address = COORDINATOR
    else:
        address = entity_address(str(getattr(terminus, "address", None) or ""))
    return RelayedLink(attach.name, address, client_sends)
