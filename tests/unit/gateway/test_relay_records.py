"""The ledger lines of a relay: requests and settlements end once, in bounded memory."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from tests.unit.client.test_consumer_records import Kept, message
from twinbus.amqp.message import Properties, Sections, encode_message, split
from twinbus.amqp.performatives import Accepted, Error, Modified, Rejected, Released
from twinbus.amqp.types import Array, Int, Symbol
from twinbus.client.consumer_records import NOT_SETTLED
from twinbus.gateway.relay_records import (
    ASKED_MAX,
    LINK_CLOSED,
    TOKENS_MAX,
    ReceiverRecords,
    RelayRecords,
)
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.observing.recording import Recorder
from twinbus.servicebus import conditions

NODE = "a node"
TOKEN = UUID(int=5)


class World:
    def __init__(self) -> None:
        self.ledger = Kept()
        sides = [
            Namespace.from_connection_string(
                f"Endpoint=sb://{name}.example/;SharedAccessKeyName=n;SharedAccessKey=k"
            )
            for name in ("contoso", "dr")
        ]
        self.records = RelayRecords(Recorder(cast("Any", self.ledger), *sides), "a client")

    @property
    def receiver(self) -> ReceiverRecords:
        made = self.records.receiver("orders")
        assert made is not None
        return made

    def ask(self, operation: str, request_id: Any = "1", **body: Any) -> None:
        asked = self.records.read("orders", f"com.microsoft:{operation}", request(request_id, body))
        assert asked is not None
        self.records.asked(NODE, asked)

    def answer(
        self, request_id: Any = "1", status: int = 200, error: str = "", **body: Any
    ) -> None:
        headers: dict[str, Any] = {"statusCode": Int(status)}
        if error:
            headers["errorCondition"] = Symbol(error)
        properties = Properties(correlation_id=request_id)
        data = encode_message(properties=properties, application_properties=headers, value=body)
        self.records.answered(NODE, data)

    async def recorded(self) -> list[tuple[Any, ...]]:
        await asyncio.sleep(0)
        assert {one["client"] for one in self.ledger.lines} <= {"a client"}
        assert {one["pair"] for one in self.ledger.lines} <= {"contoso+dr"}
        return self.ledger.recorded()


def request(request_id: Any, body: dict[str, Any]) -> Sections:
    return split(encode_message(properties=Properties(message_id=request_id), value=body))


async def test_a_request_is_recorded_when_it_is_answered() -> None:
    world = World()
    world.ask("renew-lock", "1")
    world.ask("peek-message", UUID(int=1))
    world.ask("schedule-message", 3)
    assert await world.recorded() == []
    world.answer(UUID(int=1), status=204)
    world.answer("1", status=410, error=conditions.MESSAGE_LOCK_LOST)
    world.answer("1", status=200)
    world.answer(3)
    world.answer("unknown")
    world.records.answered(NODE, b"no message")
    assert await world.recorded() == [
        ("manage", "ok"),
        ("renew", "failed", conditions.MESSAGE_LOCK_LOST),
        ("manage", "ok"),
    ]
    assert [one["cause"] for one in world.ledger.lines] == ["consumer", "consumer", "application"]


async def test_a_request_that_can_be_answered_no_more_is_unknown() -> None:
    world = World()
    world.ask("peek-message")
    world.records.lost("gone")
    world.records.lost("gone")
    world.answer()
    assert await world.recorded() == [("manage", "unknown", "gone")]


async def test_messages_received_by_number_are_named_when_their_tokens_settle_them() -> None:
    world = World()
    world.ask("receive-by-sequence-number")
    world.answer(messages=[{"message": message(7), "lock-token": TOKEN}, {"message": "foreign"}])
    world.ask("update-disposition", **settling("completed", TOKEN))
    world.answer()
    world.ask("update-disposition", **settling("suspended", TOKEN))
    world.answer(status=410)
    world.ask("receive-by-sequence-number")
    world.answer(messages=[])
    assert await world.recorded() == [
        ("manage", "ok"),
        ("receive", "m-7", "ok"),
        ("complete", "m-7", "ok"),
        ("dead_letter", "failed", "status 410"),
    ]


def settling(status: str, *tokens: UUID) -> dict[str, Any]:
    return {"disposition-status": status, "lock-tokens": Array([*tokens])}


@pytest.mark.parametrize(
    "body", [{}, settling("unheard-of", TOKEN), {"disposition-status": "completed"}]
)
async def test_a_settlement_that_no_service_takes_is_a_request(body: dict[str, Any]) -> None:
    world = World()
    world.ask("update-disposition", **body)
    world.answer(status=400)
    assert await world.recorded() == [("manage", "failed", "status 400")]


async def test_what_is_not_answered_and_not_settled_is_bounded() -> None:
    world = World()
    for number in range(ASKED_MAX + 5):
        world.ask("peek-message", number)
    assert len(await world.recorded()) == 5
    world.records.lost("gone")
    assert len(await world.recorded()) == ASKED_MAX + 5
    for number in range(TOKENS_MAX + 5):
        world.ask("receive-by-sequence-number")
        world.answer(messages=[{"message": b"m", "lock-token": UUID(int=number)}])
    assert len(world.records.received._by_token) == TOKENS_MAX


async def test_settlements_of_a_receiver_end_once_with_the_primary_s_answer() -> None:
    world = World()
    receiver = world.receiver
    states = [
        Accepted(),
        Modified(delivery_failed=True),
        Modified(undeliverable_here=True),
        Rejected(),
        Released(),
        None,
        Accepted(),
    ]
    for number, state in enumerate(states):
        receiver.received(number, message(number))
        receiver.settled(number, number + 100, state, is_answered=True)
    await asyncio.sleep(0)
    world.ledger.lines.clear()
    refusal = Rejected(error=Error(condition=conditions.MESSAGE_LOCK_LOST, description="no"))
    confirmed = Rejected(error=Error(condition=conditions.DEAD_LETTER, description=""))
    answers: list[object] = [
        Accepted(),
        Modified(),
        Modified(),
        confirmed,
        Released(),
        None,
        refusal,
    ]
    for number, answer in enumerate(answers):
        receiver.confirmed(number + 100, answer)
        receiver.not_confirmed(number + 100, "gone")
    assert sorted(await world.recorded()) == [
        ("abandon", "m-1", "ok"),
        ("complete", "m-0", "ok"),
        ("complete", "m-6", "failed", conditions.MESSAGE_LOCK_LOST),
        ("dead_letter", "m-3", "ok"),
        ("defer", "m-2", "ok"),
        ("release", "m-4", "ok"),
        ("release", "m-5", "ok"),
    ]


async def test_a_settlement_that_is_not_answered_is_unknown() -> None:
    world = World()
    receiver = world.receiver
    receiver.received(1, message(1))
    receiver.settled(1, 101, Accepted(), is_answered=True)
    receiver.not_confirmed(101, "gone")
    receiver.received(2, message(2))
    receiver.settled(2, 102, Accepted(), is_answered=False)
    receiver.confirmed(102, Accepted())
    receiver.received(None, message(3), is_deleted=True)
    deleted = [one for one in await world.recorded() if one[1] == "m-3"]
    assert [one[0] for one in deleted] == ["receive"]
    assert "deleted" in deleted[0]
    found = [one[:3] for one in await world.recorded() if one[0] != "receive"]
    assert found == [("complete", "m-1", "unknown"), ("complete", "m-2", "unknown")]
    assert world.receiver._held == {}


async def test_what_a_client_leaves_unsettled_is_recorded_when_its_link_ends() -> None:
    world = World()
    receiver = world.receiver
    for number in range(3):
        receiver.received(number, message(number))
    receiver.settled(0, 100, Accepted(), is_answered=True)
    receiver.in_transaction(1)
    receiver.ended()
    receiver.ended()
    receiver.came_too_late(message(3), is_deleted=False)
    receiver.came_too_late(message(4), is_deleted=True)
    receiver.confirmed(100, Accepted())
    found = [one for one in await world.recorded() if one[0] != "receive"]
    assert found == [
        ("release", "m-2", "failed", NOT_SETTLED, "left"),
        ("release", "m-3", "failed", LINK_CLOSED),
        ("complete", "m-0", "ok"),
    ]


async def test_a_session_is_asked_for_once() -> None:
    world = World()
    for end in ("given", "free", "refused", "lost"):
        receiver = world.receiver
        receiver.session_given()
        receiver.asks_session = True
        if end == "given":
            receiver.session_given()
        elif end == "lost":
            receiver.session_refused("", "gone")
        else:
            is_free = end == "free"
            receiver.session_refused(conditions.TIMEOUT if is_free else conditions.UNAUTHORIZED, "")
        receiver.session_refused("", "gone")
    assert await world.recorded() == [
        ("manage", "ok"),
        ("manage", "ok"),
        ("manage", "failed", conditions.UNAUTHORIZED),
        ("manage", "unknown", "gone"),
    ]
