"""An explored fleet: hosts that send to one entity, and the notice board between them.

Failover and evidence are the shipped cores. What is here posts, reads and pings as the shells do
(fleet/fleet.py); each host pings for itself. A post is read late, or never: then it has expired.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tests.exploration.application import ENTITY
from tests.exploration.explorer import Violation
from twinbus.fleet.core.evidence import Evidence
from twinbus.fleet.core.notices import Notice
from twinbus.pairing.core.failover import (
    EntityFailover,
    Event,
    OthersFailedOver,
    OthersRecovered,
    PingAnswered,
    PingFailed,
    PrimaryTried,
    Route,
    SendFailed,
    SendPing,
    SendSucceeded,
    StopPinging,
    TimerFired,
    Transition,
)
from twinbus.status.document import EntityState

FAILOVER_S: Final = 10.0
STEP_S: Final = 5.0
"""Also the time between two pings."""

LIVES_S: Final = 10.0
"""How long a post is on the board, and counts."""


@dataclass(frozen=True)
class FleetSettings:
    """What a fleet has, and how many faults of each kind may happen."""

    hosts: int = 2
    quorum: int = 1
    stops: int = 0
    """Of the primary."""
    cuts: int = 0
    """A host that does not reach the primary; one at a time."""
    failures: int = 0
    """Sends that fail although the primary can be reached."""
    forged: int = 0
    """Notices that an attacker writes in the name of a host."""


@dataclass(eq=False)
class Post:
    notice: Notice
    until: float


@dataclass(eq=False)
class Host:
    name: str
    failover: EntityFailover
    evidence: Evidence
    is_pinging: bool = False
    tried_at: float = 0.0
    """When it last sent to the primary."""
    failing_since: float | None = None
    """The first failed send since the last success, as the world sees it."""
    has_posted: bool = False
    """This failover."""
    unread: list[Post] = field(default_factory=list)
    heard: dict[str, float] = field(default_factory=dict)
    """Other hosts whose posts it has read, and until when these count."""


class Fleet:
    def __init__(self, settings: FleetSettings) -> None:
        self.settings = settings
        self.now = 1_000.0
        self.is_up = True
        self.cut: str | None = None
        self.left = {
            "stop": settings.stops,
            "cut": settings.cuts,
            "failure": settings.failures,
            "forged": settings.forged,
        }
        names = [f"{number:016x}" for number in range(1, settings.hosts + 1)]
        self.hosts = {name: self._host(name) for name in names}

    def _host(self, name: str) -> Host:
        failover = EntityFailover(failover_interval_s=FAILOVER_S, ping_interval_s=STEP_S)
        return Host(name, failover, Evidence(name, quorum=self.settings.quorum))

    def ordered_queues(self) -> list[str]:
        """The hosts in an order that does not depend on their names."""

        def signature(name: str) -> Any:
            host = self.hosts[name]
            due, since = host.failover.timer_at, host.failing_since
            return (
                name == self.cut,
                host.failover.state.value,
                -1.0 if due is None else due - self.now,
                0.0 if since is None else min(self.now - since, FAILOVER_S),
                host.is_pinging,
                host.has_posted,
                host.tried_at == self.now,
                len(host.unread),
                [(post.notice.recovered, post.until - self.now) for post in host.unread],
                sorted(until - self.now for until in host.heard.values()),
            )

        return sorted(self.hosts, key=signature)

    def _reaches(self, host: Host) -> bool:
        return self.is_up and self.cut != host.name

    # Actions

    def actions(self) -> list[tuple[Any, ...]]:
        found = [
            (_marked(name), "host", host.name, name, *given)
            for host in self.hosts.values()
            for name, *given in self._of_host(host)
        ]
        if not self.is_up:
            found.append(("", "start"))
        if self.cut is not None:
            found.append(("", "mend"))
        if not self.is_home and not any(self._holds_time_up(host) for host in self.hosts.values()):
            found.append(("", "pass_time"))
        if self.is_up and self.left["stop"]:
            found.append(("FAULT", "stop"))
        if self.cut is None and self.left["cut"]:
            found += [("FAULT", "part", name) for name in self.hosts]
        if self.left["forged"]:
            found += [("FAULT", "forge", name) for name in self.hosts]
        return found

    def _of_host(self, host: Host) -> list[tuple[Any, ...]]:
        failover = host.failover
        found: list[tuple[Any, ...]] = []
        if host.tried_at < self.now and (failover.route is Route.PRIMARY or failover.may_try):
            found.append(("send",))
            if self.left["failure"] and self._reaches(host):
                found.append(("fault_send",))
        if failover.timer_at is not None and failover.timer_at <= self.now:
            found.append(("timer",))
        if host.is_pinging:
            found.append(("end_ping",))
        if failover.is_evidence(self.now) and not host.has_posted:
            found.append(("post",))
        if host.unread:
            found.append(("read",))
        is_enough = host.evidence.enough(ENTITY, self.now) is not None
        if is_enough and failover.state is not EntityState.FAILED_OVER:
            found.append(("hear",))
        return found

    def _holds_time_up(self, host: Host) -> bool:
        due = host.failover.timer_at
        return host.is_pinging or (due is not None and due <= self.now)

    def perform(self, action: tuple[Any, ...]) -> None:
        match action[1:]:
            case ("host", name, what, *given):
                getattr(self, f"_{what}")(self.hosts[name], *given)
            case (what, *given):
                getattr(self, f"_{what}")(*given)

    def _send(self, host: Host) -> None:
        self._begin_send(host)
        if self._reaches(host):
            host.failing_since = None
            self._tell(host, SendSucceeded())
        else:
            self._fail(host)

    def _fault_send(self, host: Host) -> None:
        self.left["failure"] -= 1
        self._begin_send(host)
        self._fail(host)

    def _begin_send(self, host: Host) -> None:
        host.tried_at = self.now
        if host.failover.route is not Route.PRIMARY:
            self._tell(host, PrimaryTried())

    def _fail(self, host: Host) -> None:
        if host.failing_since is None:
            host.failing_since = self.now
        self._tell(host, SendFailed(counts=True, kind="timeout"))

    def _timer(self, host: Host) -> None:
        self._tell(host, TimerFired())

    def _end_ping(self, host: Host) -> None:
        host.is_pinging = False
        if not self._reaches(host):
            self._tell(host, PingFailed(error="no answer"))
            return
        self._tell(host, PingAnswered())
        if host.failover.state is not EntityState.HEALTHY:
            raise Violation("ping: it was answered, and the entity is not healthy")
        self._say(host, recovered=True)

    def _post(self, host: Host) -> None:
        since = host.failing_since
        if since is None or self.now < since + FAILOVER_S:
            raise Violation("hearsay: a host tells others what it does not know by itself")
        host.has_posted = True
        self._say(host, recovered=False)

    def _say(self, host: Host, *, recovered: bool) -> None:
        notice = self._notice(host.name, recovered=recovered)
        self._put(notice, [other for other in self.hosts.values() if other is not host])

    def _put(self, notice: Notice, readers: list[Host]) -> None:
        for reader in readers:
            reader.unread.append(Post(notice, self.now + LIVES_S))

    def _read(self, host: Host) -> None:
        post = host.unread.pop(0)
        other = post.notice.host
        is_news = host.evidence.heard_on_board(post.notice, post.until - self.now, self.now)
        if other != host.name and post.notice.recovered:
            host.heard.clear()
        elif other != host.name:
            host.heard[other] = post.until
        if is_news and host.failover.state is EntityState.FAILED_OVER:
            self._tell(host, OthersRecovered())

    def _hear(self, host: Host) -> None:
        text = host.evidence.enough(ENTITY, self.now)
        assert text is not None
        says = [other for other, until in host.heard.items() if until > self.now]
        if len(says) < self.settings.quorum:
            raise Violation(f"quorum: {len(says)} other hosts are enough")
        self._tell(host, OthersFailedOver(text))

    def _tell(self, host: Host, event: Event) -> None:
        for action in host.failover.handle(event, self.now):
            match action:
                case SendPing():
                    host.is_pinging = True
                case StopPinging():
                    host.is_pinging = False
                case Transition():
                    self._check_transition(host, action, event)

    def _check_transition(self, host: Host, action: Transition, event: Event) -> None:
        host.has_posted = False
        if action.after is EntityState.HEALTHY:
            host.failing_since = None
        if action.after is not EntityState.FAILED_OVER:
            return
        if host.failing_since is None:
            raise Violation("failover: without an own failure since the last success")
        is_own = not isinstance(event, OthersFailedOver)
        if is_own and self.now < host.failing_since + FAILOVER_S:
            raise Violation("failover: before the failover interval was over")

    def _start(self) -> None:
        self.is_up = True

    def _mend(self) -> None:
        self.cut = None

    def _pass_time(self) -> None:
        self.now += STEP_S
        for host in self.hosts.values():
            host.unread = [post for post in host.unread if post.until > self.now]
            host.heard = {name: until for name, until in host.heard.items() if until > self.now}

    def _stop(self) -> None:
        self.left["stop"] -= 1
        self.is_up = False

    def _part(self, name: str) -> None:
        self.left["cut"] -= 1
        self.cut = name

    def _forge(self, name: str) -> None:
        """Somebody writes to the board in the name of a host; each host reads it."""
        self.left["forged"] -= 1
        self._put(self._notice(name), list(self.hosts.values()))

    def _notice(self, host: str, *, recovered: bool = False) -> Notice:
        return Notice(ENTITY, host, 0.0, (), int(self.now * 1_000), recovered)

    # What must hold

    @property
    def is_home(self) -> bool:
        hosts = self.hosts.values()
        is_quiet = all(host.failover.state is EntityState.HEALTHY for host in hosts)
        return is_quiet and self.is_up and self.cut is None

    def check(self) -> None:
        """Every promise is about a step, and is checked there."""


def _marked(name: str) -> str:
    return "FAULT" if name.startswith("fault") else ""
