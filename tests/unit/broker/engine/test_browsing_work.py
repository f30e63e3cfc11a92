"""Peeking, listing sessions and deleting by time cost work for what they find, not for all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.broker.fakes import World, incoming
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine import sessions as sessions_module
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import SettlementOutcome
from twinbus.broker.journal import StoredMessage

MANY = 2_000
SOME = 50
"""Messages or names that a request may look at; far fewer than there are."""


class Counted(dict[int, StoredMessage]):
    """Messages that count how often one is looked up."""

    count = 0

    def get(self, number: int, default: Any = None) -> Any:
        self.count += 1
        return super().get(number, default)


def talks() -> Queue:
    return World().queue("talks", QueueDescription(requires_session=True))


def test_peeking_at_a_session_does_not_look_at_the_messages_of_others() -> None:
    queue = talks()
    for number in range(MANY):
        queue.enqueue(incoming(session_id=f"s{number % 2 * number}"), 0)
    queue.peek(0, 1, 0, session_id="s1")
    messages = queue.states.index.messages = Counted(queue.states.index.messages)
    for session_id, found in (("s1", 1), ("nobody", 0), (f"s{MANY - 1}", 1)):
        assert len(queue.peek(0, 10, 0, session_id=session_id)) == found
    queue.enqueue(incoming(session_id="new"), 0)
    assert len(queue.peek(0, 10, 0, session_id="new")) == 1
    assert messages.count < SOME


def test_a_list_of_sessions_is_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = talks()
    for number in range(MANY):
        queue.enqueue(incoming(session_id=f"s{number}"), 0)
    queue.sessions.ids()
    compared = 0

    def counting(names: Any) -> list[str]:
        nonlocal compared
        found = sorted(names)
        compared += len(found)
        return found

    monkeypatch.setattr(sessions_module, "sorted", counting, raising=False)
    for number in range(10):
        queue.enqueue(incoming(session_id=f"n{number}"), 0)
        assert queue.sessions.ids(None, slice(number, number + 1)) == [f"n{number}"]
    assert compared == 0


OUTCOMES = (
    SettlementOutcome.COMPLETE,
    SettlementOutcome.RELEASE,
    SettlementOutcome.DEAD_LETTER,
)


class Model:
    """Sessions and their messages, listed and peeked at with and without the shortcuts."""

    def __init__(self) -> None:
        self.queue = talks()
        self.now_ms = 0

    def check(self) -> None:
        queue = self.queue
        held = queue.states.sessions
        assert held is not None
        ready = {name for name, each in held._sessions.items() if len(each.ready_messages)}
        assert queue.sessions.ids() == sorted(ready | held.states.keys())
        for name in "abc":
            expected = [m for m in queue.messages.values() if m.session_id == name]
            assert queue.peek(0, 1_000, self.now_ms, session_id=name) == expected

    def step(self, what: str, name: str) -> None:
        queue, self.now_ms = self.queue, self.now_ms + 1
        if what == "send":
            queue.enqueue(incoming(session_id=name), self.now_ms)
        elif what == "expire":
            queue.enqueue(incoming(session_id=name, ttl_ms=3), self.now_ms)
        elif what == "jump":
            self.now_ms += 100_000
            queue.run_timers(self.now_ms)
        elif not queue.sessions.is_held_by(name, self, self.now_ms):
            queue.sessions.accept(name, self, self.now_ms)
        elif what == "take":
            for delivery in queue.acquire(self, 2, self.now_ms, session_id=name):
                queue.settle(
                    delivery.lock_token,
                    OUTCOMES[delivery.message.sequence_number % 3],
                    self.now_ms,
                    session_id=name,
                )
        elif what == "state":
            content = None if self.now_ms % 3 == 0 else b"x"
            queue.sessions.set_state(name, content, self.now_ms, holder=self)
        else:
            queue.sessions.release_holder(self, self.now_ms)


STEPS = ("send", "send", "send", "expire", "jump", "take", "state", "leave")


@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from("abc"), st.booleans()), max_size=120)
)
def test_what_is_listed_and_peeked_at_is_what_is_there(
    steps: list[tuple[str, str, bool]],
) -> None:
    model = Model()
    for what, name, looks in steps:
        model.step(what, name)
        if looks:
            model.check()
    model.check()


def test_states_are_listed_by_time_the_latest_first() -> None:
    queue = talks()
    for now_ms, name in ((1, "a"), (2, "b"), (3, "c"), (4, "a")):
        if not queue.sessions.is_held_by(name, queue, now_ms):
            queue.sessions.accept(name, queue, now_ms)
        queue.sessions.set_state(name, b"x", now_ms, holder=queue)
    assert queue.sessions.ids(2) == ["a", "c", "b"]
    assert queue.sessions.ids(4) == ["a"]
    assert queue.sessions.ids(2, slice(1, 2)) == ["c"]
