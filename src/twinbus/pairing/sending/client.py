"""A pair's senders and what they share: the state of each entity, the backlog queues, the pings.

What is known of an entity or of a backlog queue is known once, here, for all senders of the pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from azure.servicebus import ServiceBusMessage

from twinbus.errors import BacklogGuardError, PairClosedError, PairingError
from twinbus.namespace.namespace import KEEP_ALIVE_OFF
from twinbus.options import SendAvailabilityOptions, Verdict
from twinbus.pairing.core.announcements import (
    BacklogQueuePulled,
    BacklogQueueReturned,
    EntityChanged,
    GuardWarned,
    PingEnded,
    ProtectionChanged,
)
from twinbus.pairing.core.attempts import BacklogChoice, RetryPolicy
from twinbus.pairing.core.backlog import KeptChoice, Rotation, backlog_paths
from twinbus.pairing.core.classify import judge
from twinbus.pairing.core.counters import PairCounters
from twinbus.pairing.core.events import EntityState, SendSucceeded, Transition
from twinbus.pairing.core.ping import PingMessage, PingTurns
from twinbus.pairing.core.session_order import SessionOrder
from twinbus.pairing.observing.listeners import Listeners
from twinbus.pairing.observing.tracing import tracing_now
from twinbus.pairing.sdk.guards import BacklogLimits
from twinbus.pairing.sdk.outgoing import MessageIds
from twinbus.pairing.sdk.sdk_cleanup import CLOSE_LIMIT_S, SdkCleanup
from twinbus.pairing.sdk.sender_pool import SenderCloser, SenderPool, attempt
from twinbus.pairing.sdk.warming import Warming
from twinbus.pairing.sending.calls import SendTarget
from twinbus.pairing.sending.sender import PairedSender
from twinbus.pairing.sending.session_scan import SessionScan
from twinbus.pairing.sending.strict_calls import StrictSendTarget
from twinbus.pairing.sending.watched_entity import WatchedEntity

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

    from twinbus.namespace.namespace import Namespace
    from twinbus.pairing.sending.recording import Recorder

__all__ = ["PairedClient", "close_sdk_client", "send_ping"]

log = logging.getLogger("twinbus.pairing")

NUMBERS_MAX: Final = 10
"""Backlog queues that one line of the log names."""

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
        self.limits = BacklogLimits(options.message_size_limit)
        self.listeners = Listeners()
        self.tallies = PairCounters()
        self.tracing = tracing_now(primary)
        """None while the application has set up no traces."""
        self.closed = False
        self._refusal: Callable[[], PairingError | None] = lambda: None
        self._returns: dict[str, asyncio.TimerHandle] = {}
        """For each pulled queue, the timer that tells of its return."""
        self._was_protected = False
        self._pick = pick
        self._loop = self.loop = asyncio.get_running_loop()
        self._closer = SenderCloser(options.attempt_timeout_s)
        self._entities: dict[str, WatchedEntity] = {}
        self._senders: set[PairedSender] = set()
        self._pools: dict[str, SenderPool] = {}
        self._warming = Warming(options.attempt_timeout_s)
        self._ping_turns = PingTurns()
        self._complained = False
        self._primary_sdk = primary.bounded_client(options.attempt_timeout_s)
        self._secondary_sdk = secondary.bounded_client(options.attempt_timeout_s)
        self.census: SessionScan | None = None
        """Which sessions are bound to the backlog; None: the order is relaxed."""
        if options.session_order == "strict":
            self.census = SessionScan(self, SessionOrder(self.paths), self._secondary_sdk)

    def get_queue_sender(self, queue_name: str, **sdk_options: Any) -> PairedSender:
        """A sender to a queue, which survives the loss of the primary."""
        options = {**KEEP_ALIVE_OFF, **sdk_options}
        make = partial(self._primary_sdk.get_queue_sender, queue_name, **options)
        return self._sender(queue_name, make)

    def get_topic_sender(self, topic_name: str, **sdk_options: Any) -> PairedSender:
        """A sender to a topic, which survives the loss of the primary."""
        options = {**KEEP_ALIVE_OFF, **sdk_options}
        make = partial(self._primary_sdk.get_topic_sender, topic_name, **options)
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

    def find_entity(self, path: str) -> WatchedEntity | None:
        """The shared state of an entity that a sender was made for, or a person spoke of."""
        return self._entities.get(path.strip("/").lower())

    def succeeded(self, path: str) -> None:
        """An entity took something by another way than its senders."""
        entity = self.find_entity(path)
        if entity is not None:
            entity.tell(SendSucceeded())

    @property
    def entities(self) -> list[WatchedEntity]:
        """Every entity that a sender was made for, or a person spoke of."""
        return list(self._entities.values())

    @property
    def now(self) -> float:
        """The time of the pair's event loop, to be read from any thread."""
        return self._loop.time()

    def choice(self) -> KeptChoice:
        """A sender's own choice among the shared backlog queues."""
        return KeptChoice(self.rotation, self._pick)

    def place(self, entity: WatchedEntity, pool: SenderPool, choice: KeptChoice) -> SendTarget:
        """Where a sender's calls go."""
        if self.census is None:
            return SendTarget(self, entity, pool, choice)
        self.census.wake()
        return StrictSendTarget(self, entity, pool, choice, self.census)

    def backlog_pool(self, queue: str) -> SenderPool:
        """The senders to one backlog queue, shared by all that divert to it."""
        pool = self._pools.get(queue)
        if pool is None:
            make = partial(self._secondary_sdk.get_queue_sender, queue, **KEEP_ALIVE_OFF)
            pool = self._pools[queue] = SenderPool(make, self._closer)
            pool.on_open = partial(self.limits.learn, queue)
        return pool

    def warm(self, choice: BacklogChoice) -> None:
        """Have a link to a sender's backlog queue open before its first message is diverted."""
        queue = choice.choose(self._loop.time(), ())
        if queue is not None and not self.closed:
            self._warming.warm(queue, self.backlog_pool(queue))

    def pull(self, queue: str, reason: str) -> None:
        """Rest a backlog queue that failed, for all senders."""
        now = self._loop.time()
        if self.rotation.is_in(queue, now):
            until = self.rotation.pull(queue, reason, now)
            assert until is not None
            log.warning("%s: pulled for %.0f s (%s)", queue, until - now, reason)
            self.listeners.tell(
                BacklogQueuePulled(at=time.time(), queue=queue, reason=reason, rest_s=until - now)
            )
            self._returns[queue] = self._loop.call_at(until, self._returned, queue)
        self.backlog_pool(queue).rouse()

    def took(self, queue: str) -> None:
        """A backlog queue took a message: it need not rest, or not longer."""
        self.rotation.succeeded(queue, self._loop.time())
        if queue in self._returns:
            self._returned(queue)

    def _returned(self, queue: str) -> None:
        self._returns.pop(queue).cancel()
        log.info("%s: back in the rotation", queue)
        self.listeners.tell(BacklogQueueReturned(at=time.time(), queue=queue))

    def is_in_use(self, queue: str) -> bool:
        """Whether a backlog queue is in the rotation now."""
        return self.rotation.is_in(queue, self._loop.time())

    def counts(self, error: BaseException) -> bool:
        """Whether a failure is evidence for a failover, by the user's own judgement if there is."""
        verdict, complaint = judge(error, self.options.classify)
        if complaint and not self._complained:
            # Once: it would come with every failed send of an outage.
            self._complained = True
            log.error("%s", complaint)
        return verdict is Verdict.COUNTS

    def require_open(self) -> None:
        """The error of a pair whose primary was closed or faulted."""
        if self.closed:
            raise self._refusal() or PairClosedError(
                "the pair was closed; make a new one with pair_namespaces"
            )

    def refuse(self, refusal: Callable[[], PairingError | None]) -> None:
        """Have every later call, and those that wait, raise what `refusal` makes."""
        self.closed = True
        self._refusal = refusal

    def warned(self, path: str, flaw: BacklogGuardError) -> None:
        """Tell of the first message of its kind that the backlog could not take."""
        self.listeners.tell(GuardWarned(at=time.time(), path=path, reason=str(flaw)))

    def check_protection(self, reason: str) -> None:
        """Tell if the pair has got its first backlog queue, or has lost its last."""
        protected = self.rotation.protected
        # A pair that is closed needs no protection: that would be an alarm at every shutdown.
        if protected != self._was_protected and not self.closed:
            self._was_protected = protected
            self.listeners.tell(
                ProtectionChanged(at=time.time(), protected=protected, reason=reason)
            )

    async def close(self) -> None:
        """Stop pings and timers, let calls in flight end, close every sender. Idempotent."""
        self.closed = True
        await self.rest()
        await asyncio.gather(self.close_primary(), self.close_secondary("the pair was closed"))

    async def rest(self) -> None:
        """Leave no timer and no ping behind; calls that wait see that the pair was closed."""
        if self.census is not None:
            await self.census.close()
        for entity in self.entities:
            self._leave(entity)
        await asyncio.gather(*(entity.close() for entity in self.entities))

    def _leave(self, entity: WatchedEntity) -> None:
        """Tell the ledger, once, that an entity that is not healthy is watched no more."""
        failover = entity.failover
        if not failover.closed and failover.state is not EntityState.HEALTHY:
            self.recorder.left(entity.path, failover.state)

    async def close_primary(self) -> None:
        """Let calls to the primary end, within a bound, and close what they used."""
        assert self.closed
        await self._close_pools([sender.pool for sender in self._senders])
        await close_sdk_client(self._primary_sdk)
        self._senders.clear()

    async def close_secondary(self, reason: str) -> None:
        """The same for the backlog queues; from now on there is none to divert to."""
        if self.census is not None:
            await self.census.close()
        for path in self.paths:
            self.rotation.leave_out(path, reason)
        for timer in self._returns.values():
            timer.cancel()
        self._returns.clear()
        self.check_protection(reason)
        await self._warming.close()
        await self._close_pools([*self._pools.values()])
        await close_sdk_client(self._secondary_sdk)
        self._pools.clear()

    async def _close_pools(self, pools: list[SenderPool]) -> None:
        limit_s = self.policy.attempt_timeout_s + CLOSE_GRACE_S
        await asyncio.gather(*(pool.close(limit_s) for pool in pools))
        await self._closer.wait()

    async def _ping(self, entity: WatchedEntity) -> None:
        """Ask an entity once, over a connection of its own; raises what came instead of a yes."""
        now = self._loop.time()
        await asyncio.sleep(self._ping_turns.take(now) - now)
        make = partial(self._primary_sdk.get_queue_sender, entity.path, **KEEP_ALIVE_OFF)
        pool = SenderPool(make, self._closer)
        conduit = pool.take()
        assert conduit is not None
        began, error = self._loop.time(), None
        traced = contextlib.nullcontext() if self.tracing is None else self.tracing.ping(entity)
        try:
            is_message = self.options.ping_mode == "message"
            ask = send_ping if is_message else _nothing_more
            with traced:
                await attempt(pool, conduit, ask, self.policy.attempt_timeout_s)
        except BaseException as caught:
            error = caught
            raise
        finally:
            ended = self._loop.time()
            self.recorder.pinged(entity.path, began, ended, error)
            self._ping_ended(entity.path, ended - began, error)
            await pool.close(0.0)

    def _ping_ended(self, path: str, seconds: float, error: BaseException | None) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.tallies.pings_dropped += 1
            return
        if error is None:
            self.tallies.pings_answered += 1
        else:
            self.tallies.pings_failed += 1
        text = "" if error is None else f"{type(error).__name__}: {error}"
        log.debug("%s: ping %s", path, f"failed: {text}" if text else "answered")
        self.listeners.tell(
            PingEnded(
                at=time.time(), path=path, answered=error is None, error=text, seconds=seconds
            )
        )

    def _changed(self, entity: WatchedEntity, transition: Transition) -> None:
        """Tell the log and the ledger of a change of state."""
        before, after, reason = transition.before, transition.after, transition.reason
        level = logging.WARNING if after is not EntityState.HEALTHY else logging.INFO
        consequence = self._consequence(entity, transition)
        log.log(level, "%s: %s -> %s (%s)%s", entity.path, before, after, reason, consequence)
        self.recorder.changed(entity.path, after, reason)
        self.listeners.tell(
            EntityChanged(
                at=time.time(), path=entity.path, before=before, after=after, reason=reason
            )
        )
        if after is EntityState.HEALTHY:
            for pool in self._pools.values():
                pool.rouse()
            if self.census is not None:
                self.census.wake()

    def _consequence(self, entity: WatchedEntity, transition: Transition) -> str:
        """What a change of state means for sends, in the words of the log."""
        match transition.after:
            case EntityState.SUSPECT:
                why = entity.failover.last_error
                return f", failing over in {self.options.failover_interval_s:g} s unless one" + (
                    f" succeeds; {why}" if why else " succeeds"
                )
            case EntityState.UNUSABLE:
                return ", sends raise until a ping is answered"
            case EntityState.HEALTHY if transition.before is not EntityState.SUSPECT:
                return ", sending to the primary again"
            case EntityState.HEALTHY:
                return ""
        if not self.rotation.protected:
            return ", and there is no backlog queue: sends still go to the primary"
        queues = self.rotation.available(self._loop.time())
        if not queues:
            return ", and every backlog queue rests: sends raise"
        return f", diverting to {in_short(queues)}"


def in_short(queues: Sequence[str]) -> str:
    """Backlog queues in few words: `contoso/x-servicebus-transfer/{0,1,2}`."""
    if len(queues) == 1:
        return queues[0]
    folder = queues[0].rpartition("/")[0]
    numbers = [queue.rpartition("/")[2] for queue in queues]
    if len(numbers) > NUMBERS_MAX:
        numbers = [*numbers[: NUMBERS_MAX - 2], "...", numbers[-1]]
    return f"{folder}/{{{','.join(numbers)}}}"


async def close_sdk_client(sdk: ServiceBusClient) -> None:
    """Close a client of the SDK, whatever its peer does, and what its links left behind."""
    # Receivers are the application's own. One that is cancelled while it says goodbye thinks that
    # it is closed, and leaves its socket open.
    remains = [SdkCleanup(handler) for handler in getattr(sdk, "_handlers", ())]
    for one in remains:
        one.look()
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await sdk.close()
    except Exception as error:  # noqa: BLE001  # whatever it says, the sockets are cut next
        log.debug("a client could not say goodbye: %r", error)
    for one in remains:
        await one.stop_keep_alive()
        one.cut()


async def send_ping(sdk: Any) -> None:
    """Send a ping in its real form, through a sender of the SDK."""
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
