"""The client of a pair: makes senders and entities, pings, announces changes, closes both sides."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from azure.servicebus import ServiceBusMessage

from twinbus.client.connection import MACHINE, Environment
from twinbus.errors import error_text
from twinbus.namespace.namespace import KEEP_ALIVE_OFF
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.backlog import KeptChoice
from twinbus.pairing.core.failover import SendSucceeded, Transition
from twinbus.pairing.core.fleet import PingedElsewhere
from twinbus.pairing.core.pings import PING_TIME_TO_LIVE_S, PingTurns, ping_delay_s
from twinbus.pairing.core.session_order import SessionOrder
from twinbus.pairing.core.status import consequence_of
from twinbus.pairing.observing.events import EntityChanged, PingEnded
from twinbus.pairing.observing.recording import CLOSED, Recorder
from twinbus.pairing.sdk.guards import encoded_bytes
from twinbus.pairing.sdk.sdk_cleanup import close_sdk_client
from twinbus.pairing.sdk.sender_pool import SenderPool, open_only
from twinbus.pairing.sending.calls import SendTarget
from twinbus.pairing.sending.entity_monitor import EntityMonitor
from twinbus.pairing.sending.own_links import OwnConnections
from twinbus.pairing.sending.sender import PairedSender
from twinbus.pairing.sending.sessions import SessionScan
from twinbus.pairing.sending.shared_state import SharedState
from twinbus.servicebus.failures import FailureMeaning, of_error
from twinbus.servicebus.names import PING_CONTENT_TYPE, is_entity_name, not_an_entity_name
from twinbus.status.document import EntityState

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

    from twinbus.namespace.namespace import Namespace
    from twinbus.pairing.sending.carrier import Carrier, SenderCarrier

log = logging.getLogger("twinbus.pairing")


class PairedClient:
    """Makes paired senders, as `ServiceBusClient` makes the senders of one namespace."""

    def __init__(
        self,
        primary: Namespace,
        secondary: Namespace,
        options: SendAvailabilityOptions,
        recorder: Recorder,
        environment: Environment = MACHINE,
    ) -> None:
        """Belongs to the running event loop."""
        self.state = SharedState(primary, secondary, options, recorder, environment)
        self._primary_sdk = primary.bounded_client(options.attempt_timeout_s)
        self._pinger = Pinger(self.state, self._primary_sdk)
        self._own: OwnConnections | None = None
        """What carries messages instead of senders of the SDK."""
        if options.links == "own":
            self._own = OwnConnections(self.state)
            self.state.make_backlog_pool = self._own.backlog
        self._senders: set[PairedSender] = set()
        self.session_scan: SessionScan | None = None
        """Finds the sessions that are bound to the backlog; None: the order is relaxed."""
        if options.session_order == "strict":
            self.session_scan = SessionScan(self.state, SessionOrder(self.state.paths))

    def get_queue_sender(self, queue_name: str, **sdk_options: Any) -> PairedSender:
        return self._sender(queue_name, self._primary_sdk.get_queue_sender, sdk_options)

    def get_topic_sender(self, topic_name: str, **sdk_options: Any) -> PairedSender:
        return self._sender(topic_name, self._primary_sdk.get_topic_sender, sdk_options)

    def _sender(
        self, path: Any, make: Callable[..., ServiceBusSender], sdk_options: dict[str, Any]
    ) -> PairedSender:
        self.state.require_open()
        if not isinstance(path, str) or not path.strip("/"):
            raise ValueError(
                f"the name of an entity must be a text that is not empty; got {path!r}"
            )
        if not is_entity_name(path.strip("/")):
            # The syphon would deliver nothing to it.
            raise ValueError(not_an_entity_name(path.strip("/")))
        only = self.state.primary.entity_path
        if only is not None and path != only:
            raise ValueError(
                f"the connection string of the primary is for {only!r} (EntityPath), so it has no"
                f" sender to {path!r}"
            )
        identifier = sdk_options.get("client_identifier") or f"SBSender-{uuid4()}"
        pool: SenderCarrier
        if self._own is not None:
            pool = self._own.primary(path)
        else:
            given = {**KEEP_ALIVE_OFF, **sdk_options, "client_identifier": identifier}
            make_one = partial(make, path, **given)
            pool = SenderPool(make_one, self.state.primary.resolve, self.state.closer)
        target = self.target(path, pool)
        sender = PairedSender(target, pool, identifier, on_close=self._sender_closed)
        self._senders.add(sender)
        return sender

    def target(self, path: str, pool: Carrier, client: str | None = None) -> SendTarget:
        """Where the calls of a new sender go that uses the senders of this pool.

        `client` is the client of a gateway for whom it sends.
        """
        if self.session_scan is not None:
            self.session_scan.wake()
        state, entity = self.state, self.entity(path)
        choice = KeptChoice(state.rotation, state.environment.choose)
        twin = state.first_choice(entity.path, choice)
        return SendTarget(state, entity, pool, choice, self.session_scan, client, twin)

    def _sender_closed(self, sender: PairedSender) -> None:
        self._senders.discard(sender)
        self.state.monitors.release(sender.target.entity)

    def entity(self, path: str) -> EntityMonitor:
        """The shared state of an entity, made when it is first needed."""
        entity = self.state.monitors.find(path)
        if entity is None:
            entity = EntityMonitor(
                path.strip("/"),
                self.state.options,
                ping=self._pinger.ping,
                changed=self._announce_change,
            )
            self.state.monitors.add(entity)
        return entity

    def forwarded(self, path: str) -> None:
        """The syphon delivered a message to an entity (docs/failures.md)."""
        entity = self.state.monitors.find(path)
        if entity is not None:
            entity.tell(SendSucceeded(is_forward=True))

    def _announce_change(self, entity: EntityMonitor, transition: Transition) -> None:
        """Write a change of state to log and ledger, and announce it to listeners."""
        state = self.state
        before, after, reason = transition.before, transition.after, transition.reason
        consequence = consequence_of(
            transition,
            last_error=entity.failover.last_error,
            failover_interval_s=state.options.failover_interval_s,
            rotation=state.rotation,
            now=state.now,
            path=entity.path,
        )
        # A recovery too: under default logging the last line would else be the failover.
        log.warning("%s: %s -> %s (%s)%s", entity.path, before, after, reason, consequence)
        state.recorder.changed(entity.path, after.value, reason)
        state.listeners.tell(
            EntityChanged(path=entity.path, before=before, after=after, reason=reason)
        )
        state.fleet.changed(entity.path)
        if after is EntityState.HEALTHY:
            state.wake_diverting_calls()
            state.rest_twin(entity.path)
            if entity.is_unused:
                state.monitors.release(entity)
            if self.session_scan is not None:
                self.session_scan.wake()

    async def close(self) -> None:
        """Stop pings and timers, let calls in flight end, close every sender. Idempotent."""
        self.state.closed = True
        await self.stop_watching()
        await asyncio.gather(self.close_primary(), self.close_secondary("the pair was closed"))

    async def stop_watching(self) -> None:
        """Leave no timer and no ping behind; calls that wait see that the pair was closed."""
        if self.session_scan is not None:
            await self.session_scan.close()
        entities = self.state.monitors.all()
        for entity in entities:
            failover = entity.failover
            if not failover.closed and failover.state is not EntityState.HEALTHY:
                reason = f"the pair was closed, the entity was {failover.state.value}"
                self.state.recorder.changed(entity.path, CLOSED, reason)
        await asyncio.gather(*(entity.close() for entity in entities))

    async def close_primary(self) -> None:
        assert self.state.closed
        await self.state.close_pools([sender.pool for sender in self._senders])
        await close_sdk_client(self._primary_sdk)
        if self._own is not None:
            await self._own.close_primary()
        self._senders.clear()

    async def close_secondary(self, reason: str) -> None:
        """Close what leads to the secondary; from now on there is nothing to divert to."""
        if self.session_scan is not None:
            await self.session_scan.close()
        await self.state.close_backlog(reason)
        if self._own is not None:
            await self._own.close_secondary()


class Pinger:
    """Sends the pings of one pair; each result goes to ledger, counters and listeners."""

    def __init__(self, state: SharedState, primary_sdk: ServiceBusClient) -> None:
        self._state = state
        self._primary_sdk = primary_sdk
        self._turns = PingTurns()

    async def ping(self, entity: EntityMonitor) -> None:
        """Ping an entity once, over a connection of its own; raises if it was not answered."""
        state, loop = self._state, self._state.loop
        if not state.fleet.pings(entity.path):
            raise PingedElsewhere
        await asyncio.sleep(ping_delay_s(state.options.ping_primary_interval_s, state.jitter()))
        now = loop.time()
        await asyncio.sleep(self._turns.take(now) - now)
        make = partial(self._primary_sdk.get_queue_sender, entity.path, **KEEP_ALIVE_OFF)
        pool = SenderPool(make, state.primary.resolve, state.closer)
        pooled = pool.take()
        assert pooled is not None
        is_message = state.options.ping_mode == "message"
        ping = partial(send_ping, new_id=state.environment.new_id)
        span = (
            contextlib.nullcontext() if state.tracing is None else state.tracing.ping(entity.path)
        )
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
        pings = self._state.pings
        if isinstance(error, asyncio.CancelledError):
            pings["dropped"] += 1
            return
        pings["answered" if error is None else "failed"] += 1
        may_send = error is None or of_error(error) is not FailureMeaning.UNAUTHORIZED
        self._state.fleet.ping_ended(path, answered=error is None, may_send=may_send)
        text = "" if error is None else error_text(error)
        log.debug("%s: ping %s", path, f"failed: {text}" if text else "answered")
        self._state.listeners.tell(
            PingEnded(path=path, answered=error is None, error=text, seconds=seconds)
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
    return encoded_bytes(_ping_message("0" * 32).raw_amqp_message)
