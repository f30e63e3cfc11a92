"""A client's receiver link with both sides of an entity behind it, in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.unit.gateway.twin_world import TwinWorld, number_of, text_of
from twinbus.amqp.budgets import Budget
from twinbus.amqp.link import LinkState
from twinbus.amqp.performatives import Modified, Source, encode_state
from twinbus.amqp.types import Array, Symbol
from twinbus.broker.links.receiving import SESSION_FILTER
from twinbus.gateway.credit_turns import LOOK_S, SILENT_S
from twinbus.gateway.node_requests import Holding
from twinbus.gateway.twin_receiver import BEYOND_BYTES, PRIMARY_FIRST_S
from twinbus.gateway.twin_requests import SETTLE_S
from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.receivers import ANSWER_LEAST_S
from twinbus.pairing.receiving.watchdog import DRAIN_ANSWER_S
from twinbus.servicebus.twins import DIVERTED, SECONDARY_BIT, DivertMark

pytestmark = pytest.mark.virtual_time

PRIMARY, SECONDARY = Side


@pytest.mark.parametrize("credit", [1, 3, 50])
async def test_messages_of_both_sides_arrive_and_are_settled_where_they_came_from(
    credit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    world.put(PRIMARY, "a", "b", "c")
    world.put(SECONDARY, "x", "y", "z")
    await world.open()
    done = 0
    while done < 6:
        world.link.grant(credit)
        await world.run(0.1)
        assert done < len(world.got) <= done + credit
        world.complete(*world.texts[done:])
        done = len(world.got)
        await world.run(0.1)
    assert sorted(world.texts) == ["a", "b", "c", "x", "y", "z"]
    twins = [text_of(event) for event in world.got if number_of(event) & SECONDARY_BIT]
    assert sorted(twins) == ["x", "y", "z"]
    assert [world.left(side) for side in Side] == [0, 0]
    assert sum(one.last - one.first + 1 for one in world.answers) == 6
    await world.close()


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("credit", [1, 4, 30])
async def test_no_more_is_taken_from_the_sides_than_the_client_can_take(
    settled: bool, credit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    names = [f"{number:02}" for number in range(40)]
    for side in Side:
        world.put(side, *(f"{side}{name}" for name in names))
    await world.open(settled=settled)
    world.link.grant(credit)
    await world.run(5)
    assert len(world.got) == credit
    taken = [len(names) - world.left(side) if settled else world.locked(side) for side in Side]
    assert sum(taken) == credit
    await world.close()
    assert sum(len(names) - world.left(side) for side in Side) == (credit if settled else 0)


async def test_messages_that_come_later_are_received_within_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = TwinWorld(monkeypatch)
    await world.open()
    world.link.grant(1)
    await world.run(3)
    for side in (SECONDARY, PRIMARY, PRIMARY, SECONDARY):
        world.put(side, f"m{len(world.got)}")
        count = len(world.got)
        await world.run(LOOK_S + 0.2)
        assert len(world.got) == count + 1
        world.link.grant(1)
    await world.close()


@pytest.mark.parametrize("ready", [(0, 0), (2, 0), (0, 2), (3, 3)])
async def test_a_drain_is_answered_after_what_both_sides_have(
    ready: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    for side, count in zip(Side, ready, strict=True):
        world.put(side, *(f"{side}{number}" for number in range(count)))
    await world.open()
    world.link.grant(5, drain=True)
    await world.run(0.5)
    assert len(world.got) == min(5, sum(ready))
    assert (world.link.is_draining, world.link.credit) == (False, 0)
    await world.close()


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("gone", Side)
async def test_the_link_stays_while_a_side_is_killed_and_comes_back(
    gone: Side, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    await world.open(settled=settled)
    world.link.grant(10)
    await world.run(1.5)
    world.ends[gone].kill()
    await world.run(1)
    world.put(gone.other, "during")
    await world.run(1.5)
    assert world.texts == ["during"]
    world.ends[gone].is_down = False
    world.put(gone, "after")
    await world.run(20)
    assert world.texts == ["during", "after"]
    assert world.detached == []
    await world.close()


@pytest.mark.parametrize("hung", Side)
async def test_a_side_that_hangs_holds_up_the_other_for_seconds_only(
    hung: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    await world.open()
    world.link.grant(10)
    await world.run(1.5)
    world.ends[hung].hang()
    await world.run(1.2)
    world.put(hung.other, "during")
    await world.run(2)
    assert world.texts == ["during"]
    world.put(hung.other, *(f"m{number}" for number in range(5)))
    await world.run(2)
    assert len(world.got) == 6
    world.ends[hung].is_down = False
    world.put(hung, "after")
    await world.run(60)
    assert world.texts[-1] == "after"
    assert world.detached == []
    await world.close()


async def test_with_receive_and_delete_a_hang_delays_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Credit that a side may still use is not given to the other one."""
    world = TwinWorld(monkeypatch)
    await world.open(settled=True)
    world.link.grant(1)
    await world.run(1.5)
    world.ends[SECONDARY].hang()
    world.put(PRIMARY, "a", "b")
    await world.run(8)
    assert world.texts == ["a"]
    world.link.grant(1)
    await world.run(8)
    assert world.texts == ["a", "b"]
    await world.close()
    assert world.left(PRIMARY) == 0


@pytest.mark.parametrize("is_too_much", [False, True])
async def test_deleted_messages_that_wait_for_credit_count_with_the_client(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_too_much: bool
) -> None:
    world = TwinWorld(monkeypatch)
    await world.open(settled=True)
    world.link.grant(10)
    await world.run(0.3)
    (receiver,) = world.twins.open
    held = world.client.peer.budgets.held_bytes
    before, held.limit = held.used, held.used + 2 * BEYOND_BYTES + 300
    receiver.link.credit = 0  # The client takes it back, and the primary does not know yet.
    world.put(PRIMARY, *("abc" if is_too_much else "ab"))
    await world.run(0.3)
    if is_too_much:
        [detached] = world.detached
        assert detached.error is not None
        assert detached.error.condition == "amqp:resource-limit-exceeded"
        assert "3 messages that were received and deleted are lost" in caplog.text
        assert held.used <= before
    else:
        assert held.used > before + 2 * BEYOND_BYTES
        world.link.grant(10)
        await world.run(0.3)
        assert (world.texts, world.detached) == (["a", "b"], [])
        assert held.used == before
    await world.close()


async def test_the_link_is_detached_when_neither_side_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = TwinWorld(monkeypatch)
    await world.open()
    world.ends[SECONDARY].kill()
    await world.run(2)
    assert world.detached == []
    world.ends[PRIMARY].kill()
    await world.run(2)
    [detached] = world.detached
    assert detached.error is not None
    assert detached.error.condition == "amqp:link:detach-forced"
    await world.close()


async def test_the_link_stays_if_the_other_side_is_back_and_its_next_attempt_not_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = TwinWorld(monkeypatch)
    await world.open()
    world.link.grant(10)
    world.ends[PRIMARY].kill()
    await world.run(31)
    world.ends[PRIMARY].is_down = False
    world.ends[SECONDARY].kill()
    world.put(PRIMARY, "a")
    await world.run(2)
    assert world.texts == ["a"]
    assert world.detached == []
    await world.close()


async def test_settlements_of_a_side_that_is_down_hold_up_the_client_for_seconds_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that awaits each of them receives nothing from the other side meanwhile."""
    world = TwinWorld(monkeypatch)
    names = [f"m{number}" for number in range(10)]
    world.put(PRIMARY, *names)
    await world.open()
    world.link.grant(len(names))
    await world.run(2)
    world.ends[PRIMARY].kill()
    for number, name in enumerate(names):
        world.complete(name)
        while len(world.answers) <= number:
            await world.run(0.1)
    assert asyncio.get_running_loop().time() - world.ends[PRIMARY].killed_at < SETTLE_S + 2
    assert all("message-lock-lost" in str(one.state) for one in world.answers)
    await world.close()


async def test_settlements_of_a_side_that_hangs_hold_up_the_client_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = TwinWorld(monkeypatch)
    names = [f"m{number}" for number in range(10)]
    world.put(PRIMARY, *names)
    await world.open()
    world.link.grant(len(names))
    await world.run(2)
    world.ends[PRIMARY].hang()
    began = asyncio.get_running_loop().time()
    for number, name in enumerate(names):
        world.complete(name)
        while len(world.answers) <= number:
            await world.run(0.1)
    # One answer is waited for, and each round of this loop takes 0.15 s.
    assert asyncio.get_running_loop().time() - began < ANSWER_LEAST_S + len(names) * 0.15 + 0.5
    assert all("message-lock-lost" in str(one.state) for one in world.answers)
    await world.close()


async def test_settlements_hold_up_the_client_once_when_a_drain_finds_that_a_side_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = TwinWorld(monkeypatch)
    names = [f"m{number}" for number in range(4)]
    world.put(PRIMARY, *names)
    await world.open()
    world.link.grant(2 * len(names))
    await world.run(2)
    world.ends[PRIMARY].hang(accepts=True)
    began = asyncio.get_running_loop().time()
    # The look at the twin begins with a drain, which ends before the first settlement does.
    await world.run(2 * LOOK_S)
    for number, name in enumerate(names):
        world.complete(name)
        while len(world.answers) <= number:
            await world.run(0.1)
    found_s = LOOK_S + DRAIN_ANSWER_S
    assert asyncio.get_running_loop().time() - began < found_s + SETTLE_S + len(names) * 0.15 + 0.5
    await world.close()


@pytest.mark.parametrize("down", [(PRIMARY,), (SECONDARY,), (PRIMARY, SECONDARY)])
async def test_a_link_can_be_attached_while_one_side_is_down(
    down: tuple[Side, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    for side in down:
        world.ends[side].kill()
    await world.open()
    await world.run(1)
    if len(down) == 2:
        [detached] = world.detached
        assert detached.error is not None
        assert detached.error.condition == "com.microsoft:server-busy"
    else:
        world.put(down[0].other, "a")
        world.link.grant(1)
        await world.run(1)
        assert world.texts == ["a"]
    await world.close()


async def test_a_link_is_attached_at_once_while_the_primary_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The SDK of JavaScript closes a link whose drain takes a second, and attaches another one.
    world = TwinWorld(monkeypatch)
    await world.open()
    world.link.detach()
    await world.run(1)
    world.ends[PRIMARY].hang()
    world.put(SECONDARY, "a")
    world.attach()
    world.link.grant(1)
    await world.run(PRIMARY_FIRST_S + 0.5)
    assert world.texts == ["a"]
    assert world.detached == []
    await world.close()


async def test_an_entity_that_the_primary_does_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = TwinWorld(monkeypatch, in_primary=False)
    await world.open()
    [detached] = world.detached
    assert detached.error is not None
    assert detached.error.condition == "amqp:not-found"
    await world.close()


@pytest.mark.parametrize("marked", [False, None])
async def test_a_namesake_without_the_mark_is_never_received_from(
    marked: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch, marked=marked)
    world.put(SECONDARY, "foreign")
    world.put(PRIMARY, "a")
    await world.open()
    world.link.grant(5)
    await world.run(400, step_s=1)
    assert world.texts == ["a"]
    assert not world.ends[SECONDARY]
    world.ends[PRIMARY].kill()
    await world.run(1)
    assert len(world.detached) == 1
    await world.close()


@pytest.mark.parametrize(
    ("source", "address"),
    [
        (Source(filter={SESSION_FILTER: None}), "q"),
        (Source(filter={Symbol("apache.org:selector-filter:string"): "x = 1"}), "q"),
        (Source(distribution_mode="copy"), "q"),
        (Source(), "other"),
        (Source(), "q/x-servicebus-transfer/0"),
    ],
)
async def test_sessions_browsers_filters_and_other_entities_go_to_the_primary_alone(
    source: Source, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    link: Any = SimpleNamespace(source=source)
    links = Holding(Budget("this connection", "links"))
    assert world.twins.receiver(world.client.peer, link, address, 0, links=links) is None
    assert links.amount == 0
    await world.close()


def token_of(world: TwinWorld) -> Array:
    """The lock token of the one message that the client got."""
    [got] = world.got
    return Array([UUID(bytes_le=got.tag)])


async def copies(world: TwinWorld, first: Side, *, complete: bool = True) -> None:
    """Let the client receive one copy of a message; then the other side has another one."""
    mark = {DIVERTED: DivertMark(world.label, 1).text()}
    for side in (first, first.other):
        world.put(side, "a", properties=mark if side is SECONDARY else None)
        await world.run(2)
        if side is first and complete:
            world.complete("a")
            await world.run(0.5)


@pytest.mark.parametrize("first", Side)
async def test_a_second_copy_is_completed_and_not_handed_out(
    first: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    await world.open()
    world.link.grant(10)
    await copies(world, first)
    assert world.texts == ["a"]
    assert [world.left(side) for side in Side] == [0, 0]
    # It has used none of the client's credit.
    world.put(first, *(f"m{number}" for number in range(20)))
    await world.run(2)
    assert len(world.got) == 10
    await world.close()


@pytest.mark.parametrize("first", Side)
@pytest.mark.parametrize("by_token", [False, True])
async def test_a_second_copy_is_known_to_the_next_link_of_the_client(
    first: Side, by_token: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    await world.open()
    world.link.grant(10)
    mark = {DIVERTED: DivertMark(world.label, 1).text()}
    world.put(first, "a", properties=mark if first is SECONDARY else None)
    await world.run(2)
    if not by_token:
        world.complete("a")
        await world.run(0.5)
    # As the SDK of JavaScript does when a drain is not answered in time.
    world.link.detach()
    await world.run(1)
    if by_token:
        settled = {"disposition_status": "completed", "lock_tokens": token_of(world)}
        assert await world.ask("update-disposition", **settled) == 200
    world.attach()
    await world.run(0.3)
    world.link.grant(10)
    world.put(first.other, "a", properties=mark if first is PRIMARY else None)
    await world.run(2)
    assert world.texts == ["a"]
    assert [world.left(side) for side in Side] == [0, 0]
    await world.close()


@pytest.mark.parametrize("first", Side)
async def test_a_copy_of_a_message_that_is_not_completed_is_handed_out(
    first: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    await world.open()
    world.link.grant(10)
    await copies(world, first, complete=False)
    assert world.texts == ["a", "a"]
    await world.close()


async def test_a_message_that_was_abandoned_is_handed_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = TwinWorld(monkeypatch)
    await world.open()
    world.link.grant(10)
    world.put(SECONDARY, "a", properties={DIVERTED: DivertMark(world.label, 1).text()})
    await world.run(2)
    number = world.got[0].delivery_id
    world.session.dispose(number, number, encode_state(Modified(delivery_failed=True)))
    await world.run(2)
    assert world.texts == ["a", "a"]
    await world.close()


@pytest.mark.parametrize("side", Side)
async def test_a_settlement_whose_link_was_lost_is_made_by_lock_token(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    world.put(side, "a")
    await world.open()
    world.link.grant(1)
    await world.run(2)
    world.ends[side].kill()
    await world.run(0.2)
    world.complete("a")
    await world.run(0.1)
    world.ends[side].is_down = False
    await world.run(5)
    assert world.left(side) == 0
    assert [type(one.state).__name__ for one in world.answers] == ["Accepted"]
    await world.close()


@pytest.mark.parametrize("side", Side)
async def test_a_settlement_that_no_side_answers_is_a_lost_lock(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    world.put(side, "a")
    await world.open()
    world.link.grant(1)
    await world.run(2)
    world.ends[side].kill()
    world.complete("a")
    await world.run(10)
    [answer] = world.answers
    assert "message-lock-lost" in str(answer.state)
    assert world.link.state is LinkState.OPEN
    # The SDK of JavaScript would go on renewing it for minutes.
    world.ends[side].is_down = False
    assert await world.ask("renew-lock", lock_tokens=token_of(world)) == 410
    await world.close()


@pytest.mark.parametrize("side", Side)
async def test_what_is_on_its_way_when_the_client_detaches_is_released(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TwinWorld(monkeypatch)
    await world.open()
    world.link.grant(5)
    await world.run(SILENT_S)
    world.link.detach()
    world.put(side, "a", "b")
    await world.run(1)
    assert world.locked(side) == 0
    assert world.left(side) == 2
    assert world.twins.open == set()
    await world.close()


async def test_settlements_right_before_a_detach_count(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TwinWorld(monkeypatch)
    world.put(PRIMARY, "a")
    world.put(SECONDARY, "x")
    await world.open()
    world.link.grant(2)
    await world.run(2)
    world.complete("a", "x")
    world.link.detach()
    await world.run(1)
    assert [world.left(side) for side in Side] == [0, 0]
    await world.close()
