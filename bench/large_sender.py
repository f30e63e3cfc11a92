"""Fills a queue with messages of several frames, which the pipelined client does not send."""

from __future__ import annotations

import asyncio

from twinbus.amqp.events import CreditChanged, Disposed, Event
from twinbus.amqp.performatives import Accepted, Source, Target
from twinbus.client.connection import NamespaceConnection
from twinbus.namespace.access import Endpoint

WINDOW_BYTES = 8 << 20
"""Under way at once."""


def send_large(connection_string: str, queue: str, payload: bytes, count: int) -> None:
    """Store `count` copies of an encoded message, however large it is."""
    asyncio.run(_send(connection_string, queue, payload, count))


async def _send(connection_string: str, queue: str, payload: bytes, count: int) -> None:
    happened = asyncio.Event()
    accepted = 0

    def on_event(event: Event) -> None:
        nonlocal accepted
        if isinstance(event, Disposed) and event.by_receiver:
            assert isinstance(event.state, Accepted), f"refused: {event.state}"
            accepted += len(event.session.take_unsettled(event.first, event.last))
        if isinstance(event, (Disposed, CreditChanged)):
            happened.set()

    line = NamespaceConnection(Endpoint.parse(connection_string), on_event)
    await line.open()
    try:
        await line.authorize(queue)
        link = line.session.attach_sender(
            "fill", source=Source(address="fill"), target=Target(address=queue)
        )
        line.flush()
        window = max(1, WINDOW_BYTES // len(payload))
        sent = 0
        while accepted < count:
            while sent < count and sent - accepted < window and link.credit:
                link.send(payload, sent.to_bytes(8))
                sent += 1
            line.flush()
            happened.clear()
            async with asyncio.timeout(60):
                await happened.wait()
    finally:
        await line.close()
