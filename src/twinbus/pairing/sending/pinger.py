"""Pings failed-over entities, to learn whether they take messages again (docs/failures.md)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from azure.servicebus import ServiceBusMessage

from twinbus.errors import error_text
from twinbus.namespace.namespace import KEEP_ALIVE_OFF
from twinbus.pairing.core.announcements import PingEnded
from twinbus.pairing.core.schedules import PING_TIME_TO_LIVE_S, PingTurns, ping_delay_s
from twinbus.pairing.sdk.guards import encoded_bytes
from twinbus.pairing.sdk.sender_pool import SenderPool, open_only
from twinbus.servicebus.names import PING_CONTENT_TYPE

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient

    from twinbus.pairing.sending.entity_monitor import EntityMonitor
    from twinbus.pairing.sending.shared_state import SharedState

log = logging.getLogger("twinbus.pairing")


class Pinger:
    """Sends the pings of one pair; each result goes to ledger, counters and listeners."""

    def __init__(self, state: SharedState, primary_sdk: ServiceBusClient) -> None:
        self._state = state
        self._primary_sdk = primary_sdk
        self._turns = PingTurns()

    async def ping(self, entity: EntityMonitor) -> None:
        """Ping an entity once, over a connection of its own; raises if it was not answered."""
        state, loop = self._state, self._state.loop
        await asyncio.sleep(ping_delay_s(state.options.ping_primary_interval_s, state.jitter()))
        now = loop.time()
        await asyncio.sleep(self._turns.take(now) - now)
        make = partial(self._primary_sdk.get_queue_sender, entity.path, **KEEP_ALIVE_OFF)
        pool = SenderPool(make, state.primary.resolve, state.closer)
        pooled = pool.take()
        assert pooled is not None
        is_message = state.options.ping_mode == "message"
        ping = partial(send_ping, new_id=state.environment.new_id)
        span = contextlib.nullcontext() if state.tracing is None else state.tracing.ping(entity)
        began, error = loop.time(), None
        try:
            with span:
                await pool.attempt(
                    pooled, ping if is_message else open_only, state.policy.attempt_timeout_s
                )
        except BaseException as caught:
            error = caught
            raise
        finally:
            ended = loop.time()
            # An attach carries no message.
            size_bytes = ping_bytes() if is_message else 0
            state.recorder.pinged(entity.path, began, ended, error, size_bytes)
            self._announce(entity.path, ended - began, error)
            await pool.close(0.0)

    def _announce(self, path: str, seconds: float, error: BaseException | None) -> None:
        counters = self._state.counters
        if isinstance(error, asyncio.CancelledError):
            counters.pings["dropped"] += 1
            return
        counters.pings["answered" if error is None else "failed"] += 1
        text = "" if error is None else error_text(error)
        log.debug("%s: ping %s", path, f"failed: {text}" if text else "answered")
        self._state.listeners.tell(
            PingEnded(
                at=time.time(), path=path, answered=error is None, error=text, seconds=seconds
            )
        )


async def send_ping(sdk: Any, new_id: Callable[[], UUID] = uuid4) -> None:
    """Send the ping message through a sender of the SDK.

    An entity with sessions takes no message without one, and a session of its own never blocks a
    receiver of real ones.
    """
    await sdk.send_messages(_ping_message(new_id().hex))


def _ping_message(session_id: str) -> ServiceBusMessage:
    return ServiceBusMessage(
        b"",
        content_type=PING_CONTENT_TYPE,
        time_to_live=timedelta(seconds=PING_TIME_TO_LIVE_S),
        session_id=session_id,
    )


@cache
def ping_bytes() -> int:
    """Return the size of a ping; all have the same."""
    return encoded_bytes(_ping_message("0" * 32).raw_amqp_message)
