"""Removing a spare backlog queue never removes a message, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError
from azure.servicebus.management import EntityStatus

from tests.official_sdk import administration, client
from twinbus import EmbeddedBroker, Namespace
from twinbus.console.backlog import queue_contents as backlog_stock
from twinbus.namespace.administration_client import administration_client

pytestmark = pytest.mark.contract

QUEUE = "contoso/x-servicebus-transfer/7"


@pytest.fixture
def secondary() -> Iterator[str]:
    with EmbeddedBroker("contoso-dr") as broker:
        broker.create_queue(QUEUE)
        yield broker.connection_string()


def send(secondary: str) -> None:
    with client(secondary) as sdk, sdk.get_queue_sender(QUEUE) as sender:
        sender.send_messages(ServiceBusMessage("just in time"))


def removed(secondary: str) -> str | None:
    namespace = Namespace.from_connection_string(secondary)

    async def remove() -> str | None:
        async with administration_client(namespace) as admin:
            return await backlog_stock.remove_if_empty(admin, namespace, QUEUE)

    return asyncio.run(remove())


def status(secondary: str) -> Any:
    with administration(secondary) as admin:
        return admin.get_queue(QUEUE).status


def test_an_empty_queue_is_removed_once(secondary: str) -> None:
    assert removed(secondary) is None
    assert removed(secondary) == "it is gone already"


def test_a_queue_that_holds_a_message_stays_and_takes_more(secondary: str) -> None:
    send(secondary)
    assert removed(secondary) == "it holds 1 message"
    assert status(secondary) == EntityStatus.ACTIVE
    send(secondary)


def test_nothing_slips_in_between_the_last_look_and_the_deletion(
    secondary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = backlog_stock._held

    async def look_and_send(*arguments: Any) -> str | None:
        held = await look(*arguments)
        with pytest.raises(MessagingEntityDisabledError):
            await asyncio.to_thread(send, secondary)
        return held

    monkeypatch.setattr(backlog_stock, "_held", look_and_send)
    assert removed(secondary) is None


def test_a_removal_that_is_cut_short_gives_the_queue_back(
    secondary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: Any) -> str | None:
        raise asyncio.CancelledError

    monkeypatch.setattr(backlog_stock, "_held", interrupted)
    with pytest.raises(asyncio.CancelledError):
        removed(secondary)
    assert status(secondary) == EntityStatus.ACTIVE
