"""Twins: which may be used, when marks are read, and that a call tries the twin first."""

from __future__ import annotations

import pytest

from tests.unit.pairing.send_world import QUEUES, REFUSED, World
from twinbus.pairing.core.attempts import (
    CallEnding,
    DivertTo,
    PullQueue,
    Raise,
    WaitForRetry,
    WaitForSecondary,
)
from twinbus.pairing.core.backlog import FIRST_PULL_S, KeptChoice, PullCause, Rotation
from twinbus.pairing.core.twins import READ_AGAIN_S, READ_EVERY_S, TwinFirst, TwinNews, Twins
from twinbus.servicebus.failures import FailureMeaning

TWIN = "orders"


def twins(*listed: str) -> tuple[Twins, Rotation]:
    rotation = Rotation(QUEUES)
    return Twins(listed, "contoso", rotation, QUEUES), rotation


@pytest.mark.parametrize(
    ("listed", "is_marked", "is_used", "is_verified"),
    [
        ("orders", True, True, True),
        ("*", True, True, True),
        ("orders", None, True, False),
        ("o*", None, False, False),
        ("orders", False, False, False),
        ("*", False, False, False),
    ],
)
def test_a_twin_is_used_if_its_mark_was_read_or_its_very_name_is_listed(
    listed: str, is_marked: bool | None, is_used: bool, is_verified: bool
) -> None:
    known, rotation = twins(listed)
    assert known.want(TWIN, 0.0)
    assert not rotation.has(TWIN), "not before its mark was read"
    news = known.was_read(TWIN, is_marked, 1.0, 0.0)
    assert news is not None
    assert (news.is_used, news.is_verified) == (is_used, is_verified)
    assert rotation.is_twin(TWIN) is is_used
    status = known.status(TWIN, 1.0)
    assert status is not None
    assert (status.is_used, status.verified) == (is_used, is_verified)
    assert bool(status.reason) is not is_used
    assert TWIN not in rotation.queues, "no other entity may use it"
    assert TWIN not in rotation.available(1.0)


def test_only_listed_entities_have_twins_and_backlog_queues_never() -> None:
    known, _ = twins("orders", "Audit-*")
    assert known.want("Orders", 0.0)
    assert known.want("audit-eu", 0.0)
    assert not known.want("payments", 0.0)
    every, _ = twins("*")
    assert not every.want(QUEUES[0].upper(), 0.0)
    assert every.status("payments", 0.0) is None
    nothing = Twins(None, "contoso", Rotation(QUEUES))
    assert not nothing.want(TWIN, 0.0)
    assert nothing.next_at == float("inf")


def test_marks_are_read_at_once_then_every_few_minutes() -> None:
    known, _ = twins("*")
    known.want(TWIN, 10.0)
    assert known.due(10.0) == [TWIN]
    known.was_read(TWIN, True, 10.0, 0.0)
    assert known.due(10.0) == []
    assert known.next_at == 10.0 + READ_EVERY_S
    known.want("audit", 20.0)
    assert known.due(20.0) == ["audit"]
    assert known.want(TWIN, 20.0), "a second sender"
    assert known.due(20.0) == ["audit"]


def test_marks_that_are_due_soon_are_read_with_one_that_is_due() -> None:
    known, _ = twins("*")
    names = [f"q{number}" for number in range(50)]
    for number, name in enumerate(names):
        known.want(name, 0.0)
        known.was_read(name, True, 0.0, number / 50)
    readings, at = 0, 0.0
    while at < 10 * READ_EVERY_S:
        at = known.next_at
        due = known.due(at)
        assert due == names, "all in one listing"
        for number, name in enumerate(due):
            known.was_read(name, True, at, number / 50)
        readings += 1
    assert readings <= 13
    known.want("new", at + 1)
    assert known.due(at + 1) == ["new"], "the others were read a moment ago"


def test_a_mark_that_is_gone_ends_the_use_and_one_that_comes_begins_it() -> None:
    known, rotation = twins("*")
    known.want(TWIN, 0.0)
    assert known.was_read(TWIN, True, 0.0, 0.0) == TwinNews(TWIN, True, True, "")
    assert known.was_read(TWIN, True, 300.0, 0.0) is None, "no news"
    gone = known.was_read(TWIN, False, 600.0, 0.0)
    assert gone is not None
    assert "no 'orders' with the mark twinbus-twin-of:contoso" in gone.reason
    assert not rotation.has(TWIN)
    assert known.was_read(TWIN, True, 900.0, 0.0) == TwinNews(TWIN, True, True, "")
    assert rotation.is_in(TWIN, 900.0)


def test_a_secondary_that_does_not_answer_changes_nothing() -> None:
    known, rotation = twins("*")
    known.want(TWIN, 0.0)
    known.not_read(TWIN, "refused", 0.0, 0.0)
    status = known.status(TWIN, 0.0)
    assert status is not None
    assert (status.state, status.reason) == ("not used", "its mark could not be read: refused")
    assert not rotation.has(TWIN), "one that was never verified is not written to"
    assert known.next_at == READ_AGAIN_S
    known.was_read(TWIN, True, 30.0, 0.0)
    known.not_read(TWIN, "refused", 330.0, 0.0)
    assert rotation.is_in(TWIN, 330.0)
    assert known.is_verified(TWIN)


def test_a_twin_that_fails_is_read_soon_but_not_all_the_time() -> None:
    known, _ = twins("*")
    known.want(TWIN, 0.0)
    known.was_read(TWIN, True, 0.0, 0.0)
    known.failed(TWIN, 5.0)
    assert known.next_at == READ_AGAIN_S
    known.was_read(TWIN, True, 100.0, 0.0)
    known.failed(TWIN, 200.0)
    assert known.due(200.0) == [TWIN]


def test_a_forgotten_entity_leaves_nothing_behind() -> None:
    known, rotation = twins("*")
    known.want(TWIN, 0.0)
    known.was_read(TWIN, True, 0.0, 0.0)
    rotation.secondary.answered(TWIN, 1.0)
    known.forget(TWIN)
    assert rotation.twins == ()
    assert known.status(TWIN, 1.0) is None
    assert known.was_read(TWIN, True, 2.0, 0.0) is None, "its reading was under way"
    assert not rotation.has(TWIN)
    known.want(TWIN, 3.0)
    known.was_read(TWIN, True, 3.0, 0.0)
    known.close()
    assert rotation.twins == ()


def test_a_divert_goes_to_the_twin_first() -> None:
    world = World(twin=TWIN)
    world.fail_over(0.0)
    assert world.start(0.0) == [DivertTo(TWIN, 5)]
    other = KeptChoice(world.rotation, lambda queues: queues[0])
    assert other.choose(0.0) == QUEUES[0], "senders of other entities never"


@pytest.mark.parametrize(
    ("meaning", "cause"),
    [
        (FailureMeaning.NOT_FOUND, PullCause.REFUSED),
        (FailureMeaning.DISABLED, PullCause.REFUSED),
        (FailureMeaning.QUOTA, PullCause.FULL),
    ],
)
def test_a_twin_that_fails_is_pulled_and_the_backlog_takes_the_message(
    meaning: FailureMeaning, cause: PullCause
) -> None:
    world = World(timeout=60, twin=TWIN)
    world.fail_over(0.0)
    world.start(0.0)
    text = "ConnectionRefusedError: refused"
    assert world.divert_fails(1.0, meaning) == [
        PullQueue(TWIN, text, cause),
        DivertTo(QUEUES[0], 5),
    ]
    assert TWIN in world.rotation.absences(1.0, TWIN)
    assert world.rotation.absences(1.0) == {}, "errors of other entities do not name it"
    # It comes back like a backlog queue.
    assert world.choice.choose(1.0 + FIRST_PULL_S - 0.1) == QUEUES[0]
    assert world.choice.choose(1.0 + FIRST_PULL_S) == TWIN


def test_a_message_that_the_twin_refuses_goes_to_the_backlog_and_pulls_nothing() -> None:
    world = World(timeout=60, twin=TWIN)
    world.fail_over(0.0)
    world.start(0.0)
    assert world.divert_fails(1.0, FailureMeaning.MESSAGE) == [DivertTo(QUEUES[0], 5)]
    assert world.choice.choose(1.0) == TWIN, "the next message may do"
    # A backlog queue's own refusal is raised.
    assert world.divert_fails(2.0, FailureMeaning.MESSAGE) == [Raise(CallEnding.MESSAGE, REFUSED)]


def test_a_busy_twin_is_tried_again_and_then_the_backlog() -> None:
    world = World(timeout=600, twin=TWIN)
    world.fail_over(0.0)
    world.start(0.0)
    now = 0.0
    for _ in range(3):
        [wait] = world.divert_fails(now, FailureMeaning.BUSY)
        assert isinstance(wait, WaitForRetry)
        now = wait.until
        assert world.woken(now) == [DivertTo(TWIN, 5)]
    [wait] = world.divert_fails(now, FailureMeaning.BUSY)
    assert isinstance(wait, WaitForRetry)
    assert world.woken(wait.until) == [DivertTo(QUEUES[0], 5)]


def test_a_silent_twin_is_pulled_once_a_backlog_queue_has_answered() -> None:
    world = World(timeout=60, twin=TWIN)
    world.fail_over(0.0)
    world.start(0.0)
    # Nothing else has answered: it may be the namespace.
    assert world.divert_fails(5.0, timed_out=True) == [DivertTo(QUEUES[0], 5, is_turn=True)]
    world.stores(QUEUES[0], 5.1)
    again = World(timeout=60)
    again.rotation = world.rotation
    again.choice = again.call._backlog = TwinFirst(TWIN, world.rotation, again.choice)
    again.fail_over(6.0)
    assert again.start(6.0) == [DivertTo(TWIN, 5)]
    pull, step = again.divert_fails(11.0, timed_out=True)
    assert pull == PullQueue(TWIN, "ConnectionRefusedError: refused", PullCause.SILENT)
    assert step == DivertTo(QUEUES[0], 5)


def test_a_twin_alone_protects_its_entity() -> None:
    world = World(timeout=60, twin=TWIN, queues=())
    world.fail_over(0.0)
    assert world.start(0.0) == [DivertTo(TWIN, 5)]
    pull, step = world.divert_fails(1.0, FailureMeaning.QUOTA)
    assert isinstance(pull, PullQueue)
    # All are pulled: one call at a time tries what there is.
    assert step == WaitForSecondary(60)
    assert world.woken(2.0) == [DivertTo(TWIN, 5, is_turn=True)]


def test_a_twin_that_cut_attempts_short_is_left_for_a_while() -> None:
    rotation = Rotation(QUEUES)
    rotation.add_twin(TWIN)
    choice = TwinFirst(TWIN, rotation, KeptChoice(rotation, lambda queues: queues[0]))
    choice.cut_short(TWIN, 0.0)
    choice.answered(TWIN)
    choice.cut_short(TWIN, 1.0)
    assert choice.choose(1.0) == TWIN, "not twice in a row"
    choice.cut_short(TWIN, 2.0)
    assert choice.choose(2.0) == QUEUES[0]
    assert choice.choose(2.0, QUEUES) == TWIN, "better than none"
    assert choice.choose(2.0 + FIRST_PULL_S) == TWIN
    # Its backlog queue is left as ever.
    choice.choose(3.0)
    choice.cut_short(QUEUES[0], 3.0)
    choice.cut_short(QUEUES[0], 3.0)
    assert choice.choose(3.0) == QUEUES[1]


def test_a_pulled_twin_is_probed_and_returns() -> None:
    rotation = Rotation(QUEUES)
    rotation.add_twin(TWIN)
    rotation.pull(TWIN, "gone", 0.0)
    assert rotation.next_probe(0.0) == (TWIN, 5.0)
    assert rotation.attached(TWIN, 5.0)
    assert rotation.is_in(TWIN, 5.0)
    rotation.pull(TWIN, "full", 6.0, cause=PullCause.FULL)
    assert rotation.pulled(6.0) == {TWIN: ("full", 60.0)}
    rotation.succeeded(TWIN)
    assert rotation.is_in(TWIN, 6.0)
    assert rotation.is_twin(TWIN)
    assert rotation.available(6.0) == [*QUEUES]
