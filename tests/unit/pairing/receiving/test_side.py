"""One side of a receiver in virtual time: opening again, credit, checks, settlement, closing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from twinbus.client.connection import Environment
from twinbus.client.outcomes import COMPLETE, RELEASE
from twinbus.client.receiving import NO_SESSION
from twinbus.client.request_node import ConnectionLost, LinkEnded, LockLost
from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving import side as side_module
from twinbus.pairing.receiving.mark_watch import MarkWatch, NotReadable
from twinbus.pairing.receiving.settlement import MessageSettlement
from twinbus.pairing.receiving.side import LinkSettings, ReceivingSide
from twinbus.servicebus import conditions
from twinbus.status.receiving import ReceivingSideStatus
from twinbus.testing.virtual_time import run_virtual

ENVIRONMENT = Environment(chance=lambda: 1.0)
TOKEN = UUID(int=7)


class Delivered:
    """A delivery, as far as a side uses it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.settled = False
        self.outcome: Any = None
        self.names = (None, None)
        self.ledger_state = None


class Link:
    """A link whose peer does what the test says."""

    def __init__(self, world: World, on_deliveries: Any, on_ended: Any, session: Any) -> None:
        self.world, self.on_deliveries, self.on_ended = world, on_deliveries, on_ended
        self.is_open = False
        self.credit = 0
        self.session_id = None if session is NO_SESSION else str(session)
        self.session_locked_until = None
        self.settles: Callable[..., None] = lambda done: done(None)
        self.answers_drains = True
        self.brings_when_checked = False
        self.drain_takes_s = 0.0
        self.drains = 0
        self.drained: list[int] = []
        self.left_unsettled: list[Any] = []

    def left(self, delivery: Any, why: str = "") -> None:
        self.left_unsettled.append(delivery)

    async def open(self, timeout_s: float) -> None:
        self.world.opened_at.append(self.world.now)
        if self.world.failures:
            raise self.world.failures.pop(0)
        self.is_open = True

    def grant(self, credit: int) -> None:
        self.credit = credit
        self.world.connection.heard_at = self.world.now

    async def drain(self, timeout_s: float, credit: int = 0) -> bool:
        self.drains += 1
        self.drained.append(credit)
        self.credit = 0
        if credit and self.brings_when_checked:
            self.on_deliveries([Delivered(self)])
        await asyncio.sleep(self.drain_takes_s)
        if not self.answers_drains:
            await asyncio.sleep(timeout_s)
        return self.answers_drains

    def bring(self) -> Delivered:
        self.credit -= 1
        delivery = Delivered(self)
        self.on_deliveries([delivery])
        return delivery

    def settle(self, delivery: Delivered, outcome: Any, done: Any) -> None:
        delivery.outcome = outcome
        self.settles(done)

    def release_all(self, deliveries: list[Delivered]) -> None:
        for delivery in deliveries:
            delivery.outcome = RELEASE

    async def close(self, timeout_s: float) -> None:
        self.is_open = False

    def end(self, error: Exception) -> None:
        self.is_open = False
        self.on_ended(self, error)


class Connection:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.answer_s = 5.0
        self.heard_at = 0.0
        self.dropped: list[str] = []

    def drop(self, reason: str) -> None:
        self.dropped.append(reason)


class World:
    """The owner of a side, and its links."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, session: Any = NO_SESSION) -> None:
        self.connection = Connection()
        self.links: list[Link] = []
        self.opened_at: list[float] = []
        self.failures: list[Exception] = []
        self.deliveries: list[Any] = []
        self.buffered = 0
        self.by_token: list[UUID] = []
        self.given_back: list[float] = []
        self.failed: list[str] = []
        """Why there was no link, each time that the owner was told."""
        self.looks: list[float] = []
        self.began = self.connection.loop.time()
        monkeypatch.setattr(side_module, "ReceivingLink", self.make)
        monkeypatch.setattr(side_module, "settle_by_token", self.settle_by_token)
        settings = LinkSettings(path="orders", session=session)
        self.side = ReceivingSide(
            Side.PRIMARY,
            self.connection,  # type: ignore[arg-type]
            settings,
            self,
            environment=ENVIRONMENT,
        )

    @property
    def now(self) -> float:
        return self.connection.loop.time() - getattr(self, "began", 0.0)

    def needs_mark(self, has_mark: Callable[[], bool | None]) -> None:
        """Let the side look at a mark; None: the namespace does not answer."""

        async def read(after: float) -> float:
            self.looks.append(self.now)
            found = has_mark()
            if found is None:
                raise LOST
            if not found:
                raise NotReadable("'orders' is not a twin")
            return self.connection.loop.time()

        self.side._mark = MarkWatch(read, self.connection.loop)

    @property
    def link(self) -> Link:
        return self.links[-1]

    def make(self, connection: Any, path: str, **given: Any) -> Link:
        self.links.append(Link(self, given["on_deliveries"], given["on_ended"], given["session"]))
        return self.link

    async def settle_by_token(
        self, connection: Any, path: str, token: UUID, *_: Any, **__: Any
    ) -> None:
        self.by_token.append(token)

    async def settle(self, delivery: Any, confirmed: Callable[[], None] = lambda: None) -> None:
        answer = self.connection.loop.create_future()
        self.side.begin_settling(
            MessageSettlement(answer, COMPLETE, delivery, TOKEN, confirmed=confirmed)
        )
        await answer

    def on_deliveries(self, side: Any, run: list[Any]) -> None:
        self.deliveries += run

    def on_opened(self, side: Any, link: Any) -> None: ...

    def on_failed(self, side: Any) -> None:
        self.failed.append(str(side.error))

    def buffered_of(self, side: Any) -> int:
        return self.buffered

    def give_back(self, side: Any) -> None:
        self.given_back.append(self.now)

    async def started(self) -> World:
        self.side.start()
        await self.side.first_result()
        return self

    async def passes(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


LOST = ConnectionLost("the connection is lost")


def test_a_lost_link_is_opened_again_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        world.failures = [LOST] * 9
        world.side.want(5)
        await world.passes(20)
        world.link.end(LOST)
        await world.passes(200)
        gaps = [b - a for a, b in zip(world.opened_at[1:], world.opened_at[2:], strict=False)]
        assert gaps == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5, *gaps[9:]])
        assert world.side.state == "open"
        assert (world.side.reopened, world.side.silent) == (1, 0)
        assert world.link.credit == 5
        await world.side.close([])
        assert world.side.state == "closed"

    run_virtual(story())


@pytest.mark.parametrize(
    ("condition", "state"),
    [(conditions.SESSION_LOCK_LOST, "closed"), (conditions.DETACH_FORCED, "open")],
)
def test_a_session_whose_lock_is_lost_is_not_opened_again_though_nothing_is_held(
    condition: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        world = World(monkeypatch, session="s")
        await world.started()
        world.link.end(LinkEnded("detached", condition))
        await world.passes(20)
        assert world.side.state == state
        await world.side.close([])

    run_virtual(story())


def test_a_namespace_that_answers_again_ends_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        world.failures = [LOST] * 7
        await world.passes(20)
        world.link.end(LOST)
        # Six attempts, the first after 0.2 s, and the pause of 5 s after the sixth has begun.
        await world.passes(6.5)
        assert len(world.opened_at) == 7
        world.side.retry()
        await world.passes(0.3)
        # At once, and because that failed again after the shortest pause.
        assert world.opened_at[7:] == pytest.approx([26.5, 26.7])
        assert world.side.state == "open"
        world.side.retry()
        await world.passes(10)
        assert len(world.links) == len(world.opened_at) == 9, "a link that is open stays"
        await world.side.close([])

    run_virtual(story())


def test_a_side_that_is_down_at_the_start_says_why_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = World(monkeypatch)
        world.failures = [LOST]
        world.side.start()
        assert await world.side.first_result() is LOST
        assert world.side.state == "reconnecting"
        await world.passes(0.1)
        found = world.side.status()
        assert (found.states, found.since_s) == ({"reconnecting": 1}, 0.1)
        assert "the connection is lost" in found.error
        await world.passes(1)
        assert world.side.status() == ReceivingSideStatus(states={"open": 1})
        await world.side.close([])

    run_virtual(story())


def test_links_of_a_namespace_that_ends_them_at_once_are_opened_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        for _ in range(8):
            opened = len(world.links)
            world.link.end(LinkEnded("detached", conditions.DETACH_FORCED))
            while len(world.links) == opened or not world.link.is_open:
                await world.passes(0.05)
        gaps = [b - a for a, b in zip(world.opened_at, world.opened_at[1:], strict=False)]
        assert gaps == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5], abs=0.06)
        world.link.bring()
        world.link.end(LinkEnded("detached", conditions.DETACH_FORCED))
        await world.passes(0.25)
        assert world.link.is_open, "a link that worked is followed by another at once"
        await world.side.close([])

    run_virtual(story())


def test_a_silent_link_is_checked_each_40_s_and_replaced_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        world.side.want(1)
        await world.passes(3_601)
        assert world.opened_at == pytest.approx(
            [0, 40, 120, 280, 600, 1_160, 1_720, 2_280, 2_840, 3_400]
        )
        assert sum(link.drains for link in world.links) == 90
        assert world.link.credit == 1
        assert world.side.reopened == 0, "a healthy link that was replaced is no news"
        world.link.bring()
        world.side.want(1)
        await world.passes(41)
        assert world.opened_at[-1] == pytest.approx(3_641), "after a message, as at first"
        await world.side.close([])

    run_virtual(story())


def test_a_link_that_brings_a_message_when_it_is_checked_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        world.side.want(2)
        world.link.brings_when_checked = True
        await world.passes(41)
        assert (len(world.links), len(world.deliveries)) == (1, 1)
        assert world.link.credit == 1
        await world.side.close([])

    run_virtual(story())


def test_a_link_that_does_not_answer_is_replaced_and_a_silent_connection_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        world.side.want(1)
        world.link.answers_drains = False
        await world.passes(46)
        assert len(world.links) == 2
        assert (world.side.reopened, world.side.silent) == (1, 1)
        assert world.failed == ["orders: the link fell silent"]
        assert world.connection.dropped == ["it sent nothing for 5 s"]
        await world.side.close([])

    run_virtual(story())


@pytest.mark.parametrize("is_handed_out", [True, False])
def test_a_session_with_unsettled_messages_is_only_drained(
    monkeypatch: pytest.MonkeyPatch, is_handed_out: bool
) -> None:
    async def story() -> None:
        world = await World(monkeypatch, session="s").started()
        world.side.want(2)
        await world.passes(0.1)
        delivery: Any = world.link.bring()
        if is_handed_out:
            world.side.handed_out(delivery)
        else:
            world.buffered = 1
        world.link.answers_drains = False
        await world.passes(200)
        assert len(world.links) == 1
        assert world.link.drains > 2
        assert world.connection.dropped == [], "its lock would be lost with the connection"
        await world.side.close([])

    run_virtual(story())


def test_a_drain_lets_what_is_ready_come_and_leaves_no_credit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        world.side.want(5)
        await world.passes(0)
        assert await world.side.drain(3)
        assert (world.link.drained, world.side.credit) == ([3], 0)
        await world.passes(1)
        assert (world.link.drains, world.side.credit) == (1, 0)
        world.side.want(2)
        await world.passes(0)
        assert world.side.credit == 2
        await world.side.close([])

    run_virtual(story())


def test_drains_of_one_side_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """One would end the other without an answer, and its link would be replaced."""

    async def story() -> None:
        world = await World(monkeypatch).started()
        world.link.drain_takes_s = 1.0
        world.side.want(5)
        await world.passes(0)
        world.side.want(0)  # Soon drained by the side itself.
        await world.passes(0.1)
        assert await world.side.drain(3)
        assert (world.link.drained, len(world.links)) == ([0, 3], 1)
        await world.side.close([])

    run_virtual(story())


def test_a_link_that_does_not_answer_the_drain_of_its_owner_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        world.link.answers_drains = False
        assert not await world.side.drain(1)
        await world.passes(1)
        assert len(world.links) == 2
        assert await world.side.drain(1)
        world.failures = [LOST]
        world.link.end(LOST)
        assert not await world.side.drain(1)
        await world.side.close([])

    run_virtual(story())


def test_credit_is_taken_back_when_no_call_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        world.side.want(5)
        await world.passes(0)
        assert world.link.credit == 5
        world.side.want(0)
        await world.passes(0.01)
        world.side.want(5)  # The next call of a loop.
        await world.passes(0.1)
        assert (world.link.credit, world.link.drains) == (5, 0)
        world.side.want(0)
        await world.passes(0.1)
        assert (world.link.credit, world.link.drains) == (0, 1)
        world.side.want(2)
        await world.passes(0)
        assert world.link.credit == 2
        await world.side.close([])

    run_virtual(story())


def test_a_message_is_settled_on_its_link_and_else_by_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        world.side.want(3)
        await world.passes(0)
        confirmed: list[int] = []
        first, second, third = (world.link.bring() for _ in range(3))
        await world.settle(first, lambda: confirmed.append(1))
        assert (confirmed, world.by_token) == ([1], [])
        ended = LinkEnded("the link ended", was_sent=True)
        world.link.settles = lambda done: done(ended)
        await world.settle(second, lambda: confirmed.append(2))
        assert (confirmed, world.by_token) == ([1, 2], [TOKEN])
        lost = LockLost("too late", conditions.MESSAGE_LOCK_LOST)
        world.link.settles = lambda done: done(lost)
        with pytest.raises(LockLost):
            await world.settle(third, lambda: confirmed.append(3))
        assert confirmed == [1, 2]
        await world.side.close([])

    run_virtual(story())


@pytest.mark.parametrize(
    ("error", "is_left"),
    [(LOST, True), (LockLost("lost", conditions.MESSAGE_LOCK_LOST), False), (None, False)],
)
def test_a_message_that_cannot_be_settled_for_want_of_a_connection_is_recorded(
    error: Exception | None, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request is made then: its next delivery would have no reason in the ledger."""

    async def story() -> None:
        world = await World(monkeypatch).started()

        async def refused(*_: Any, **__: Any) -> None:
            if error is not None:
                raise error

        monkeypatch.setattr(side_module, "settle_by_token", refused)
        world.side.want(1)
        await world.passes(1)
        link, delivery = world.link, world.link.bring()
        world.side.handed_out(delivery)  # type: ignore[arg-type]
        link.end(LOST)
        with contextlib.suppress(ConnectionLost, LockLost):
            await world.settle(delivery)
        await world.side.close([])
        assert link.left_unsettled == [delivery] * is_left

    run_virtual(story())


def test_a_settlement_whose_caller_gave_up_is_not_asked_for_by_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        asked: list[str] = []

        async def hangs(*_: Any, **__: Any) -> None:
            asked.append("begun")
            try:
                await asyncio.sleep(60)
            finally:
                asked.append("ended")

        monkeypatch.setattr(side_module, "settle_by_token", hangs)
        world.side.want(2)
        await world.passes(0)
        first, second = world.link.bring(), world.link.bring()
        for delivery in (first, second):
            world.side.handed_out(delivery)  # type: ignore[arg-type]
        answers: list[Any] = []
        world.link.settles = answers.append
        early = asyncio.ensure_future(world.settle(first))
        late = asyncio.ensure_future(world.settle(second))
        await world.passes(1)
        early.cancel()
        await world.passes(1)
        assert world.side._locked == 2, "the service may still hold both"
        for answer in answers:
            answer(LinkEnded("the link ended", was_sent=True))
        await world.passes(1)
        assert asked == ["begun"]
        assert world.side._locked == 1
        late.cancel()
        await world.passes(1)
        assert asked == ["begun", "ended"]
        assert world.side._locked == 0
        assert world.link.left_unsettled == [second], "else nothing says why it comes again"
        began = world.now
        await world.side.close([])
        assert world.now == began, "no settlement is waited for"

    run_virtual(story())


def test_a_settlement_at_a_side_that_hangs_ends_after_two_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        loop = asyncio.get_running_loop()

        async def lost(*_: Any, **__: Any) -> None:
            # As a request does if nothing answers.
            await asyncio.sleep(5)
            raise LOST

        monkeypatch.setattr(side_module, "settle_by_token", lost)
        world.side.want(1)
        delivery: Any = world.link.bring()

        def settles(done: Any) -> None:
            loop.call_later(5, done, TimeoutError("no answer"))

        world.link.settles = settles
        with pytest.raises(TimeoutError):
            await world.side.settle(delivery, TOKEN, COMPLETE)
        assert world.now == pytest.approx(10)
        await world.side.close([])

    run_virtual(story())


def test_what_was_not_handed_out_is_released_at_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        world.side.want(2)
        await world.passes(0)
        buffered = [world.link.bring(), world.link.bring()]
        await world.side.close(buffered)  # type: ignore[arg-type]
        assert [one.outcome for one in buffered] == [RELEASE, RELEASE]
        assert not world.link.is_open, "the link was left open"

    run_virtual(story())


def test_an_entity_that_must_not_be_read_is_asked_for_again_after_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = World(monkeypatch)
        world.needs_mark(lambda: len(world.looks) >= 3)
        world.side.start()
        assert isinstance(await world.side.first_result(), NotReadable)
        await world.passes(800)
        assert world.looks == pytest.approx([0, 300, 600])
        assert world.opened_at == pytest.approx([600])
        await world.side.close([])

    run_virtual(story())


def test_a_twin_whose_mark_is_taken_away_is_given_back_and_read_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = World(monkeypatch)
        world.needs_mark(lambda: len(world.looks) < 3)
        await world.started()
        link = world.link
        await world.passes(599)
        assert world.looks == pytest.approx([0, 300])
        assert (link.is_open, world.given_back) == (True, [])
        await world.passes(10)
        assert world.looks[:3] == pytest.approx([0, 300, 600])
        assert world.given_back == pytest.approx([600])
        assert (link.is_open, len(world.links), world.side.state) == (False, 1, "not read")
        await world.side.close([])

    run_virtual(story())


def test_an_open_link_to_a_twin_stays_while_its_mark_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = World(monkeypatch)
        world.needs_mark(lambda: None if len(world.looks) > 1 else True)
        await world.started()
        await world.passes(350)
        assert world.looks == pytest.approx([0, 300, 330])
        assert (world.link.is_open, len(world.links)) == (True, 1)
        await world.side.close([])

    run_virtual(story())


def test_the_mark_of_a_twin_is_read_again_after_its_link_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The entity may have been deleted, and made again without the mark."""

    async def story() -> None:
        world = World(monkeypatch)
        world.needs_mark(lambda: len(world.looks) < 2)
        await world.started()
        await world.passes(10)
        world.link.end(LinkEnded("deleted", conditions.NOT_FOUND))
        await world.passes(60)
        assert world.looks == pytest.approx([0, 10], abs=0.5)
        assert world.opened_at == pytest.approx([0])
        await world.side.close([])

    run_virtual(story())


def test_a_fault_of_our_own_does_not_silence_a_side(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(monkeypatch)
        world.failures = [KeyError("a mistake")]
        world.side.start()
        assert isinstance(await world.side.first_result(), KeyError)
        await world.passes(16)
        assert world.side.state == "open"
        await world.side.close([])

    run_virtual(story())


def test_a_settlement_ends_though_its_owner_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = await World(monkeypatch).started()
        world.side.want(1)
        await world.passes(0)
        delivery: Any = world.link.bring()
        real = world.link.settles

        def settles(done: Any) -> None:
            with pytest.raises(KeyError):
                real(done)

        def confirmed() -> None:
            raise KeyError("a mistake")

        world.link.settles = settles
        async with asyncio.timeout(1):
            await world.settle(delivery, confirmed)
        await world.side.close([])

    run_virtual(story())
