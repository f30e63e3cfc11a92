"""What really happened, as no part of the simulated world can know it: the checkers' knowledge.

A call is one `send_messages` of an application. A deed is one attempt, of a sender or of a syphon,
to have messages stored somewhere; whether it was performed is known here even where the answer was
lost, or came when nobody listened any more.
"""

from __future__ import annotations

import re
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.simulation.namespace import SimNamespace
    from tests.simulation.network import Wire

_SERIAL: Final = re.compile(rb"#(\d+)#")
"""How each body begins: with the number of its message."""


def serial_of(wire: bytes) -> int:
    """The number of a message, which is the same in all its copies."""
    found = _SERIAL.search(wire)
    assert found is not None, f"a message that no application sent: {wire!r}"
    return int(found[1])


@dataclass(eq=False)
class Original:
    """A message as its application made it."""

    serial: int
    path: str
    message: Any
    """A ServiceBusMessage."""
    message_id: str | None
    session_id: str | None
    ttl_ms: int
    scheduled_for_ms: int
    sender: str
    """Who sends it: an application and a place in it, where one message waits for the other."""


@dataclass(eq=False)
class Call:
    """One call of an application."""

    number: int
    process: str
    path: str
    originals: list[Original]
    timeout_s: float | None
    began: float
    ended: float | None = None
    outcome: str = "pending"
    """returned, raised, or killed with its process."""
    error: str = ""
    stored: set[int] = field(default_factory=set)
    """Serials that the application was told are stored."""
    deeds: list[Deed] = field(default_factory=list)
    attempts: list[tuple[str, str, str]] = field(default_factory=list)
    """Operation, outcome and message id of each line in the ledger."""


@dataclass(eq=False)
class Handover:
    """One delivery of a message of a backlog queue to a syphon, from its lock to its settlement."""

    source: tuple[object, ...]
    """The backlog queue, and the number and time of the message in it."""
    at: float
    wire: Wire
    """The connection that it came over and is settled over."""
    settled_at: float | None = None
    """When the namespace performed its settlement; None: never."""

    def was_hit(self) -> bool:
        """Whether a fault hit its connection, its process or its namespace before it was settled.

        Nothing else can cost it its lock once the primary has the message: the syphon renews locks.
        """
        return self.wire.was_hit(self.at, self.settled_at)

    def was_hit_before(self, moment: float) -> bool:
        """Whether a fault hit it before a moment, so that another syphon may have the message."""
        return self.wire.was_hit(self.at, moment)


@dataclass(eq=False)
class Deed:
    """One attempt to have messages stored."""

    kind: str
    """send, divert, forward or ping."""
    who: str
    path: str
    call: Call | None = None
    handover: Handover | None = None
    """Of a forward: the delivery of the message to the syphon."""
    wire: Wire | None = None
    """Of a forward: the connection to the primary that it is sent over."""
    began_at: float = 0.0
    entity_id: int = 0
    performed: list[int] = field(default_factory=list)
    """Serials that were stored."""
    answered: bool = False
    """Whoever attempted it was told that it succeeded."""
    answered_at: float = 0.0

    def was_hit(self) -> bool:
        """Of a forward: whether a fault hit this very attempt, before its answer came or before
        the message could be settled."""
        assert self.handover is not None
        assert self.wire is not None
        answered_at = self.answered_at if self.answered else None
        return self.handover.was_hit() or self.wire.was_hit(self.began_at, answered_at)


@dataclass(frozen=True, slots=True)
class Copy:
    """One storing of one message."""

    serial: int
    at: float
    side: str
    deed: Deed


class Truth:
    """Everything that was sent and stored."""

    def __init__(self, now: Any) -> None:
        self._now = now
        self.originals: dict[int, Original] = {}
        self.calls: list[Call] = []
        self.deeds: list[Deed] = []
        self.copies: list[Copy] = []
        self.deleted: dict[int, set[str]] = {}
        """Serials that were in an entity when a person deleted it, and the entities' paths."""
        self.ever_deleted: set[str] = set()
        self._numbers: Counter[str] = Counter()

    def next_number(self, path: str) -> int:
        """Number the messages to one entity."""
        self._numbers[path] += 1
        return self._numbers[path]

    def performed(self, namespace: SimNamespace, deed: Deed, wire: bytes) -> None:
        """A message was stored."""
        serial = serial_of(wire)
        deed.performed.append(serial)
        self.copies.append(Copy(serial, self._now(), namespace.name, deed))

    def deletes(self, namespace: SimNamespace, path: str) -> None:
        """An entity is about to be deleted with everything in it."""
        self.ever_deleted.add(path.lower())
        for _, payload in namespace.contents(path) + namespace.dead_letters(path):
            self.deleted.setdefault(serial_of(payload), set()).add(path.lower())


CALL: ContextVar[Call | None] = ContextVar("CALL", default=None)
"""The call that the running task is about."""
