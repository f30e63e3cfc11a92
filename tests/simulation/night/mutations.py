"""Planted bugs of bad nights: what was wrong, or nearly, before the nights were simulated.

`NIGHT_BUGS` has them by name: the night that must show the bug, what puts it in, and the checker
that must see it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final
from unittest.mock import patch

from tests.simulation.mutations import Planted
from twinbus.pairing.core.attempts import (
    CallEnding,
    Raise,
    RetryPolicy,
    SendDecisions,
    Step,
    WaitForSecondary,
    call_limit_s,
)
from twinbus.pairing.core.secondary import DivertFault, SecondaryHealth
from twinbus.pairing.lifecycle.discovery import Discovery
from twinbus.pairing.sdk.outgoing import MessageIds
from twinbus.pairing.sending import calls, shared_state
from twinbus.pairing.sending.shared_state import WaitingCalls
from twinbus.syphon.core.pacing import Governor


def connection_pulls_queues() -> AbstractContextManager[Any]:
    """A connection that fails is held against the backlog queue that it leads to."""
    return patch.object(SecondaryHealth, "no_answer", lambda *_, **__: DivertFault.QUEUE)


def nobody_waits() -> AbstractContextManager[Any]:
    """A call raises as soon as no backlog queue can be used."""
    real = SendDecisions._divert

    def planted(self: SendDecisions, now: float) -> Step:
        step = real(self, now)
        return Raise(CallEnding.BACKLOG) if isinstance(step, WaitForSecondary) else step

    return patch.object(SendDecisions, "_divert", planted)


def wait_ignores_deadline() -> AbstractContextManager[Any]:
    """A call that waits for the secondary does not look at its own timeout."""
    real = WaitingCalls.wait

    async def planted(self: WaitingCalls, entity: Any, until: float) -> None:
        await real(self, entity, until + 30.0)

    return patch.object(WaitingCalls, "wait", planted)


def unbounded_call() -> AbstractContextManager[Any]:
    """A call without a timeout may take ten times as long as the documentation says."""

    def planted(policy: RetryPolicy) -> float:
        return 10 * call_limit_s(policy)

    return patch.object(shared_state, "call_limit_s", planted)


def search_ends() -> AbstractContextManager[Any]:
    """The search for backlog queues ends with the first one."""

    async def planted(self: Discovery) -> None:
        """Search no more."""

    return patch.object(Discovery, "_search_on", planted)


def lost_queue_forgotten() -> AbstractContextManager[Any]:
    """The pair does not search for a backlog queue that was deleted while it was in use."""
    return patch.object(Discovery, "_queue_lost", lambda *_, **__: None)


def original_id_in_backlog() -> AbstractContextManager[Any]:
    """The copy in a backlog queue that may detect duplicates has the id of the original."""
    return patch.object(shared_state, "MessageIds", lambda **_: MessageIds())


def drain_never_slows() -> AbstractContextManager[Any]:
    """The governor does not cut its rate for server-busy."""
    return patch.object(Governor, "_cut", lambda *_: None)


def drain_never_grows() -> AbstractContextManager[Any]:
    """The governor never raises its rate again once it has cut it."""
    real = Governor._grow

    def planted(self: Governor, now: float) -> None:
        if self._ceiling is None:
            real(self, now)

    return patch.object(Governor, "_grow", planted)


def short_timeout_counts() -> AbstractContextManager[Any]:
    """An attempt counts though its link's opening used up the caller's own timeout."""
    return patch.object(calls, "CutShort", ())


NIGHT_BUGS: Final[dict[str, tuple[str, Planted, str]]] = {
    "a lost connection pulls queues": ("a flapping secondary", connection_pulls_queues, "pulled"),
    "a call that does not wait": ("a flapping secondary", nobody_waits, "patience"),
    "a wait without its deadline": ("a flapping secondary", wait_ignores_deadline, "outlived"),
    "a call without a bound": ("a burst", unbounded_call, "calls"),
    "a search that ends": ("late queues", search_ends, "unprotected"),
    "a lost queue forgotten": ("late queues", lost_queue_forgotten, "patience"),
    "the original's id in the backlog": ("late queues", original_id_in_backlog, "conservation"),
    "a drain that never slows down": ("throttling", drain_never_slows, "drain"),
    "a drain that never speeds up": ("throttling", drain_never_grows, "drain"),
    "a short timeout that counts": ("a healthy primary", short_timeout_counts, "healthy"),
}
