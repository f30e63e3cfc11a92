"""What one client has completed of entities with a twin, for second copies: over all its links.

An SDK attaches again within one connection: that of JavaScript closes its link whenever a drain is
not answered within a second, so in every hang, and settles by lock token what the link had brought.
A memory for each link would hand out the copy that comes from the other side after that.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from twinbus.client.outcomes import COMPLETE, DEFERRED
from twinbus.pairing.receiving.copies import Copy, SecondCopies

COPIES_MAX: Final = 10_000
"""Messages of one entity that are remembered: a few megabytes, and a gateway has many clients."""

PATHS_MAX: Final = 10
"""Entities that the client has no link to, and may come back to."""

LEFT_MAX: Final = 1_000
"""Messages that closed links have left with the client, to be settled by their lock tokens."""


class ClientCopies:
    """The memory of one client; it ends with its connection."""

    def __init__(self) -> None:
        self._by_path: OrderedDict[str, SecondCopies] = OrderedDict()
        self._links: dict[str, int] = {}
        """How many links of each path are open."""
        self._left: OrderedDict[bytes, tuple[SecondCopies, Copy]] = OrderedDict()
        """By lock token."""

    def opened(self, path: str) -> SecondCopies:
        """Return what is known of an entity; call `closed` when the link is."""
        key = path.lower()
        self._links[key] = self._links.get(key, 0) + 1
        return self._by_path.setdefault(key, SecondCopies(COPIES_MAX))

    def closed(self, path: str) -> None:
        """A link is closed; the entity is remembered for the next one."""
        key = path.lower()
        self._links[key] -= 1
        if self._links[key]:
            return
        del self._links[key]
        self._by_path.move_to_end(key)
        idle = [one for one in self._by_path if one not in self._links]
        for oldest in idle[:-PATHS_MAX]:
            del self._by_path[oldest]

    def left(self, token: bytes, copies: SecondCopies, copy: Copy) -> None:
        """A closed link has left a message with the client."""
        self._left[token] = copies, copy
        if len(self._left) > LEFT_MAX:
            self._left.popitem(last=False)

    def settled(self, token: bytes, status: str) -> None:
        """The service confirmed a settlement by lock token."""
        known = self._left.pop(token, None)
        if known is not None:
            note_settled(*known, status)


def note_settled(copies: SecondCopies, copy: Copy, status: str) -> None:
    """The service confirmed a settlement of a message that was handed out."""
    if status == COMPLETE.status:
        copies.completed(copy)
    elif status in (DEFERRED, "suspended"):
        copies.gone(copy.place)
