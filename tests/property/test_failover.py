"""Failover of one entity meets any events at any times; what must hold always holds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.pairing.core.failover import (
    EntityFailover,
    Event,
    ForceFailover,
    Freeze,
    MarkHealthy,
    PingAnswered,
    PingFailed,
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
from twinbus.status.document import EntityState
from twinbus.testing import VirtualClock

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

EVENTS: st.SearchStrategy[Event] = st.sampled_from(
    [
        SendSucceeded(),
        SendFailed(counts=True, error="down"),
        SendFailed(counts=True, error="down"),
        SendFailed(counts=False, error="mine"),
        TimerFired(),
        PingAnswered(),
        PingFailed(error="down"),
        PingFailed(unusable=True, error="gone"),
        ForceFailover(),
        MarkHealthy(),
        Freeze(),
        Unfreeze(),
    ]
)
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
        self.now = 0.0
        self.ping_out = False
        self.pings_rested_since: float | None = None
        """When the failover began, or the last ping ended, or the entity was unfrozen."""
        self.quiet_since: float | None = None
        """The first counting failure since the last success, as seen from outside."""

    def feed(self, event: Event) -> None:
        entity = self.entity
        before, route, held = entity.state, entity.route, entity.forced or entity.frozen
        if isinstance(event, PingAnswered | PingFailed):
            if not self.ping_out:
                # A stray: the shell promised not to report it, but nothing may break.
                assert not entity.handle(event, self.now)
                assert entity.state is before
                return
            self.ping_out, self.pings_rested_since = False, self.now
        if isinstance(event, Unfreeze) and entity.frozen:
            self.pings_rested_since = self.now
        if isinstance(event, SendFailed) and event.counts and not entity.frozen:
            self.quiet_since = self.now if self.quiet_since is None else self.quiet_since
        actions = entity.handle(event, self.now)
        self.perform(actions, before)
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
                    assert self.now >= self.pings_rested_since + self.ping_s
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
            assert patient or commanded, "failed over before a quiet interval"
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


@settings(max_examples=max(300, settings().max_examples))
@given(INTERVALS, PINGS, st.integers(1, 3), STEPS)
def test_any_events_at_any_times_keep_every_promise(
    interval_s: float,
    ping_s: float,
    healthy_pings: int,
    steps: list[tuple[float, Event, bool]],
) -> None:
    shell = Shell(interval_s, ping_s, healthy_pings)
    for gap, event, punctual in steps:
        shell.pass_time(gap, punctual)
        shell.feed(event)


@given(INTERVALS, PINGS, st.integers(1, 3), STEPS)
def test_when_the_faults_stop_the_entity_heals_by_its_pings_alone(
    interval_s: float,
    ping_s: float,
    healthy_pings: int,
    steps: list[tuple[float, Event, bool]],
) -> None:
    shell = Shell(interval_s, ping_s, healthy_pings)
    for gap, event, punctual in steps:
        shell.pass_time(gap, punctual)
        shell.feed(event)
    shell.feed(Unfreeze())
    if shell.entity.forced:
        shell.feed(MarkHealthy())
    # One ping may be out already, and a suspect has its interval to wait first.
    for _ in range(healthy_pings + 1):
        if shell.ping_out:
            shell.feed(PingAnswered())
        shell.pass_time(interval_s + ping_s, punctual=True)
    if shell.ping_out:
        shell.feed(PingAnswered())
    assert shell.entity.state is EntityState.HEALTHY


@given(INTERVALS, PINGS, st.integers(1, 3), STEPS)
def test_closing_at_any_moment_leaves_nothing_behind(
    interval_s: float,
    ping_s: float,
    healthy_pings: int,
    steps: list[tuple[float, Event, bool]],
) -> None:
    shell = Shell(interval_s, ping_s, healthy_pings)
    for gap, event, punctual in steps:
        shell.pass_time(gap, punctual)
        shell.feed(event)
    shell.feed(StopWatching())
    for event in (SendSucceeded(), SendFailed(counts=True), TimerFired(), ForceFailover()):
        assert shell.entity.handle(event, shell.now) == ()
    assert VirtualClock(shell.now).run(shell.entity, until=shell.now + 1e6) == []
    assert not shell.ping_out
