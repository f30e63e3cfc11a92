"""What an application written for the SDK's own client and senders meets with a pair."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError

from tests.contract.pairs import quick
from tests.official_sdk import administration
from twinbus import (
    EmbeddedBroker,
    Fault,
    PairNotStartedError,
    ScheduleUnknownError,
    blocking,
    pair_namespaces,
)
from twinbus.broker.descriptions import QueueDescription

pytestmark = pytest.mark.contract

LATER = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso", "contoso-dr") as embedded:
        embedded.create_queue("orders")
        embedded.create_queue("carts", QueueDescription(requires_session=True))
        embedded.create_topic("news")
        with administration(embedded.connection_string("contoso")) as admin:
            admin.create_subscription("news", "readers", requires_session=True)
        yield embedded


@pytest.fixture
def strings(broker: EmbeddedBroker) -> tuple[str, str]:
    return broker.connection_string("contoso"), broker.connection_string("contoso-dr")


async def test_sessions_are_listed_by_the_pair(strings: tuple[str, str]) -> None:
    async with pair_namespaces(*strings, quick()) as pair:
        async with pair.get_queue_sender("carts") as sender:
            await sender.send_messages(ServiceBusMessage("x", session_id="s1"))
        async with pair.get_topic_sender("news") as sender:
            await sender.send_messages(ServiceBusMessage("x", session_id="s2"))
        assert [name async for name in pair.list_queue_sessions("carts")] == ["s1"]
        listed = pair.list_subscription_sessions("news", "readers", timeout=30)
        assert [name async for name in listed] == ["s2"]


def test_sessions_are_listed_by_the_blocking_pair(strings: tuple[str, str]) -> None:
    with blocking.pair_namespaces(*strings, quick()) as pair:
        with pair.get_queue_sender("carts") as sender:
            sender.send_messages(ServiceBusMessage("x", session_id="s1"))
        with pair.get_topic_sender("news") as sender:
            sender.send_messages(ServiceBusMessage("x", session_id="s2"))
        assert list(pair.list_queue_sessions("carts")) == ["s1"]
        assert list(pair.list_subscription_sessions("news", "readers", timeout=30)) == ["s2"]


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_schedule_without_an_answer_ends_in_time_with_the_error_of_the_sdk(
    broker: EmbeddedBroker, strings: tuple[str, str], cancels: bool
) -> None:
    options = quick(attempt_timeout=30.0, failover_interval=600.0)
    async with (
        pair_namespaces(*strings, options) as pair,
        pair.get_queue_sender("orders") as sender,
    ):
        # The link is open: what is asked now may have been carried out.
        numbers = await sender.schedule_messages(ServiceBusMessage("now"), LATER)
        broker.add_fault(Fault(kind="hang", entity="orders"))
        began = time.monotonic()
        try:
            message = ServiceBusMessage("x", message_id="1")
            call: Awaitable[Any] = (
                sender.cancel_scheduled_messages(numbers, timeout=2)
                if cancels
                else sender.schedule_messages(message, LATER, timeout=2)
            )
            with pytest.raises(OperationTimeoutError, match="not repeated") as raised:
                await call
        finally:
            broker.clear_faults()
        assert time.monotonic() - began < 20
        assert isinstance(raised.value, ScheduleUnknownError)
        assert raised.value.message_ids == (() if cancels else ("1",))
        await sender.cancel_scheduled_messages([])


async def test_a_mistyped_entity_is_not_steered(strings: tuple[str, str]) -> None:
    async with pair_namespaces(*strings, quick()) as pair:
        for steer in (pair.force_failover, pair.mark_healthy, pair.freeze, pair.unfreeze):
            with pytest.raises(ValueError, match="no sender for 'orders'; it has none"):
                steer("orders")
        async with pair.get_queue_sender("orders"):
            with pytest.raises(ValueError, match="no sender for 'ordres'; it has orders"):
                pair.force_failover("ordres")
            pair.force_failover("/ORDERS")
        assert list(pair.status().entities) == ["orders"]
        assert pair.status().entities["orders"].forced


def blocks() -> list[str]:
    """The Python blocks of the page that shows the change from the SDK to a pair."""
    page = Path(__file__).resolve().parents[2] / "docs" / "from-sdk.md"
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_a_pair_made_at_import_is_started_as_the_page_shows_for_gunicorn(
    strings: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    [module] = [one for one in blocks() if one.startswith("# orders.py")]
    [hooks] = [one for one in blocks() if one.startswith("# gunicorn.conf.py")]
    monkeypatch.setenv("PRIMARY", strings[0])
    monkeypatch.setenv("SECONDARY", strings[1])
    orders, settings = ModuleType("orders"), ModuleType("settings")
    monkeypatch.setitem(sys.modules, "orders", orders)
    exec(module, vars(orders))
    exec(hooks, vars(settings))
    with pytest.raises(PairNotStartedError, match="was not started"):
        orders.take("order 1")
    settings.post_fork(None, None)
    orders.take("order 2")
    assert orders.pair.status().entities["orders"].sent == 1
    settings.worker_exit(None, None)


@pytest.mark.parametrize(("place", "printed"), [(0, "order 1\n"), (1, "")])
def test_the_examples_of_the_page_run_as_printed(place: int, printed: str) -> None:
    examples = [one for one in blocks() if "EmbeddedBroker" in one]
    assert len(examples) == 2
    done = subprocess.run(
        [sys.executable, "-c", examples[place]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
