"""The session filter of an attach: the broker answers in the form in which the client asked."""

from __future__ import annotations

import pytest

from tests.end_to_end.raw_client import SESSION_FILTER, RawClient
from twinbus import EmbeddedBroker
from twinbus.amqp.types import Described, Symbol, ULong
from twinbus.broker.descriptions import QueueDescription

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(
    "asked",
    [
        "a",
        Described(Symbol("com.microsoft:session-filter"), "a"),
        # The Go SDK's form; it closes the connection if the answer is a bare string.
        Described(ULong(0x137000000C), "a"),
    ],
    ids=["bare", "symbol", "code"],
)
async def test_a_described_session_filter_is_answered_as_described(asked: object) -> None:
    with EmbeddedBroker("contoso") as broker:
        broker.create_queue("steps", QueueDescription(requires_session=True))
        client = await RawClient.open(broker.connection_string())
        receiver = await client.receiver("steps", credit=1, session=asked)
        source = receiver.link.source
        assert source is not None
        assert (source.filter or {})[SESSION_FILTER] == asked
        await client.close()
