"""What a gateway sends, answers and records does not depend on how deliveries are read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.layouts import SDKS, text
from twinbus.amqp.events import DeliveryRun, Disposed
from twinbus.amqp.frames import FrameOutput
from twinbus.amqp.link import SERIAL_MASK, LinkState, SenderLink
from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.performatives import Accepted, Error, Modified, Rejected, Source, Target
from twinbus.amqp.session import Session
from twinbus.amqp.types import Symbol
from twinbus.broker.links.turns import at_once
from twinbus.broker.refusals import Unauthorized
from twinbus.client.in_flight import answer
from twinbus.client.links import LinkPool, UpstreamConnection, UpstreamLink
from twinbus.gateway.sending import GatewaySendingLink, PendingSends, _Delivery
from twinbus.pairing.core.failover import Route
from twinbus.servicebus.conditions import SERVER_BUSY
from twinbus.status.document import EntityState
from twinbus.transfer.aliases import RESERVED_NAMES

LAYOUT = SDKS["Java, time to live, properties"]
RESERVED = {min(RESERVED_NAMES): "here"}
MESSAGES = {
    "plain": LAYOUT.message(text("0123"), bytes(300)),
    "another body": LAYOUT.message(text("4567"), bytes(9)),
    "a longer id": LAYOUT.message(text("01234"), bytes(300)),
    "no id": encode_message(properties=Properties(subject="s"), data=b""),
    "a session": encode_message(properties=Properties(message_id="s", group_id="a"), data=b""),
    "a reserved name": encode_message(
        properties=Properties(message_id="r"), application_properties=RESERVED, data=b""
    ),
    "too large for a backlog queue": LAYOUT.message(text("0123"), bytes(3_000)),
    "too large for the link": LAYOUT.message(text("0123"), bytes(6_000)),
    "no message": b"\x00\x53\x70\xc0",
}
STATES: dict[str, object] = {
    "accepted": Accepted(),
    "busy": Rejected(Error(condition=Symbol(SERVER_BUSY), description="busy")),
    "refused": Rejected(Error(condition=Symbol("amqp:not-allowed"), description="no")),
    "odd": Modified(),
}


HEARD = ("answered", "called", "line", "stored", "failed", "raised")


class Client:
    """A client of the gateway, which keeps its share under it."""

    def __init__(self, **calls: Any) -> None:
        self.__dict__ |= calls


class World:
    """A client's link in a gateway, and the gateway's own link to the primary."""

    def __init__(
        self, credit: int, *, own_ids: bool, ledger: bool, first_id: int = 7, sent_id: int = 0
    ) -> None:
        """`first_id`: of the client's first delivery; `sent_id`: of the first to the primary."""
        self.heard: list[tuple[Any, ...]] = []
        """Answers, calls, ledger lines and counts, as they came."""
        self.session = Session(FrameOutput(), 0)
        self.session.remote_incoming_window = 5_000
        self.session._output.max_frame_size = 1_024
        up: SenderLink = self.session.attach_sender("l", source=Source(), target=Target())
        up.state, up.credit = LinkState.OPEN, credit
        self.up = up
        self.in_flight: dict[int, Any] = {}
        connection: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(), answer_s=60.0, heard_at=0.0,
            in_flight=lambda _: self.in_flight, flush=lambda: None, flush_now=lambda: None,
            drop=lambda _: None,
        )  # fmt: skip
        self.pool = LinkPool(cast("UpstreamConnection", connection), "q")
        self.pool.limit_bytes = 5_000
        self.upstream = UpstreamLink(self.pool, cast("UpstreamConnection", connection), up)
        self.upstream.opened.set_result(None)
        self.pool.link = self.upstream
        self.pending = PendingSends("gateway", 30.0)
        self.own = self._link(own_ids=own_ids, ledger=ledger)
        self.session.next_delivery_id = sent_id
        self.next_id = first_id

    def _link(self, *, own_ids: bool, ledger: bool) -> GatewaySendingLink:
        session: Any = SimpleNamespace(settle=self._settled)
        link: Any = SimpleNamespace(
            state=LinkState.OPEN,
            session=session,
            credit=2_000,
            grant=lambda _: None,
            properties={},
        )
        client: Any = Client(
            touch=lambda: None, log_refusal=lambda *_: None, pause_reading=lambda: None,
            grants=SimpleNamespace(require=lambda *_: 10**15),
        )  # fmt: skip
        self.failover = SimpleNamespace(route=Route.PRIMARY, state=EntityState.HEALTHY)
        entity = SimpleNamespace(
            path="q", on_change=lambda _: int, failover=self.failover,
            succeeded=lambda count: self.heard.extend([("stored",)] * count),
            attempt_failed=lambda error, counts: self.heard.append(("failed", str(error))),
            call_raised=lambda count, error: self.heard.append(("raised", count, str(error))),
        )  # fmt: skip
        state = SimpleNamespace(
            limits=SimpleNamespace(watched=2_500),
            message_ids=SimpleNamespace(own_in_backlog=own_ids),
            recorder=SimpleNamespace(is_on=ledger, attempted=self._attempted),
            policy=SimpleNamespace(attempt_timeout_s=5.0),
            counts=lambda _: False,
            monitors=SimpleNamespace(release=lambda _: None),
        )
        target: Any = SimpleNamespace(entity=entity, state=state, sessions=None, client="c")
        relay: Any = None
        own = GatewaySendingLink(self.pending, client, link, "q", target, self.pool, 10**15, relay)
        link.owner = own
        return own

    def _settled(self, first: int, last: int, state: bytes, *, as_receiver: bool) -> None:
        assert 0 <= first <= last <= SERIAL_MASK
        self.heard += [("answered", number, state[:60]) for number in range(first, last + 1)]

    def _attempted(
        self, entity: str, queue: None, messages: list[Any], began: float, ended: float,
        error: object = None, client: str | None = None,
    ) -> None:  # fmt: skip
        self.heard += [("line", each[0] or len(each), each[1], str(error)) for each in messages]

    async def call(self, delivery: _Delivery, failed: Exception | None) -> None:
        """In place of a call: the message is stored somewhere."""
        await asyncio.sleep(0)
        self.heard.append(("called", delivery.event.payload, str(failed)))
        self.own._calls -= 1
        self.own._end(delivery.event, None)
        self.own._go_on()

    def take(self, kinds: list[str]) -> None:
        room = SERIAL_MASK + 1 - self.next_id
        if len(kinds) > room:  # A run ends before the id 0.
            self.take(kinds[:room])
            kinds = kinds[room:]
        data, spans = b"", []
        for kind in kinds:
            spans.append((b"", len(data), len(data) + len(MESSAGES[kind])))
            data += MESSAGES[kind]
        link = self.own.link
        run = DeliveryRun(link, self.next_id, 0, False, data, spans)
        self.next_id = (self.next_id + len(kinds)) & SERIAL_MASK
        if rest := self.own.take_run(run, 1):
            at_once(rest)

    def change(self, what: str) -> None:
        """The entity fails over or comes back, or the client's token ends."""
        self.failover.route = Route.PRIMARY if what == "back" else Route.BACKLOG
        if what == "expired":
            self.failover.route = Route.PRIMARY
            self.own._granted_until_ms = 0
            grants: Any = self.own._client.grants
            grants.require = self._refuse

    def _refuse(self, *_: object) -> int:
        raise Unauthorized.lacking("Send", "q", " The token has expired.")

    # What the primary does

    def answer(self, kind: str, first: int, count: int) -> None:
        numbers = list(self.in_flight)[first : first + count]
        if numbers:
            event = Disposed(self.session, True, numbers[0], numbers[-1], True, STATES[kind])
            answer(self.in_flight, event, 0.0)

    def open_window(self, frames: int) -> None:
        self.session.remote_incoming_window = frames
        self.session._release_blocked()

    def grant(self, credit: int) -> None:
        self.up.credit = credit
        self.upstream._write_waiting()


async def ran(steps: list[tuple[str, Any]], credit: int, **opening: Any) -> Any:
    world = World(credit, **opening)
    with (
        patch.object(GatewaySendingLink, "_call", lambda _, *given: world.call(*given)),
        patch("twinbus.gateway.messages.new_message_id", lambda: "0" * 32),
    ):
        for kind, given in steps:
            if kind == "take":
                world.take(given)
            elif kind == "grant":
                world.grant(given)
            elif kind == "window":
                world.open_window(given)
            elif kind == "change":
                world.change(given)
            elif kind == "end":
                world.upstream.end("gone", "amqp:link:detach-forced")
            else:
                world.answer(kind, *given)
            for _ in range(3):
                await asyncio.sleep(0)
        written = b"".join(world.session._output._frames)
        held = world.pending.count, world.pending.size_bytes, world.own._unanswered
        world.pool.link = None
        world.upstream.end("the end")
        for _ in range(200):
            await asyncio.sleep(0)
        assert (world.pending.count, world.pending.size_bytes, world.own._direct) == (0, 0, 0)
    return (
        {kind: [each for each in world.heard if each[0] == kind] for kind in HEARD},
        written,
        held,
    )


_steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("take"),
            st.lists(st.sampled_from(["plain"] * 8 + [*MESSAGES]), min_size=1, max_size=6),
        ),
        st.tuples(
            st.sampled_from(["accepted"] * 4 + [*STATES]),
            st.tuples(st.integers(0, 4), st.integers(1, 8)),
        ),
        st.tuples(st.just("grant"), st.sampled_from([0, 1, 3, 100])),
        st.tuples(st.sampled_from(["end"] + ["grant"] * 5), st.just(2)),
        st.tuples(st.just("window"), st.sampled_from([0, 1, 3, 100])),
        st.tuples(st.just("change"), st.sampled_from(["failed over", "back", "back", "expired"])),
    ),
    max_size=12,
)


_ids = st.sampled_from([7, 2**32 - 3])
_opening = st.fixed_dictionaries(
    {"own_ids": st.booleans(), "ledger": st.booleans(), "first_id": _ids, "sent_id": _ids}
)
WRAPPING = {"own_ids": False, "ledger": True, "first_id": 2**32 - 3, "sent_id": 2**32 - 2}


@settings(deadline=None, max_examples=60)
@given(_steps, st.sampled_from([0, 4, 100]), _opening)
@example([("take", ["plain"] * 6), ("accepted", (0, 4)), ("busy", (0, 4))], 100, WRAPPING)
@example([("window", 2), ("take", ["plain"] * 6), ("window", 9), ("accepted", (1, 9))], 9, WRAPPING)
@example([("take", ["plain"] * 6), ("change", "failed over"), ("refused", (2, 2))], 3, WRAPPING)
@example([("change", "expired"), ("take", ["plain"] * 2)], 9, WRAPPING)
def test_runs_are_sent_answered_and_recorded_as_deliveries_one_by_one(
    steps: list[tuple[str, Any]], credit: int, opening: dict[str, Any]
) -> None:
    in_runs = asyncio.run(ran(steps, credit, **opening))
    with patch.object(GatewaySendingLink, "_send_run", lambda *_: 0):
        one_by_one = asyncio.run(ran(steps, credit, **opening))
    assert in_runs == one_by_one


async def test_a_range_that_the_primary_accepts_is_answered_as_a_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(100, own_ids=False, ledger=False)
    ranges: list[tuple[int, int]] = []
    session: Any = world.own.link.session
    session.settle = lambda first, last, *_, **__: ranges.append((first, last))
    monkeypatch.setattr(GatewaySendingLink, "take", lambda *_: pytest.fail("read one by one"))
    world.take(["plain"] * 50)
    world.answer("accepted", 0, 20)
    world.answer("accepted", 0, 30)
    assert ranges == [(7, 26), (27, 56)]
    assert (world.pending.count, world.pending.size_bytes) == (0, 0)
