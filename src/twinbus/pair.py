"""Two namespaces as a pair: sends survive the loss of the primary (docs/production.md).

async with pair_namespaces(primary, secondary, options) as pair:
    async with pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("order 1"))
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, Unpack

from azure.core.async_paging import AsyncItemPaged
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from twinbus.client.connection import MACHINE, Environment
from twinbus.control.protocol import known_path, pair_verbs, steering_verbs
from twinbus.control.server import ControlServer
from twinbus.errors import (
    PairClosedError,
    PairingError,
    PairNotStartedError,
    SameNamespaceError,
    error_text,
)
from twinbus.namespace.namespace import Namespace, both_sides
from twinbus.options import SendAvailabilityOptions
from twinbus.pair_fleet import PairFleet
from twinbus.pairing.core.failover import Event
from twinbus.pairing.core.sides import ClosePair, Side, SideChange
from twinbus.pairing.core.status import backlog_status, side_status
from twinbus.pairing.lifecycle.attaching import ProtectionMonitor
from twinbus.pairing.lifecycle.closing import AsyncOnly, PairSide, SideKeeper
from twinbus.pairing.lifecycle.discovery import Discovery
from twinbus.pairing.lifecycle.pair_methods import PairMethods
from twinbus.pairing.lifecycle.twin_marks import TwinMarks
from twinbus.pairing.observing.events import (
    BUFFER_MAX,
    EntityChanged,
    EntityHeld,
    EventStream,
    PairEvent,
    SideChanged,
)
from twinbus.pairing.observing.recording import Recorder, open_recorder
from twinbus.pairing.receiving.processor import Processor
from twinbus.pairing.receiving.processors import PairedProcessors
from twinbus.pairing.receiving.sources import receivers_of
from twinbus.pairing.sdk.sdk_cleanup import close_sdk_client
from twinbus.pairing.sending.client import PairedClient
from twinbus.pairing.transacting.primary_side import PrimarySide
from twinbus.status.document import EntityState, PairStatus

if TYPE_CHECKING:
    from twinbus.client.peeking import BacklogMeter
    from twinbus.pair_syphon import PairSyphon
    from twinbus.pairing.core.processing import ProcessOptions
    from twinbus.pairing.observing.metrics import PairCollector
    from twinbus.pairing.receiving.handling import Handler
    from twinbus.pairing.receiving.receivers import PairedReceivers
    from twinbus.pairing.sending.sender import PairedSender
    from twinbus.pairing.transacting.transactions import Transactions
    from twinbus.pairing.transacting.watching import WatchedTransactions

__all__ = ["Pair", "PairStatus", "pair_namespaces"]

log = logging.getLogger("twinbus.pair")


def pair_namespaces(
    primary: str | Namespace,
    secondary: str | Namespace,
    options: SendAvailabilityOptions | None = None,
) -> Pair:
    """Pair two namespaces for the `async with` block; the primary may be down meanwhile.

    Without a block, call `await pair.start()` and at the end `await pair.close()`. A side is a
    connection string, sb://HOST?credential=SOURCE or a Namespace. Raises
    SameNamespaceError and NamespaceInUseError; the start raises MissingRightError, and with
    `require_secondary` BacklogUnavailableError.
    """
    given = SendAvailabilityOptions() if options is None else options
    return Pair(*both_sides(primary, secondary), given)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairParts:
    """What a pair is made of. The simulation of its tests has parts of its own."""

    environment: Environment = MACHINE
    open_recorder: Callable[[Namespace, Namespace, SendAvailabilityOptions], Recorder] = (
        open_recorder
    )
    client: type[PairedClient] = PairedClient
    control: type[ControlServer] = ControlServer
    fleet: Callable[[PairedClient], PairFleet] | None = PairFleet
    """None: the pair shares nothing with other processes."""


class Pair(AsyncOnly, PairMethods[ServiceBusReceiver, AsyncItemPaged[str]]):
    """A primary and a secondary namespace; `pair_namespaces` makes one."""

    def __init__(
        self,
        primary: Namespace,
        secondary: Namespace,
        options: SendAvailabilityOptions,
        parts: PairParts | None = None,
    ) -> None:
        if not isinstance(options, SendAvailabilityOptions):
            raise TypeError(f"options must be SendAvailabilityOptions or None; got {options!r:.60}")
        if primary.place == secondary.place:
            raise SameNamespaceError(
                f"both sides of the pair are {primary.endpoint}: if it is down, so is the backlog;"
                " give two namespaces"
            )
        if secondary.entity_path is not None:
            raise ValueError(
                f"the connection string of the secondary is for {secondary.entity_path!r}"
                " (EntityPath); the backlog queues need one for the namespace"
            )
        primary.claim()
        try:
            secondary.claim()
        except BaseException:
            primary.release()
            raise
        self.options = options
        self._parts = parts = parts or PairParts()
        self._primary, self._secondary = primary, secondary
        self._keeper = SideKeeper(
            syphon=options.enable_syphon, release=self._release_side, changed=self._side_changed
        )
        self.primary = PrimarySide(self._keeper, primary.endpoint, self._open_transactions)
        self.secondary = PairSide(self._keeper, Side.SECONDARY, secondary.endpoint)
        self._recorder: Recorder | None = None
        self._client: PairedClient | None = None
        self._discovery: Discovery | None = None
        self._protection: ProtectionMonitor | None = None
        self._twin_marks: TwinMarks | None = None
        self._fleet: PairFleet | None = None
        self._receiving: ServiceBusClient | None = None
        self._receivers: PairedReceivers | None = None
        self._transactions: WatchedTransactions | None = None
        self._syphon: PairSyphon | None = None
        self._processors = PairedProcessors()
        self._closer: asyncio.Task[Any] | None = None
        """The task that closes the pair: a handler of a processor cannot be waited for by it."""
        verbs = pair_verbs(self)
        if options.enable_syphon:
            from twinbus.pair_syphon import PairSyphon

            self._syphon = PairSyphon(primary, secondary, options, parts.environment)
            verbs = {**verbs, **steering_verbs(self._syphon.group)}
        self._control = parts.control("pair", primary.label, verbs)
        self._meters: list[BacklogMeter] = []
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Pair({self._primary.endpoint}, {self._secondary.endpoint})"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Find or create the backlog queues, and start the syphon if the options want it.

        A start that fails or is cancelled closes the pair.
        """
        if self._closing is not None:
            raise PairClosedError("the pair was closed before it was started")
        if self._client is not None:
            raise PairingError("the pair was started already")
        for side in (self.primary, self.secondary):
            if side.state != "open":
                refusal = self._keeper.sides.refusal() or PairClosedError(
                    f"{side.endpoint} was {side.state} before the pair was started; make a new pair"
                )
                await self.close()
                raise refusal
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        sides, parts = (self._primary, self._secondary), self._parts
        self._recorder = recorder = parts.open_recorder(*sides, self.options)
        self._client = parts.client(*sides, self.options, recorder, parts.environment)
        if self._syphon is not None:
            self._syphon.attach(self._client)
        self._discovery = Discovery(self._client.state, self._drain)
        self._protection = ProtectionMonitor(self._client.state)
        self._twin_marks = TwinMarks(self._client.state)
        if parts.fleet is not None:
            self._fleet = parts.fleet(self._client)
        # A task of its own, because closing a side meanwhile must end it.
        self._starting = asyncio.create_task(self._discover(self._discovery), name="pairing")
        try:
            await self._starting
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if here is not None and here.cancelling():
                raise
            self._client.state.require_open()
            # Only the secondary was closed: the pair goes on, unprotected.

    async def _discover(self, discovery: Discovery) -> None:
        # First, so that the control socket shows what a pair waits for while it starts.
        await self._control.start()
        await discovery.start()
        if self._fleet is not None:
            # Now the notice board is there, if it can be made.
            self._fleet.start()
        assert self._protection is not None
        self._protection.start()
        assert self._twin_marks is not None
        self._twin_marks.start()
        if self._syphon is not None:
            self._syphon.look_for_twins()

    def get_queue_sender(self, queue_name: str, **sdk_options: Any) -> PairedSender:
        """A sender to a queue of the primary, which survives the loss of the primary."""
        return self._live().get_queue_sender(queue_name, **sdk_options)

    def get_topic_sender(self, topic_name: str, **sdk_options: Any) -> PairedSender:
        """A sender to a topic of the primary, which survives the loss of the primary."""
        return self._live().get_topic_sender(topic_name, **sdk_options)

    def process(
        self,
        entity_name: str,
        handler: Handler,
        *,
        subscription: str | None = None,
        **options: Unpack[ProcessOptions],
    ) -> Processor:
        """A processor that runs `handler` for each message of a queue, or of a subscription.

        It completes a message when the handler returns, abandons it on an exception, and
        dead-letters it on DeadLetterError. Its receivers are guarded, and read the twin of an
        entity that has one. The options are those of `ProcessSettings`.
        """
        self._live()
        name, get_receiver = receivers_of(self, entity_name, subscription, guard=True)
        owner = self._processors
        return Processor(get_receiver, handler, name=name, owner=owner, **options)

    @property
    def backlog_queues(self) -> tuple[str, ...]:
        """All available backlog queues by index, in the rotation or pulled."""
        state = self._live().state
        # Those that discovery finds later are added as they answer, in any order.
        available = frozenset(state.rotation.queues)
        return tuple(path for path in state.paths if path in available)

    def status(self) -> PairStatus:
        """The pair at this moment; it works also after the pair was closed or faulted."""
        state, discovery = self._started().state, self._discovery
        assert discovery is not None
        now = state.now
        sides, timer_at = self._keeper.sides, self._keeper.sides.timer_at
        endpoints = {side: getattr(self, side).endpoint for side in Side}
        # The last fresh measurement; without one a request would be billed.
        depths = next(filter(None, (meter.depths() for meter in self._meters)), None)
        return PairStatus(
            primary=self.primary.endpoint,
            secondary=self.secondary.endpoint,
            protected=state.rotation.protected,
            searching=discovery.searching if self._stopping is None else None,
            entities={
                entity.path: entity.status(state.twins.status(entity.path, now), state.fleet)
                for entity in state.monitors.all()
            },
            backlog_queues=backlog_status(state.rotation, state.paths, now, discovery.not_verified),
            sides=side_status(sides, endpoints),
            faulted=sides.fault,
            faults_in_s=None if timer_at is None else max(0.0, timer_at - now),
            syphon=None if self._syphon is None else self._syphon.group.status(),
            pings=dict(state.pings),
            forgotten=replace(state.monitors.forgotten),
            backlog_waiting=None if depths is None else sum(one.waiting for one in depths.values()),
            ledger_unrecorded=state.recorder.unrecorded,
            verified_at=state.verification.verified_at,
            verification_error=state.verification.error,
            receivers={} if self._receivers is None else self._receivers.status(),
            processors=self._processors.status(),
            twins={} if self._syphon is None else self._syphon.twins,
            fleet=None if self._fleet is None else self._fleet.status(),
        )

    def events(self, *, buffer: int = BUFFER_MAX) -> EventStream:
        """A stream of every PairEvent from now on; it ends when the pair is closed.

        A listener that is slow loses the oldest events; EventsDropped has their number.
        """
        return self._started().state.listeners.stream(buffer)

    def on_event(self, callback: Callable[[PairEvent], None]) -> Callable[[], None]:
        """Call `callback` with every PairEvent, on the loop; return a function that ends it."""
        return self._started().state.listeners.on_event(callback)

    def collector(self, *, entities_max: int = 1_000, backlog_every: float = 0.0) -> PairCollector:
        """This pair's numbers for Prometheus: `REGISTRY.register(pair.collector())`.

        `entities_max` bounds the entities that have series of their own. With `backlog_every`
        depth and age of the backlog are measured at that interval in seconds (billed operations).
        ImportError without the extra `telemetry`.
        """
        from twinbus.pairing.observing.metrics import MeasuredPair, PairCollector, backlog_meter

        state = self._started().state
        meter = backlog_meter(state, backlog_every) if backlog_every else None
        self._meters += [meter] if meter else []
        parts = state, self._keeper.sides, self.status
        return PairCollector(MeasuredPair(*parts, meter), entities_max=entities_max)

    async def close(self) -> None:
        """Stop processors, pings and pumps, waiting for what is in flight; then close both sides.

        Idempotent. Each processor has its `stop_timeout` for handlers that run, which can send
        meanwhile. Cancelled, it cancels these, and closes everything before it raises.
        """
        if self._client is not None:
            self._client.state.require_loop()
        if self._closing is None:
            self._closer = asyncio.current_task()
            if not self._processors.are_running:
                # Now and not in the task: a send after this call must be refused.
                self._keeper.tell(ClosePair())
            self._closing = asyncio.create_task(self._close(), name="close the pair")
        cancelled = False
        while not self._closing.done():
            try:
                await asyncio.shield(self._closing)
            except asyncio.CancelledError:
                # Every part is bounded in time, and half a close would leave sockets behind.
                cancelled = True
                self._processors.hurry()
        if cancelled:
            raise asyncio.CancelledError
        self._closing.result()

    async def _close(self) -> None:
        closed = PairClosedError("the pair was closed; make a new one with pair_namespaces")
        await self._processors.stop(closed, self._closer)
        self._keeper.tell(ClosePair())
        await self._keeper.wait_closed()
        await self._control.close()
        if self._recorder is not None:
            self._recorder.ledger.close()
        if self._client is not None:
            self._client.state.listeners.end()
        self._primary.release()
        self._secondary.release()

    async def _release_side(self, side: Side) -> None:
        """Close what one side holds open, pings and pumps first (docs/observability.md)."""
        client = self._client
        if client is None:
            return
        if side is Side.PRIMARY:
            await client.stop_watching()
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop_moving(), name="stop the syphon")
        # The two sides share the task, so neither may cancel it.
        await asyncio.wait({self._stopping})
        if side is Side.SECONDARY:
            if self._receivers is not None:
                await self._receivers.close_side(side)
            await client.close_secondary(f"the secondary is {self.secondary.state}")
            return
        ended = self._keeper.sides.refusal() or PairClosedError("the primary was closed")
        await self._processors.stop(ended, self._closer)
        if self._transactions is not None:
            await self._transactions.close()
        if self._receivers is not None:
            await self._receivers.close()
        await client.close_primary()
        if self._receiving is not None:
            await close_sdk_client(self._receiving)

    async def _stop_moving(self) -> None:
        """Stop what runs between the two sides: the search for backlog queues, and the pumps."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        for part in (self._discovery, self._protection, self._twin_marks, self._fleet):
            if part is not None:
                await part.close()
        parts = [meter.close() for meter in self._meters]
        if self._syphon is not None:
            await self._syphon.stop_looking()
            parts += [host.close() for host in self._syphon.group.hosts]
        for error in await asyncio.gather(*parts, return_exceptions=True):
            if isinstance(error, BaseException):
                log.warning("a syphon did not close: %s", error_text(error))

    def _side_changed(self, change: SideChange) -> None:
        """Refuse later calls that need the side, then log and announce the change."""
        side, reason = change.side, change.reason
        label = self._primary.label
        log.log(
            logging.INFO if change.after == "closed" else logging.WARNING,
            "%s: %s %s -> %s (%s)", label, side, change.before, change.after, reason,
        )  # fmt: skip
        client = self._client
        if client is None:
            return
        if self._keeper.sides.refusal() is not None:
            client.state.refuse(self._keeper.sides.refusal)
        client.state.listeners.tell(
            SideChanged(side=side, before=change.before, after=change.after, reason=reason)
        )

    async def _drain(self, queues: list[str]) -> None:
        """Scan queues that were found for sessions, and start a syphon on them."""
        assert self._client is not None
        if self._client.session_scan is not None:
            await self._client.session_scan.start(queues)
        if self._syphon is not None:
            await self._syphon.pump(queues)

    def _command(self, path: str, event: Event) -> None:
        client = self._live()
        monitors = client.state.monitors
        # A mistyped path must not become an entity of the pair.
        known = known_path((entity.path for entity in monitors.all()), path)
        entity = client.entity(known)
        failover = entity.failover
        before = failover.forced, failover.frozen, failover.state
        entity.tell(event)
        forced, frozen = failover.forced, failover.frozen
        if (forced, frozen) != before[:2]:
            entity.held_at = time.time()
            # A change of state has a log line of its own, with the reason.
            if failover.state is before[2]:
                holds = [name for name in ("forced", "frozen") if getattr(failover, name)]
                log.warning("%s: %s", entity.path, " and ".join(holds) or "not held any more")
            client.state.listeners.tell(EntityHeld(path=entity.path, forced=forced, frozen=frozen))

    def _paired_receiver(self, entity: str, path: str, sdk_options: dict[str, Any]) -> Any:
        return self._paired_receivers().make(entity, path, sdk_options)

    def _paired_receivers(self) -> PairedReceivers:
        self._live()
        assert self._recorder is not None
        if self._receivers is None:
            from twinbus.pairing.receiving.receivers import PairedReceivers

            sides, parts = (self._primary, self._secondary), self._parts
            self._receivers = PairedReceivers(
                *sides, self.options, self._recorder, parts.environment
            )
            self._started().state.listeners.on_event(self._receive_again)
        return self._receivers

    def _open_transactions(self) -> Transactions:
        client = self._live()
        if self._transactions is None:
            from twinbus.pairing.transacting.watching import WatchedTransactions

            receivers = self._paired_receivers()
            self._transactions = WatchedTransactions(client, self._primary, receivers)
        return self._transactions.make()

    def _receive_again(self, event: PairEvent) -> None:
        """Let receivers open their links at once when the primary takes messages again."""
        if isinstance(event, EntityChanged) and event.after is EntityState.HEALTHY:
            assert self._receivers is not None
            self._receivers.retry(Side.PRIMARY)

    def _receiver_client(self) -> ServiceBusClient:
        self._live()
        if self._receiving is None:
            self._receiving = self._primary.client()
        return self._receiving

    def _live(self) -> PairedClient:
        client = self._started()
        client.state.require_open()
        return client

    def _started(self) -> PairedClient:
        if self._client is None:
            raise PairNotStartedError(
                "the pair was not started; use it as a context manager, or call its start() before"
                " the first sender (a web application does so when it starts: docs/from-sdk.md)"
            )
        return self._client


def client_of(pair: Pair) -> PairedClient:
    """The failover core of a running pair, for a gateway that sends through it."""
    return pair._live()


def paired_receivers_of(pair: Pair) -> PairedReceivers:
    """What receives from both sides of a running pair, for a gateway."""
    return pair._paired_receivers()


def processors_of(pair: Pair) -> PairedProcessors:
    """The processors that end with a pair, for one that `twinbus.blocking` makes."""
    return pair._processors


def call_program(pair: Pair, name: str) -> None:
    """Give the program of a pair that is not started yet another name, for `twinbus status`."""
    pair._control.program = name
