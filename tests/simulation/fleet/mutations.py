"""Planted bugs in what a fleet shares, which the rules must find."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from twinbus.fleet.core.evidence import Evidence
from twinbus.fleet.core.pinging import Pinging
from twinbus.fleet.fleet import Fleet
from twinbus.pair_fleet import PairFleet
from twinbus.pairing.core.failover import (
    Action,
    EntityFailover,
    OthersFailedOver,
    StartDiverting,
)
from twinbus.pairing.core.own_evidence import OwnEvidence
from twinbus.status.document import EntityState

Planted = Callable[[], AbstractContextManager[Any]]


@contextmanager
def notice_that_commands() -> Iterator[None]:
    """Enough notices fail a healthy entity over: no failure of its own is needed."""
    real, take = EntityFailover._others_failed_over, Fleet.take_notices

    def commanded(self: EntityFailover, event: OthersFailedOver, now: float) -> Sequence[Action]:
        if self.state is not EntityState.HEALTHY:
            return real(self, event, now)
        self.own_evidence = OwnEvidence(now, self._failover_interval_s)
        self.own_evidence.others = event.evidence
        return self._enter(EntityState.FAILED_OVER, now, event.evidence, StartDiverting())

    def taken(self: Fleet, notices: Any) -> None:
        take(self, notices)
        for one in notices:
            text = self.evidence.enough(one.notice.entity, self._now())
            if text is not None:
                self._member.others_failed_over(one.notice.entity, text)

    with ExitStack() as stack:
        stack.enter_context(patch.object(EntityFailover, "_others_failed_over", commanded))
        stack.enter_context(patch.object(Fleet, "take_notices", taken))
        yield


def suspect_counts() -> AbstractContextManager[Any]:
    """A failure is told to the others at once, and not after the failover interval."""

    def planted(self: EntityFailover, now: float) -> bool:
        return self.state in (EntityState.SUSPECT, EntityState.FAILED_OVER)

    return patch.object(EntityFailover, "is_evidence", planted)


@contextmanager
def pinger_never_replaced() -> Iterator[None]:
    """Who does not get the lease of the pings never asks for it again."""
    with patch.object(Pinging, "standby_s", property(lambda self: math.inf)):
        yield


def early_failover_is_not_tested() -> AbstractContextManager[Any]:
    """Who leaves the pings to another believes what others said until a slow ping of its own."""
    real = EntityFailover._others_failed_over

    def planted(self: EntityFailover, event: OthersFailedOver, now: float) -> Sequence[Action]:
        actions = real(self, event, now)
        self._is_untested = False
        return actions

    return patch.object(EntityFailover, "_others_failed_over", planted)


def hearsay_is_evidence() -> AbstractContextManager[Any]:
    """An entity that failed over because others said so is told to others as if it knew."""
    return patch.object(OwnEvidence, "convinces", lambda self, now: True)


def own_host_counts() -> AbstractContextManager[Any]:
    """A notice of its own host counts towards the quorum."""
    real = Evidence.heard_on_board

    def planted(self: Evidence, notice: Any, lives_s: float, now: float) -> bool:
        own, self.own_host = self.own_host, ""
        try:
            return real(self, notice, lives_s, now)
        finally:
            self.own_host = own

    return patch.object(Evidence, "heard_on_board", planted)


def recovery_is_not_told() -> AbstractContextManager[Any]:
    """The answer to a ping is kept by the process that pinged."""
    return patch.object(Fleet, "_say_recovered", lambda self, path: None)


def each_pings() -> AbstractContextManager[Any]:
    """Nobody leaves a ping to another."""
    return patch.object(PairFleet, "pings", lambda self, path: True)


BUGS: Final[dict[str, tuple[Planted, str, str]]] = {
    "a notice that commands": (notice_that_commands, "storms", "command"),
    "SUSPECT counts as evidence": (suspect_counts, "storms", "blip"),
    "a dead pinger that is never replaced": (pinger_never_replaced, "dead pinger", "pinger"),
    "an early failover that is not tested": (early_failover_is_not_tested, "slander", "undone"),
    "an early failover is told as own evidence": (hearsay_is_evidence, "storms", "hearsay"),
    "the own host counts for the quorum": (own_host_counts, "forger", "quorum"),
    "a recovery that is not told": (recovery_is_not_told, "storms", "recovery"),
    "each process pings": (each_pings, "storms", "pings"),
}
"""By name: what puts it in, the story that shows it, and the rule that must find it."""
