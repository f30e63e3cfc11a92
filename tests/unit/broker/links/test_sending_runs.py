"""What a sender link answers and stores does not depend on how its deliveries are read."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.layouts import SDKS, symbol, text, time
from tests.unit.broker.fakes import facts
from tests.unit.broker.links.joined import JoinedClient, new_server
from twinbus.amqp.connection import OPEN
from twinbus.amqp.events import Detached, Disposed, TransferShape
from twinbus.amqp.link import SERIAL_MASK, SenderLink
from twinbus.amqp.message import BATCH_FORMAT, Properties, encode_message
from twinbus.amqp.performatives import (
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Source,
    Target,
    TransactionalState,
)
from twinbus.amqp.session import Session
from twinbus.amqp.transactions import encode_request
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.engine.queue import Queue
from twinbus.broker.faults import Fault, FaultKind
from twinbus.broker.journal import StoredMessage
from twinbus.broker.links.context import LinkOwner
from twinbus.broker.links.sending import SendingLink
from twinbus.broker.sas import ALL_RIGHTS, Grant
from twinbus.broker.server import BrokerServer
from twinbus.testing import run_virtual

NOW_MS = 1_700_000_000_000
LAYOUT = SDKS["Java, time to live, properties"]
PLAIN = LAYOUT.message(text("0123"), bytes(300))
BATCHED = b"\x00\x53\x75\xa0" + bytes((len(SDKS["Go"].message(text("b"), b"")),))
SCHEDULED = replace(
    LAYOUT, annotations=(symbol("x-opt-scheduled-enqueue-time"), time(4_000_000_000_000))
)
MESSAGES: dict[str, tuple[bytes, int]] = {
    "plain": (PLAIN, 0),
    "another body": (LAYOUT.message(text("4567"), bytes(9)), 0),
    "a longer id": (LAYOUT.message(text("01234"), bytes(300)), 0),
    "another layout": (SDKS["Go"].message(text("0123"), bytes(300)), 0),
    "a session": (encode_message(properties=Properties(message_id="s", group_id="a"), data=b""), 0),
    "a plain message as a batch": (PLAIN, BATCH_FORMAT),
    "a batch": (BATCHED + SDKS["Go"].message(text("b"), b""), BATCH_FORMAT),
    "scheduled": (SCHEDULED.message(text("0123"), bytes(300)), 0),
    "another id": (LAYOUT.message(text("0124"), bytes(300)), 0),
    "in a transaction": (PLAIN, 0),
    "too large": (LAYOUT.message(text("0123"), bytes(2_000)), 0),
    "too large for the link": (LAYOUT.message(text("0123"), bytes(300_000)), 0),
    "not UTF-8": (LAYOUT.message(b"\xa1\x04\xff\xfe\xfd\xfc", bytes(300)), 0),
    "a hole": (PLAIN[:9] + b"\xff" + PLAIN[10:], 0),
}


class OneSender:
    """A broker with a queue, and a client that sends to it, all of one turn in one or two reads."""

    def __init__(self, description: QueueDescription | None = None) -> None:
        self.server: BrokerServer = new_server()
        self.log = EngineLog()
        self.server.namespace.log_sends(self.log)
        self.queue = self.server.namespace.create_queue("q", description or QueueDescription(), 1)
        self.queue.max_message_bytes = 1_000
        self.client = JoinedClient(self.server)
        self.session: Session
        self.link: SenderLink
        self.txn_id = b""
        self.told: list[tuple[str, int, str]] = []
        """Links and deliveries, as they were answered or closed."""

    async def open(self, *, credit: int = 0, first_id: int = 0, transacts: bool = False) -> None:
        """`credit`: what the broker grants, if not as it does; `first_id`: the first delivery's."""
        await self.client.exchange()
        self.session = self.client.connection.begin()
        await self.client.exchange()
        if transacts:
            asking = self.session.attach_sender("c", source=Source(), target=Coordinator())
            await self.client.exchange()
            asking.send(encode_request(Declare()), b"tag")
            [declared] = [
                each for each in await self.client.exchange() if isinstance(each, Disposed)
            ]
            assert isinstance(declared.state, Declared)
            self.txn_id = declared.state.txn_id
            self.asking = asking
        self.session.next_delivery_id = first_id or self.session.next_delivery_id
        self._attach()
        await self.client.exchange()
        if credit:
            self.owner._credit = self.owner.link.credit = credit

    def _attach(self) -> None:
        self.link = self.session.attach_sender("out", source=Source(), target=Target(address="q"))

    @property
    def owner(self) -> SendingLink:
        [found] = [
            link.owner for link in self.client.peer._links() if isinstance(link.owner, SendingLink)
        ]
        return found

    async def send(self, turn: list[tuple[str, bool]], cut: float = 1.0) -> None:
        """Send deliveries; `cut`: where, between 0 and 1, the first read ends."""
        for kind, settled in turn:
            if kind == "a new link":
                self.link.detach()
                self._attach()
                await self._read(cut)
                continue
            payload, form = MESSAGES[kind]
            state = TransactionalState(self.txn_id) if kind == "in a transaction" else None
            self.link.credit = 100  # Also without: a client may send more than it may.
            self.link.send(payload, b"tag", settled=settled, message_format=form, state=state)
        await self._read(cut)

    async def _read(self, cut: float) -> None:
        data = self.client.connection.take_output(1)
        middle = int(len(data) * cut)
        for part in (data[:middle], data[middle:]):
            if part:
                self.client.peer.data_received(part)
        await self.hear()

    async def hear(self) -> None:
        for event in await self.client.exchange():
            if isinstance(event, Disposed):
                count = ((event.last - event.first) & SERIAL_MASK) + 1
                numbers = range(event.first, event.first + count)
                state = self._named(event.state)
                self.told += [("answer", number & SERIAL_MASK, state) for number in numbers]
            elif isinstance(event, Detached):
                self.told.append(("detached", 0, self._named(event.error)))

    def _named(self, state: object) -> str:
        """The state as text, up to the parts that differ from run to run."""
        text = str(state)
        for each in (repr(self.txn_id), self.txn_id.hex()):
            text = text.replace(each or "no id", "ID")
        return text[:90]

    async def change(self, what: str) -> None:
        """What happens between two reads."""
        namespace, now_ms = self.server.namespace, self.server.now_ms()
        match what:
            case "disabled" | "enabled" | "forwards":
                status = "SendDisabled" if what == "disabled" else "Active"
                if what == "forwards" and namespace.find("other") is None:
                    namespace.create_queue("other", QueueDescription(), 1)
                forward_to = "other" if what == "forwards" else None
                found = self.queue.description
                assert isinstance(found, QueueDescription)
                self.queue.update(replace(found, status=status, forward_to=forward_to), now_ms)
            case "expired":
                grant = Grant(path="", rights=ALL_RIGHTS, expires_at_s=1, rule_name="r")
                self.client.peer.grants.put("all", grant)
                for link in self.client.peer._links():
                    if isinstance(link.owner, SendingLink):
                        link.owner._granted_until_ms = 1_000
            case "full":
                self.queue.quota_bytes = 2_000
            case "deleted" if namespace.find("q") is not None:
                namespace.delete("q", now_ms)
            case "commit" if self.txn_id and self.client.connection.phase is OPEN:
                self.asking.send(encode_request(Discharge(self.txn_id, False)), b"tag")
                await self._read(1.0)
            case _ if what in KINDS:
                kind, delay_ms = KINDS[what], 1_000 if what == "delay" else 0
                self.server.faults.add(Fault(kind=kind, count=2, delay_ms=delay_ms))
            case "later":
                await asyncio.sleep(2)
                await self.hear()

    def outcome(self) -> Any:
        now_ms = self.server.now_ms()
        # An error ends with an id and the time.
        logged = [
            (*each[1:4], str(each.error)[:40], row) for each in self.log.take() for row in each.rows
        ]
        other = self.server.namespace.find("other")
        queues = [self.queue] if other is None else [self.queue, other]
        stored = [
            [(each.message_id, each.size_bytes, each.ttl_ms, _life_ms(each), each.state)
             for each in queue.messages.values()]
            for queue in queues
            if isinstance(queue, Queue)
        ]  # fmt: skip
        dropped = self.client.transport.is_aborted
        credit = self.link.credit, self.link.delivery_count
        seen = [] if self.queue.is_deleted else facts(self.queue, now_ms)
        return seen, stored, self.told, logged, dropped, credit


def _life_ms(message: StoredMessage) -> int:
    return message.expires_at_ms and message.expires_at_ms - message.enqueued_at_ms


KINDS: dict[str, FaultKind] = {
    "refuse_send": "refuse_send",
    "throttle": "throttle",
    "delay": "delay",
    "hang": "hang",
    "drop_before_commit": "drop_before_commit",
    "drop_after_commit": "drop_after_commit",
}

Turn = tuple[str, list[tuple[str, bool]], float]
"""What happens before, the deliveries, and where their first read ends."""


async def sent(turns: list[Turn], description: QueueDescription, **opening: Any) -> Any:
    one = OneSender(description)
    await one.open(**opening)
    for before, deliveries, cut in turns:
        await one.change(before)
        await one.send(deliveries, cut)
    for last in ("later", "commit"):
        await one.change(last)
    outcome = one.outcome()
    one.client.peer.connection_lost(None)
    await one.server.close()
    return outcome


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Refusals are logged, thousands of them here."""
    caplog.set_level(logging.CRITICAL, "twinbus.broker")


_kinds = st.sampled_from(["plain"] * 9 + ["in a transaction", "a new link", *MESSAGES])
_deliveries = st.lists(
    st.tuples(_kinds, st.integers(0, 9).map(lambda n: not n)), min_size=1, max_size=8
) | st.integers(1, 6).map(lambda count: [("plain", False)] * count)
_changes = st.sampled_from(
    [""] * 6
    + ["disabled", "enabled", "forwards", "expired", "full", "deleted", "commit", "later", *KINDS]
)
_cuts = st.sampled_from([1.0, 0.0, 0.3, 0.5, 0.8, 0.99])
_turns = st.lists(st.tuples(_changes, _deliveries, _cuts), min_size=1, max_size=5)
_descriptions = st.sampled_from(
    [QueueDescription()] * 5
    + [
        QueueDescription(default_ttl_ms=30_000),
        QueueDescription(requires_duplicate_detection=True),
        QueueDescription(requires_session=True),
    ]
)
_opening = st.fixed_dictionaries(
    {
        "credit": st.sampled_from([0, 0, 3]),
        "first_id": st.sampled_from([0, 0, 2**32 - 1, 2**32 - 4]),
        "transacts": st.booleans(),
    }
)


PLAIN_TURN: Turn = ("", [("plain", False)] * 8, 1.0)
USUAL: dict[str, Any] = {"credit": 0, "first_id": 0, "transacts": False}


@settings(deadline=None, max_examples=60)
@given(_turns, _descriptions, _opening)
@example([PLAIN_TURN, PLAIN_TURN], QueueDescription(), USUAL | {"credit": 3})
@example([PLAIN_TURN, PLAIN_TURN], QueueDescription(), USUAL | {"first_id": 2**32 - 12})
@example(
    [("", [("a plain message as a batch", False)] * 4, 1.0), PLAIN_TURN], QueueDescription(), USUAL
)
@example(
    [PLAIN_TURN, ("expired", [("plain", False)] * 4, 0.5), PLAIN_TURN], QueueDescription(), USUAL
)
@example([PLAIN_TURN, ("full", [("plain", False)] * 4, 1.0)], QueueDescription(), USUAL)
@example(
    [PLAIN_TURN, ("", [*[("plain", False)] * 3, ("a new link", False), ("plain", False)], 1.0)],
    QueueDescription(),
    USUAL,
)
@example(
    [PLAIN_TURN, ("", [("plain", False), ("in a transaction", False)] * 4, 1.0)],
    QueueDescription(),
    USUAL | {"transacts": True},
)
def test_runs_are_answered_and_stored_as_deliveries_one_by_one(
    turns: list[Turn], description: QueueDescription, opening: dict[str, Any]
) -> None:
    in_runs = run_virtual(sent(turns, description, **opening))
    with (
        # Each frame goes through the general decoder, and each delivery by itself to the queue.
        patch.object(TransferShape, "take_run", lambda self, data, position, *_: position),
        patch.object(SendingLink, "take_all", LinkOwner.take_all),
    ):
        one_by_one = run_virtual(sent(turns, description, **opening))
    assert in_runs == one_by_one


async def test_a_run_is_settled_as_one_range() -> None:
    one = OneSender()
    await one.open()
    await one.send([("plain", False)])
    for _ in range(50):
        one.link.send(PLAIN, b"tag")
    seen = [each for each in await one.client.exchange() if isinstance(each, Disposed)]
    assert [(each.first, each.last) for each in seen] == [(1, 50)]
    assert one.queue.active_count == 51


async def test_a_plain_run_does_not_go_through_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    one = OneSender()
    await one.open()
    await one.send([("plain", False)] * 2)
    parsed = []
    monkeypatch.setattr(SendingLink, "_parse", lambda self, event: parsed.append(event))
    await one.send([("plain", False), ("another body", False)])
    assert not parsed
    assert one.queue.active_count == 4
