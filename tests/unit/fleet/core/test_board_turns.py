"""A thousand hosts share one board in virtual time and stay below the stated shares."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from twinbus.fleet.core.board_turns import (
    CREDITS_PER_S,
    FAILED_MAX_S,
    FIRST_LOOK_S,
    FIRST_MINUTE_SHARE,
    FIRST_POST_S,
    HEALTHY_LOOK_S,
    HOSTS_MAX,
    JITTER,
    LASTING_SHARE,
    LOOK_EVERY_S,
    NAMESPACE_CREDITS_PER_S,
    PEAK_SHARE,
    POST_EVERY_MAX_S,
    POST_EVERY_MIN_S,
    REFUSED_S,
    SAVED_MIN,
    START_S,
    SUSPECT_LOOK_S,
    BoardTurns,
)

QUORUM = 2
ENTITY = frozenset({"orders"})
PINGER = -1
ANSWER_S = 0.3
"""Of a look or a post: others do not see a post before."""


def turns(failover_interval_s: float = 60.0, quorum: int = QUORUM) -> BoardTurns:
    return BoardTurns(failover_interval_s=failover_interval_s, quorum=quorum, now=0.0, chance=0.5)


def settled(one: BoardTurns) -> BoardTurns:
    """The same after its first look, with its whole allowance."""
    assert one.take(0, one.due_at, 0.5)
    one.looked(0, one.due_at, 0.5)
    return one


def tell(one: BoardTurns, now: float, chance: float = 0.5, **states: bool) -> None:
    one.update(
        suspects=ENTITY if states.get("suspect") else frozenset(),
        speaks=ENTITY if states.get("speaks") else frozenset(),
        watches=states.get("watches", states.get("speaks", False)),
        now=now,
        chance=chance,
    )


@dataclass
class Host:
    number: int
    turns: BoardTurns
    cursor: int = 0
    heard: dict[int, float] = field(default_factory=dict)
    """Until when the notices of other hosts count."""
    is_suspect: bool = False
    failed_at: float = 0.0
    quorum_at: float | None = None

    def others(self, now: float) -> int:
        return sum(until > now for until in self.heard.values())


class Fleet:
    """Hosts and a board: a list of posts in their order."""

    def __init__(self, hosts: int, seed: int, *, loses_posts: bool = False) -> None:
        self.chance = random.Random(seed).random
        self.now = 0.0
        self.posts: list[tuple[float, float, int]] = []
        """When it is there, until when, and whose it is."""
        self.loses_posts = loses_posts
        self.credits: Counter[int] = Counter()
        """By second."""
        self.hosts = [
            Host(
                number,
                BoardTurns(failover_interval_s=60, quorum=QUORUM, now=0.0, chance=self.chance()),
            )
            for number in range(hosts)
        ]
        self._events: list[tuple[float, int, Host, str]] = []
        self._order = 0
        for host in self.hosts:
            self.at(host.turns.due_at, host, "turn")

    def at(self, time: float, host: Host, event: str) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, host, event))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, host, event = heapq.heappop(self._events)
            match event:
                case "suspect":
                    host.is_suspect, host.failed_at = True, self.now
                    self._tell(host, suspect=True)
                case "failed over":
                    host.is_suspect = False
                    self._tell(host, speaks=True)
                case "healthy":
                    host.is_suspect = False
                    self._tell(host)
                case "turn":
                    self._turn(host)
        self.now = until

    def _tell(self, host: Host, **states: bool) -> None:
        tell(host.turns, self.now, self.chance(), **states)
        self.at(host.turns.due_at, host, "turn")

    def _turn(self, host: Host) -> None:
        turn = host.turns.take(self._others(host), self.now, self.chance())
        if turn is None:
            # It was put off, or another event stands for it.
            if host.turns.due_at > self.now:
                self.at(host.turns.due_at, host, "turn")
            return
        found = 0
        for place in range(host.cursor, len(self.posts)):
            there, until, whose = self.posts[place]
            if there > self.now or found == turn.look:
                break
            host.cursor = place + 1
            if until > self.now:
                found += 1
                if whose != host.number:
                    host.heard[whose] = until
        self.credits[int(self.now)] += max(1, found)
        host.turns.looked(found, self.now, self.chance())
        if host.is_suspect and host.others(self.now) >= QUORUM:
            # It fails over, by the evidence of others, and has nothing to say of its own.
            host.is_suspect, host.quorum_at = False, self.now + ANSWER_S
            tell(host.turns, self.now, self.chance(), watches=True)
        if turn.post and host.turns.may_post(self._others(host), self.now, self.chance()):
            self.credits[int(self.now)] += 1
            if not self.loses_posts:
                there = self.now + ANSWER_S
                self.posts.append((there, there + host.turns.time_to_live_s, host.number))
            host.turns.posted(self.now, self.chance())
        self.at(host.turns.due_at, host, "turn")

    def _others(self, host: Host) -> int:
        return host.others(self.now + host.turns.silent_s)

    def share(self, begin: float, end: float, window_s: int) -> float:
        """The largest share of the namespace's credits in any window."""
        seconds = range(int(begin), int(end) - window_s + 1)
        sums = (sum(self.credits[s + i] for i in range(window_s)) for s in seconds)
        return max(sums) / window_s / NAMESPACE_CREDITS_PER_S


def all_at(fleet: Fleet, times: Iterable[float], event: str) -> None:
    for host, time in zip(fleet.hosts, times, strict=False):
        fleet.at(time, host, event)


def test_a_blip_of_a_thousand_hosts_stays_below_the_shares() -> None:
    fleet = Fleet(HOSTS_MAX, seed=1)
    all_at(fleet, [1_000.0] * HOSTS_MAX, "suspect")
    all_at(fleet, [1_059.0] * HOSTS_MAX, "healthy")
    fleet.run(1_300)
    assert fleet.share(990, 1_300, 10) <= FIRST_MINUTE_SHARE
    assert fleet.share(990, 1_300, 60) <= FIRST_MINUTE_SHARE
    assert fleet.share(1_120, 1_300, 60) <= LASTING_SHARE
    assert fleet.posts == []


@pytest.mark.parametrize("loses_posts", [False, True], ids=["board", "board that loses posts"])
def test_an_outage_of_a_thousand_hosts_stays_below_the_shares(*, loses_posts: bool) -> None:
    fleet = Fleet(HOSTS_MAX, seed=2, loses_posts=loses_posts)
    all_at(fleet, [1_000.0] * HOSTS_MAX, "suspect")
    all_at(fleet, [1_060.0] * HOSTS_MAX, "failed over")
    fleet.run(1_500)
    assert fleet.share(990, 1_500, 10) <= PEAK_SHARE
    assert fleet.share(990, 1_500, 60) <= FIRST_MINUTE_SHARE
    # The allowance of the time before is used up.
    assert fleet.share(1_120, 1_500, 300) <= LASTING_SHARE


def test_a_lasting_outage_needs_the_posts_of_a_few_hosts() -> None:
    fleet = Fleet(HOSTS_MAX, seed=3)
    all_at(fleet, [1_000.0] * HOSTS_MAX, "failed over")
    found = []
    while fleet.now < 1_500:
        fleet.run(fleet.now + 10)
        if fleet.now > 1_100:
            fresh = [whose for there, until, whose in fleet.posts if there <= fleet.now < until]
            found.append(len(set(fresh)))
    assert min(found) >= QUORUM + 1
    assert max(found) <= 30
    assert len(fleet.posts) <= 100


def test_a_quorum_that_is_there_is_found_within_ten_seconds_by_all() -> None:
    fleet = Fleet(HOSTS_MAX, seed=4)
    speakers = QUORUM + 2
    all_at(fleet, [800.0] * speakers, "failed over")
    for host in fleet.hosts[speakers:]:
        fleet.at(1_000.0, host, "suspect")
    fleet.run(1_020)
    waited = [(host.quorum_at or 1e9) - 1_000 for host in fleet.hosts[speakers:]]
    assert max(waited) <= 10.0
    assert fleet.share(990, 1_020, 10) <= PEAK_SHARE


def test_hosts_whose_failures_are_staggered_learn_of_each_other_within_ten_seconds() -> None:
    fleet = Fleet(100, seed=5)
    for number, host in enumerate(fleet.hosts):
        fleet.at(1_000 + number, host, "suspect" if number > QUORUM else "failed over")
    fleet.run(1_120)
    late = [host for host in fleet.hosts if host.failed_at > 1_015]
    assert len(late) > 50
    assert max((host.quorum_at or 1e9) - host.failed_at for host in late) <= 10.0


def test_a_recovery_is_read_by_nearly_all_of_a_thousand_hosts_within_a_minute() -> None:
    fleet = Fleet(HOSTS_MAX, seed=6)
    all_at(fleet, [1_000.0] * HOSTS_MAX, "failed over")
    fleet.run(1_400)
    place = len(fleet.posts)
    fleet.posts.append((1_400.0, 1_580.0, PINGER))
    fleet.run(1_460)
    assert sum(host.cursor > place for host in fleet.hosts) >= 0.99 * HOSTS_MAX


def test_the_first_look_comes_soon_and_later_ones_seldom_while_healthy() -> None:
    one = turns()
    assert one.due_at == START_S / 2
    assert one.take(0, START_S / 2 - 0.1, 0.5) is None
    settled(one)
    assert one.due_at == START_S / 2 + HEALTHY_LOOK_S


def test_a_suspect_host_looks_after_a_time_by_chance_and_then_again_and_again() -> None:
    one = settled(turns())
    tell(one, 100.0, chance=0.25, suspect=True)
    assert one.due_at == 100.0 + FIRST_LOOK_S / 4
    assert one.take(0, 102.0, 0.5) is not None
    one.looked(0, 102.0, 0.5)
    assert one.due_at == 102.0 + SUSPECT_LOOK_S
    one.looked(0, 107.0, 1.0)
    assert one.due_at == 107.0 + SUSPECT_LOOK_S * (1 + JITTER)


def test_a_host_posts_once_in_an_interval_and_says_nothing_when_enough_others_do() -> None:
    one = settled(turns())
    tell(one, 100.0, chance=0.0, speaks=True)
    turn = one.take(0, 100.0, 0.5)
    assert turn is not None
    assert turn.post
    one.looked(0, 100.0, 0.5)
    assert one.may_post(QUORUM, 100.0, 0.5)
    one.posted(100.0, 0.5)
    posts = []
    now = 100.0
    while now < 290:
        now = one.due_at
        turn = one.take(0, now, 0.5)
        assert turn is not None
        one.looked(0, now, 0.5)
        if turn.post:
            assert one.may_post(QUORUM, now, 0.5)
            posts.append(now)
            one.posted(now, 0.5)
    assert [round(at) for at in posts] == [160, 220, 280]
    tell(one, 291.0)
    assert one.due_at > 291.0
    turn = one.take(0, one.due_at, 0.5)
    assert turn is not None
    assert not turn.post


def test_a_host_that_has_read_enough_is_silent_without_a_look() -> None:
    one = settled(turns())
    tell(one, 100.0, chance=0.0, speaks=True)
    one.looked(0, 99.0, 0.5)
    assert one.take(QUORUM + 1, 100.0, 0.5) is None
    assert one.due_at == 99.0 + LOOK_EVERY_S
    assert not one.may_post(QUORUM + 1, 100.0, 0.5)


def test_another_entity_that_fails_over_is_posted_soon() -> None:
    one = settled(turns())
    tell(one, 100.0, chance=0.0, speaks=True)
    one.looked(0, 100.0, 0.5)
    one.posted(100.0, 1.0)
    more = ENTITY | {"bills"}
    one.update(suspects=frozenset(), speaks=more, watches=True, now=101.0, chance=0.5)
    assert one.due_at <= 101.0 + FIRST_POST_S


@pytest.mark.parametrize(
    ("interval_s", "every_s"),
    [(0.0, POST_EVERY_MIN_S), (45.0, 45.0), (3_600.0, POST_EVERY_MAX_S)],
)
def test_the_posting_interval_is_the_failover_interval_within_limits(
    interval_s: float, every_s: float
) -> None:
    one = turns(failover_interval_s=interval_s)
    assert one.post_every_s == every_s
    assert 2 * every_s <= one.time_to_live_s <= 3 * every_s


def test_a_larger_quorum_reads_more_and_is_silent_later() -> None:
    one = turns(quorum=10)
    turn = one.take(0, one.due_at, 0.5)
    assert turn is not None
    assert turn.look == 11
    assert one.may_post(10, 0.0, 0.5)
    assert not one.may_post(11, 0.0, 0.5)


def test_a_suspect_host_reads_on_while_its_allowance_lasts() -> None:
    one, now, read = settled(turns()), 100.0, 0
    tell(one, now, chance=0.0, suspect=True)
    assert one.due_at == now
    while one.due_at <= now + SUSPECT_LOOK_S:
        now = one.due_at
        turn = one.take(0, now, 0.5)
        assert turn is not None
        assert turn.look <= QUORUM
        one.looked(turn.look, now, 0.5)
        read += turn.look
    earned = (now - 100.0) * CREDITS_PER_S
    assert SAVED_MIN <= read <= SAVED_MIN + earned + QUORUM, "the allowance is spent"
    assert one.due_at > now + SUSPECT_LOOK_S, "it grows again"


def test_a_board_that_does_not_answer_is_asked_less_and_less_often() -> None:
    one, now, waits = settled(turns()), 100.0, []
    tell(one, now, chance=0.0, suspect=True)
    for _ in range(8):
        one.look_failed(now, 0.5, is_refusal=False)
        waits.append(one.due_at - now)
        now = one.due_at
    assert waits[:3] == [15.0, 30.0, 60.0]
    assert waits[-1] == FAILED_MAX_S
    one.look_failed(now, 0.5, is_refusal=True)
    assert one.due_at == now + REFUSED_S
    one.looked(0, now + REFUSED_S, 0.5)
    assert one.due_at == now + REFUSED_S + SUSPECT_LOOK_S


def test_posts_that_fail_delay_no_look() -> None:
    one = settled(turns())
    tell(one, 100.0, chance=0.0, speaks=True)
    one.looked(0, 100.0, 0.5)
    one.post_failed(100.0, 0.5, is_refusal=True)
    turn = one.take(0, one.due_at, 0.5)
    assert turn is not None
    assert not turn.post
    assert one.due_at <= 100.0 + LOOK_EVERY_S + 10
