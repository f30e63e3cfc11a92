"""Whatever happens to a receiving link, each settlement is sent at most once and ends once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client.test_receiving import World, error_of
from twinbus.amqp.events import DetachAnswered, Drained
from twinbus.amqp.performatives import Accepted, Released
from twinbus.client.outcomes import COMPLETE, RELEASE, abandon, dead_letter
from twinbus.client.receiving import Delivery
from twinbus.servicebus import conditions
from twinbus.testing import run_virtual

OUTCOMES = [COMPLETE, RELEASE, abandon(), dead_letter("why")]
STATES = [Accepted(), Released(), error_of(conditions.MESSAGE_LOCK_LOST)]
SMALL = st.integers(0, 9)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(1, 5)),
        st.tuples(st.just("settle"), SMALL),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 3.0])),
        st.tuples(st.just("confirm"), st.tuples(st.integers(0, 40), SMALL, SMALL)),
        st.tuples(st.just("drained"), st.none()),
    ),
    min_size=5,
    max_size=30,
)
ENDS = st.lists(st.sampled_from(["close", "detach answered", "detach", "lost", "wait"]), max_size=5)
"""Apart from the steps: most runs would end before anything is settled."""


class Run:
    """One link and everything that was asked of it."""

    def __init__(self) -> None:
        self.world = World(answer_s=5.0)
        self.world.answer()
        self.world.link.grant(1_000)
        self.unconfirmed = self.world.upstream.settling(self.world.session)
        self.next_number = 0
        self.asked: list[Delivery] = []
        self.ended: Counter[int] = Counter()
        self.closing: list[asyncio.Task[None]] = []

    def settle(self, delivery: Delivery) -> None:
        self.asked.append(delivery)
        number = delivery.number
        outcome = OUTCOMES[number % len(OUTCOMES)]
        self.world.link.settle(delivery, outcome, lambda _: self.ended.update([number]))

    async def step(self, what: str, value: Any) -> None:
        world = self.world
        match what:
            case "deliver" if world.link.is_open:
                numbers = range(self.next_number, self.next_number + value)
                self.next_number += value
                world.deliver(*numbers)
            case "settle":
                free = [one for one in world.arrived if one.outcome is None]
                for delivery in free[value // 3 :][: 1 + value % 3]:
                    self.settle(delivery)
            case "wait":
                await asyncio.sleep(value)
            case "confirm":
                first, width, state = value
                world.confirm(first, first + width, STATES[state % len(STATES)])
            case "drained":
                world.upstream._on_event(Drained(world.amqp))
            case "close":
                self.closing.append(asyncio.create_task(world.link.close(2.0)))
            case "detach answered" if not world.link.is_open:
                world.upstream._on_event(DetachAnswered(world.amqp))
            case "detach":
                world.detach()
            case "lost":
                world.upstream._incoming.lost("gone")


@given(STEPS, ENDS, STEPS)
def test_each_settlement_is_sent_at_most_once_and_ends_once(
    steps: list[tuple[str, Any]], ends: list[str], later: list[tuple[str, Any]]
) -> None:
    async def run() -> None:
        done = Run()
        world = done.world
        for what, value in [*steps, *((end, 0.5) for end in ends), *later]:
            await done.step(what, value)
        await asyncio.sleep(10.0)  # Longer than the limit of an answer, and of a close.
        await asyncio.gather(*done.closing)
        assert done.ended == Counter(delivery.number for delivery in done.asked)
        sent = Counter(
            number for first, last, _ in world.session.disposed for number in range(first, last + 1)
        )
        assert set(sent.values()) <= {1}
        given_back = set(range(done.next_number)) - {one.number for one in world.arrived}
        assert set(sent) <= {delivery.number for delivery in done.asked} | given_back
        assert len(world.ended) <= 1
        world.upstream._incoming.lost("gone")
        assert len(world.ended) == 1 or done.closing
        assert (world.link.is_open, done.unconfirmed) == (False, {})

    run_virtual(run())
