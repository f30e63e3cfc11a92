"""The task of a host on the board, in virtual time: when it looks and posts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from twinbus.client.connection import Environment
from twinbus.cost.arithmetic import board_operations
from twinbus.fleet.board import BoardError, BoardLook, FreshNotice
from twinbus.fleet.board_watch import BoardWatch, HostStates
from twinbus.fleet.core.board_turns import HEALTHY_LOOK_S, REFUSED_S
from twinbus.fleet.core.notices import Notice
from twinbus.testing import run_virtual

OURS = Notice("orders", "0" * 16, 1.0, (), 1)
THEIRS = Notice("orders", "1" * 16, 1.0, (), 1)
RECOVERED = Notice("orders", "0" * 16, 2.0, (), 2, recovered=True)


BEGIN_S = 1_000.0
"""Of the clock of `run_virtual`."""


def now() -> float:
    return asyncio.get_running_loop().time() - BEGIN_S


@dataclass
class FakeBoard:
    """A board that notes what is asked of it, and can fail or hang."""

    look_error: Exception | None = None
    post_error: Exception | None = None
    hangs: bool = False
    found: list[FreshNotice] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    posts: list[tuple[float, list[Notice]]] = field(default_factory=list)
    rests: int = 0

    async def look(self, count: int) -> BoardLook:
        self.looks.append(now())
        if self.hangs:
            await asyncio.sleep(5.0)
            raise BoardError("no answer", is_refusal=False)
        if self.look_error is not None:
            raise self.look_error
        found, self.found = self.found[:count], self.found[count:]
        return BoardLook(len(found), found)

    async def post(self, notices: Sequence[Notice], time_to_live_s: float) -> None:
        self.posts.append((now(), list(notices)))
        if self.post_error is not None:
            raise self.post_error

    async def rest(self) -> None:
        self.rests += 1


@dataclass
class FakeHost:
    states: HostStates = field(default_factory=HostStates)
    others: int = 0
    is_speaking: bool = True
    heard: list[Notice] = field(default_factory=list)

    def is_speaker(self) -> bool:
        return self.is_speaking

    def board_states(self) -> HostStates:
        return self.states

    def take_notices(self, notices: Sequence[FreshNotice]) -> None:
        self.heard += [one.notice for one in notices]

    def other_hosts(self, entity_key: str, for_s: float) -> int:
        assert for_s == 75.0
        return self.others


SPEAKS = HostStates(notices=[OURS], watches=True)
SUSPECT = HostStates(suspects=frozenset({"orders"}))


def run(
    board: FakeBoard,
    host: FakeHost,
    seconds: float,
    during: Callable[[BoardWatch], None] = BoardWatch.changed,
) -> BoardWatch:
    """Watch for so long; a second after the first look `during` is called."""

    async def work() -> BoardWatch:
        environment = Environment(monotonic=now, chance=lambda: 0.5)
        watch = BoardWatch(board, host, failover_interval_s=60.0, quorum=2, environment=environment)
        watch.start()
        await asyncio.sleep(2.0)
        during(watch)
        await asyncio.sleep(seconds - 2.0)
        await watch.close()
        return watch

    return run_virtual(work())


def test_a_healthy_host_looks_seldom_and_rests_in_between() -> None:
    board, host = FakeBoard(), FakeHost()
    run(board, host, 3 * HEALTHY_LOOK_S)
    assert board.looks == [1.0, 901.0, 1_801.0]
    assert board.posts == []
    assert board.rests == len(board.looks) + 1


def test_a_suspect_host_takes_what_it_finds() -> None:
    board, host = FakeBoard(), FakeHost(SUSPECT)

    def there(watch: BoardWatch) -> None:
        board.found = [FreshNotice(THEIRS, 60.0)]
        watch.changed()

    run(board, host, 31.0, there)
    assert board.looks == [1.0, 6.0, 11.0, 16.0, 21.0, 26.0]
    assert host.heard == [THEIRS]
    assert board.rests == 1, "the connection is kept"


def test_a_host_that_failed_over_posts_until_enough_others_do() -> None:
    board, host = FakeBoard(), FakeHost(SPEAKS)
    run(board, host, 140.0)
    assert [(round(at), said) for at, said in board.posts] == [
        (5, [OURS]), (65, [OURS]), (125, [OURS])
    ]  # fmt: skip
    silent, host = FakeBoard(), FakeHost(SPEAKS, others=3)
    run(silent, host, 140.0)
    assert silent.posts == []
    assert len(silent.looks) > 5


def test_a_recovery_is_posted_at_once_with_what_else_there_is_to_say() -> None:
    board, host = FakeBoard(), FakeHost(HostStates(watches=True))
    run(board, host, 10.0, lambda watch: watch.recovered(RECOVERED))
    assert board.posts == [(2.0, [RECOVERED])]


def test_a_process_that_is_not_the_speaker_leaves_the_board_alone_until_it_is() -> None:
    board, host = FakeBoard(), FakeHost(SPEAKS, is_speaking=False)
    run(board, host, 300.0)
    assert not board.looks
    assert not board.posts

    def takes_over(watch: BoardWatch) -> None:
        watch.changed()
        host.is_speaking = True

    run(board, host, 30.0, takes_over)
    assert board.looks
    assert board.posts


def test_a_refused_board_is_off_and_asked_again_rarely() -> None:
    refusal = BoardError("it needs the Listen right", is_refusal=True)
    board, host = FakeBoard(look_error=refusal), FakeHost(SPEAKS)
    watch = run(board, host, 2 * REFUSED_S + 2.0)
    assert watch.off == "it needs the Listen right"
    assert board.looks == [1.0, 1.0 + REFUSED_S, 1.0 + 2 * REFUSED_S]
    assert board.posts == []


def test_a_host_without_the_right_to_post_still_reads() -> None:
    board, host = FakeBoard(post_error=BoardError("no Send", is_refusal=True)), FakeHost(SPEAKS)
    watch = run(board, host, 100.0)
    assert watch.off == "no Send"
    assert len(board.posts) == 1
    assert len(board.looks) >= 6


def test_a_board_that_hangs_delays_nobody_and_is_asked_again() -> None:
    board, host = FakeBoard(hangs=True), FakeHost(SPEAKS)

    def returns_at_once(watch: BoardWatch) -> None:
        before = now()
        watch.changed()
        watch.recovered(RECOVERED)
        assert now() == before

    watch = run(board, host, 200.0, returns_at_once)
    assert watch.off == "no answer"
    assert 3 <= len(board.looks) <= 6


def test_an_error_of_ours_ends_no_task() -> None:
    board, host = FakeBoard(look_error=RuntimeError("a mistake")), FakeHost(SUSPECT)
    run(board, host, 200.0)
    assert len(board.looks) >= 3


def test_a_healthy_month_has_the_looks_of_the_estimate() -> None:
    month_s = 30 * 86_400.0
    chance = Random(1).random

    async def work() -> int:
        board = FakeBoard()
        environment = Environment(monotonic=now, chance=chance)
        watch = BoardWatch(
            board, FakeHost(), failover_interval_s=60.0, quorum=2, environment=environment
        )
        watch.start()
        await asyncio.sleep(month_s)
        await watch.close()
        return len(board.looks)

    assert run_virtual(work()) == pytest.approx(
        board_operations(host_count=1, period_s=month_s), rel=0.01
    )
