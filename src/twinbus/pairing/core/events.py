"""Events and actions of an entity's failover, as data.

Events come from the shell with their time; actions go back to it. `failover` has the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import ClassVar, Final

from twinbus.timers import TimerFired

__all__ = [
    "ROUTES",
    "Action",
    "EntityState",
    "Event",
    "ForceFailover",
    "Freeze",
    "MarkHealthy",
    "Notify",
    "PingAnswered",
    "PingFailed",
    "Route",
    "SendFailed",
    "SendPing",
    "SendSucceeded",
    "StartDiverting",
    "StopPinging",
    "StopWatching",
    "TimerFired",
    "Transition",
    "Unfreeze",
]


class EntityState(StrEnum):
    """The state of an entity of the primary; the value is the text that people read."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed over"
    UNUSABLE = "unusable"


class Route(Enum):
    """Where a send to the entity goes now."""

    PRIMARY = "primary"
    BACKLOG = "backlog"
    REFUSED = "refused"


ROUTES: Final = {
    EntityState.HEALTHY: Route.PRIMARY,
    EntityState.SUSPECT: Route.PRIMARY,
    EntityState.FAILED_OVER: Route.BACKLOG,
    EntityState.UNUSABLE: Route.REFUSED,
}


@dataclass(frozen=True, slots=True)
class SendSucceeded:
    """The entity accepted something: a send, a forward of the syphon, a management call."""


@dataclass(frozen=True, slots=True)
class SendFailed:
    """An attempt on the primary failed; `counts` is the classifier's verdict."""

    counts: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class PingAnswered:
    """The entity accepted a ping."""


@dataclass(frozen=True, slots=True)
class PingFailed:
    """A ping failed; `unusable`: the entity is missing or disabled."""

    unusable: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class ForceFailover:
    """A person diverts the entity's sends until `MarkHealthy`."""


@dataclass(frozen=True, slots=True)
class MarkHealthy:
    """A person declares the entity healthy."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """A person stops changes of the routing."""


@dataclass(frozen=True, slots=True)
class Unfreeze:
    """The routing may change again."""


@dataclass(frozen=True, slots=True)
class StopWatching:
    """The pair is closing: stop timer and ping."""


Event = (
    SendSucceeded | SendFailed | TimerFired | PingAnswered | PingFailed
    | ForceFailover | MarkHealthy | Freeze | Unfreeze | StopWatching
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StartDiverting:
    """Sends go to the backlog from now on: wake every call that waits for a retry."""


@dataclass(frozen=True, slots=True)
class SendPing:
    """Ping the entity once and report how it ended."""


@dataclass(frozen=True, slots=True)
class StopPinging:
    """Drop the ping in flight, if any."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of state, for logs, listeners and the ledger."""

    before: EntityState
    after: EntityState
    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Log and announce the transition; nothing to perform."""

    announces: ClassVar[bool] = True
    transition: Transition


Action = StartDiverting | SendPing | StopPinging | Notify
