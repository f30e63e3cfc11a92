"""One outage lived through send by send, with the real state machine of an entity's failover.

Slow and plain: what `twinbus.planning.simulation` says in closed form must come out of it too.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Any

from twinbus.pairing.core.attempts import RetryPolicy, backoff_s
from twinbus.pairing.core.failover import (
    EntityFailover,
    PingAnswered,
    PingFailed,
    SendFailed,
    SendPing,
    SendSucceeded,
    TimerFired,
)
from twinbus.planning.question import Setting, Traffic
from twinbus.status.document import EntityState

RETRIES = 3
POLICY = RetryPolicy(
    total=RETRIES, backoff_factor_s=0.8, backoff_max_s=120.0, attempt_timeout_s=5.0
)


@dataclass
class Lived:
    raised: int = 0
    diverted: int = 0
    pings: int = 0
    failed_over: int = 0
    after: int = 0
    """Diverted although the primary was back."""


def live(length_s: float, setting: Setting, traffic: Traffic, links: int) -> Lived:
    """What the outage does to `links` of the traffic's, their first sends spread over the gap."""
    lived = Lived()
    for number in range(links):
        _Link(length_s, setting, traffic, (number + 0.5) / links * traffic.gap_s, lived).run()
    return lived


class _Link:
    """One client and one entity."""

    def __init__(
        self, length_s: float, setting: Setting, traffic: Traffic, first_s: float, lived: Lived
    ) -> None:
        self.length_s, self.traffic, self.lived = length_s, traffic, lived
        self.entity = EntityFailover(
            failover_interval_s=setting.failover_interval_s,
            ping_interval_s=setting.ping_interval_s,
        )
        self.events: list[tuple[float, int, str, Any]] = []
        self.order = itertools.count()
        self.waiting: set[int] = set()
        self.at("send", first_s, 0)

    def at(self, what: str, when_s: float, which: Any = None) -> None:
        heapq.heappush(self.events, (when_s, next(self.order), what, which))

    def run(self) -> None:
        while self.events:
            now, _, what, which = heapq.heappop(self.events)
            getattr(self, what)(now, which)

    def send(self, now: float, number: int) -> None:
        if now < self.length_s or self.entity.state is not EntityState.HEALTHY:
            self.at("send", now + self.traffic.gap_s, number + 1)
        self.attempt(now, (number, 0))

    def attempt(self, now: float, which: tuple[int, int]) -> None:
        if self.entity.state is EntityState.FAILED_OVER:
            self.divert(now)
        elif now >= self.length_s:
            self.handle(SendSucceeded(), now)
        else:
            self.at("failed", now + self.traffic.failed_attempt_s, which)

    def failed(self, now: float, which: tuple[int, int]) -> None:
        number, retry = which
        self.handle(SendFailed(counts=True, error="refused"), now)
        if self.entity.state is EntityState.FAILED_OVER:
            self.divert(now)
        elif retry < RETRIES:
            # It is not asleep for the failover: the real call is woken and diverted at once.
            self.waiting.add(number)
            self.at("retry", now + backoff_s(POLICY, retry + 1), (number, retry + 1))
        else:
            self.lived.raised += 1

    def retry(self, now: float, which: tuple[int, int]) -> None:
        if which[0] in self.waiting:
            self.waiting.discard(which[0])
            self.attempt(now, which)

    def timer(self, now: float, _: None) -> None:
        if self.entity.timer_at is not None and now >= self.entity.timer_at:
            self.handle(TimerFired(), now)

    def divert(self, now: float) -> None:
        self.lived.diverted += 1
        self.lived.after += now >= self.length_s

    def handle(self, event: Any, now: float) -> None:
        before = self.entity.state
        for action in self.entity.handle(event, now):
            if isinstance(action, SendPing):
                self.lived.pings += 1
                takes_s = 0.0 if now >= self.length_s else self.traffic.failed_attempt_s
                self.at("ping_ended", now + takes_s, now >= self.length_s)
        if self.entity.timer_at is not None:
            self.at("timer", self.entity.timer_at)
        if before is not EntityState.FAILED_OVER and self.entity.state is EntityState.FAILED_OVER:
            self.lived.failed_over += 1
            for _ in self.waiting:
                self.divert(now)
            self.waiting.clear()

    def ping_ended(self, now: float, is_answered: bool) -> None:
        self.handle(PingAnswered() if is_answered else PingFailed(error="refused"), now)
