"""A batch that fits the backlog as well: it gives ids, and leaves room for the aliases.

The SDK's own batch is full when it would exceed the limit of the primary. This one is also full
when its copies, with their aliases, would exceed the limit of a backlog queue. The size of the
aliases is counted message by message and is an upper bound; it depends on the path, the session id
and, where copies have ids of their own, the message id. So a full batch is diverted in one piece.
It is split only if the limit of the backlog was not known when the batch was made, or turned out
smaller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessageBatch

from twinbus.pairing.sdk.guards import annotated
from twinbus.pairing.sdk.outgoing import with_id
from twinbus.transfer import overhead_bytes

if TYPE_CHECKING:
    from twinbus.pairing.sdk.outgoing import MessageIds

ENTRY_GROWTH_MAX: Final = 3
"""A message that grows past 255 bytes has a longer length field in a batch."""


class PairedMessageBatch(ServiceBusMessageBatch):
    """The SDK's batch, for a paired sender: `add_message` leaves room for the aliases.

    `max_size_in_bytes` is the room for the messages themselves, so it shrinks a little with each
    one that is added.
    """

    def __init__(
        self, max_size_in_bytes: int, *, room_bytes: int, path: str, ids: MessageIds, **sdk: Any
    ) -> None:
        """`room_bytes` is the limit of a backlog queue; `sdk` are options of the SDK's batch."""
        self._room_bytes = room_bytes
        self._aliases_bytes = 0
        self._path = path
        self._ids = ids
        self._without_session = overhead_bytes(path) + ENTRY_GROWTH_MAX
        super().__init__(max_size_in_bytes, **sdk)

    @property
    def max_size_in_bytes(self) -> int:
        """The size that the messages may have together to fit the primary and the backlog."""
        return min(self._max_size_in_bytes, self._room_bytes - self._aliases_bytes)

    def add_message(self, message: Any) -> None:
        """Add a message; MessageSizeExceededError if it does not fit the primary or the backlog.

        A message without an id is added as a copy with one.
        """
        named = with_id(message, self._ids)
        before = self._aliases_bytes
        self._aliases_bytes += self._added_by(named)
        try:
            super().add_message(named)
        except BaseException:
            self._aliases_bytes = before
            raise

    def _added_by(self, message: Any) -> int:
        properties = annotated(message).properties
        session = properties.group_id if properties is not None else None
        replaced = None
        if self._ids.own_in_backlog and properties is not None:
            replaced = properties.message_id
        if session is None and replaced is None:
            return self._without_session
        if isinstance(session, bytes):
            session = session.decode("utf-8", "replace")
        elif session is not None:
            session = str(session)
        overhead = overhead_bytes(self._path, session_id=session, message_id=replaced)
        return overhead + ENTRY_GROWTH_MAX
