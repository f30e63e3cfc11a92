"""Twins come home: the syphon empties marked queues of the secondary into their namesakes."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.corpus import raw_messages, sdk_messages
from tests.contract.pairs import quick, until
from tests.contract.roads import Roads
from tests.contract.test_fidelity import DUE_S, facts
from tests.end_to_end import syphon_worker
from tests.ledger_reading import read
from tests.official_sdk import administration, async_client, client, receive_all
from tests.processes import ENTRY, ServedBroker, line_of, run_twinbus, started
from twinbus import EmbeddedBroker, pair_namespaces
from twinbus.amqp.encoding import string
from twinbus.amqp.message import APPLICATION_PROPERTIES, join, split
from twinbus.client.twins import found_twins
from twinbus.ledger import LedgerWriter
from twinbus.namespace.access import endpoint_of
from twinbus.options import SendAvailabilityOptions
from twinbus.servicebus.twins import DIVERTED, DivertMark, FoundTwin, twin_mark
from twinbus.syphon.core.pacing import Rate
from twinbus.syphon.draining import DrainStats, drain
from twinbus.syphon.host import SyphonGroup, SyphonHost
from twinbus.syphon.twin_search import OUTAGE, TwinSearch
from twinbus.transfer.sdk import to_backlog_message
from twinbus.transfer.sections import entries_of, with_entries

pytestmark = pytest.mark.contract

TWIN = "orders"
PATIENCE_S = 60.0
LOCK = timedelta(seconds=6)
"""Short, so that a killed syphon's messages come back while a test waits."""


class Sides:
    """A primary and a secondary whose queue `orders` is the twin of the primary's."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.primary = broker.connection_string("contoso")
        self.secondary = broker.connection_string("contoso-dr")
        self.label = "contoso"
        with administration(self.primary) as admin:
            admin.create_queue(TWIN)
        self.create_twin(TWIN)

    def create_twin(self, path: str, **settings: Any) -> None:
        settings.setdefault("user_metadata", twin_mark(self.label))
        with administration(self.secondary) as admin:
            admin.create_queue(path, lock_duration=LOCK, **settings)

    def divert(self, messages: list[ServiceBusMessage], path: str = TWIN) -> None:
        """Put messages into the twin as a paired sender does."""
        for message in messages:
            custom = dict(message.application_properties or {})
            message.application_properties = {**custom, DIVERTED: DivertMark(self.label).text()}
        self.send(self.secondary, messages, path)

    def send(self, text: str, messages: list[ServiceBusMessage], path: str = TWIN) -> None:
        with client(text) as sdk, sdk.get_queue_sender(path) as sender:
            for at in range(0, len(messages), 100):
                sender.send_messages(messages[at : at + 100])

    def ids(self, text: str, path: str = TWIN) -> Counter[str]:
        """The ids of the messages in a queue; received and deleted."""
        with (
            client(text) as sdk,
            sdk.get_queue_receiver(path, receive_mode="receiveanddelete") as receiver,
        ):
            return Counter(str(one.message_id) for one in receive_all(receiver))

    def host(self, **settings: Any) -> SyphonHost:
        return SyphonHost(self.primary, self.secondary, [], twins=[TWIN], **settings)

    def drain(self, **settings: Any) -> DrainStats:
        work = drain(self.primary, self.secondary, [], twins=[TWIN], idle_s=0.2, **settings)
        return asyncio.run(asyncio.wait_for(work, PATIENCE_S))

    def twins(self) -> dict[str, FoundTwin]:
        found = asyncio.run(found_twins(endpoint_of(self.secondary), self.label))
        return {one.path: one for one in found}


@pytest.fixture
def sides() -> Iterator[Sides]:
    with EmbeddedBroker("contoso", "contoso-dr") as broker:
        yield Sides(broker)


def numbered(count: int, prefix: str = "m") -> list[ServiceBusMessage]:
    return [ServiceBusMessage(f"body {n}", message_id=f"{prefix}-{n}") for n in range(count)]


def each_once(count: int, prefix: str = "m") -> Counter[str]:
    return Counter(f"{prefix}-{n}" for n in range(count))


def test_messages_come_home_and_the_ledger_names_the_twin(sides: Sides, tmp_path: Path) -> None:
    sides.divert(numbered(300))
    with LedgerWriter(tmp_path) as ledger:
        stats = sides.drain(ledger=ledger)
    assert (stats.forwarded, stats.completed, stats.dead_lettered) == (300, 300, 0)
    assert sides.twins()[TWIN].waiting == 0
    assert sides.ids(sides.primary) == each_once(300)
    records = [one for one in read(tmp_path) if one.get("message_id") == "m-7"]
    primary, secondary = sides.label, endpoint_of(sides.secondary).label
    assert {
        (one["cause"], one["pair"], one["entity"], one["backlog_queue"]) for one in records
    } == {("syphon", f"{primary}+{secondary}", TWIN, TWIN)}
    seen = [(one["operation"], one["side"], one["namespace"], one["outcome"]) for one in records]
    assert seen == [
        ("backlog_receive", "secondary", secondary, "ok"),
        ("forward", "primary", primary, "ok"),
        ("complete", "secondary", secondary, "ok"),
    ]
    counts = Counter(one["operation"] for one in read(tmp_path) if "message_id" in one)
    assert counts == {"backlog_receive": 300, "forward": 300, "complete": 300}


async def test_everything_arrives_as_if_sent_straight(sides: Sides) -> None:
    roads = Roads(sides.broker)
    later = datetime.now(UTC) + timedelta(seconds=DUE_S)
    wires = raw_messages()
    count = len(wires) + len(sdk_messages(later))

    async def put(text: str, *, is_marked: bool) -> None:
        async with roads.client(text) as raw:
            sender = await raw.sender(TWIN)
            for wire in wires.values():
                await sender.room()
                await sender.send(marked(wire, sides.label) if is_marked else wire)
        async with async_client(text) as sdk, sdk.get_queue_sender(TWIN) as other:
            await other.send_messages(sdk_messages(later))

    await put(sides.primary, is_marked=False)
    straight = await roads.received(TWIN, count)
    await put(sides.secondary, is_marked=True)
    host = sides.host()
    await host.start()
    pump = host.relays[0].pump
    await until(lambda: pump.completed == count, what=lambda: pump)
    await host.close()
    home = await roads.received(TWIN, count)
    for name, wire in straight.items():
        assert facts(home[name]) == facts(wire), name


def marked(wire: bytes, label: str) -> bytes:
    """A raw message with the mark of a divert, which says that the primary may have a copy."""
    sections = split(wire)
    custom = sections.application_properties
    entry = string(DIVERTED) + string(DivertMark(label, 1_800_000_000_000).text())
    sections.application_properties = with_entries(
        custom, APPLICATION_PROPERTIES, entries_of(custom), added=[entry]
    )
    return join(sections)


async def test_in_an_outage_consumers_have_the_twin_for_themselves(sides: Sides) -> None:
    await asyncio.to_thread(sides.divert, numbered(50))
    sides.broker.cut_off("contoso")
    host = sides.host()
    await host.start()
    relay = host.relays[0]
    await until(lambda: "primary" in relay.problems and relay._source is not None)
    async with (
        async_client(sides.secondary) as sdk,
        sdk.get_queue_receiver(TWIN) as receiver,
    ):
        taken: list[str] = []
        while len(taken) < 20:
            for message in await receiver.receive_messages(20 - len(taken), max_wait_time=10):
                assert message.delivery_count == 0
                await receiver.complete_message(message)
                taken.append(str(message.message_id))
    assert (relay.pump.in_flight, relay.pump.forwarded) == (0, 0)
    sides.broker.serve_again("contoso")
    await until(lambda: relay.pump.completed == 30, what=lambda: relay.problems)
    await host.close()
    home = await asyncio.to_thread(sides.ids, sides.primary)
    assert home + Counter(taken) == each_once(50)


async def test_consumers_and_syphon_at_the_same_time_lose_and_double_nothing(sides: Sides) -> None:
    count = 2_000
    await asyncio.to_thread(sides.divert, numbered(count))
    host = sides.host()
    taken: list[str] = []

    async def consume() -> None:
        async with (
            async_client(sides.secondary) as sdk,
            sdk.get_queue_receiver(TWIN) as receiver,
        ):
            while more := await receiver.receive_messages(20, max_wait_time=2):
                for message in more:
                    await receiver.complete_message(message)
                    taken.append(str(message.message_id))

    consumers = [asyncio.create_task(consume()) for _ in range(2)]
    await until(lambda: len(taken) > 50)
    await host.start()
    await asyncio.gather(*consumers)
    pump = host.relays[0].pump
    await until(lambda: pump.in_flight == 0 and len(taken) + pump.completed >= count)
    await host.close()
    assert taken
    assert pump.completed
    home = await asyncio.to_thread(sides.ids, sides.primary)
    assert home + Counter(taken) == each_once(count)


async def test_a_full_home_is_waited_for_and_no_delivery_count_grows(sides: Sides) -> None:
    from tests.official_sdk import Faults

    await asyncio.to_thread(sides.divert, numbered(20))
    faults = Faults(sides.primary)
    fault = await asyncio.to_thread(
        lambda: faults.add(
            "refuse_send", entity=TWIN, condition="amqp:resource-limit-exceeded", description="full"
        )
    )
    host = sides.host()
    await host.start()
    pump = host.relays[0].pump
    await until(lambda: "full" in pump.held.get(TWIN, ""))
    await until(lambda: pump.in_flight == 0)
    async with async_client(sides.secondary) as sdk, sdk.get_queue_receiver(TWIN) as receiver:
        waiting = await receiver.peek_messages(30)
    assert [one.delivery_count for one in waiting] == [0] * 20
    await asyncio.to_thread(faults.remove, fault)
    await until(lambda: pump.completed == 20)
    await host.close()


async def test_a_message_with_the_mark_of_another_primary_is_left_and_named(sides: Sides) -> None:
    foreign = ServiceBusMessage("x", message_id="foreign", application_properties={DIVERTED: "zzz"})
    await asyncio.to_thread(sides.send, sides.secondary, [foreign])
    await asyncio.to_thread(sides.divert, numbered(3))
    host = sides.host()
    await host.start()
    pump = host.relays[0].pump
    await until(lambda: pump.left != "" and pump.in_flight == 0)
    assert "'zzz', which is not a mark of" in host.status()[TWIN].problems["message"]
    await host.close()
    left = await asyncio.to_thread(sides.ids, sides.secondary)
    assert left["foreign"] == 1
    assert (
        sum(left.values()) + sum((await asyncio.to_thread(sides.ids, sides.primary)).values()) == 4
    )


def test_a_message_without_a_mark_in_a_marked_twin_goes_home_too(sides: Sides) -> None:
    sides.send(sides.secondary, numbered(5))
    assert sides.drain().completed == 5
    assert sides.ids(sides.primary) == each_once(5)


async def test_an_unmarked_namesake_with_live_traffic_is_never_touched(sides: Sides) -> None:
    with administration(sides.primary) as admin:
        admin.create_queue("live")
    sides.create_twin("live", user_metadata="twinbus-twin-of:somebody-else")
    await asyncio.to_thread(sides.send, sides.secondary, numbered(20), "live")
    assert "live" not in await asyncio.to_thread(sides.twins)
    # A pump that is started by mistake reads the mark before it attaches.
    host = SyphonHost(sides.primary, sides.secondary, [], twins=["live"])
    await host.start()
    relay = host.relays[0]
    await until(lambda: "is not marked as a twin" in relay.problems.get("secondary", ""))
    await asyncio.sleep(1.0)
    await host.close()
    assert relay.pump.forwarded == 0
    assert await asyncio.to_thread(sides.ids, sides.secondary, "live") == each_once(20)
    assert not await asyncio.to_thread(sides.ids, sides.primary, "live")


async def test_the_search_pumps_twins_that_hold_messages_and_stops_when_the_mark_is_gone(
    sides: Sides,
) -> None:
    group = SyphonGroup(Rate(None))
    search = TwinSearch(
        endpoint_of(sides.secondary),
        sides.label,
        group,
        lambda path: SyphonHost(sides.primary, sides.secondary, [], twins=[path]),
    )
    sides.create_twin("sessions", requires_session=True)
    with administration(sides.secondary) as admin:
        admin.create_topic("events", user_metadata=twin_mark(sides.label))
        admin.create_subscription("events", "audit")
        admin.create_queue("unmarked")
    with client(sides.secondary) as sdk, sdk.get_topic_sender("events") as sender:
        sender.send_messages(numbered(3))
    await search.search()
    assert group.hosts == []
    await asyncio.to_thread(sides.divert, numbered(10))
    await search.search()
    assert [host.twins for host in group.hosts] == [[TWIN]]
    pump = group.hosts[0].relays[0].pump
    await until(lambda: pump.completed == 10)
    await search.search()
    contents = search.contents
    assert {path: one.waiting for path, one in contents.items()} == {
        TWIN: 0,
        "sessions": 0,
        "events/Subscriptions/audit": 3,
    }
    assert contents["events/Subscriptions/audit"].consumers_only
    assert contents["sessions"].consumers_only
    with administration(sides.secondary) as admin:
        queue = admin.get_queue(TWIN)
        queue.user_metadata = "mine now"
        admin.update_queue(queue)
    await search.search()
    assert group.hosts == []
    await asyncio.to_thread(sides.send, sides.secondary, numbered(5, "own"))
    await search.search()
    assert group.hosts == []
    assert await asyncio.to_thread(sides.ids, sides.secondary) == each_once(5, "own")


def test_kill_9_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    total = 3_000
    with (
        ServedBroker(tmp_path / "one", "contoso") as primary,
        ServedBroker(tmp_path / "two", "contoso-dr") as secondary,
    ):
        texts = primary.connection_string(), secondary.connection_string()
        label = "contoso"
        with administration(texts[0]) as admin:
            admin.create_queue(TWIN)
        with administration(texts[1]) as admin:
            admin.create_queue(TWIN, user_metadata=twin_mark(label), lock_duration=LOCK)
        with client(texts[1]) as sdk, sdk.get_queue_sender(TWIN) as sender:
            messages = numbered(total)
            for message in messages:
                message.application_properties = {DIVERTED: label}
            for at in range(0, total, 100):
                sender.send_messages(messages[at : at + 100])
        order: dict[str, Any] = {"primary": texts[0], "secondary": texts[1], "window": 100}
        order |= {"queues": {"relaxed": []}, "twins": [TWIN]}
        arguments = "-m", syphon_worker.__name__, json.dumps(order)
        for _ in range(2):
            with started(*arguments) as worker:
                while int(line_of(worker)) == 0:
                    pass
                worker.kill()
            assert worker.returncode == -signal.SIGKILL
        with started(*arguments) as worker:
            worker.communicate(timeout=PATIENCE_S)
        assert worker.returncode == 0
        with (
            client(texts[0]) as sdk,
            sdk.get_queue_receiver(TWIN, receive_mode="receiveanddelete") as receiver,
        ):
            home = Counter(str(one.message_id) for one in receive_all(receiver))
    assert set(home) == set(each_once(total))
    duplicates = sum(home.values()) - total
    assert duplicates <= 2 * 200, duplicates


def test_a_drain_moves_backlog_queues_and_twins_with_their_own_rules(sides: Sides) -> None:
    """A backlog message in a twin is an ordinary message there: its aliases stay."""
    backlog = f"{sides.label}/x-servicebus-transfer/0"
    with administration(sides.secondary) as admin:
        admin.create_queue(backlog, max_delivery_count=2**31 - 1)
    with client(sides.secondary) as sdk, sdk.get_queue_sender(backlog) as sender:
        sender.send_messages([to_backlog_message(m, TWIN, now_ms=0) for m in numbered(5, "b")])
    later = datetime.now(UTC) + timedelta(hours=1)
    scheduled = ServiceBusMessage("later", message_id="later", scheduled_enqueue_time_utc=later)
    sides.divert([*numbered(5), scheduled])
    stats = asyncio.run(
        asyncio.wait_for(
            drain(
                sides.primary,
                sides.secondary,
                [backlog],
                twins=[TWIN],
                idle_s=0.2,
                options=SendAvailabilityOptions(ttl_policy="remaining"),
            ),
            PATIENCE_S,
        )
    )
    assert stats.completed == 10
    assert sides.ids(sides.primary) == each_once(5) + each_once(5, "b")
    assert (sides.twins()[TWIN].active, sides.twins()[TWIN].waiting) == (0, 1)


async def test_the_syphon_of_an_application_brings_its_twin_home(sides: Sides) -> None:
    """An outage without consumers: what was diverted to the twin is home soon after it."""
    options = quick(twins=["orders"], enable_syphon=True, attempt_timeout=2.0)
    async with (
        pair_namespaces(sides.primary, sides.secondary, options) as pair,
        pair.get_queue_sender(TWIN) as sender,
    ):
        await sender.send_messages(numbered(5, "before"))
        await until(lambda: "diverts to its twin" in str(pair.status()))
        sides.broker.cut_off("contoso")
        await sender.send_messages(numbered(20))
        assert (await asyncio.to_thread(sides.twins))[TWIN].active == 20
        assert pair.status().entities[TWIN].twinned == 20
        sides.broker.serve_again("contoso")
        await until(lambda: f"syphon {TWIN}: 20 moved" in str(pair.status()))
        assert pair.status().twins.keys() == {TWIN}
    home = await asyncio.to_thread(sides.ids, sides.primary)
    assert home == each_once(5, "before") + each_once(20)


async def test_the_syphon_of_an_application_waits_until_the_entity_is_healthy(sides: Sides) -> None:
    """The primary may hang and store what it does not answer: then both sides have a copy."""
    with administration(sides.primary) as admin:
        admin.create_queue("other")
    options = quick(twins=["orders"], enable_syphon=True)
    async with (
        pair_namespaces(sides.primary, sides.secondary, options) as pair,
        pair.get_queue_sender(TWIN) as sender,
        pair.get_queue_sender("other") as other,
    ):
        await sender.send_messages(numbered(1, "before"))
        await other.send_messages(numbered(1))
        await until(lambda: "diverts to its twin" in str(pair.status()))
        pair.force_failover(TWIN)
        await sender.send_messages(numbered(20))
        # The recovery of another entity makes the pair list its twins.
        pair.force_failover("other")
        pair.mark_healthy("other")
        await until(lambda: TWIN in (pair.status().syphon or {}))
        assert pair._syphon is not None
        [host] = [one for one in pair._syphon.group.hosts if one.twins == [TWIN]]
        assert host.relays[0].pump._receiving.paused == {OUTAGE}
        assert (await asyncio.to_thread(sides.twins))[TWIN].active == 20
        pair.mark_healthy(TWIN)
        await until(lambda: f"syphon {TWIN}: 20 moved" in str(pair.status()))
    home = await asyncio.to_thread(sides.ids, sides.primary)
    assert home == each_once(1, "before") + each_once(20)


def test_the_commands_show_drain_and_run_twins(sides: Sides, tmp_path: Path) -> None:
    sides.create_twin("sessions", requires_session=True)
    with administration(sides.secondary) as admin:
        admin.create_queue(f"{sides.label}/x-servicebus-transfer/0", max_delivery_count=2**31 - 1)
        admin.create_queue("live")
    sides.send(sides.secondary, numbered(4), "live")
    both = "--primary", sides.primary, "--secondary", sides.secondary
    environment = {"TWINBUS_RUN_DIR": str(tmp_path)}

    def done(*arguments: str) -> dict[str, Any]:
        ended = run_twinbus(*arguments, *both, "--output", "json", environment=environment)
        assert ended.returncode == 0, ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout)
        return found

    sides.divert(numbered(30))
    twins = done("backlog", "list")["twins"]
    assert [(one["path"], one["active"]) for one in twins] == [(TWIN, 30), ("sessions", 0)]
    peeked = done("backlog", "peek", "--queue", TWIN, "--max", "1")["messages"][0]
    assert (peeked["path"], peeked["problem"]) == (TWIN, "")
    drained = done("syphon", "drain")
    assert (drained["twins"], drained["forwarded"]) == ([TWIN], 30)
    refused = run_twinbus("backlog", "dead-letters", "list", "--queue", "live", *both)
    assert "is not a backlog queue" in refused.stderr
    sides.divert(numbered(30, "r"))
    command = "-c", ENTRY, "syphon", "run", *both
    with started(*command, environment=environment) as syphon:
        ends = time.monotonic() + PATIENCE_S
        while sides.twins()[TWIN].waiting:
            assert time.monotonic() < ends
            time.sleep(0.2)
        syphon.send_signal(signal.SIGTERM)
        output, _ = syphon.communicate(timeout=PATIENCE_S)
    assert "30 messages moved" in output
    assert sides.ids(sides.primary) == each_once(30) + each_once(30, "r")
    assert sides.ids(sides.secondary, "live") == each_once(4)
