"""Requests of clients about messages of an entity with a twin, and the sides that answer them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

import pytest

from twinbus.amqp.message import (
    Properties,
    decode_map,
    decode_value,
    encode_message,
    split,
)
from twinbus.amqp.types import Array, Int, Symbol, Timestamp, UInt
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.gateway.twin_requests import AGAIN_S, SETTLE_S, SecondaryLocks, TwinRequests
from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.mark_watch import NotReadable
from twinbus.servicebus.twins import SECONDARY_BIT

PRIMARY, SECONDARY = Side
HERE, THERE = UUID(int=1), UUID(int=2)
NUMBER = Symbol("x-opt-sequence-number")
Answer = Callable[[str, dict[str, Any]], dict[str, Any]]


def stored(number: int) -> bytes:
    return encode_message(message_annotations={NUMBER: number}, data=b"x")


class Receivers:
    """Two namespaces that answer requests as a test says, and note them."""

    def __init__(self) -> None:
        self.asked: list[tuple[Side, str, dict[str, Any]]] = []
        self.answers: dict[Side, Answer] = {}
        self.down: set[Side] = set()
        self.hung: set[Side] = set()
        self.heard_at = dict.fromkeys(Side, 0.0)
        self.is_marked = True
        self.records: Records | None = None

    async def require_mark(self, entity: str) -> None:
        assert entity == "q"
        if not self.is_marked:
            raise NotReadable("'q' of the secondary is not read")

    def connection(self, side: Side) -> Connection:
        return Connection(self, side)


class Records:
    """Lines of a ledger: of each message its number, and of each settlement what was done."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Any]] = []

    def received(self, data: bytes) -> Any:
        number = decode_map(split(data).message_annotations)[NUMBER]
        self.lines.append(("receive", number))
        return None, number

    def settled(self, operation: str, names: Any, error: str | None, *, is_known: bool) -> None:
        self.lines.append((operation, names[1]))


class Connection:
    def __init__(self, receivers: Receivers, side: Side) -> None:
        self._receivers, self._side = receivers, side
        self.label = str(side)

    @property
    def heard_at(self) -> float:
        return self._receivers.heard_at[self._side]

    async def opened(self) -> Connection:
        if self._side in self._receivers.down:
            raise ConnectionLost(f"the {self._side} is down")
        return self

    def records(self, path: str, client: str | None) -> Records | None:
        return self._receivers.records

    def record(self, path: str, operation: str, client: str | None) -> Any:
        return None

    async def request(
        self, path: str, operation: str, body: dict[str, Any], *, record: Any = None
    ) -> dict[str, Any]:
        assert path == "q"
        if self._side in self._receivers.hung:
            await asyncio.Event().wait()
        if record is not None:
            record(None, is_known=True)
        self._receivers.asked.append((self._side, operation, body))
        return self._receivers.answers[self._side](operation, body)


class World:
    def __init__(self) -> None:
        self.receivers = Receivers()
        self.locks = SecondaryLocks()
        self.locks.add(THERE.bytes_le)
        self.requests = TwinRequests(cast("Any", self.receivers), self.locks, "q", "q")

    async def ask(self, operation: str, **arguments: Any) -> tuple[int, str, dict[str, Any]]:
        """Status, condition and body of the answer."""
        body = {name.replace("_", "-"): value for name, value in arguments.items()}
        sections = split(
            encode_message(
                properties=Properties(message_id="7"),
                application_properties={"operation": f"com.microsoft:{operation}"},
                value=body,
            )
        )
        assert self.requests.takes(sections)
        answer = split(await self.requests.answer(sections))
        headers = decode_map(answer.application_properties)
        found = cast("dict[str, Any]", decode_value(answer.body))
        return int(str(headers["statusCode"])), str(headers.get("errorCondition", "")), found

    def answers(self, side: Side, answer: Answer) -> None:
        self.receivers.answers[side] = answer

    @property
    def sides(self) -> list[Side]:
        return [side for side, _, _ in self.receivers.asked]


def test_requests_about_sessions_and_other_operations_go_to_the_primary() -> None:
    world = World()

    def taken(operation: str, **body: Any) -> bool:
        headers = {"operation": f"com.microsoft:{operation}"}
        request = encode_message(application_properties=headers, value=body)
        return world.requests.takes(split(request))

    assert taken("peek-message")
    assert not taken("peek-message", **{"session-id": "a"})
    for other in ("schedule-message", "enumerate-rules", "renew-session-lock", "nonsense"):
        assert not taken(other)


async def test_locks_are_renewed_on_their_sides_and_the_times_are_in_the_order_asked_for() -> None:
    world = World()
    for side, time in ((PRIMARY, 1_000), (SECONDARY, 2_000)):

        def renewed(_: str, body: dict[str, Any], time: int = time) -> dict[str, Any]:
            return {"expirations": Array([Timestamp(time) for _ in body["lock-tokens"]])}

        world.answers(side, renewed)
    status, _, body = await world.ask("renew-lock", lock_tokens=Array([THERE, HERE, THERE]))
    assert (status, body["expirations"]) == (200, [2_000, 1_000, 2_000])
    assert [(side, body["lock-tokens"]) for side, _, body in world.receivers.asked] == [
        (SECONDARY, [THERE, THERE]),
        (PRIMARY, [HERE]),
    ]


async def test_a_settlement_by_token_goes_to_the_side_of_the_token() -> None:
    world = World()
    world.answers(PRIMARY, lambda *_: {})
    world.answers(SECONDARY, lambda *_: {})
    asked = {"disposition_status": "suspended", "deadletter_reason": "bad"}
    status, _, _ = await world.ask("update-disposition", lock_tokens=Array([THERE]), **asked)
    assert (status, world.sides) == (200, [SECONDARY])
    assert world.receivers.asked[0][2] == {
        "disposition-status": "suspended",
        "deadletter-reason": "bad",
        "lock-tokens": [THERE],
    }
    # It is settled, and its token means nothing any more.
    await world.ask("update-disposition", lock_tokens=Array([THERE]), **asked)
    assert world.sides == [SECONDARY, PRIMARY]


async def test_each_side_settles_for_itself_and_a_refusal_is_answered() -> None:
    world = World()

    def refuse(*_: object) -> dict[str, Any]:
        raise RequestRefused("lost", 410, "com.microsoft:message-lock-lost")

    world.answers(PRIMARY, refuse)
    world.answers(SECONDARY, lambda *_: {})
    tokens = Array([HERE, THERE])
    answer = await world.ask(
        "update-disposition", disposition_status="completed", lock_tokens=tokens
    )
    assert answer[:2] == (410, "com.microsoft:message-lock-lost")
    assert world.sides == [PRIMARY, SECONDARY]


async def test_a_settlement_that_its_side_does_not_answer_is_not_answered_as_busy() -> None:
    # The SDK of JavaScript waits 30 s before a second attempt, and receives nothing meanwhile.
    world = World()
    world.answers(SECONDARY, lambda *_: {})
    world.receivers.down = {PRIMARY}
    answer = await world.ask(
        "update-disposition",
        disposition_status="completed",
        lock_tokens=Array([HERE, THERE]),
    )
    assert answer[:2] == (410, "com.microsoft:message-lock-lost")
    assert world.sides == [SECONDARY]
    # It does not renew a lock that it was told is lost, also when the side is back.
    world.receivers.down = set()
    assert (await world.ask("renew-lock", lock_tokens=Array([HERE])))[0] == 410
    assert world.sides == [SECONDARY]


@pytest.mark.virtual_time
async def test_a_client_waits_once_for_a_side_that_hangs_until_it_is_heard_again() -> None:
    world = World()
    world.answers(PRIMARY, lambda *_: {})
    world.receivers.hung = {PRIMARY}
    loop = asyncio.get_running_loop()

    async def settle() -> int:
        tokens = Array([HERE])
        asked = {"disposition_status": "completed", "lock_tokens": tokens}
        return (await world.ask("update-disposition", **asked))[0]

    began = loop.time()
    assert [await settle() for _ in range(10)] == [410] * 10
    assert loop.time() - began == pytest.approx(SETTLE_S)
    await asyncio.sleep(AGAIN_S)
    assert await settle() == 410
    assert loop.time() - began == pytest.approx(2 * SETTLE_S + AGAIN_S)
    world.receivers.hung, world.receivers.heard_at[PRIMARY] = set(), loop.time() + 1
    assert await settle() == 200


def received(_: str, body: dict[str, Any]) -> dict[str, Any]:
    entries = [
        {"message": stored(number), "lock-token": UUID(int=number)}
        for number in body["sequence-numbers"]
    ]
    return {"messages": entries}


async def test_deferred_messages_come_from_the_side_that_their_numbers_name() -> None:
    world = World()
    for side in Side:
        world.answers(side, received)
    numbers = Array([5, 6 | SECONDARY_BIT])
    status, _, body = await world.ask(
        "receive-by-sequence-number", sequence_numbers=numbers, receiver_settle_mode=UInt(1)
    )
    assert status == 200
    assert [(side, body["sequence-numbers"]) for side, _, body in world.receivers.asked] == [
        (PRIMARY, [5]),
        (SECONDARY, [6]),
    ]
    assert [
        decode_map(split(entry["message"]).message_annotations)[NUMBER]
        for entry in body["messages"]
    ] == [5, 6 | SECONDARY_BIT]
    sides = [world.locks.side_of(entry["lock-token"].bytes_le) for entry in body["messages"]]
    assert sides == [PRIMARY, SECONDARY]


async def test_the_ledger_has_messages_received_by_number_and_settled_by_token() -> None:
    world = World()
    world.receivers.records = records = Records()
    for side in Side:
        world.answers(side, received)
    numbers = Array([5, 6 | SECONDARY_BIT])
    await world.ask("receive-by-sequence-number", sequence_numbers=numbers)
    for side in Side:
        world.answers(side, lambda *_: {})
    tokens = Array([UUID(int=5), UUID(int=6), HERE])
    await world.ask("update-disposition", disposition_status="suspended", lock_tokens=tokens)
    assert records.lines == [
        ("receive", 5),
        ("receive", 6),
        ("dead_letter", 5),
        ("dead_letter", None),
        ("dead_letter", 6),
    ]


async def test_deferred_messages_of_both_sides_are_not_received_and_deleted_at_once() -> None:
    """If the second side refused, the messages of the first would be lost."""
    world = World()
    for side in Side:
        world.answers(side, received)
    numbers = Array([5, 6 | SECONDARY_BIT])
    status, _, _ = await world.ask(
        "receive-by-sequence-number", sequence_numbers=numbers, receiver_settle_mode=UInt(0)
    )
    assert (status, world.receivers.asked) == (400, [])


def peeked(*numbers: int) -> Answer:
    def answer(_: str, body: dict[str, Any]) -> dict[str, Any]:
        found = [number for number in numbers if number >= body["from-sequence-number"]]
        return {"messages": [{"message": stored(number)} for number in found]}

    return answer


async def peek(world: World, start: int) -> list[int]:
    status, _, body = await world.ask(
        "peek-message", from_sequence_number=start, message_count=Int(10)
    )
    assert status in (200, 204)
    return [
        int(str(decode_map(split(entry["message"]).message_annotations)[NUMBER]))
        for entry in body.get("messages", ())
    ]


async def test_a_peek_goes_on_from_the_primary_to_the_twin() -> None:
    world = World()
    world.answers(PRIMARY, peeked(3, 4))
    world.answers(SECONDARY, peeked(1, 2))
    assert await peek(world, 0) == [3, 4]
    assert await peek(world, 5) == [1 | SECONDARY_BIT, 2 | SECONDARY_BIT]
    assert await peek(world, 2 | SECONDARY_BIT) == [2 | SECONDARY_BIT]
    assert await peek(world, 3 | SECONDARY_BIT) == []


async def test_a_peek_leaves_out_a_side_that_is_down_and_a_namesake_without_the_mark() -> None:
    world = World()
    world.answers(PRIMARY, peeked())
    world.answers(SECONDARY, peeked(1))
    world.receivers.down = {PRIMARY}
    assert await peek(world, 0) == [1 | SECONDARY_BIT]
    world.receivers.is_marked = False
    status, _, _ = await world.ask("peek-message", from_sequence_number=0, message_count=Int(1))
    assert status == 503
    world.receivers.down = set()
    assert await peek(world, 0) == []


@pytest.mark.parametrize("operation", ["renew-lock", "receive-by-sequence-number"])
async def test_a_namesake_without_the_mark_is_asked_nothing(operation: str) -> None:
    world = World()
    world.receivers.is_marked = False
    numbers = Array([6 | SECONDARY_BIT])
    status, _, _ = await world.ask(operation, lock_tokens=Array([THERE]), sequence_numbers=numbers)
    assert (status, world.receivers.asked) == (404, [])


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("renew-lock", {}),
        ("renew-lock", {"lock_tokens": "no list"}),
        ("update-disposition", {"lock_tokens": Array([Int(1)])}),
        ("receive-by-sequence-number", {"sequence_numbers": Array(["x"])}),
        ("peek-message", {"from_sequence_number": "x"}),
    ],
)
async def test_a_request_with_wrong_arguments_is_refused(
    operation: str, arguments: dict[str, Any]
) -> None:
    world = World()
    status, condition, _ = await world.ask(operation, **arguments)
    assert (status, condition) == (400, "com.microsoft:argument-error")
    assert world.receivers.asked == []


def test_the_oldest_locks_are_forgotten() -> None:
    locks = SecondaryLocks(2)
    for token in (b"a", b"b", b"c"):
        locks.add(token)
    assert [locks.side_of(token) for token in (b"a", b"b", b"c")] == [PRIMARY, SECONDARY, SECONDARY]
