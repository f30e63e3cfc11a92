"""An entity's shell under any events at any times, in virtual time: its timer and its ping task."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.failover import (
    Event,
    ForceFailover,
    Freeze,
    MarkHealthy,
    SendFailed,
    SendSucceeded,
    Transition,
    Unfreeze,
)
from twinbus.pairing.sending.entity_monitor import EntityMonitor
from twinbus.status.document import EntityState
from twinbus.testing import run_virtual

EVENTS: st.SearchStrategy[Event] = st.sampled_from(
    [
        SendSucceeded(),
        SendFailed(counts=True, error="down"),
        SendFailed(counts=True, error="down"),
        SendFailed(counts=False, error="mine"),
        ForceFailover(),
        MarkHealthy(),
        Freeze(),
        Unfreeze(),
    ]
)
GAPS = st.sampled_from([0.0, 0.5, 1.0, 5.0, 10.0, 59.0, 60.0, 61.0, 200.0])
PINGS = st.lists(st.sampled_from(["answered", "refused", "gone", "slow", "deaf"]), max_size=20)
STEPS = st.lists(st.tuples(GAPS, EVENTS), max_size=30)
PINGED = (EntityState.FAILED_OVER, EntityState.UNUSABLE)


@dataclass
class Pings:
    """How each ping ends, and which promise was broken when it began."""

    ends: list[str]
    running: int = 0
    broken: list[str] = field(default_factory=list)
    """An assertion inside of a ping would be one more way for it to fail."""
    seen: list[str] = field(default_factory=list)

    async def __call__(self, entity: EntityMonitor) -> None:
        failover = entity.failover
        if failover.state not in PINGED or failover.frozen or failover.closed:
            self.broken.append(f"a ping of {failover}")
        self.running += 1
        if self.running > 1:
            self.broken.append("two pings at once")
        end = self.ends.pop() if self.ends else "answered"
        self.seen.append(end)
        try:
            await self._end(end)
        finally:
            self.running -= 1

    async def _end(self, end: str) -> None:
        match end:
            case "refused":
                raise ConnectionRefusedError
            case "gone":
                from azure.servicebus.exceptions import MessagingEntityNotFoundError

                raise MessagingEntityNotFoundError
            case "slow":
                await asyncio.sleep(5.0)
            case "deaf":
                # As the SDK in Python 3.11: a cancellation that comes now is lost.
                try:
                    await asyncio.sleep(2.0)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.0)


def timers() -> int:
    """Timers of the loop that are still to fire."""
    loop = asyncio.get_running_loop()
    return sum(not handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]


@given(STEPS, PINGS)
def test_one_ping_at_a_time_only_while_failed_over_and_nothing_is_left(
    steps: list[tuple[float, Event]], ends: list[str]
) -> None:
    changes: list[Transition] = []

    async def scenario() -> None:
        options = SendAvailabilityOptions(failover_interval=10, ping_primary_interval=60)
        pings = Pings(ends)
        entity = EntityMonitor(
            "orders", options, ping=pings, changed=lambda _, change: changes.append(change)
        )
        for gap, event in steps:
            await asyncio.sleep(gap)
            entity.tell(event)
            # One timer for the machine at most, and one for a ping that sleeps.
            assert timers() <= 1 + pings.running
        await entity.close()
        assert (pings.running, pings.broken) == (0, [])
        assert timers() == 0
        seen = len(pings.seen)
        await asyncio.sleep(1_000)
        assert len(pings.seen) == seen, "a ping after the end"

    run_virtual(scenario())
    for earlier, later in pairwise(changes):
        assert earlier.after is later.before
