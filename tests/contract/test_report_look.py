"""The look of `report conservation` into a real backlog: it sees all, and touches nothing."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusMessage

from tests.official_sdk import administration, client
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.console.report.backlog_scan import BacklogScan
from twinbus.errors import SyphonError
from twinbus.pipeline.reports.documents import Sighting
from twinbus.transfer.sdk import to_backlog_message

pytestmark = pytest.mark.contract

BACKLOG = "contoso/x-servicebus-transfer/0"


def test_what_waits_and_what_is_set_aside_is_seen_and_stays() -> None:
    with EmbeddedBroker("contoso-dr") as broker:
        text = broker.connection_string("contoso-dr")
        with administration(text) as admin:
            admin.create_queue(BACKLOG)
            admin.create_queue("other")
        with client(text) as sdk:
            with sdk.get_queue_sender(BACKLOG) as sender:
                for number in range(3):
                    message = ServiceBusMessage("x", message_id=f"o-{number}")
                    sender.send_messages(to_backlog_message(message, "Orders", now_ms=0))
            with sdk.get_queue_sender("other") as sender:
                sender.send_messages(ServiceBusMessage("x", message_id="not ours"))
            with sdk.get_queue_receiver(BACKLOG, max_wait_time=60) as receiver:
                (first,) = receiver.receive_messages(1)
                receiver.dead_letter_message(first, reason="poison")
        looking = BacklogScan(text)
        for _ in range(2):
            asyncio.run(looking.peek())
            assert sorted(looking.sightings()) == [
                Sighting("Orders", "o-0", "dead_lettered", "contoso"),
                Sighting("Orders", "o-1", "waiting", "contoso"),
                Sighting("Orders", "o-2", "waiting", "contoso"),
            ]
        looking.close()


def test_a_secondary_that_is_gone_is_one_line() -> None:
    with EmbeddedBroker("contoso-dr") as broker:
        text = broker.connection_string("contoso-dr")
    looking = BacklogScan(text)
    with pytest.raises(SyphonError) as error:
        asyncio.run(looking.peek())
    looking.close()
    assert "\n" not in str(error.value)
