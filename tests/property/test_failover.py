"""Failover of one entity, and its shell in virtual time, meet any events at any times."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.failover import (
    EARLY_PING_SHARE,
    EntityFailover,
    Event,
    ForceFailover,
    Freeze,
    MarkHealthy,
    OthersFailedOver,
    OthersRecovered,
    PingAnswered,
    PingFailed,
    PingLeftOut,
    PrimaryTried,
    Route,
    SendFailed,
    SendPing,
    SendSucceeded,
    StartDiverting,
    StopPinging,
    StopWatching,
    TimerFired,
    Transition,
    Unfreeze,
)
from twinbus.pairing.sending.entity_monitor import EntityMonitor
from twinbus.status.document import EntityState
from twinbus.testing import VirtualClock, run_virtual

LEGAL = {
    (EntityState.HEALTHY, EntityState.SUSPECT),
    (EntityState.HEALTHY, EntityState.FAILED_OVER),
    (EntityState.SUSPECT, EntityState.HEALTHY),
    (EntityState.SUSPECT, EntityState.FAILED_OVER),
    (EntityState.FAILED_OVER, EntityState.HEALTHY),
    (EntityState.FAILED_OVER, EntityState.UNUSABLE),
    (EntityState.UNUSABLE, EntityState.HEALTHY),
    (EntityState.UNUSABLE, EntityState.FAILED_OVER),
}
PINGED = {EntityState.FAILED_OVER, EntityState.UNUSABLE}

TOLD: list[Event] = [
    SendSucceeded(),
    SendFailed(counts=True, error="down"),
    SendFailed(counts=True, error="down"),
    SendFailed(counts=False, error="mine"),
    OthersFailedOver("2 other hosts"),
    OthersRecovered(),
    PrimaryTried(),
    ForceFailover(),
    MarkHealthy(),
    Freeze(),
    Unfreeze(),
]
PINGS_END = [
    PingAnswered(),
    PingLeftOut(),
    PingFailed(error="down"),
    PingFailed(unusable=True, error="gone"),
]
EVENTS = st.sampled_from([*TOLD, TimerFired(), *PINGS_END])
GAPS = st.one_of(st.just(0.0), st.floats(0, 3), st.floats(0, 200))
STEPS = st.lists(st.tuples(GAPS, EVENTS, st.booleans()), max_size=60)
"""After how long, which event, and whether timers that came due meanwhile were fired in time."""


class Shell:
    """Performs what the machine asks for and checks, after every event, what must hold."""

    def __init__(self, interval_s: float, ping_s: float, healthy_pings: int) -> None:
        self.entity = EntityFailover(
            failover_interval_s=interval_s, ping_interval_s=ping_s, healthy_pings=healthy_pings
        )
        self.interval_s = interval_s
        self.ping_s = ping_s
        self.healthy_pings = healthy_pings
        self.now = 0.0
        self.ping_out = False
        self.pings_rested_since: float | None = None
        """When the failover began, or the last ping ended, or the entity was unfrozen."""
        self.is_untested = False
        """It failed over because others said so, and no ping has ended since."""
        self.quiet_since: float | None = None
        """The first counting failure since the last success, as seen from outside."""

    def feed(self, event: Event) -> None:
        entity = self.entity
        before, route, held = entity.state, entity.route, entity.forced or entity.frozen
        if isinstance(event, PingAnswered | PingFailed | PingLeftOut):
            if not self.ping_out:
                # A stray: the shell promised not to report it, but nothing may break.
                assert not entity.handle(event, self.now)
                assert entity.state is before
                return
            self.ping_out, self.pings_rested_since = False, self.now
            self.is_untested = False
        if isinstance(event, Unfreeze) and entity.frozen:
            self.pings_rested_since = self.now
        if isinstance(event, SendFailed) and event.counts and not entity.frozen:
            self.quiet_since = self.now if self.quiet_since is None else self.quiet_since
        actions = entity.handle(event, self.now)
        if before not in PINGED:
            self.is_untested = isinstance(event, OthersFailedOver)
        self.perform(actions, before)
        if entity.is_evidence(self.now):
            assert entity.state is EntityState.FAILED_OVER
            assert self.quiet_since is not None
            assert self.now >= self.quiet_since + self.interval_s
        self.check_routing(event, before, route, held)
        self.check_rest()
        if entity.state is EntityState.HEALTHY:
            self.quiet_since = None

    def perform(self, actions: object, before: EntityState) -> None:
        announced = []
        for action in actions:  # type: ignore[attr-defined]
            match action:
                case SendPing():
                    assert not self.ping_out, "two pings at once"
                    assert before in PINGED
                    assert self.pings_rested_since is not None
                    share = EARLY_PING_SHARE if self.is_untested else 1.0
                    assert self.now >= self.pings_rested_since + share * self.ping_s
                    self.ping_out = True
                case StopPinging():
                    assert before in PINGED
                    self.ping_out = False
                case StartDiverting():
                    assert self.entity.route is Route.BACKLOG
                case Transition():
                    announced.append(action)
        if before not in PINGED and self.entity.state in PINGED:
            self.pings_rested_since = self.now
        if self.entity.state is before:
            assert announced == []
        else:
            [transition] = announced
            assert (transition.before, transition.after) == (before, self.entity.state)
            assert (before, self.entity.state) in LEGAL
            assert transition.at == self.entity.since == self.now
            diverts = StartDiverting() in list(actions)  # type: ignore[call-overload]
            assert diverts is (self.entity.route is Route.BACKLOG)

    def check_routing(self, event: Event, before: EntityState, route: Route, held: bool) -> None:
        entity = self.entity
        commanded = isinstance(event, ForceFailover | MarkHealthy)
        if held and not commanded:
            assert entity.route is route, "a hold was broken"
        if entity.forced:
            assert entity.state is EntityState.FAILED_OVER
        if entity.state is EntityState.FAILED_OVER and before in (
            EntityState.HEALTHY,
            EntityState.SUSPECT,
        ):
            patient = (
                self.quiet_since is not None and self.now >= self.quiet_since + self.interval_s
            )
            told = before is EntityState.SUSPECT and isinstance(event, OthersFailedOver)
            assert self.quiet_since is not None or commanded, "failed over without a failure"
            assert patient or commanded or told, "failed over before a quiet interval"
            assert not (told and entity.is_evidence(self.now)), "evidence breeds evidence"
        if isinstance(event, OthersRecovered | PrimaryTried):
            assert entity.state is before, "a notice that commands"
        if entity.may_try:
            assert before in PINGED
            held_now = entity.forced, entity.frozen, entity.closed
            assert held_now == (False, False, False)
            assert not isinstance(event, PrimaryTried), "two sends try for the others"
        if isinstance(event, SendSucceeded) and not held:
            assert entity.state is EntityState.HEALTHY

    def check_rest(self) -> None:
        entity = self.entity
        assert (entity.route is Route.PRIMARY) is (entity.state not in PINGED)
        if entity.frozen or entity.closed or entity.state is EntityState.HEALTHY:
            assert entity.timer_at is None
            assert not self.ping_out
        elif entity.state is EntityState.SUSPECT:
            assert entity.timer_at == entity.failover_at
            assert entity.timer_at is not None
            assert entity.timer_at <= self.now + self.interval_s
        else:
            # Either a ping is out, or the next one has its time: never neither, never both.
            assert (entity.timer_at is None) is self.ping_out

    def pass_time(self, gap: float, punctual: bool) -> None:
        until = self.now + gap
        due = self.entity.timer_at
        while punctual and due is not None and due <= until:
            self.now = max(self.now, due)
            self.feed(TimerFired())
            due = self.entity.timer_at
        self.now = until


INTERVALS = st.sampled_from([0.0, 1.0, 10.0, 60.0])
PINGS = st.sampled_from([1.0, 7.0, 60.0])


def played(
    interval_s: float,
    ping_s: float,
    healthy_pings: int,
    steps: list[tuple[float, Event, bool]],
) -> Shell:
    shell = Shell(interval_s, ping_s, healthy_pings)
    for gap, event, punctual in steps:
        shell.pass_time(gap, punctual)
        shell.feed(event)
    return shell


SHELLS = st.builds(played, INTERVALS, PINGS, st.integers(1, 3), STEPS)
"""A shell to which anything happened; it checked each promise after every event."""


@settings(max_examples=max(300, settings().max_examples))
@given(SHELLS)
def test_any_events_at_any_times_keep_every_promise(shell: Shell) -> None:
    shell.check_rest()


@given(SHELLS)
def test_when_the_faults_stop_the_entity_heals_by_its_pings_alone(shell: Shell) -> None:
    shell.feed(Unfreeze())
    if shell.entity.forced:
        shell.feed(MarkHealthy())
    # One ping may be out already, and a suspect has its interval to wait first.
    for _ in range(shell.healthy_pings + 1):
        if shell.ping_out:
            shell.feed(PingAnswered())
        shell.pass_time(shell.interval_s + shell.ping_s, punctual=True)
    if shell.ping_out:
        shell.feed(PingAnswered())
    assert shell.entity.state is EntityState.HEALTHY


@given(SHELLS)
def test_closing_at_any_moment_leaves_nothing_behind(shell: Shell) -> None:
    shell.feed(StopWatching())
    for event in (SendSucceeded(), SendFailed(counts=True), TimerFired(), ForceFailover()):
        assert shell.entity.handle(event, shell.now) == ()
    assert VirtualClock(shell.now).run(shell.entity, until=shell.now + 1e6) == []
    assert not shell.ping_out


PAUSES = st.sampled_from([0.0, 0.5, 1.0, 5.0, 10.0, 59.0, 60.0, 61.0, 200.0])
ENDS = st.lists(st.sampled_from(["answered", "refused", "gone", "slow", "deaf"]), max_size=20)
TIMELINE = st.lists(st.tuples(PAUSES, st.sampled_from(TOLD)), max_size=30)


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


@given(TIMELINE, ENDS)
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
