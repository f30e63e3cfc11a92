"""A receiver of the SDK that receives nothing: it peeks, or only attaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.namespace.namespace import KEEP_ALIVE_OFF

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver


class Peeker:
    """A receiver of the SDK that only peeks, in the shape in which a pool opens and closes it."""

    def __init__(self, sdk: ServiceBusClient, queue: str) -> None:
        self.receiver: ServiceBusReceiver = sdk.get_queue_receiver(queue, **KEEP_ALIVE_OFF)
        # When its link opens, the SDK requests one message more than it is to prefetch, and would
        # lock one that the syphon waits for. With -1 it requests none.
        self.receiver._prefetch_count = -1

    async def create_message_batch(self) -> None:
        """Open the link: the call with which a pool opens a sender."""
        await self.receiver.__aenter__()

    async def close(self) -> None:
        await self.receiver.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.receiver, name)
