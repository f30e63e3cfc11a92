"""The state that all senders of a pair share: entities, backlog queues, options, ledger, listeners.

Calls, pings, the session scan and discovery know this and not the client that made it. What is
known of an entity or of a backlog queue is known once, here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.client.connection import MACHINE, Environment
from twinbus.errors import PairClosedError, PairingError, error_text
from twinbus.namespace.namespace import KEEP_ALIVE_OFF
from twinbus.options import SendAvailabilityOptions, Verdict, judge
from twinbus.pairing.core.attempts import RetryPolicy, call_limit_s
from twinbus.pairing.core.backlog import KeptChoice, PullCause, Rotation
from twinbus.pairing.core.fleet import FleetOfPair, NoFleet
from twinbus.pairing.core.secondary import DivertFault, SecondaryHealth, Verification
from twinbus.pairing.core.status import DIVERT_BOUNDS_S, DurationHistogram
from twinbus.pairing.core.twins import TwinFirst, Twins
from twinbus.pairing.observing.events import (
    BacklogQueueFound,
    BacklogQueueLeftOut,
    BacklogQueuePulled,
    BacklogQueueReturned,
    Listeners,
    ProtectionChanged,
    TwinChanged,
)
from twinbus.pairing.observing.recording import tracing_now
from twinbus.pairing.sdk.guards import BacklogLimits
from twinbus.pairing.sdk.outgoing import MessageIds
from twinbus.pairing.sdk.pooled_sender import SenderCloser
from twinbus.pairing.sdk.sdk_cleanup import close_sdk_client
from twinbus.pairing.sdk.sender_pool import SenderPool
from twinbus.pairing.sending.entity_monitor import EntityMonitor, EntityMonitors
from twinbus.servicebus.failures import (
    FailureMeaning,
    is_answer,
    is_timeout,
    of_error,
    refusing_setting,
)
from twinbus.servicebus.names import backlog_paths

if TYPE_CHECKING:
    from twinbus.namespace.namespace import Namespace
    from twinbus.pairing.observing.recording import Recorder
    from twinbus.pairing.sending.carrier import Carrier

log = logging.getLogger("twinbus.pairing")

CLOSE_GRACE_S: Final = 1.0
"""Time past the bound of an attempt for a call in flight to end before its sender is closed."""

PASS_ON_S: Final = 0.1
"""A call that was woken for its turn and does not take it, because its time is over or its entity
is back, passes the turn on after this time."""


class SharedState:
    """What the calls of one pair read and change together."""

    def __init__(
        self,
        primary: Namespace,
        secondary: Namespace,
        options: SendAvailabilityOptions,
        recorder: Recorder,
        environment: Environment = MACHINE,
    ) -> None:
        """Belongs to the running event loop."""
        self.environment = environment
        self.primary, self.secondary = primary, secondary
        self.options = options
        self.recorder = recorder
        self.policy = RetryPolicy.of(options)
        self.call_limit_s = call_limit_s(self.policy)
        """The bound of a call without a timeout."""
        self.rotation = Rotation()
        self.waiting = WaitingCalls(self.rotation.secondary)
        self.verification = Verification()
        self.paths = backlog_paths(primary.label, options.backlog_queue_count)
        # The queues may detect duplicates: their descriptions cannot be read, or do not matter.
        may_detect = not options.create_backlog_queues or options.accept_drift
        self.message_ids = MessageIds(own_in_backlog=may_detect, new_id=environment.new_id)
        self.limits = BacklogLimits(options.message_size_limit)
        self.twins = Twins(options.twins, primary.label, self.rotation, self.paths)
        self.twin_limits = BacklogLimits(None)
        self.listeners = Listeners()
        self.diverts = DurationHistogram(DIVERT_BOUNDS_S)
        """Seconds of each attempt on a backlog queue that stored something."""
        self.pings = {"answered": 0, "failed": 0, "dropped": 0}
        """The number of pings by result. A ping is dropped if another success healed the entity
        before its end, or the pair was closed."""
        self.tracing = tracing_now(primary)
        """None: the application has set up no traces."""
        self.loop = asyncio.get_running_loop()
        self.closer = SenderCloser(options.attempt_timeout_s)
        self.secondary_sdk = secondary.bounded_client(options.attempt_timeout_s)
        self.closed = False
        self._refusal: Callable[[], PairingError | None] = lambda: None
        self.monitors = EntityMonitors(forgotten=self._forget_twin)
        """Every entity that has a sender, had one lately, or that a person has commanded."""
        self.make_backlog_pool: Callable[[str], Carrier] = self.sdk_pool
        self.backlog_pools: dict[str, Carrier] = {}
        self._return_timers: dict[str, asyncio.TimerHandle] = {}
        """For each pulled queue, the timer that announces its return."""
        self._was_protected = False
        self.jitter = environment.chance
        """Returns a number from 0 to 1, by which retries and pulls are spread."""
        self.on_busy: Callable[[], None] = lambda: None
        """Called when the primary throttles a call: a syphon of this pair slows down."""
        self.on_queue_lost: Callable[..., None] = lambda queue, *, is_refusal: None
        """Called when a queue may be lost: a divert found it missing, disabled or closed to this
        application, it was pulled, or it refuses every message."""
        self.on_twins: Callable[[], None] = lambda: None
        """Called when the mark of a twin may have to be read."""
        self.fleet: FleetOfPair = NoFleet()
        """The other processes of this pair of namespaces."""
        self.on_pull: Callable[[], None] = lambda: None
        """Called when a queue was pulled: it may have to be probed."""
        self._has_complained = False

    @property
    def now(self) -> float:
        """The time of the pair's event loop; may be read from any thread."""
        return self.loop.time()

    def counts(self, error: BaseException) -> bool:
        """Whether a failure counts towards a failover, by the options of the pair."""
        verdict, complaint = judge(error, self.options.classify, self.options.divert_on)
        if complaint and not self._has_complained:
            # Once: every failed send of an outage would repeat it.
            self._has_complained = True
            log.error("%s", complaint)
        return verdict is Verdict.COUNTS

    # Backlog queues

    def backlog_pool(self, queue: str) -> Carrier:
        pool = self.backlog_pools.get(queue)
        if pool is None:
            pool = self.backlog_pools[queue] = self.make_backlog_pool(queue)
        return pool

    async def divert_by(self, make: Callable[[str], Carrier]) -> None:
        """Divert with senders that `make` makes for a backlog queue, not with those of the SDK."""
        before, self.backlog_pools = self.backlog_pools, {}
        self.make_backlog_pool = make
        await self.close_pools([*before.values()])

    def sdk_pool(self, queue: str) -> SenderPool:
        make = partial(self.secondary_sdk.get_queue_sender, queue, **KEEP_ALIVE_OFF)
        pool = SenderPool(make, self.secondary.resolve, self.closer)
        pool.on_open = partial(self.limits_of(queue).learn, queue)
        return pool

    def limits_of(self, place: str) -> BacklogLimits:
        """The limits of backlog queues, or of twins: a twin's holds for its own entity only."""
        return self.twin_limits if self.rotation.is_twin(place) else self.limits

    def warm(self, choice: KeptChoice) -> None:
        """Open a link to a sender's backlog queue before its first message is diverted."""
        queue = choice.choose(self.now, ())
        if queue is not None and not self.closed:
            self.backlog_pool(queue).open_ahead()

    def pull(self, queue: str, reason: str, cause: PullCause = PullCause.REFUSED) -> None:
        """Pull a backlog queue that failed from the rotation, for all senders."""
        now = self.now
        if self.rotation.is_in(queue, now):
            until = self.rotation.pull(queue, reason, now, self.jitter(), cause=cause)
            assert until is not None
            self._announce_pull(queue, reason, until - now)
            self._return_timers[queue] = self.loop.call_at(until, self._announce_return, queue)
            # The SDK does not tell a link that ended with its queue from a lost connection.
            self._lost(queue)
            self.on_pull()
        self.backlog_pool(queue).wake_all()

    def _announce_pull(self, queue: str, reason: str, rest_s: float) -> None:
        if self.rotation.is_twin(queue):
            log.warning("%s: its twin is pulled for %.0f s (%s)", queue, rest_s, reason)
            self.listeners.tell(TwinChanged(path=queue, is_used=False, reason=reason))
        else:
            log.warning("%s: pulled for %.0f s (%s)", queue, rest_s, reason)
            self.listeners.tell(BacklogQueuePulled(queue=queue, reason=reason, rest_s=rest_s))

    def _lost(self, place: str) -> None:
        """A backlog queue or a twin may be missing or disabled: look for it."""
        if self.rotation.is_twin(place):
            self.twins.failed(place, self.now)
            self.on_twins()
        else:
            self.on_queue_lost(place, is_refusal=False)

    def leave_out(self, queue: str, reason: str, *, is_logged: bool = True) -> None:
        """Keep a queue out of the rotation until `put_in`, and report it."""
        self._stop_return_timer(queue)
        self.rotation.leave_out(queue, reason)
        if is_logged:
            log.warning("%s is left out: %s", queue, reason)
        self.listeners.tell(BacklogQueueLeftOut(queue=queue, reason=reason))
        self.check_protection(f"no backlog queue is left; the last, {queue}: {reason}")
        self.waiting.wake_all()

    def put_in(self, queue: str, drift: tuple[str, ...] = ()) -> None:
        """Put a queue into the rotation as a new one, and report it."""
        self._stop_return_timer(queue)
        self.rotation.leave_out(queue, "")
        self.rotation.add(queue)
        self.listeners.tell(BacklogQueueFound(queue=queue, drift=drift))
        self.check_protection("backlog queues were found")
        self.waiting.wake_all()

    def divert_meaning(self, queue: str, error: BaseException) -> FailureMeaning:
        """What a failed divert says about its queue; discovery searches for one that is lost."""
        meaning = of_error(error)
        # No message has a session in the backlog: this is no fault of the message.
        is_twin = self.rotation.is_twin(queue)
        if not is_twin and refusing_setting(error, queue) == "sessions":
            if queue in self.rotation.queues:
                self.leave_out(queue, f"it requires sessions and refused a message: {error}")
            self.on_queue_lost(queue, is_refusal=True)
            return FailureMeaning.DISABLED
        if meaning.unusable or meaning is FailureMeaning.UNAUTHORIZED:
            self._lost(queue)
        return meaning

    def _stop_return_timer(self, queue: str) -> None:
        timer = self._return_timers.pop(queue, None)
        if timer is not None:
            timer.cancel()

    def divert_succeeded(self, queue: str) -> None:
        """A backlog queue stored a message: if it was pulled, it returns at once."""
        self.rotation.succeeded(queue)
        if not self.rotation.is_twin(queue):
            self.verification.succeeded(self.now, time.time())
        if queue in self._return_timers:
            self._announce_return(queue)
        self._log_answer()
        self.rotation.secondary.stored(queue, self.now)
        self.waiting.wake_all()

    def divert_failed(
        self, queue: str, error: Exception, began: float, timeout_s: float
    ) -> DivertFault:
        """Learn from a divert that failed; return who is at fault (docs/failures.md)."""
        secondary, now = self.rotation.secondary, self.now
        was_lost = secondary.is_lost
        if is_answer(error):
            self._log_answer()
            secondary.answered(queue, now)
            return DivertFault.QUEUE
        if not of_error(error).counts:
            return DivertFault.QUEUE
        timed_out = is_timeout(error)
        if timed_out and timeout_s < self.policy.attempt_timeout_s:
            return DivertFault.CALLER
        reason = error_text(error)
        fault = secondary.no_answer(queue, reason, began=began, now=now, timed_out=timed_out)
        if secondary.is_lost and not was_lost:
            log.warning("%s cannot be reached (%s): sends wait", self.secondary.endpoint, reason)
            self.wake_diverting_calls()
        return fault

    def attach_ended(self, queue: str, error: Exception | None) -> None:
        """Learn from a link that was opened without a message; None: it was attached.

        An attached link returns a queue that was pulled, unless the queue was full. Any answer
        shows that the secondary can be reached.
        """
        if error is not None and not is_answer(error):
            return
        was_lost = self.rotation.secondary.is_lost
        self._log_answer()
        self.rotation.secondary.answered(queue, self.now)
        if error is None:
            if not self.rotation.is_twin(queue):
                self.verification.succeeded(self.now, time.time(), self.jitter())
            if self.rotation.attached(queue, self.now) and queue in self._return_timers:
                self._announce_return(queue)
        elif of_error(error).unusable:
            self._lost(queue)
        if was_lost:
            self.waiting.wake_all()

    def _log_answer(self) -> None:
        if self.rotation.secondary.is_lost:
            log.warning("%s answers again", self.secondary.endpoint)

    def _announce_return(self, queue: str) -> None:
        self._return_timers.pop(queue).cancel()
        if self.rotation.is_twin(queue):
            log.warning("%s: its twin is used again", queue)
            is_verified = self.twins.is_verified(queue)
            self.listeners.tell(TwinChanged(path=queue, is_used=True, is_verified=is_verified))
        else:
            log.warning("%s: back in the rotation", queue)
            self.listeners.tell(BacklogQueueReturned(queue=queue))
        self.waiting.wake_all()

    def wake_diverting_calls(self) -> None:
        """Have calls that wait for a sender to the backlog check their entity's route again."""
        for pool in self.backlog_pools.values():
            pool.wake_all()

    # Twins

    def first_choice(self, path: str, backlog: KeptChoice) -> TwinFirst | None:
        """The twin of an entity, then `backlog`, for a new sender; None: it is to have no twin."""
        if not self.twins.want(path, self.now):
            return None
        self.on_twins()
        return TwinFirst(path, self.rotation, backlog)

    def twin_was_read(self, path: str, is_marked: bool | None) -> None:
        """Learn from the mark of a twin; None: there is no right to read it."""
        news = self.twins.was_read(path, is_marked, self.now, self.jitter())
        if news is None:
            return
        if news.is_used:
            unsure = "" if news.is_verified else ", not verified: its mark cannot be read"
            log.info("%s: has a twin in %s%s", path, self.secondary.endpoint, unsure)
        else:
            self._stop_return_timer(path)
            log.warning("%s: its twin is not used: %s", path, news.reason)
        self.listeners.tell(
            TwinChanged(
                path=path,
                is_used=news.is_used,
                is_verified=news.is_verified,
                reason=news.reason,
            )
        )
        self.waiting.wake_all()

    def rest_twin(self, path: str) -> None:
        """The entity is back: keep no idle connection to its twin."""
        if self.rotation.is_twin(path) and path in self.backlog_pools:
            self.backlog_pools[path].invalidate()

    def _forget_twin(self, path: str) -> None:
        self._stop_return_timer(path)
        self.twins.forget(path)
        pool = self.backlog_pools.pop(path, None)
        if pool is not None:
            self.closer.run(pool.close(0.0))

    def check_protection(self, reason: str) -> None:
        """Announce that the pair has its first backlog queue, or has lost its last.

        A pair whose backlog queues did not answer at the last look has none, too.
        """
        protected = self.rotation.protected and not self.verification.error
        # A closed pair needs no protection; the event would be a false alarm at every shutdown.
        if protected != self._was_protected and not self.closed:
            self._was_protected = protected
            self.listeners.tell(ProtectionChanged(protected=protected, reason=reason))

    # The end

    def require_open(self) -> None:
        """Raise the error of a pair whose primary was closed or faulted."""
        if self.closed:
            raise self._refusal() or PairClosedError(
                "the pair was closed; make a new one with pair_namespaces"
            )

    def require_loop(self) -> None:
        """Raise PairingError if the caller runs on another event loop than the pair."""
        if asyncio.get_running_loop() is not self.loop:
            raise PairingError(
                "the pair was started on another event loop; use it there, make a pair for each"
                " loop, or use twinbus.blocking, whose pair serves all threads"
            )

    def refuse(self, refusal: Callable[[], PairingError | None]) -> None:
        """Have every later call, and those that wait, raise what `refusal` makes."""
        self.closed = True
        self._refusal = refusal

    async def close_backlog(self, reason: str) -> None:
        """Close everything that leads to the backlog queues; none is left to divert to."""
        for path in self.paths:
            self.rotation.leave_out(path, reason)
        self.twins.close()
        for timer in self._return_timers.values():
            timer.cancel()
        self._return_timers.clear()
        self.waiting.wake_all()
        self.check_protection(reason)
        await self.close_pools([*self.backlog_pools.values()])
        await close_sdk_client(self.secondary_sdk)
        self.backlog_pools.clear()

    async def close_pools(self, pools: Sequence[Carrier]) -> None:
        """Let calls in flight end, within a bound, and close their SDK senders."""
        limit_s = self.policy.attempt_timeout_s + CLOSE_GRACE_S
        await asyncio.gather(*(pool.close(limit_s) for pool in pools))
        await self.closer.wait()


class WaitingCalls:
    """Calls that wait for the secondary: the first in line gets the turn, a success frees all."""

    def __init__(self, secondary: SecondaryHealth) -> None:
        self._secondary = secondary
        self._loop = asyncio.get_running_loop()
        # A dict keeps their order.
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pass_on_at = float("-inf")

    async def wait(self, entity: EntityMonitor, until: float) -> None:
        """Return for a turn, after a success, on a change of the entity, or at `until`."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        stop_listening = entity.on_change(lambda: _wake(waiter))
        self._waiters[waiter] = None
        if self._timer is None:
            self.arm()
        try:
            await asyncio.wait({waiter}, timeout=max(0.0, until - self._loop.time()))
        finally:
            stop_listening()
            self._waiters.pop(waiter, None)
            waiter.cancel()
            if not self._waiters:
                self._disarm()

    def arm(self) -> None:
        """Wake the first call in line at the time of the next turn."""
        self._disarm()
        if self._waiters:
            # A call that did not take its turn may wait again at once, alone.
            due = max(self._secondary.turn_at, self._pass_on_at, self._loop.time())
            self._timer = self._loop.call_at(due, self._give_turn)

    def wake_all(self) -> None:
        """A queue may take messages again: every call chooses again."""
        for waiter in self._waiters:
            _wake(waiter)

    def _give_turn(self) -> None:
        self._timer = None
        now = self._loop.time()
        if not self._secondary.is_turn(now):
            self.arm()
            return
        waiter = next((one for one in self._waiters if not one.done()), None)
        if waiter is not None:
            _wake(waiter)
            self._pass_on_at = now + PASS_ON_S
            self._timer = self._loop.call_at(self._pass_on_at, self._give_turn)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
