"""Converts a message to its backlog form and back (docs/guarantees.md).

`sections` works on raw AMQP sections, as the syphon receives them; `sdk` on the message objects of
azure-servicebus, as a paired sender uses them. `aliases` has what both share: names, types, sizes.
`unpacking` restores the messages of raw deliveries, fast.
"""

from __future__ import annotations

from twinbus.transfer.aliases import RESERVED_NAMES, Aliases, overhead_bytes
from twinbus.transfer.sdk import from_backlog_message, to_backlog_message
from twinbus.transfer.sections import (
    aliases_of,
    from_backlog_sections,
    to_backlog_sections,
    without_delivery_marks,
)

__all__ = [
    "RESERVED_NAMES",
    "Aliases",
    "aliases_of",
    "from_backlog_message",
    "from_backlog_sections",
    "overhead_bytes",
    "to_backlog_message",
    "to_backlog_sections",
    "without_delivery_marks",
]
