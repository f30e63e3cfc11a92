"""The notice board on a real broker: posted, peeked, expired, refused, forged, slow, gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import EntityStatus

from tests.contract.pairs import embedded
from tests.contract.twin_world import RULES
from tests.official_sdk import administration, client
from tests.processes import with_key
from twinbus import EmbeddedBroker
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.faults import Fault
from twinbus.fleet import board as board_module
from twinbus.fleet.board import POST_BYTES_MAX, BoardError, NoticeBoard
from twinbus.fleet.core.board_turns import TIME_TO_LIVE_MAX_S
from twinbus.fleet.core.notices import NOTICES_MAX, Notice, encode
from twinbus.namespace.namespace import Namespace
from twinbus.servicebus import conditions
from twinbus.servicebus.names import ENTITY_NAME_MAX, board_path

pytestmark = pytest.mark.contract

PATH, SECONDARY = board_path("contoso"), "contoso-dr"
HERE, THERE = "0" * 16, "1" * 16

broker = embedded(queues=(), rules=RULES)


class Records:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, ...]] = []

    def record(self, operation: str, *, at_ms: int | None = None, **fields: Any) -> None:
        names = ("cause", "side", "namespace", "backlog_queue", "outcome")
        self.found.append((operation, *(fields.get(name) for name in names)))


def notice(entity: str = "orders", host: str = HERE, **changes: Any) -> Notice:
    given: dict[str, Any] = {"since": 1.0, "kinds": ("timeout 3",), "epoch": 1} | changes
    return Notice(entity=entity, host=host, **given)


def text_of(broker: EmbeddedBroker, rule: str | None = None) -> str:
    text = broker.connection_string(SECONDARY)
    return text if rule is None else with_key(text, rule, "k")


@pytest.fixture
def made(broker: EmbeddedBroker) -> EmbeddedBroker:
    broker.create_queue(PATH, namespace=SECONDARY)
    return broker


class Hosts:
    """Boards of several hosts, which are closed together."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._made: list[NoticeBoard] = []
        self.records = Records()

    def board(self, rule: str | None = None) -> NoticeBoard:
        namespace = Namespace.from_connection_string(text_of(self._broker, rule))
        self._made.append(NoticeBoard(namespace, "contoso", ledger=self.records))
        return self._made[-1]

    async def __aenter__(self) -> Hosts:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for one in self._made:
            await one.rest()


@contextmanager
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(board_module, "ANSWER_S", 0.5)
    yield


async def test_what_one_host_posts_the_others_find_once(made: EmbeddedBroker) -> None:
    async with Hosts(made) as hosts:
        here, there = hosts.board(), hosts.board()
        assert (await there.look(3)).messages == 0
        sent = [notice("Orders"), notice("bills", recovered=True)]
        await here.post(sent, 60.0)
        await asyncio.sleep(0.02)
        await here.post([notice(epoch=2)], 90.0)
        await here.post([notice(host=THERE)], 1e6)
        first, second = await there.look(2), await there.look(2)
        assert [one.notice for one in first.notices] == [*sent, notice(epoch=2)]
        lives = [one.valid_s for one in first.notices]
        assert lives == pytest.approx([60.0, 60.0, 90.0], abs=10.0)
        assert lives[0] < 60.0, "the first message is older than the second"
        assert [one.notice for one in second.notices] == [notice(host=THERE)]
        assert TIME_TO_LIVE_MAX_S - 10.0 <= second.notices[0].valid_s <= TIME_TO_LIVE_MAX_S
        assert (await there.look(2)).messages == 0
        await there.rest()
        assert (await there.look(2)).messages == 0
    manage = ("manage", "board", "secondary", hosts.records.found[0][3], PATH, "ok")
    assert hosts.records.found == [manage] * 8


async def test_a_notice_expires_with_its_message(made: EmbeddedBroker) -> None:
    async with Hosts(made) as hosts:
        await hosts.board().post([notice()], 0.3)
        async with asyncio.timeout(30):
            while (await hosts.board().look(1)).messages:  # noqa: ASYNC110  # only a look tells
                await asyncio.sleep(0.05)


async def test_a_board_that_is_missing_or_made_again_is_found(made: EmbeddedBroker) -> None:
    async with Hosts(made) as hosts:
        here, there = hosts.board(), hosts.board()
        await here.post([notice()], 60.0)
        assert (await there.look(1)).messages == 1
        with administration(text_of(made)) as admin:
            admin.delete_queue(PATH)
        for failing in (here.post([notice()], 60.0), there.look(1)):
            with pytest.raises(BoardError, match="missing: create it with `twinbus backlog create"):
                await failing
        made.create_queue(PATH, namespace=SECONDARY)
        await here.post([notice(epoch=3)], 60.0)
        assert [one.notice.epoch for one in (await there.look(1)).notices] == [3]


async def test_a_right_that_is_missing_is_named(made: EmbeddedBroker) -> None:
    async with Hosts(made) as hosts:
        sends, listens = hosts.board("sender"), hosts.board("listener")
        await sends.post([notice()], 60.0)
        assert (await listens.look(1)).messages == 1
        with pytest.raises(BoardError, match="needs the Listen right: grant it") as refused:
            await sends.look(1)
        assert refused.value.is_refusal
        with pytest.raises(BoardError, match="needs the Send right: grant it") as refused:
            await listens.post([notice()], 60.0)
        assert refused.value.is_refusal


async def test_a_board_that_is_disabled_or_full_refuses_posts(made: EmbeddedBroker) -> None:
    async with Hosts(made) as hosts:
        full = Fault(kind="refuse_send", entity=PATH, condition=conditions.RESOURCE_LIMIT, count=1)
        made.add_fault(full, SECONDARY)
        here = hosts.board()
        with pytest.raises(BoardError, match="is full; its messages expire") as refused:
            await here.post([notice()], 60.0)
        assert not refused.value.is_refusal
        await here.post([notice()], 60.0)
        with administration(text_of(made)) as admin:
            queue = admin.get_queue(PATH)
            queue.status = EntityStatus.SEND_DISABLED
            admin.update_queue(queue)
        with pytest.raises(BoardError, match="is disabled: set it to Active") as refused:
            await hosts.board().post([notice()], 60.0)
        assert refused.value.is_refusal


async def test_a_board_that_does_not_answer_fails_in_time_and_comes_back(
    made: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Hosts(made) as hosts:
        here = hosts.board()
        await here.post([notice()], 60.0)
        with quick(monkeypatch):
            made.add_fault(Fault(kind="hang"), SECONDARY)
            for failing in (here.post([notice()], 60.0), hosts.board().look(1)):
                async with asyncio.timeout(10):
                    with pytest.raises(BoardError, match="does not answer: ") as failed:
                        await failing
                assert not failed.value.is_refusal
        made.clear_faults(SECONDARY)
        monkeypatch.undo()
        made.cut_off(SECONDARY)
        with pytest.raises(BoardError, match="does not answer: "):
            await here.look(1)
        made.serve_again(SECONDARY)
        async with asyncio.timeout(30):
            while True:
                try:
                    assert (await here.look(9)).messages
                    break
                except BoardError:
                    await asyncio.sleep(0.05)


async def test_forged_messages_are_left_out_and_harm_no_neighbour(made: EmbeddedBroker) -> None:
    good = notice(host=THERE)
    whole = json.loads(encode([good]))
    shouting = whole | {"notices": whole["notices"] * (NOTICES_MAX + 5)}
    forged: list[Any] = [
        b"",
        b"not JSON",
        b"[" * 10_000,
        json.dumps({"v": 1, "notices": [{"entity": "x/$management"}]}).encode(),
        json.dumps(shouting).encode(),
        b" " * (POST_BYTES_MAX + 1) + encode([good]),
    ]
    with client(text_of(made)) as sdk, sdk.get_queue_sender(PATH) as sender:
        for body in forged:
            sender.send_messages(ServiceBusMessage(body, time_to_live=timedelta(days=9)))
        later = ServiceBusMessage(encode([notice(epoch=7)]))
        sender.schedule_messages(later, datetime(2090, 1, 1, tzinfo=UTC))
        sender.send_messages(ServiceBusMessage(encode([good])))
    async with Hosts(made) as hosts:
        look = await hosts.board().look(20)
    assert look.messages == len(forged) + 2
    assert look.notices
    assert {one.notice for one in look.notices} == {good}
    assert all(one.valid_s <= TIME_TO_LIVE_MAX_S for one in look.notices)


async def test_a_post_is_never_larger_than_one_billed_operation(made: EmbeddedBroker) -> None:
    longest = [notice(f"{n:03}" + "o" * (ENTITY_NAME_MAX - 3)) for n in range(NOTICES_MAX)]
    async with Hosts(made) as hosts:
        here = hosts.board()
        await here.post(longest, 60.0)
        found = (await here.look(1)).notices
    assert 50 < len(found) < NOTICES_MAX
    assert [one.notice for one in found] == longest[: len(found)]


async def test_a_board_with_sessions_refuses_posts_in_one_line(broker: EmbeddedBroker) -> None:
    broker.create_queue(PATH, QueueDescription(requires_session=True), SECONDARY)
    async with Hosts(broker) as hosts:
        with pytest.raises(BoardError, match=r"^the notice board .* does not answer: .*session"):
            await hosts.board().post([notice()], 60.0)
