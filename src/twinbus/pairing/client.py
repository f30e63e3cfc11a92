"""A pair's senders and what they share: the state of each entity, the backlog queues, the pings.

What is known of an entity or of a backlog queue is known once, here, for all senders of the pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from azure.servicebus import ServiceBusMessage

from twinbus.errors import PairingError
from twinbus.options import SendAvailabilityOptions, Verdict
from twinbus.pairing.attempts import RetryPolicy
from twinbus.pairing.backlog import KeptChoice, Rotation, backlog_paths
from twinbus.pairing.classify import classify
from twinbus.pairing.entity import WatchedEntity
from twinbus.pairing.events import SendSucceeded, State, Transition
from twinbus.pairing.outgoing import MessageIds
from twinbus.pairing.ping import PingMessage
from twinbus.pairing.pool import CLOSE_LIMIT_S, Closer, SenderPool, attempt
from twinbus.pairing.sender import PairedSender

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

    from twinbus.pairing.namespaces import Namespace
    from twinbus.pairing.recording import Recorder

__all__ = ["PairedClient"]

log = logging.getLogger("twinbus.pairing")

CLOSE_GRACE_S: Final = 1.0
"""Past the bound of an attempt, for a call in flight to end before its sender is taken away."""


class PairedClient:
    """What `ServiceBusClient` is to one namespace, this is to two: it makes paired senders."""

    def __init__(
        self,
        primary: Namespace,
        secondary: Namespace,
        options: SendAvailabilityOptions,
        recorder: Recorder,
        *,
        pick: Callable[[Sequence[str]], str] = random.choice,
    ) -> None:
        """Made on a running event loop, to which it belongs."""
        self.primary, self.secondary = primary, secondary
        self.options = options
        self.recorder = recorder
        self.policy = RetryPolicy.of(options)
        self.rotation = Rotation()
        self.paths = backlog_paths(primary.label, options.backlog_queue_count)
        self.message_ids = MessageIds()
        self.closed = False
        self._pick = pick
        self._loop = asyncio.get_running_loop()
        self._closer = Closer()
        self._entities: dict[str, WatchedEntity] = {}
        self._senders: set[PairedSender] = set()
        self._pools: dict[str, SenderPool] = {}
        self._primary_sdk = primary.bounded_client(options.attempt_timeout_s)
        self._secondary_sdk = secondary.bounded_client(options.attempt_timeout_s)

    def get_queue_sender(self, queue_name: str, **sdk_options: Any) -> PairedSender:
        """A sender to a queue, which survives the loss of the primary."""
        make = partial(self._primary_sdk.get_queue_sender, queue_name, **sdk_options)
        return self._sender(queue_name, make)

    def get_topic_sender(self, topic_name: str, **sdk_options: Any) -> PairedSender:
        """A sender to a topic, which survives the loss of the primary."""
        make = partial(self._primary_sdk.get_topic_sender, topic_name, **sdk_options)
        return self._sender(topic_name, make)

    def _sender(self, path: str, make: Callable[[], ServiceBusSender]) -> PairedSender:
        self.require_open()
        if not path.strip("/"):
            raise ValueError(f"the name of an entity must not be empty; got {path!r}")
        sender = PairedSender(self, self.entity(path), SenderPool(make, self._closer))
        self._senders.add(sender)
        return sender

    def forget(self, sender: PairedSender) -> None:
        """The sender was closed."""
        self._senders.discard(sender)

    def entity(self, path: str) -> WatchedEntity:
        """The shared state of an entity, whatever the letter case of its path (SPEC 3)."""
        key = path.strip("/").lower()
        entity = self._entities.get(key)
        if entity is None:
            entity = WatchedEntity(
                path.strip("/"), self.options, ping=self._ping, changed=self._changed
            )
            self._entities[key] = entity
        return entity

    def succeeded(self, path: str) -> None:
        """An entity took something by another way than its senders."""
        entity = self._entities.get(path.strip("/").lower())
        if entity is not None:
            entity.tell(SendSucceeded())

    @property
    def entities(self) -> list[WatchedEntity]:
        """Every entity that a sender was made for, or a person spoke of."""
        return list(self._entities.values())

    def choice(self) -> KeptChoice:
        """A sender's own choice among the shared backlog queues."""
        return KeptChoice(self.rotation, self._pick)

    def backlog_pool(self, queue: str) -> SenderPool:
        """The senders to one backlog queue, shared by all that divert to it."""
        pool = self._pools.get(queue)
        if pool is None:
            make = partial(self._secondary_sdk.get_queue_sender, queue)
            pool = self._pools[queue] = SenderPool(make, self._closer)
        return pool

    def pull(self, queue: str, reason: str) -> None:
        """Rest a backlog queue that failed, for all senders."""
        now = self._loop.time()
        if self.rotation.is_in(queue, now):
            until = self.rotation.pull(queue, reason, now)
            assert until is not None
            log.warning("%s: pulled for %.0f s (%s)", queue, until - now, reason)
        self.backlog_pool(queue).rouse()

    def is_in_use(self, queue: str) -> bool:
        """Whether a backlog queue is in the rotation now."""
        return self.rotation.is_in(queue, self._loop.time())

    def counts(self, error: BaseException) -> bool:
        """Whether a failure is evidence for a failover, by the user's own judgement if there is."""
        return (self.options.classify or classify)(error) is Verdict.COUNTS

    def require_open(self) -> None:
        """PairingError once the pair was closed."""
        if self.closed:
            raise PairingError("the pair was closed; make a new one with pair_namespaces")

    async def close(self) -> None:
        """Stop pings and timers, let calls in flight end, close every sender. Idempotent."""
        self.closed = True
        await asyncio.gather(*(entity.close() for entity in self.entities))
        limit_s = self.policy.attempt_timeout_s + CLOSE_GRACE_S
        pools = [*self._pools.values(), *(sender.pool for sender in self._senders)]
        await asyncio.gather(*(pool.close(limit_s) for pool in pools))
        await self._closer.wait()
        for sdk in (self._primary_sdk, self._secondary_sdk):
            await close_sdk_client(sdk)
        self._senders.clear()
        self._pools.clear()

    async def _ping(self, entity: WatchedEntity) -> None:
        """Ask an entity once, over a connection of its own; raises what came instead of a yes."""
        pool = SenderPool(partial(self._primary_sdk.get_queue_sender, entity.path), self._closer)
        conduit = pool.take()
        assert conduit is not None
        began, error = self._loop.time(), None
        try:
            is_message = self.options.ping_mode == "message"
            ask = _send_ping if is_message else _nothing_more
            await attempt(pool, conduit, ask, self.policy.attempt_timeout_s)
        except BaseException as caught:
            error = caught
            raise
        finally:
            self.recorder.pinged(entity.path, began, self._loop.time(), error)
            await pool.close(0.0)

    def _changed(self, entity: WatchedEntity, transition: Transition) -> None:
        """Tell the log and the ledger of a change of state."""
        before, after = transition.before, transition.after
        where = ""
        if after is State.FAILED_OVER:
            names = len(self.rotation.available(self._loop.time()))
            where = f", diverting to {names} backlog queues of {self.secondary.label}"
            if not self.rotation.protected:
                where = ", and there is no backlog queue to divert to"
        level = logging.WARNING if after is not State.HEALTHY else logging.INFO
        log.log(
            level, "%s: %s -> %s (%s)%s",
            entity.path, before.value, after.value, transition.reason, where,
        )  # fmt: skip
        self.recorder.changed(entity.path, after, transition.reason)
        if after is State.HEALTHY:
            for pool in self._pools.values():
                pool.rouse()


async def close_sdk_client(sdk: ServiceBusClient) -> None:
    """Close a client of the SDK, whatever its peer does."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await sdk.close()


async def _send_ping(sdk: Any) -> None:
    ping = PingMessage(session_id=uuid4().hex)
    await sdk.send_messages(
        ServiceBusMessage(
            ping.body,
            content_type=ping.content_type,
            time_to_live=timedelta(seconds=ping.time_to_live_s),
            session_id=ping.session_id,
        )
    )


async def _nothing_more(sdk: Any) -> None:
    """A link that is attached has answered."""
