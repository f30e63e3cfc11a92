"""The consumers of a drill: a processor at every entity, from the first message to the last.

They run in the outage too. Entities with a twin are received from the twin meanwhile; messages of
the others wait in the backlog. One process and one receiver for each entity, so that a message
that is stored on both sides is handed out once (docs/twins.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Self

from twinbus.client.administration import counts_of
from twinbus.console.drill.world import ENTITIES, SUBSCRIPTION, Entity, World
from twinbus.namespace.access import endpoint_of
from twinbus.pair import Pair

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from twinbus.pairing.core.processing import ProcessOptions

HANDLERS: Final = 8
"""That run at once at an entity without sessions."""

SESSION_IDLE_S: Final = 1.0
"""After this time without a message a consumer takes another session."""

WAIT_S: Final = 0.25
"""Between two counts of what is left."""

STALL_S: Final = 20.0
"""After this time without a message the drill waits no longer; the report names what is left."""


class Consumers:
    """Receives and completes everything; a context manager."""

    def __init__(self, pair: Pair, world: World) -> None:
        self.count = 0
        """Messages that were handed out, each time counted."""
        self.came_again: set[str] = set()
        """Ids of messages that came again from the same place with the same number."""
        self._seen: set[tuple[str, int | None]] = set()
        self._pair = pair
        self._world = world
        self._stack = AsyncExitStack()
        self._last_at = 0.0

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            for entity in ENTITIES:
                await opened.enter_async_context(self._processor(entity))
            self._stack = opened.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def finish(self, received: Callable[[int], None]) -> int:
        """Return when everything is received and completed; how many messages are left in twins.

        `received` gets the count meanwhile.
        """
        loop = asyncio.get_running_loop()
        self._last_at = loop.time()
        while await self._left(ENTITIES, self._world.primary.connection_string) or (
            await self._left_in_twins()
        ):
            received(self.count)
            if loop.time() - self._last_at > STALL_S:
                break
            await asyncio.sleep(WAIT_S)
        return await self._left_in_twins()

    async def _left_in_twins(self) -> int:
        twins = tuple(entity for entity in ENTITIES if entity.has_twin)
        return await self._left(twins, self._world.secondary.connection_string)

    async def _left(self, entities: tuple[Entity, ...], connection_string: str) -> int:
        endpoint = endpoint_of(connection_string)
        return sum([(await counts_of(endpoint, one.received_at)).waiting for one in entities])

    def _processor(self, entity: Entity) -> Any:
        async def handle(message: ServiceBusReceivedMessage) -> None:
            self.count += 1
            self._last_at = asyncio.get_running_loop().time()
            copy = entity.path, message.sequence_number
            if copy in self._seen:
                self.came_again.add(str(message.message_id))
            self._seen.add(copy)

        options: ProcessOptions = {"concurrency": HANDLERS}
        if entity.sessions:
            options = {"sessions": len(entity.sessions), "session_idle": SESSION_IDLE_S}
        subscription = SUBSCRIPTION if entity.is_topic else None
        return self._pair.process(entity.path, handle, subscription=subscription, **options)
