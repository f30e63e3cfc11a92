"""The ledger lines of receiving links: deliveries, settlements, sessions; each exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.client.test_receiving import ANSWER_S, NAMESPACE, TAG, World, error_of
from twinbus.amqp.events import DeliveryArrived
from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.types import Described, Symbol
from twinbus.client.connection import RECEIVE, NamespaceConnection
from twinbus.client.consumer_records import NOT_SETTLED, records_of
from twinbus.client.links import UpstreamConnection
from twinbus.client.outcomes import COMPLETE, RELEASE, abandon, dead_letter, defer
from twinbus.client.receiving import NEXT_SESSION, SESSION_FILTER, Delivery
from twinbus.ledger import NullLedger
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import endpoint_of
from twinbus.servicebus import conditions
from twinbus.servicebus.names import SEQUENCE_NUMBER
from twinbus.testing.virtual_time import run_virtual


class Kept:
    """A ledger that keeps lines as dicts, and how often it was called."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.calls = 0

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        self._keep({"operation": operation, **fields})

    def record_deliveries(self, operation: str, shared: Any, at_ms: Any, rows: Any) -> None:
        self.calls += 1
        for message_id, size_bytes, number, _ in rows:
            of_message = {"message_id": message_id, "sequence_number": number, "size": size_bytes}
            self._keep({"operation": operation, **dict(shared), **of_message})

    def _keep(self, fields: dict[str, Any]) -> None:
        self.lines.append({name: value for name, value in fields.items() if value is not None})

    def recorded(self) -> list[tuple[Any, ...]]:
        names = ("operation", "message_id", "outcome", "error", "state")
        return [tuple(one[name] for name in names if name in one) for one in self.lines]


class Recorded(World):
    """A receiving link with a ledger."""

    def __init__(self, answer_s: float = ANSWER_S, **options: Any) -> None:
        self.ledger = Kept()
        requests = BilledRequests(
            "contoso", cause="consumer", side="primary", pair="contoso+dr", ledger=self.ledger
        )
        super().__init__(
            upstream=UpstreamConnection(NAMESPACE, answer_s, requests=requests), **options
        )

    def bring(self, *numbers: int, settled: bool = False) -> list[Delivery]:
        """Bring messages with these delivery ids and sequence numbers in one read."""
        before = len(self.arrived)
        self.amqp.count_incoming(len(numbers))
        self.upstream._on_deliveries(
            [
                DeliveryArrived(self.amqp, number, TAG, 0, settled, message(number))
                for number in numbers
            ]
        )
        return self.arrived[before:]


def message(number: int) -> bytes:
    return encode_message(
        message_annotations={Symbol(SEQUENCE_NUMBER): number},
        properties=Properties(message_id=f"m-{number}"),
        data=b"body",
    )


def opened(**options: Any) -> Recorded:
    world = Recorded(**options)
    world.answer()
    world.link.grant(100)
    return world


async def test_a_message_that_came_settled_is_recorded_as_received_and_deleted() -> None:
    """The broker records a completion for it too, and no line of a settlement follows."""
    world = opened(receive_and_delete=True)
    world.bring(1, settled=True)
    world.bring(2)
    await asyncio.sleep(0)
    assert world.ledger.recorded() == [
        ("receive", "m-1", "ok", "deleted"),
        ("receive", "m-2", "ok"),
    ]


async def test_the_deliveries_of_a_turn_are_one_group_of_lines() -> None:
    world = opened()
    world.bring(1, 2)
    world.bring(3)
    assert world.ledger.lines == []
    await asyncio.sleep(0)
    assert world.ledger.calls == 1
    assert world.ledger.recorded() == [("receive", f"m-{n}", "ok") for n in (1, 2, 3)]
    assert world.ledger.lines[2] == {
        "operation": "receive",
        "cause": "consumer",
        "pair": "contoso+dr",
        "namespace": "contoso",
        "side": "primary",
        "entity": "orders",
        "outcome": "ok",
        "message_id": "m-3",
        "sequence_number": 3,
        "size": len(message(3)),
    }


async def test_the_client_of_a_gateway_is_named() -> None:
    world = opened(gateway_client="a client")
    world.bring(1)
    await asyncio.sleep(0)
    assert world.ledger.lines[0]["client"] == "a client"


async def test_a_settlement_is_recorded_when_it_is_answered_with_what_the_service_said() -> None:
    world = opened()
    one, two, three, four, five, six = world.bring(1, 2, 3, 4, 5, 6)
    await asyncio.sleep(0)
    world.ledger.lines.clear()
    world.settle(one, six)
    world.settle(two, outcome=abandon())
    world.settle(three, outcome=defer())
    world.settle(four, outcome=dead_letter("why"))
    world.settle(five, outcome=RELEASE)
    await asyncio.sleep(0)
    assert world.ledger.lines == []
    world.confirm(1, 5)
    world.confirm(6, 6, error_of(conditions.MESSAGE_LOCK_LOST))
    await asyncio.sleep(0)
    assert world.ledger.recorded() == [
        ("complete", "m-1", "ok"),
        ("abandon", "m-2", "ok"),
        ("defer", "m-3", "ok"),
        ("dead_letter", "m-4", "ok"),
        ("release", "m-5", "ok"),
        ("complete", "m-6", "failed", conditions.MESSAGE_LOCK_LOST),
    ]
    assert {one["size"] for one in world.ledger.lines} == {0}
    assert len(world.answers) == 6


async def test_the_lines_of_one_answer_are_written_before_its_callers_go_on() -> None:
    world = opened()
    world.settle(*world.bring(1, 2, 3))
    await asyncio.sleep(0)
    world.ledger.calls = 0
    world.confirm(1, 3)
    assert world.ledger.calls == 1
    assert world.ledger.recorded()[3:] == [("complete", f"m-{n}", "ok") for n in (1, 2, 3)]
    world.bring(4)
    assert world.ledger.calls == 1
    await asyncio.sleep(0)
    assert world.ledger.recorded()[6:] == [("receive", "m-4", "ok")]


async def test_a_settlement_without_an_answer_is_unknown_and_one_not_sent_has_no_line() -> None:
    world = opened()
    sent, not_sent = world.bring(1, 2)
    world.settle(sent)
    await asyncio.sleep(0)
    world.ledger.lines.clear()
    world.settle(not_sent)
    world.detach()
    assert world.ledger.recorded() == [("complete", "m-1", "unknown", conditions.DETACH_FORCED)]
    assert len(world.answers) == 2


def test_a_settlement_that_is_not_answered_in_time_is_unknown() -> None:
    async def scenario() -> list[tuple[Any, ...]]:
        world = opened(answer_s=5.0)
        world.settle(*world.bring(1))
        await asyncio.sleep(6.0)
        return world.ledger.recorded()[1:]

    ((operation, message_id, outcome, _),) = run_virtual(scenario())
    assert (operation, message_id, outcome) == ("complete", "m-1", "unknown")


async def test_a_second_copy_is_marked_where_it_is_completed() -> None:
    world = opened()
    (copy,) = world.bring(1)
    copy.mark_second_copy()
    world.settle(copy)
    await asyncio.sleep(0)
    world.confirm(1, 1)
    await asyncio.sleep(0)
    assert world.ledger.recorded()[1:] == [("complete", "m-1", "ok", "second_copy")]


async def test_what_comes_while_a_link_closes_is_recorded_as_received_and_released_unseen() -> None:
    world = opened()
    closing = asyncio.create_task(world.link.close(0.05))
    await asyncio.sleep(0)
    world.bring(1)
    await closing
    received, released = world.ledger.recorded()
    assert received == ("receive", "m-1", "ok")
    assert released[:3] == ("release", "m-1", "unknown")


async def test_a_release_has_one_line_whether_it_could_be_sent_or_not() -> None:
    """What is released was not handed out, so its delivery must not count as one."""
    world = opened()
    first, second, third = world.bring(1, 2, 3)
    await asyncio.sleep(0)
    world.ledger.lines.clear()
    world.link.release_all([first])
    await asyncio.sleep(0)
    world.link.release_all([second])
    world.detach()
    world.link.release_all([third])
    world.link.release_all([first, second, third])
    await asyncio.sleep(0)
    # Only the first one was sent, and so may be charged.
    condition = conditions.DETACH_FORCED
    assert world.ledger.recorded() == [
        ("release", "m-1", "unknown", condition),
        ("release", "m-2", "failed", condition),
        ("release", "m-3", "failed", condition),
    ]


async def test_what_a_receiver_leaves_unsettled_is_marked() -> None:
    world = opened()
    held, settled, released, not_sent = world.bring(1, 2, 3, 4)
    world.settle(settled)
    await asyncio.sleep(0)
    world.settle(not_sent)
    world.detach()
    world.link.release_all([released])
    await asyncio.sleep(0)
    world.ledger.lines.clear()
    for delivery in (held, settled, released):
        world.link.left(delivery)
    world.link.left(not_sent, "no connection")
    await asyncio.sleep(0)
    assert world.ledger.recorded() == [
        ("release", "m-1", "failed", NOT_SETTLED, "left"),
        ("release", "m-4", "failed", "no connection", "left"),
    ]


async def test_a_message_that_cannot_be_read_is_recorded_without_names() -> None:
    world = opened()
    world.deliver(1)
    await asyncio.sleep(0)
    assert world.ledger.recorded() == [("receive", "ok")]


async def test_an_accepted_session_is_one_request_of_the_consumer() -> None:
    world = Recorded(session=NEXT_SESSION)
    world.answer({SESSION_FILTER: Described(SESSION_FILTER, "a")})
    world.detach()
    assert world.ledger.recorded() == [("manage", "ok")]
    assert world.ledger.lines[0]["cause"] == "consumer"
    assert world.ledger.lines[0]["entity"] == "orders"


@pytest.mark.parametrize(
    ("condition", "recorded"),
    [
        (conditions.TIMEOUT, ("manage", "ok")),
        (conditions.SESSION_TAKEN, ("manage", "ok")),
        (conditions.UNAUTHORIZED, ("manage", "failed", conditions.UNAUTHORIZED)),
    ],
)
async def test_a_session_that_is_not_given_is_one_request_too(
    condition: str, recorded: tuple[str, ...]
) -> None:
    world = Recorded(session=NEXT_SESSION)
    world.detach(condition)
    world.link._withdraw()
    assert world.ledger.recorded() == [recorded]


async def test_a_session_whose_attach_is_not_answered_is_unknown() -> None:
    world = Recorded(session="a")
    world.link._withdraw()
    assert world.ledger.recorded()[0][:2] == ("manage", "unknown")
    assert len(world.ledger.lines) == 1


async def test_without_a_ledger_nothing_is_read() -> None:
    requests = BilledRequests("contoso", cause="consumer", ledger=NullLedger())
    loop = asyncio.get_running_loop()
    assert records_of(requests, "orders", loop) is None
    assert records_of(None, "orders", loop) is None
    world = World()
    world.answer()
    world.link.grant(1)
    (delivery,) = world.deliver(1)
    assert delivery.names == (None, None)
    world.settle(delivery, outcome=COMPLETE)
    world.confirm(1, 1)
    assert world.answers == [None]


class Node:
    """A `$management` node whose answer the test gives."""

    def __init__(self) -> None:
        self.has_credit = asyncio.Event()
        self.answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def wait_for_credit(self) -> None:
        await self.has_credit.wait()

    def send(self, headers: Any, body: Any) -> asyncio.Future[dict[str, Any]]:
        return self.answer


class Line(NamespaceConnection):
    """A connection with one node, and no socket."""

    def __init__(self) -> None:
        self.ledger = Kept()
        requests = BilledRequests("contoso", cause="consumer", ledger=self.ledger)
        super().__init__(endpoint_of(NAMESPACE), lambda _: None, requests=requests)
        self.node = Node()

    async def authorize(self, path: str) -> bool:
        return False

    async def _node(self, address: str) -> Any:
        return self.node

    def ask(self, operation: str = "peek-message") -> asyncio.Task[dict[str, Any]]:
        return asyncio.create_task(self.request("orders", operation, {}))


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_request_whose_caller_gave_up_is_unknown_if_it_was_sent(is_sent: bool) -> None:
    line = Line()
    if is_sent:
        line.node.has_credit.set()
    asking = line.ask()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [one[:2] for one in line.ledger.recorded()] == [("manage", "unknown")] * is_sent


async def test_a_receive_by_number_is_a_request_only_if_it_brought_nothing() -> None:
    for messages, recorded in (([{"message": b"m"}], []), ([], [("manage", "ok")])):
        line = Line()
        line.node.has_credit.set()
        line.node.answer.set_result({"messages": messages})
        await line.ask(RECEIVE)
        assert line.ledger.recorded() == recorded
