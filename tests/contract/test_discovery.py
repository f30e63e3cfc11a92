"""How a pair comes by its backlog queues (SPEC 2.3 to 2.5): found, made, raced for, left out."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import EntityStatus

from tests.contract.fronts import Front, Mood
from tests.contract.pairs import embedded, nothing_left, paired, until
from tests.ledger_reading import read
from tests.official_sdk import async_administration
from twinbus import (
    BacklogUnavailableError,
    EmbeddedBroker,
)
from twinbus.broker.descriptions import AuthorizationRule, QueueDescription
from twinbus.pair import Pair
from twinbus.pairing.core.backlog import lease_path
from twinbus.pairing.sdk.administration import LIST_PAGES_MAX
from twinbus.servicebus.names import backlog_paths, board_path

pytestmark = pytest.mark.contract

START_LIMIT_S = 10.0
HANGS_S = 2.0
"""An attempt at a secondary that hangs."""
RULES = [AuthorizationRule(key_name="weak", primary_key="k", rights=frozenset({"Send"}))]


broker = embedded(rules=RULES)


def behind(front: Front, broker: EmbeddedBroker) -> str:
    text = broker.connection_string("contoso-dr")
    return text.replace(str(broker.port("contoso-dr")), str(front.port))


@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("mood", ["hang", "fail", "refuse"])
async def test_a_secondary_in_trouble_leaves_a_pair_that_sends_and_is_protected_when_it_is_back(
    broker: EmbeddedBroker, mood: Mood, create: bool
) -> None:
    async with paired(broker):
        pass
    async with nothing_left(), Front(broker.port("contoso-dr"), mood) as front:
        began = time.monotonic()
        options: dict[str, Any] = {"create_backlog_queues": create, "attempt_timeout": HANGS_S}
        async with paired(broker, secondary=behind(front, broker), **options) as pair:
            assert time.monotonic() - began < START_LIMIT_S
            assert not pair.status().protected
            assert "UNPROTECTED" in str(pair.status())
            assert pair.status().searching
            async with pair.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("by the primary"))
                await front.let_through()
                await until(lambda: pair.status().searching is None)
                assert pair.backlog_queues == backlog_paths("contoso", 2)
                pair.force_failover("orders")
                await sender.send_messages(ServiceBusMessage("diverted"))
                assert pair.status().entities["orders"].diverted == 1


@pytest.mark.parametrize("mood", ["hang", "fail", "refuse"])
async def test_a_secondary_that_is_required_fails_the_pairing_in_time_and_in_one_line(
    broker: EmbeddedBroker, mood: Mood
) -> None:
    async with nothing_left(), Front(broker.port("contoso-dr"), mood) as front:
        began = time.monotonic()
        options: dict[str, Any] = {"require_secondary": True, "attempt_timeout": HANGS_S}
        with pytest.raises(BacklogUnavailableError, match="require_secondary") as caught:
            async with paired(broker, secondary=behind(front, broker), **options):
                raise AssertionError
        assert time.monotonic() - began < START_LIMIT_S
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("short_searches")
async def test_a_right_that_is_granted_later_is_found_without_a_restart(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    weak = (
        broker.connection_string("contoso-dr")
        .replace("RootManageSharedAccessKey", "weak")
        .replace("SharedAccessKey=SAS_KEY_VALUE", "SharedAccessKey=k")
    )

    async with Front(broker.port("contoso-dr"), "fail") as front:
        secondary = weak.replace(str(broker.port("contoso-dr")), str(front.port))
        async with paired(broker, secondary=secondary) as pair:
            await front.let_through()
            await until(lambda: "Manage" in str(pair.status().searching))
            met = front.met
            await until(lambda: front.met >= met + 3)
            policy = broker._host.server("contoso-dr").policy
            policy.rules["weak"] = AuthorizationRule(
                key_name="weak", primary_key="k", rights=frozenset({"Manage"})
            )
            await until(lambda: pair.status().searching is None)
            assert pair.status().protected
    # Told once, however often it was asked.
    assert len([r for r in caplog.records if "needs the Manage right" in r.message]) == 1


RACER = """
import asyncio, json, sys
from twinbus import Namespace, SendAvailabilityOptions, pair_namespaces

async def main(primary, secondary):
    sys.stdin.readline()
    options = SendAvailabilityOptions(backlog_queue_count=20, ledger="")
    side = Namespace.from_connection_string(primary, "contoso")
    async with pair_namespaces(side, secondary, options) as pair:
        print(json.dumps([list(pair.backlog_queues), pair.status().searching]))

print("here", flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


def test_processes_that_create_the_same_queues_at_once_all_get_all_of_them(
    broker: EmbeddedBroker,
) -> None:
    sides = [broker.connection_string(name) for name in ("contoso", "contoso-dr")]
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, *sides],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "here\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = [json.loads(racer.communicate(timeout=60)[0]) for racer in racers]
    assert answers == [[list(backlog_paths("contoso", 20)), None]] * 3


async def test_a_queue_that_cannot_be_had_is_left_out_and_the_others_are_used(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    taken, *others = backlog_paths("contoso", 3)
    broker.create_topic(taken, namespace="contoso-dr")

    async with paired(broker, backlog_queue_count=3) as pair:
        assert pair.backlog_queues == tuple(others)
        status = pair.status()
        assert status.protected
        assert status.searching == "1 of 3 backlog queues are not in use"
        assert status.backlog_queues[taken].state == "left out"
        assert "another entity" in status.backlog_queues[taken].reason
        async with pair.get_queue_sender("orders") as sender:
            pair.force_failover("orders")
            await sender.send_messages(ServiceBusMessage("x"))
    assert f"{taken} is left out" in caplog.text


async def test_queues_that_an_administrator_has_not_made_yet_are_left_out_by_name(
    broker: EmbeddedBroker,
) -> None:
    made, missing = backlog_paths("contoso", 2)
    broker.create_queue(made, namespace="contoso-dr")

    async with paired(broker, create_backlog_queues=False) as pair:
        assert pair.backlog_queues == (made,)
        assert missing in pair.status().backlog_queues[missing].reason


UNSAFE: dict[str, dict[str, Any]] = {
    "requires_duplicate_detection": {"requires_duplicate_detection": True},
    "requires_session": {"requires_session": True},
    "forward_to": {"forward_to": "orders-copy"},
    "forward_dead_letters_to": {"forward_dead_lettered_messages_to": "orders-copy"},
    "status": {"status": EntityStatus.SEND_DISABLED},
    "default_ttl_ms": {"default_message_time_to_live": timedelta(hours=1)},
}


@pytest.mark.parametrize("setting", UNSAFE)
async def test_each_unsafe_description_keeps_a_queue_out_unless_drift_is_accepted(
    broker: EmbeddedBroker, setting: str
) -> None:
    drifted, sound = backlog_paths("contoso", 2)
    broker.create_queue("orders-copy", namespace="contoso-dr")
    found: list[list[str]] = []

    async def drain(_: Any, queues: list[str]) -> None:
        found.append(queues)

    async with async_administration(broker.connection_string("contoso-dr")) as client:
        await client.create_queue(drifted, **{"max_delivery_count": 1_000, **UNSAFE[setting]})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Pair, "_drain", drain)
            async with paired(broker) as pair:
                assert pair.backlog_queues == (sound,)
                assert setting in pair.status().backlog_queues[drifted].reason
            # It is drained all the same.
            assert found == [[drifted, sound]]
        async with paired(broker, accept_drift=True) as pair:
            assert pair.backlog_queues == (drifted, sound)
        # Reported, never repaired.
        after = await client.get_queue(drifted)
        for name, value in UNSAFE[setting].items():
            seen = getattr(after, name)
            assert getattr(value, "value", value) in (seen, str(seen).rpartition("/")[2])


async def test_safe_drift_is_reported_and_the_queue_is_used(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    drifted = backlog_paths("contoso", 2)[0]
    description = QueueDescription(
        lock_duration_ms=30_000,
        default_ttl_ms=3_600_000,
        dead_letter_on_expiration=True,
        max_delivery_count=1_000,
    )
    broker.create_queue(drifted, description, "contoso-dr")

    async with paired(broker) as pair:
        assert pair.backlog_queues == backlog_paths("contoso", 2)
    (line,) = [r.message for r in caplog.records if "differs" in r.message]
    assert "lock_duration_ms is 30000" in line
    assert "default_ttl_ms is 3600000" in line


@pytest.mark.parametrize(("others", "calls"), [(0, 1), (150, 2), (LIST_PAGES_MAX * 100 + 50, 7)])
async def test_queues_are_listed_and_asked_for_by_name_only_in_a_crowd(
    broker: EmbeddedBroker, tmp_path: Any, others: int, calls: int
) -> None:
    for number in range(others):
        broker.create_queue(f"a{number:04}", namespace="contoso-dr")

    async with paired(broker):
        pass
    # Letter case is the service's to keep or not; paths are the same in any.
    async with paired(broker, ledger=tmp_path) as pair:
        assert pair.backlog_queues == backlog_paths("contoso", 2)
    manages = [record for record in read(tmp_path) if record["cause"] == "administration"]
    assert [record["outcome"] for record in manages] == ["ok"] * calls


async def test_extra_queues_are_left_alone(broker: EmbeddedBroker) -> None:
    async with paired(broker, backlog_queue_count=4):
        pass
    async with paired(broker, backlog_queue_count=2) as pair:
        assert pair.backlog_queues == backlog_paths("contoso", 2)
    async with async_administration(broker.connection_string("contoso-dr")) as client:
        names = [queue.name async for queue in client.list_queues()]
    others = [board_path("contoso"), lease_path("contoso")]
    assert sorted(names) == [*backlog_paths("contoso", 4), *others]
