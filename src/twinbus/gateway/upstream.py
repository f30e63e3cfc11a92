"""Links of the client as the failover core sends with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from twinbus.client.links import DeliveryRejected, LinkPool, Wire
from twinbus.servicebus import conditions
from twinbus.servicebus.failures import ANSWER_MIN_S, CutShort


class LinkSenders:
    """The links to one entity as a `Carrier`. `take` gives the carrier itself: links are shared."""

    def __init__(self, links: LinkPool, *, splits: bool = False) -> None:
        """`splits`: a batch beyond the link's limit is an error here, so that it is divided."""
        self.links = links
        self._splits = splits

    @property
    def closed(self) -> bool:
        return self.links.closed

    @property
    def limit_bytes(self) -> int | None:
        return self.links.limit_bytes

    def take(self) -> LinkSenders:
        return self

    async def lease(self, until: float, is_wanted: Callable[[], bool]) -> LinkSenders | None:
        return self if is_wanted() else None

    async def attempt(
        self,
        pooled: LinkSenders,
        operation: Callable[[Any], Awaitable[Any]],
        timeout_s: float,
        *,
        is_late: bool = False,
    ) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                await self.links.open()
                return await operation(pooled)
        except TimeoutError as error:
            if is_late and timeout_s < ANSWER_MIN_S:
                raise CutShort(f"{timeout_s:.2g} s") from error
            raise

    async def send_messages(self, wire: Wire) -> None:
        """Send one delivery and return when the namespace has accepted it."""
        limit_bytes = self.links.limit_bytes
        if self._splits and limit_bytes is not None and len(wire.data) > limit_bytes:
            text = f"{self.links.path} takes {limit_bytes} bytes and got {len(wire.data)}"
            raise DeliveryRejected(text, conditions.MESSAGE_SIZE)
        await self.links.send_messages(wire)

    def invalidate(self) -> None:
        self.links.invalidate()

    def open_ahead(self) -> None:
        self.links.open_ahead()

    def wake_all(self) -> None:
        """Nothing waits here."""

    async def close(self, limit_s: float) -> None:
        """Take no more; the connection closes the links."""
        self.links.closed = True
