"""Moves the messages of one backlog queue, or of one twin, to the primary, as its pump decides.

    secondary --deliveries--> pump --Forward--> primary
        ^                                          |
        '------ Complete, as ranges <--- accepted -'

Both sides are raw AMQP and pipelined. The relay handles everything that one read of a socket
brought before it writes, so that sends and settlements leave in groups. It reconnects a lost side
as long as it runs; the pump decides what a loss means for each message.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from twinbus.amqp.events import (
    Attached,
    CreditChanged,
    DeliveryArrived,
    Detached,
    Disposed,
    Event,
)
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.performatives import Accepted, Rejected, Source, Target
from twinbus.client.connection import ANSWER_S, MACHINE, Environment, NamespaceConnection
from twinbus.client.outcomes import COMPLETE, SettlingOutcome, ranges
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import Endpoint
from twinbus.servicebus.conditions import NOT_FOUND, UNAUTHORIZED
from twinbus.servicebus.failures import MISSING_STATUS
from twinbus.status.document import LEASE_GONE
from twinbus.syphon.bookkeeping import Bookkeeper, OutageLog, RelayLedger
from twinbus.syphon.core import actions
from twinbus.syphon.core.actions import Action
from twinbus.syphon.core.pacing import ReconnectBackoff
from twinbus.syphon.core.pump import Pump
from twinbus.syphon.outbound import DestinationLinks
from twinbus.syphon.queue_requests import RequestTasks, outcome_of
from twinbus.transfer.unpacking import BacklogMessage, Unpacker

log = logging.getLogger("twinbus.syphon")

LONGEST_TICK_S: Final = 1.0
"""Longest sleep of the timer, so that a timer set meanwhile is late by no more."""

SETTLE_S: Final = 0.02
"""Pause between two checks whether anything is in flight."""

DRAINED_S: Final = 2.0
"""Time for the queue to answer a drain; the answer comes after the last message."""

LEASE: Final = "the lease is not held"

_link_numbers = itertools.count(1)


class QueueMissing(ConnectionLost):
    """The queue does not exist or must be left alone, and that may last."""


class Relay:
    """Moves one backlog queue to the primary until it is closed."""

    def __init__(
        self,
        primary: Endpoint,
        secondary: Endpoint,
        queue: str,
        *,
        pump: Pump,
        ledger: RelayLedger,
        unpack: Callable[[bytes, bytes, int], BacklogMessage] | None = None,
        refusal: Callable[[], Awaitable[str | None]] | None = None,
        on_delivered: Callable[[str], None] | None = None,
        lease: Callable[[], bool] | None = None,
        outages: OutageLog | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        """`unpack` makes the message of a delivery: its bytes, its tag, the time; None: by aliases.

        `refusal` returns why the queue must not be received from, before each attach; None: it may.
        `on_delivered` is called with the path of each destination that accepted a message.

        With a `lease`, messages are forwarded only while it returns true; call `lease_changed`
        when it changes. The relays of a host share `outages`.
        """
        self.queue = queue
        self.pump = pump
        self._environment = environment
        self._now = environment.monotonic
        self._outages = outages or OutageLog()
        self.problems: dict[str, str] = {}
        """Each side (primary, secondary) that cannot be used now, and why."""
        self.fault: str | None = None
        """An internal error of the syphon; the backlog keeps what was not moved."""
        self._primary_endpoint, self._secondary_endpoint = primary, secondary
        self._books = Bookkeeper(ledger, primary.label, secondary.label, queue)
        self._billed = BilledRequests(
            secondary.label, cause="syphon", side="secondary", pair=self._books.pair, ledger=ledger
        )
        self._unpack = unpack or Unpacker().unpack
        self._refusal = refusal
        self._on_delivered = on_delivered
        self._lease = lease
        self.leased = asyncio.Event()
        if lease is None:
            self.leased.set()
        else:
            pump.pause(self._now(), LEASE)
        self.primary: NamespaceConnection | None = None
        self.secondary: NamespaceConnection | None = None
        self._source: ReceiverLink | None = None
        self._source_gone: asyncio.Future[str] | None = None
        self._is_missing = False
        """The link ended because the queue does not exist."""
        self.requests = RequestTasks(
            pump, self._books, self._perform, self._unpack, queue, environment
        )
        self._outbound = DestinationLinks(pump, self._books, self._perform, self._now)
        self._deliveries: dict[int, BacklogMessage] = {}
        """Received and not settled, by delivery id on the source link of this epoch."""
        self._epoch = 0
        self._completing: list[int] = []
        self._by_token: dict[bytes, tuple[SettlingOutcome, list[BacklogMessage]]] = {}
        """Messages to settle by request, by the encoded state of their outcome."""
        self._flushing = False
        self._wake_timer: asyncio.TimerHandle | None = None
        self._running: list[asyncio.Task[None]] = []
        self.is_unfinished = False
        """At the close something had no answer yet: the primary may still store it."""
        requests, start = self.requests, self.requests.start
        self._performers: dict[type, Callable[[Any], None]] = {
            actions.Complete: self._complete,
            actions.GrantCredit: self._grant,
            actions.OpenDestination: lambda action: start(self._outbound.attach(action.path)),
            actions.CloseDestination: lambda action: self._outbound.detach(action.path),
            actions.DeadLetter: self._settle,
            actions.Defer: self._settle,
            actions.Release: self._settle,
            actions.Renew: lambda action: start(requests.renew(action.messages)),
            actions.ReceiveDeferred: lambda action: start(
                requests.receive_deferred(action.numbers)
            ),
            actions.FindDeferred: lambda action: start(
                requests.find_deferred(to_the_end=action.to_the_end)
            ),
            actions.PeekForOrder: lambda action: start(
                requests.peek(action.start, pump.peeked_for_order)
            ),
            actions.LookAhead: lambda action: start(requests.peek(action.start, pump.looked_ahead)),
            actions.EmptyPoll: self._poll,
            actions.Reconnect: self._reconnect,
            actions.WaitUntil: self._wait,
        }

    def start(self) -> None:
        """Start; the relay connects, and reconnects, in the background."""
        self._running = [
            asyncio.create_task(work, name=f"syphon {self.queue}")
            for work in (
                self._keep_connected("primary", self._serve_primary),
                self._keep_connected("secondary", self._serve_secondary),
                self._tick_forever(),
            )
        ]

    def notify(self, event: Callable[[float], list[Action]]) -> None:
        """Call an event method of the pump with the time, and perform its actions."""
        self._perform(event(self._now()))

    def lease_changed(self, is_held: bool) -> None:
        """Resume, or stop at once: without the lease the relay disconnects from the primary."""
        if is_held:
            self.leased.set()
            self._perform(self.pump.resume(self._now(), LEASE))
        elif self.leased.is_set():
            self.leased.clear()
            self._perform(self.pump.pause(self._now(), LEASE))
            if self.primary is not None:
                self.primary.drop(LEASE_GONE)

    async def close(self, timeout_s: float = 10.0) -> None:
        """Stop receiving, wait for what is in flight, and close both connections."""
        self._perform(self.pump.pause(self._now()))
        source, began = self._source, self._now()
        if source is not None and self.secondary is not None:
            source.grant(0, drain=True)
            self.secondary.flush()
        while self._running and self._now() < began + timeout_s:
            # Messages on the wire would stay locked. The answer to a drain comes after them.
            is_coming = source is not None and source is self._source and source.is_draining
            if not self.pump.in_flight and not (is_coming and self._now() < began + DRAINED_S):
                break
            await asyncio.sleep(SETTLE_S)
        self.is_unfinished = self.pump.in_flight > 0
        if self._wake_timer is not None:
            self._wake_timer.cancel()
        for task in self._running:
            task.cancel()
        await self.requests.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running = []
        self._outages.ended(self.queue)

    # Sides

    async def _keep_connected(
        self, side: str, serve: Callable[[], Coroutine[Any, Any, str]]
    ) -> None:
        """Serve one side for ever, with a growing pause after each loss."""
        backoff = ReconnectBackoff(self._environment.chance)
        while True:
            began, is_missing = self._now(), False
            try:
                reason = await serve()
            except (ConnectionLost, RequestRefused) as error:
                reason = str(error)
                is_missing = isinstance(error, QueueMissing) or (
                    isinstance(error, RequestRefused) and error.status == MISSING_STATUS
                )
            except Exception as error:
                # Nothing awaits this task: an error that ended it would be lost.
                log.exception("%s: %s", self.queue, side)
                reason = repr(error)
            self.problems[side] = reason
            self._outages.lost(side, self.queue, reason, self._now())
            await asyncio.sleep(backoff.after(self._now() - began, is_missing=is_missing))

    def _side_is_back(self, side: str) -> None:
        self.problems.pop(side, None)
        self._outages.back(side, self.queue, self._now())

    async def _serve_primary(self) -> str:
        await self.leased.wait()
        connection = self._environment.connect(self._primary_endpoint, self._on_primary)
        try:
            await connection.open()
            with suppress(RequestRefused):
                # A namespace cuts off a client that shows no token for long, as before the first
                # message. A key of single entities is refused here, and put with the first link.
                await connection.authorize("")
            if not self.leased.is_set():
                return LEASE_GONE
            self.primary = self._outbound.connection = connection
            self._side_is_back("primary")
            self._perform(self.pump.primary_up(self._now()))
            return await asyncio.shield(connection.lost)
        finally:
            if self.primary is connection:
                self.primary = None
                reason = (
                    connection.lost.result() if connection.lost.done() else "the relay was closed"
                )
                self._outbound.lost(reason)
                self._perform(self.pump.primary_down(self._now()))
            await connection.close()

    async def _serve_secondary(self) -> str:
        connection = self._environment.connect(
            self._secondary_endpoint,
            self._on_secondary,
            on_deliveries=self._on_deliveries,
            requests=self._billed,
        )
        try:
            await connection.open()
            await connection.authorize(self.queue)
            self.secondary = connection
            self.requests.connection = connection
            while not connection.lost.done():
                if self._refusal is not None and (why := await self._refusal()) is not None:
                    raise QueueMissing(why)
                reason = await self._serve_source(connection)
                if not connection.lost.done():
                    # Detached for idleness: re-attached inside the same poll (docs/costs.md).
                    log.info("%s: the link was closed (%s), attaching again", self.queue, reason)
            return connection.lost.result()
        finally:
            self.secondary = self.requests.connection = None
            await connection.close()

    async def _serve_source(self, connection: NamespaceConnection) -> str:
        """Attach to the backlog queue and receive until the link ends; return why it ended."""
        name = f"{self.queue}-syphon-{next(_link_numbers)}"
        gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._source_gone = gone
        self._epoch += 1
        self._deliveries.clear()
        self._completing.clear()
        source = connection.session.attach_receiver(
            name, source=Source(address=self.queue), target=Target(address=name), confirmed=True
        )
        source.owner = self
        connection.flush()
        try:
            either = {gone, connection.lost}
            await asyncio.wait(either, timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
            if self._source is None and not gone.done() and not connection.lost.done():
                raise ConnectionLost(
                    f"the attach to {self.queue} was not answered for {ANSWER_S:g} s"
                )
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if connection.lost.done():
                return connection.lost.result()
            if self._source is None:
                raise (QueueMissing if self._is_missing else ConnectionLost)(gone.result())
            return gone.result()
        finally:
            if self._source is not None:
                self._source = None
                self._perform(self.pump.secondary_down(self._now()))

    async def _tick_forever(self) -> None:
        while True:
            try:
                due, now = self.pump.timer_at, self._now()
                wait_s = LONGEST_TICK_S if due is None else max(0.01, due - now)
                await asyncio.sleep(min(LONGEST_TICK_S, wait_s))
                self._perform(self.pump.tick(self._now()))
            except Exception as error:
                log.exception("%s: the pump failed", self.queue)
                self.fault = (
                    f"{self.queue}: the syphon itself failed, {error!r}; the backlog keeps what "
                    "was not moved. Start the syphon again, and report this with the log"
                )
                self.problems["pump"] = self.fault
                await asyncio.sleep(LONGEST_TICK_S)

    # Events

    def _on_secondary(self, event: Event) -> None:
        if isinstance(event, DeliveryArrived):
            self._on_deliveries([event])
        elif isinstance(event, Disposed):
            if not event.by_receiver:
                self._on_settled(event)
        elif isinstance(event, Attached):
            if event.link.source is not None and isinstance(event.link, ReceiverLink):
                self._source = event.link
                self._side_is_back("secondary")
                self._perform(self.pump.secondary_up(self._now()))
        elif isinstance(event, Detached):
            gone = self._source_gone
            if gone is not None and not gone.done():
                text = event.error.description if event.error else None
                self._is_missing = event.error is not None and event.error.condition == NOT_FOUND
                gone.set_result(text or "the backlog queue's link was closed")

    def _on_deliveries(self, run: list[DeliveryArrived]) -> None:
        """Unpack the deliveries of one read and hand them to the pump."""
        now_ms = self._environment.wall_ms()
        unpack, epoch, deliveries = self._unpack, self._epoch, self._deliveries
        messages: list[BacklogMessage] = []
        for event in run:
            message = unpack(event.payload, event.tag, now_ms)
            message.epoch = epoch
            message.delivery_id = event.delivery_id
            deliveries[event.delivery_id] = message
            messages.append(message)
        self._books.received(messages, now_ms)
        self._perform(self.pump.received(messages, self._now()))

    def _on_settled(self, event: Disposed) -> None:
        """Tell the pump that the backlog queue settled a range of deliveries, or refused to."""
        taken = self._deliveries.pop
        messages = [taken(number) for number in event.among(self._deliveries)]
        error = event.state.error if isinstance(event.state, Rejected) else None
        self._books.settled(messages, None if error is None else str(error.condition))
        if error is not None:
            self._perform(self.pump.settle_failed(messages, self._now()))
        else:
            self._perform(self.pump.settled(messages, self._now()))

    def _on_primary(self, event: Event) -> None:
        if isinstance(event, Disposed):
            if event.by_receiver:
                self._on_outcome(event)
        elif isinstance(event, CreditChanged):
            self._perform(self.pump.granted(str(event.link.owner), event.link.credit, self._now()))
        elif isinstance(event, Attached):
            if event.link.target is not None:
                path = str(event.link.owner)
                self._perform(self.pump.attached(path, event.link.max_message_size, self._now()))
        elif isinstance(event, Detached):
            path = str(event.link.owner)
            condition = str(event.error.condition) if event.error else None
            text = (event.error.description if event.error else None) or "the link was closed"
            if condition == UNAUTHORIZED and self.primary is not None:
                self.primary.forget_token(path)
            if self._outbound.forget(path, text):
                self._perform(self.pump.detached(path, condition, text, self._now()))

    def _on_outcome(self, event: Disposed) -> None:
        """Tell the pump that the primary accepted or refused a range of messages."""
        taken = event.session.take_unsettled(event.first, event.last)
        in_flight = self._outbound.in_flight.get(event.session, {}).pop
        messages = [p for number, _, _ in taken if (p := in_flight(number, None)) is not None]
        now = self._now()
        if isinstance(event.state, Accepted):
            self._books.forwarded(messages, now, self._environment.wall_ms())
            self._perform(self.pump.accepted(messages, now))
            if self._on_delivered is not None:
                for path in dict.fromkeys(message.path for message in messages):
                    self._on_delivered(path)
            return
        error = event.state.error if isinstance(event.state, Rejected) else None
        condition = str(error.condition) if error else None
        text = (error.description if error else None) or f"answered {event.state}"
        for message in messages:
            self._books.not_forwarded(message, condition or text, is_known=True)
            self._perform(self.pump.refused(message, condition, text, now))

    # Actions

    def _perform(self, decided: list[Action]) -> None:
        if not decided:
            return
        performers = self._performers
        for kind, alike in itertools.groupby(decided, key=type):
            if kind is actions.Forward:
                self._forward([a.message for a in alike if isinstance(a, actions.Forward)])
                continue
            for action in alike:
                performers[kind](action)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Write the settlements and sends of this turn of the event loop, in groups."""
        self._flushing = False
        connection = self.secondary
        if self._completing and connection is not None and self._source is not None:
            for first, last in ranges(self._completing):
                connection.session.dispose(first, last, COMPLETE.state)
            self._completing.clear()
        decided, self._by_token = self._by_token, {}
        for outcome, messages in decided.values():
            self.requests.start(self.requests.settle(messages, outcome))
        if self.primary is not None:
            self.primary.flush()
        if connection is not None:
            connection.flush()

    def _forward(self, messages: list[BacklogMessage]) -> None:
        if self._lease is not None and not self._lease():
            # Checked each time: a process that was suspended may come here before its timers run.
            # The end of the connection tells the pump what was not sent.
            self.lease_changed(False)
            return
        self._outbound.send(messages)

    def _complete(self, action: actions.Complete) -> None:
        for message in action.messages:
            if message.epoch == self._epoch and message.delivery_id >= 0:
                self._completing.append(message.delivery_id)
            else:
                self._settle_by_token(message, COMPLETE)

    def _settle(self, action: actions.DeadLetter | actions.Defer | actions.Release) -> None:
        message = action.message
        if isinstance(action, actions.DeadLetter):
            fields = (self.queue, message.message_id, action.reason, action.description)
            log.warning("%s: message %s is dead-lettered, %s: %s", *fields)
        if message.epoch == self._epoch and message.delivery_id >= 0:
            assert self.secondary is not None
            state = outcome_of(action).state
            self.secondary.session.dispose(message.delivery_id, message.delivery_id, state)
            return
        self._settle_by_token(message, outcome_of(action))

    def _settle_by_token(self, message: BacklogMessage, outcome: SettlingOutcome) -> None:
        self._by_token.setdefault(outcome.state, (outcome, []))[1].append(message)

    def _grant(self, action: actions.GrantCredit) -> None:
        if self._source is not None:
            self._source.grant(action.credit)

    def _poll(self, _: actions.EmptyPoll) -> None:
        self._books.polled()
        if self._source is not None:
            self._source.grant(self.pump.credit)

    def _wait(self, action: actions.WaitUntil) -> None:
        loop = asyncio.get_running_loop()
        # At least 1 ms: a loop rounds, and a timer that is early is set again.
        wait_s = max(action.until - self._now(), 0.001)
        self._wake_timer = loop.call_later(wait_s, self.notify, self.pump.rate_due)

    def _reconnect(self, action: actions.Reconnect) -> None:
        connection = self.primary if action.side == "primary" else self.secondary
        if connection is not None:
            connection.drop(action.reason)
