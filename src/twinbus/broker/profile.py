"""Whose limits the broker has: its own, or those of a tier of Azure Service Bus.

Pure. The parts of the broker consult the profile where the limit applies; docs/broker.md lists
each limit with Azure's figure and its source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from twinbus.amqp.connection import IDLE_TIMEOUT_MS
from twinbus.broker.descriptions import RANGES, Description
from twinbus.broker.refusals import ArgumentOutOfRange

_GB = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceProfile:
    """The limits of a namespace; None: no limit."""

    name: str
    sku: str = "Standard"
    credits_per_s: int | None = None
    """Operations of the namespace in each second; what exceeds it is answered server-busy."""
    handle_max: int = 4_999
    """Highest link handle of a session, so a session has one link more than this: as many as the
    budget of a connection."""
    sender_credit: int = 1_000
    """Deliveries that a client may have in flight on one link. More is slower: a client then sends
    larger lots, and each side waits for the other (docs/decisions.md, decision 8)."""
    connection_idle_ms: int = IDLE_TIMEOUT_MS
    """idle-time-out of a connection: a client that sends nothing for this long is cut off."""
    link_idle_s: float | None = None
    """A link without a transfer for this long is detached."""
    connections_max: int | None = None
    receivers_max: int | None = 5_000
    """Open receivers of one queue or subscription."""
    entities_max: int | None = None
    """Queues and topics together."""
    subscriptions_max: int | None = None
    """Of one topic."""
    sql_filters_max: int | None = None
    correlation_filters_max: int | None = None
    """Of all subscriptions of one topic."""
    entity_sizes_mb: tuple[int, ...] = ()
    """The values that MaxSizeInMegabytes may have; none: any in range."""
    message_kb_max: int = RANGES["max_message_size_kb"][1]
    message_kb: int = 256
    """Largest message of an entity that does not say."""
    creation_s: float = 0.0
    """How long a creation takes; meanwhile other changes of the same path are answered 409."""

    def check_settings(self, path: str, description: Description) -> None:
        """Refuse settings that the tier does not offer."""
        size_mb = getattr(description, "max_size_mb", None)
        if size_mb is not None and self.entity_sizes_mb and size_mb not in self.entity_sizes_mb:
            offered = ", ".join(map(str, self.entity_sizes_mb))
            raise ArgumentOutOfRange(
                f"MaxSizeInMegabytes of {path!r} is {size_mb}; {self.name} offers {offered}"
            )
        message_kb = getattr(description, "max_message_size_kb", 0)
        if message_kb > self.message_kb_max:
            raise ArgumentOutOfRange(
                f"MaxMessageSizeInKilobytes of {path!r} is {message_kb}; {self.name} takes at most "
                f"{self.message_kb_max}"
            )


LAPTOP = ServiceProfile(name="laptop")
"""The default: as few limits as a development machine wants."""

AZURE_STANDARD = ServiceProfile(
    name="azure-standard",
    credits_per_s=1000,
    handle_max=255,
    sender_credit=100,
    connection_idle_ms=120_000,
    link_idle_s=600.0,
    connections_max=5000,
    receivers_max=5000,
    entities_max=10_000,
    subscriptions_max=2000,
    sql_filters_max=2000,
    correlation_filters_max=100_000,
    entity_sizes_mb=tuple(n * _GB for n in (1, 2, 3, 4, 5)),
    message_kb_max=256,
    creation_s=0.2,
)

AZURE_PREMIUM = replace(
    AZURE_STANDARD,
    name="azure-premium",
    sku="Premium",
    credits_per_s=None,
    connections_max=None,
    entities_max=1000,
    entity_sizes_mb=tuple(n * _GB for n in (1, 2, 3, 4, 5, 10, 20, 40, 80)),
    message_kb_max=LAPTOP.message_kb_max,
    message_kb=1024,
)
"""One messaging unit. Azure throttles this tier by CPU, which has no figure; so no credits."""

PROFILES = {each.name: each for each in (LAPTOP, AZURE_STANDARD, AZURE_PREMIUM)}
