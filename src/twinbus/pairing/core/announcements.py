"""What a pair tells those who listen: one typed event for every change that a person would ask for.

    async for event in pair.events():
        match event:
            case EntityChanged(path=path, after="failed over"): ...

Times (`at`) are unix seconds. `as_dict` of each gives what JSON can hold.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from twinbus.pairing.core.events import EntityState
from twinbus.pairing.core.sides import Side, SideState

__all__ = [
    "BacklogQueueFound",
    "BacklogQueueLeftOut",
    "BacklogQueuePulled",
    "BacklogQueueReturned",
    "EntityChanged",
    "EntityHeld",
    "EventsDropped",
    "GuardWarned",
    "PairEvent",
    "PingEnded",
    "ProtectionChanged",
    "SideChanged",
]


@dataclass(frozen=True, kw_only=True)
class PairEvent:
    """Something that happened to a pair, and when."""

    at: float

    def as_dict(self) -> dict[str, Any]:
        """The event as JSON holds it, its kind under `event`."""
        plain = {name: _plain(value) for name, value in asdict(self).items()}
        return {"event": type(self).__name__, **plain}


@dataclass(frozen=True, kw_only=True)
class EntityChanged(PairEvent):
    """An entity of the primary has another state; `before` and `after` are its words."""

    path: str
    before: EntityState
    after: EntityState
    reason: str


@dataclass(frozen=True, kw_only=True)
class EntityHeld(PairEvent):
    """A person forced or froze an entity, or let it go."""

    path: str
    forced: bool
    frozen: bool


@dataclass(frozen=True, kw_only=True)
class GuardWarned(PairEvent):
    """A message went to the primary that no backlog queue would take; told once for each guard."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PingEnded(PairEvent):
    """A ping was answered (`error` is empty) or was not."""

    path: str
    answered: bool
    error: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BacklogQueueFound(PairEvent):
    """A backlog queue is in the rotation; `drift` says how it differs from what we would create."""

    queue: str
    drift: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BacklogQueueLeftOut(PairEvent):
    """A backlog queue cannot be had, or must not be used."""

    queue: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class BacklogQueuePulled(PairEvent):
    """A backlog queue failed and rests for all senders of the pair."""

    queue: str
    reason: str
    rest_s: float


@dataclass(frozen=True, kw_only=True)
class BacklogQueueReturned(PairEvent):
    """A pulled queue may be used again: its rest is over, or it took a message after all.

    It returns by time alone; whether it works is seen when a message is diverted to it.
    """

    queue: str


@dataclass(frozen=True, kw_only=True)
class ProtectionChanged(PairEvent):
    """The pair has a backlog queue to divert to now, or has none any more (UNPROTECTED)."""

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
    """This listener was too slow: `count` events, older than the next one, are not told."""

    count: int


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
