"""Planted bugs: small changes to the real core that the simulation must find.

Each is what a person could write on a bad day. `PLANTED` has them by name, as context managers that
put the bug in for the length of a block.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from twinbus.pairing.core.backlog import Rotation
from twinbus.pairing.core.failover import (
    NOTHING,
    PINGED,
    Action,
    EntityFailover,
    PingFailed,
    SendSucceeded,
)
from twinbus.syphon.core.actions import Forward
from twinbus.syphon.core.destination import Destination
from twinbus.syphon.core.pump import Pump
from twinbus.syphon.core.send_control import SendControl
from twinbus.transfer import unpacking
from twinbus.transfer.sections import aliases_of, from_backlog_sections

Planted = Callable[[], AbstractContextManager[Any]]


def lost_timer() -> AbstractContextManager[Any]:
    """After a ping that failed nobody sets the timer for the next one."""
    real = EntityFailover._ping_ended

    def planted(self: EntityFailover, event: Any, now: float) -> Sequence[Action]:
        actions = real(self, event, now)
        if isinstance(event, PingFailed):
            self.timer_at = None
        return actions

    return patch.object(EntityFailover, "_ping_ended", planted)


def complete_before_send() -> AbstractContextManager[Any]:
    """The backlog queue is told to forget a message before the primary has said that it has it."""
    real = SendControl.serve

    def planted(self: SendControl, destination: Destination, now: float) -> Any:
        actions = real(self, destination, now)
        hasty = [action.message for action in actions if isinstance(action, Forward)]
        for message in hasty:
            destination.sent.pop(message.lock_token)
            message.accepted = True
        return [*self._settlements.complete(hasty, now), *actions] if hasty else actions

    return patch.object(SendControl, "serve", planted)


def forward_twice() -> AbstractContextManager[Any]:
    """The syphon sends every message of the backlog twice, one right after the other."""
    real = SendControl.serve

    def planted(self: SendControl, destination: Destination, now: float) -> Any:
        actions = real(self, destination, now)
        return [
            action
            for each in actions
            for action in ((each, each) if isinstance(each, Forward) else (each,))
        ]

    return patch.object(SendControl, "serve", planted)


def alias_not_restored() -> AbstractContextManager[Any]:
    """A message comes out of the backlog without the time to live that it went in with."""
    real = from_backlog_sections

    def planted(sections: Any, *, now_ms: int, aliases: Any = None) -> Any:
        mine = replace(aliases or aliases_of(sections), time_to_live_ms=None)
        return real(sections, now_ms=now_ms, aliases=mine)

    return patch.object(unpacking, "from_backlog_sections", planted)


def pulled_queue_never_returns() -> AbstractContextManager[Any]:
    """A backlog queue that failed once is out of the rotation for ever."""
    real = Rotation.pull

    def planted(self: Rotation, queue: str, *given: Any, **named: Any) -> Any:
        until = real(self, queue, *given, **named)
        if until is not None:
            self._queues[queue].pulled_until = math.inf
        return until

    return patch.object(Rotation, "pull", planted)


def late_success_ignored() -> AbstractContextManager[Any]:
    """A send that succeeds after the failover does not heal the entity."""
    real = EntityFailover._success

    def planted(self: EntityFailover, event: SendSucceeded, now: float) -> Sequence[Action]:
        return NOTHING if self.state in PINGED else real(self, event, now)

    return patch.object(EntityFailover, "_success", planted)


def session_returns_too_early() -> AbstractContextManager[Any]:
    """Under strict order a session goes to the primary while messages of it are in the backlog."""
    order = importlib.import_module("twinbus.pairing.core.session_order")
    return patch.object(order.SessionOrder, "is_bound", lambda self, key: False)


def relaxed_pump() -> AbstractContextManager[Any]:
    """Under strict order the syphon sends a session's messages without waiting for each other."""
    real = Pump.__init__

    def planted(self: Pump, **settings: Any) -> None:
        real(self, **settings | {"is_strict": False})

    return patch.object(Pump, "__init__", planted)


PLANTED: Final[dict[str, tuple[Planted, str]]] = {
    "a lost timer": (lost_timer, "stuck"),
    "complete before send": (complete_before_send, "conservation"),
    "a message forwarded twice": (forward_twice, "forwards"),
    "an alias not restored": (alias_not_restored, "fidelity"),
    "a pulled queue that never returns": (pulled_queue_never_returns, "stuck"),
    "a late success ignored": (late_success_ignored, "late success"),
}
"""By name: what puts it in, and the checker that must be the one to see it."""

PLANTED_IN_STRICT: Final[dict[str, tuple[Planted, str]]] = {
    "a session that returns too early": (session_returns_too_early, "order"),
    "a relaxed pump": (relaxed_pump, "order"),
}
"""The same, for worlds with strict session order."""

KNOWN_TO_SHOW: Final = {
    "a pulled queue that never returns": (73,),
    "a relaxed pump": (97,),
    "a call without a bound": (374,),
    "a lost queue forgotten": (407,),
    "the original's id in the backlog": (135,),
    "a drain that never slows down": (99,),
    "a drain that never speeds up": (99,),
    "a short timeout that counts": (12,),
    "a mark that is read once": (7,),
}
"""Seeds of bugs that few worlds show. Another world may show them once the product has changed."""
