"""Two namespaces as a pair: sends survive the loss of the primary (SPEC 2, 7).

async with pair_namespaces(primary, secondary, options) as pair:
    async with pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("order 1"))
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinbus.errors import SameNamespaceError
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.client import PairedClient, close_sdk_client
from twinbus.pairing.discovery import Discovery
from twinbus.pairing.entity import EntityStatus
from twinbus.pairing.events import ForceFailover, Freeze, MarkHealthy, Unfreeze
from twinbus.pairing.namespaces import Namespace
from twinbus.pairing.recording import Recorder, open_recorder

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

    from twinbus.pairing.sender import PairedSender

__all__ = ["Pair", "PairStatus", "pair_namespaces"]

log = logging.getLogger("twinbus.pair")


@dataclass(frozen=True, slots=True)
class PairStatus:
    """A pair at one moment, for people and programs."""

    primary: str
    secondary: str
    protected: bool
    """Whether there is a backlog queue to divert to; False is UNPROTECTED."""
    searching: str | None
    """Why backlog queues are still being looked for; None: all are accounted for."""
    entities: dict[str, EntityStatus]
    backlog_queues: dict[str, str]
    """Every backlog queue: `in rotation`, or why not."""

    def __str__(self) -> str:
        lines = [
            f"{self.primary} with {self.secondary}" + ("" if self.protected else ", UNPROTECTED")
        ]
        lines += [f"  still looking for backlog queues: {self.searching}"] if self.searching else []
        for entity in self.entities.values():
            since = "" if entity.since_s is None else f" for {entity.since_s:.0f} s"
            why = f" ({entity.reason})" if entity.reason else ""
            holds = "".join(f", {h}" for h in ("forced", "frozen") if getattr(entity, h))
            counts = f"{entity.sent} sent, {entity.diverted} diverted"
            lines.append(f"  {entity.path}: {entity.state}{since}{why}{holds}; {counts}")
        lines += [f"  {queue}: {state}" for queue, state in self.backlog_queues.items()]
        return "\n".join(lines)


@asynccontextmanager
async def pair_namespaces(
    primary: str | Namespace,
    secondary: str | Namespace,
    options: SendAvailabilityOptions | None = None,
) -> AsyncIterator[Pair]:
    """A pair, ready to send, for the `async with` block. The primary may be down meanwhile.

    A side is a connection string or a Namespace. One clear error each: SameNamespaceError,
    NamespaceInUseError, MissingRightError, and with `require_secondary` BacklogUnavailableError.
    """
    pair = Pair(
        Namespace.of(primary), Namespace.of(secondary), options or SendAvailabilityOptions()
    )
    try:
        await pair.start()
        yield pair
    finally:
        await pair.close()


class Pair:
    """A primary and a secondary namespace; `pair_namespaces` makes one."""

    def __init__(
        self, primary: Namespace, secondary: Namespace, options: SendAvailabilityOptions
    ) -> None:
        if options.session_order == "strict":
            raise ValueError(
                "session_order='strict' is not built yet; leave it at 'relaxed', which promises no"
                " order across a failover"
            )
        if primary.place == secondary.place:
            raise SameNamespaceError(
                f"both sides of the pair are {primary.endpoint}: if it is down, so is the backlog;"
                " give two namespaces"
            )
        primary.claim()
        try:
            secondary.claim()
        except BaseException:
            primary.release()
            raise
        self.options = options
        self._primary, self._secondary = primary, secondary
        self._recorder: Recorder | None = None
        self._client: PairedClient | None = None
        self._discovery: Discovery | None = None
        self._receiving: ServiceBusClient | None = None
        self._hosts: list[Any] = []
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Pair({self._primary.endpoint}, {self._secondary.endpoint})"

    async def start(self) -> None:
        """Find or create the backlog queues, and start the syphon if the options want it."""
        assert self._client is None
        self._recorder = open_recorder(self._primary, self._secondary, self.options)
        self._client = PairedClient(self._primary, self._secondary, self.options, self._recorder)
        self._discovery = Discovery(self._client, self._drain)
        await self._discovery.start()

    def get_queue_sender(self, queue_name: str, **sdk_options: Any) -> PairedSender:
        """A sender to a queue of the primary, which survives the loss of the primary."""
        return self._live().get_queue_sender(queue_name, **sdk_options)

    def get_topic_sender(self, topic_name: str, **sdk_options: Any) -> PairedSender:
        """A sender to a topic of the primary, which survives the loss of the primary."""
        return self._live().get_topic_sender(topic_name, **sdk_options)

    def get_queue_receiver(self, queue_name: str, **sdk_options: Any) -> ServiceBusReceiver:
        """The SDK's own receiver from the primary, with the SDK's own retries."""
        return self._receiver_client().get_queue_receiver(queue_name, **sdk_options)

    def get_subscription_receiver(
        self, topic_name: str, subscription_name: str, **sdk_options: Any
    ) -> ServiceBusReceiver:
        """The SDK's own receiver from the primary, with the SDK's own retries."""
        client = self._receiver_client()
        return client.get_subscription_receiver(topic_name, subscription_name, **sdk_options)

    @property
    def backlog_queues(self) -> tuple[str, ...]:
        """The backlog queues that were had, in the rotation or resting."""
        return self._live().rotation.queues

    def status(self) -> PairStatus:
        """Per entity: state, since when, last error, diverted; per queue: in use, or why not."""
        client = self._live()
        assert self._discovery is not None
        now = asyncio.get_running_loop().time()
        absences = client.rotation.absences(now)
        had = client.rotation.queues
        return PairStatus(
            primary=self._primary.endpoint,
            secondary=self._secondary.endpoint,
            protected=client.rotation.protected,
            searching=self._discovery.unreachable,
            entities={entity.path: entity.status() for entity in client.entities},
            backlog_queues={
                queue: absences.get(queue) or ("in rotation" if queue in had else "not found yet")
                for queue in client.paths
            },
        )

    def force_failover(self, path: str) -> None:
        """Divert the entity's sends until `mark_healthy`."""
        self._live().entity(path).tell(ForceFailover())

    def mark_healthy(self, path: str) -> None:
        """Send to the primary again, whatever the pings say."""
        self._live().entity(path).tell(MarkHealthy())

    def freeze(self, path: str) -> None:
        """Keep the entity's routing as it is, no timer, no ping, until `unfreeze`."""
        self._live().entity(path).tell(Freeze())

    def unfreeze(self, path: str) -> None:
        """Let the entity's routing change again."""
        self._live().entity(path).tell(Unfreeze())

    async def close(self) -> None:
        """Stop pings and pumps, waiting for what is in flight, then close both sides. Idempotent.

        Cancelled, it still closes everything before it raises.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        cancelled = False
        while not self._closing.done():
            try:
                await asyncio.shield(self._closing)
            except asyncio.CancelledError:
                # Every part of it is bounded, and half a close would leave sockets behind.
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        self._closing.result()

    async def _close(self) -> None:
        if self._discovery is not None:
            await self._discovery.close()
        results = await asyncio.gather(
            *(host.close() for host in self._hosts), return_exceptions=True
        )
        for error in results:
            if isinstance(error, BaseException):
                log.warning("a syphon did not close: %s: %s", type(error).__name__, error)
        if self._client is not None:
            await self._client.close()
        if self._receiving is not None:
            await close_sdk_client(self._receiving)
        if self._recorder is not None:
            self._recorder.ledger.close()
        self._primary.release()
        self._secondary.release()

    async def _drain(self, queues: list[str]) -> None:
        """Start a syphon on queues that were found (SPEC 2.6)."""
        if not self.options.enable_syphon:
            return
        from twinbus.syphon.host import SyphonHost

        assert self._recorder is not None
        host = SyphonHost(
            self._primary,
            self._secondary,
            queues,
            self.options,
            self._recorder.ledger,
            on_delivered=self._delivered,
        )
        self._hosts.append(host)
        await host.start()

    def _delivered(self, path: str) -> None:
        """A forward of the syphon is a success like any other (SPEC 3)."""
        if self._client is not None:
            self._client.succeeded(path)

    def _receiver_client(self) -> ServiceBusClient:
        self._live()
        if self._receiving is None:
            self._receiving = self._primary.client()
        return self._receiving

    def _live(self) -> PairedClient:
        assert self._client is not None
        self._client.require_open()
        return self._client
