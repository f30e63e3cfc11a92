"""What happened in a simulated fleet, seen from outside of every process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.simulation.fleet.plan import FAILOVER_S
from twinbus.fleet.core.notices import Notice
from twinbus.pairing.core.failover import Transition
from twinbus.status.document import EntityState

if TYPE_CHECKING:
    from tests.simulation.fleet.hosts import FleetProcess
    from twinbus.pairing.sending.entity_monitor import EntityMonitor

HEARD_S: Final = 40.0
"""How long a process may repeat what another one of its host said, after that ended."""

SLACK_S: Final = 0.5
"""Between an answer of the primary and what the process makes of it."""


@dataclass
class Failing:
    """A time in which every attempt of one process failed."""

    process: FleetProcess
    begins: float
    ends: float = math.inf

    def is_convincing(self, at: float, heard_s: float = 0.0) -> bool:
        """Whether the process may have failed over by its own interval."""
        began = self.begins + FAILOVER_S - SLACK_S
        return began <= at <= self.ends + heard_s and began <= self.ends


@dataclass
class FailedOver:
    """One failover of one process."""

    process: FleetProcess
    at: float
    failing_since: float | None
    """Its first own failure; None: it had none."""
    is_early: bool
    """Because of what others say."""
    quorum: int
    """Other hosts that said so on the board then, the liars too."""
    others: int
    """Other processes of its host that had failed over by their own interval."""
    ended: float = math.inf
    failed_again: bool = False
    """A send of the process tried the primary before it ended, and failed."""


@dataclass
class FleetTruth:
    """What each process saw of the primary, and what it made of it."""

    now: Callable[[], float]
    said_on_board: Callable[[FleetProcess], int]
    """How many other hosts say on the board that the entity failed over."""
    failings: dict[FleetProcess, list[Failing]] = field(default_factory=dict)
    failovers: list[FailedOver] = field(default_factory=list)
    pings: list[tuple[float, FleetProcess, str]] = field(default_factory=list)
    """When, whose, and who pings as that process says."""
    stored: set[int] = field(default_factory=set)
    returned: set[int] = field(default_factory=set)
    raised: list[str] = field(default_factory=list)
    hearsay: list[str] = field(default_factory=list)
    """Notices that a process gave to others and that it had no ground for."""
    _serial: int = 0

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def failing(self, process: FleetProcess) -> Failing | None:
        """The present failures of a process; None: its last attempt succeeded."""
        spans = self.failings.get(process)
        return spans[-1] if spans and spans[-1].ends == math.inf else None

    def failed(self, process: FleetProcess) -> None:
        for one in reversed(self.failovers):
            if one.process is process:
                one.failed_again |= one.ended == math.inf
                break
        if self.failing(process) is None:
            self.failings.setdefault(process, []).append(Failing(process, self.now()))

    def ended(self, process: FleetProcess) -> None:
        """The primary took something from the process, or the process is gone."""
        if (failing := self.failing(process)) is not None:
            failing.ends = self.now()

    def changed(self, process: FleetProcess, entity: EntityMonitor, transition: Transition) -> None:
        now = self.now()
        if transition.after is EntityState.FAILED_OVER:
            own = entity.failover.own_evidence
            failing = self.failing(process)
            others = [
                other
                for other in process.host.processes
                if other is not process and self._was_convinced(other, now)
            ]
            self.failovers.append(
                FailedOver(
                    process,
                    now,
                    None if failing is None else failing.begins,
                    is_early=own is None or bool(own.others),
                    quorum=self.said_on_board(process),
                    others=len(others),
                )
            )
        elif transition.before is EntityState.FAILED_OVER:
            last = next(one for one in reversed(self.failovers) if one.process is process)
            last.ended = now

    def said(self, process: FleetProcess, notices: Sequence[Notice]) -> None:
        """Check what a process tells others: it must know that by its own failover interval."""
        now = self.now()
        host_id = process.host.host_id
        for notice in notices:
            if notice.recovered or notice.host != host_id:
                continue
            if not any(self._was_convinced(one, now) for one in process.host.processes):
                self.hearsay.append(f"{now:.1f} s: {process.name} says {notice}")

    def _was_convinced(self, process: FleetProcess, at: float) -> bool:
        return any(one.is_convincing(at, HEARD_S) for one in self.failings.get(process, ()))
