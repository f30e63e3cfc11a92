"""What a sender link answers and stores does not depend on how its deliveries are read."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.layouts import SDKS, text
from tests.unit.broker.fakes import facts
from tests.unit.broker.links.joined import JoinedClient, new_server
from twinbus.amqp.events import Detached, Disposed
from twinbus.amqp.link import SenderLink
from twinbus.amqp.message import BATCH_FORMAT, Properties, encode_message
from twinbus.amqp.performatives import Source, Target
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.faults import Fault
from twinbus.broker.journal import StoredMessage
from twinbus.broker.links.sending import SendingLink
from twinbus.broker.server import BrokerServer

NOW_MS = 1_700_000_000_000
LAYOUT = SDKS["Java, time to live, properties"]
PLAIN = LAYOUT.message(text("0123"), bytes(300))
BATCHED = b"\x00\x53\x75\xa0" + bytes((len(SDKS["Go"].message(text("b"), b"")),))
MESSAGES: dict[str, tuple[bytes, int]] = {
    "plain": (PLAIN, 0),
    "another body": (LAYOUT.message(text("4567"), bytes(9)), 0),
    "a longer id": (LAYOUT.message(text("01234"), bytes(300)), 0),
    "another layout": (SDKS["Go"].message(text("0123"), bytes(300)), 0),
    "a session": (encode_message(properties=Properties(message_id="s", group_id="a"), data=b""), 0),
    "a batch": (BATCHED + SDKS["Go"].message(text("b"), b""), BATCH_FORMAT),
    "too large": (LAYOUT.message(text("0123"), bytes(2_000)), 0),
    "not UTF-8": (LAYOUT.message(b"\xa1\x04\xff\xfe\xfd\xfc", bytes(300)), 0),
    "a hole": (PLAIN[:9] + b"\xff" + PLAIN[10:], 0),
}


class OneSender:
    """A broker with a queue, and a client that sends to it, all of one turn in one read."""

    def __init__(self, description: QueueDescription | None = None) -> None:
        self.server: BrokerServer = new_server()
        self.log = EngineLog()
        self.server.namespace.log_sends(self.log)
        self.queue = self.server.namespace.create_queue("q", description or QueueDescription(), 1)
        self.queue.max_message_bytes = 1_000
        self.client = JoinedClient(self.server)
        self.link: SenderLink
        self.told: list[tuple[int, str]] = []

    async def open(self) -> None:
        await self.client.exchange()
        session = self.client.connection.begin()
        await self.client.exchange()
        self.link = session.attach_sender("out", source=Source(), target=Target(address="q"))
        await self.client.exchange()

    async def send(self, turn: list[tuple[str, bool]]) -> None:
        for kind, settled in turn:
            payload, form = MESSAGES[kind]
            self.link.send(payload, b"tag", settled=settled, message_format=form)
        for event in await self.client.exchange():
            if isinstance(event, Disposed):
                numbers = range(event.first, event.last + 1)
                self.told += [(number, str(event.state)[:60]) for number in numbers]
            assert not isinstance(event, Detached)

    def outcome(self) -> Any:
        now_ms = self.server.now_ms()
        # An error ends with an id and the time.
        logged = [
            (*each[1:4], str(each.error)[:40], row) for each in self.log.take() for row in each.rows
        ]
        kept = [
            (each.size_bytes, each.ttl_ms, _life_ms(each))
            for each in self.queue.peek(0, 1_000, now_ms)
        ]
        return facts(self.queue, now_ms), kept, sorted(self.told), logged


def _life_ms(message: StoredMessage) -> int:
    return message.expires_at_ms and message.expires_at_ms - message.enqueued_at_ms


async def sent(
    turns: list[list[tuple[str, bool]]], *, description: QueueDescription, faults: int = 0
) -> Any:
    one = OneSender(description)
    await one.open()
    if faults:
        one.server.faults.add(Fault(kind="refuse_send", count=faults))
    for turn in turns:
        await one.send(turn)
    return one.outcome()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Refusals are logged, thousands of them here."""
    caplog.set_level(logging.ERROR, "twinbus.broker")


_kinds = st.sampled_from(["plain"] * 6 + [*MESSAGES])
_deliveries = st.tuples(_kinds, st.integers(0, 9).map(lambda n: not n))
_turns = st.lists(st.lists(_deliveries, min_size=1, max_size=8), min_size=1, max_size=3)
_descriptions = st.sampled_from(
    [QueueDescription()] * 3
    + [
        QueueDescription(default_ttl_ms=30_000),
        QueueDescription(requires_duplicate_detection=True),
        QueueDescription(requires_session=True),
    ]
)


@settings(deadline=None, max_examples=40)
@given(_turns, _descriptions, st.sampled_from([0, 0, 0, 3]))
def test_runs_are_answered_and_stored_as_deliveries_one_by_one(
    turns: list[list[tuple[str, bool]]], description: QueueDescription, faults: int
) -> None:
    in_runs = asyncio.run(sent(turns, description=description, faults=faults))
    with patch.object(SendingLink, "_take_plain", lambda *_: 0):
        one_by_one = asyncio.run(sent(turns, description=description, faults=faults))
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
