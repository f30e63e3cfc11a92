"""Events that a pair announces to listeners: one class for each kind of change.

    async for event in pair.events():
        match event:
            case EntityChanged(path=path, after="failed over"): ...

Times (`at`) are unix seconds. `as_dict` returns an event as JSON can hold it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from twinbus.pairing.core.sides import Side
from twinbus.status.document import EntityState, SideState


@dataclass(frozen=True, kw_only=True)
class PairEvent:
    """A change of a pair, and its time."""

    at: float

    def as_dict(self) -> dict[str, Any]:
        """The event as plain JSON data, its class under `event`."""
        plain = {name: _plain(value) for name, value in asdict(self).items()}
        return {"event": type(self).__name__, **plain}


@dataclass(frozen=True, kw_only=True)
class EntityChanged(PairEvent):
    """An entity of the primary changed its state from `before` to `after`."""

    path: str
    before: EntityState
    after: EntityState
    reason: str


@dataclass(frozen=True, kw_only=True)
class EntityHeld(PairEvent):
    """A person forced or froze an entity, or ended that."""

    path: str
    forced: bool
    frozen: bool


@dataclass(frozen=True, kw_only=True)
class GuardWarned(PairEvent):
    """The primary stored a message that no backlog queue would take; once for each guard."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PingEnded(PairEvent):
    """A ping was answered (`error` is empty) or failed."""

    path: str
    answered: bool
    error: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BacklogQueueFound(PairEvent):
    """A backlog queue is in the rotation; `drift` lists settings that differ from ours."""

    queue: str
    drift: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BacklogQueueLeftOut(PairEvent):
    """A backlog queue is not available, or must not be used."""

    queue: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RightMissing(PairEvent):
    """The credential of the secondary has not, or no longer, a right that the pair needs.

    Backlog queues in use stay in use, and the search goes on. At pairing it is an error.
    """

    reason: str


@dataclass(frozen=True, kw_only=True)
class BacklogQueuePulled(PairEvent):
    """A backlog queue failed and is pulled for all senders of the pair, for `rest_s` seconds."""

    queue: str
    reason: str
    rest_s: float


@dataclass(frozen=True, kw_only=True)
class BacklogQueueReturned(PairEvent):
    """A pulled queue may be used again: its time is over, or it answered a probe or a message.

    Only the next diverted message shows whether it works, unless it stored one after all.
    """

    queue: str


@dataclass(frozen=True, kw_only=True)
class ProtectionChanged(PairEvent):
    """The pair has its first backlog queue, or has lost its last one (UNPROTECTED)."""

    protected: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class SideChanged(PairEvent):
    """A side of the pair was closed or faulted."""

    side: Side
    before: SideState
    after: SideState
    reason: str


@dataclass(frozen=True, kw_only=True)
class EventsDropped(PairEvent):
    """This listener was too slow: `count` events, older than the next one, were dropped."""

    count: int


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
