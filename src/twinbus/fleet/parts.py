"""What a fleet is composed of: the pair, the host's files, the board and the pinger.

Each is a protocol, so that a simulation has its own, and so that the parts do not know each other.
`NoBoard`, `EachPings` and `LonelyHost` are what a process has that shares nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from twinbus.fleet.core.notices import Notice
from twinbus.status.document import EntityState
from twinbus.status.fleet import EACH_PINGS


@dataclass(frozen=True, slots=True)
class AilingEntity:
    """An entity of the pair that is not healthy."""

    path: str
    state: EntityState
    is_evidence: bool
    """Whether others may be told that it failed over here: by its own interval."""
    entered_at: float
    """When it entered the state, by any clock: it tells one failover from the next."""
    age_s: float
    """For how long it has been in the state."""
    kinds: tuple[str, ...] = ()
    """Its own failures by kind, such as "timeout 3"."""


class FleetMember(Protocol):
    """The pair. Its methods are called on the loop and never wait; the decision stays there."""

    def ailing(self) -> Sequence[AilingEntity]: ...

    def others_failed_over(self, path: str, evidence: str) -> None:
        """Enough others say so: a SUSPECT entity fails over now, any other one ignores it."""

    def try_primary(self, path: str) -> None:
        """The entity answered another process: let one live send of it try the primary."""


class HostRoles(Protocol):
    """What one process of a host does for all: a role ends with its process, however that ends."""

    def hold(self, role: str) -> bool:
        """Take the role, or keep it; return whether this process has it."""

    def let_go(self, role: str) -> None:
        """Leave the role to another process, if this one has it."""


class HostEvidence(HostRoles, Protocol):
    """The files of this host (`host_files`); in a simulation, a dict. Only `read` and `publish`
    may take time, so they are awaited."""

    host_id: str
    process: str
    """What `read` calls this process: other pairs of it are no other process."""

    async def read(self) -> Mapping[str, Sequence[Notice]]:
        """What the other pairs of this host say now, by their process."""

    async def publish(self, notices: Sequence[Notice]) -> None:
        """Say this to them until the next call; nothing: withdraw."""


class FleetBoard(Protocol):
    """The notice board of the secondary (`board_watch`)."""

    @property
    def off(self) -> str:
        """Why it is not used; empty: it is."""

    def changed(self) -> None:
        """A state of this host may have changed."""

    def recovered(self, notice: Notice) -> None:
        """Tell other hosts at once."""

    async def close(self) -> None: ...


class FleetPinger(Protocol):
    """Who pings each entity (`pinger`)."""

    def watch(self, failed_over: Set[str]) -> None:
        """Take the entities of this pair that have failed over, after every change."""

    def pings(self, path: str) -> bool:
        """Whether this process sends the ping that is due now; asked once in a ping interval."""

    def not_allowed(self, path: str) -> None:
        """A ping showed that this process may not send to the entity: another one should ping."""

    def speaks(self, path: str) -> bool:
        """Whether an answer to this process is told to other hosts: it has the lease."""

    def heard_recovery(self, path: str) -> None:
        """Another process was answered: after a jitter, let one live send try the primary."""

    def described(self, path: str) -> str:
        """Who pings the entity, for the status."""

    async def close(self) -> None: ...


class NoBoard:
    """What is there without a notice board."""

    def __init__(self, off: str = "") -> None:
        self.off = off

    def changed(self) -> None:
        return

    def recovered(self, notice: Notice) -> None:
        return

    async def close(self) -> None:
        return


class EachPings:
    """Each process pings for itself."""

    def watch(self, failed_over: Set[str]) -> None:
        return

    def pings(self, path: str) -> bool:
        return True

    def not_allowed(self, path: str) -> None:
        return

    def speaks(self, path: str) -> bool:
        return False

    def heard_recovery(self, path: str) -> None:
        return

    def described(self, path: str) -> str:
        return EACH_PINGS

    async def close(self) -> None:
        return


class LonelyHost:
    """A process without a run directory: a host of its own."""

    process = ""

    def __init__(self, host_id: str) -> None:
        self.host_id = host_id

    async def read(self) -> Mapping[str, Sequence[Notice]]:
        return {}

    async def publish(self, notices: Sequence[Notice]) -> None:
        return

    def hold(self, role: str) -> bool:
        return True

    def let_go(self, role: str) -> None:
        return
