"""One call of an application, performed: what `attempts` decides, done with senders of the SDK.

Every attempt is one SDK call on a leased sender, bounded in time, and one line in the ledger for
each message, also when it failed or when nobody knows (a timeout, a cancellation).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
)

from twinbus.errors import (
    BacklogGuardError,
    BacklogUnavailableError,
    EntityUnusableError,
    PairingError,
    PartialDivertError,
)
from twinbus.namespace.credentials import refused_token
from twinbus.pairing.core.attempts import (
    BacklogChoice,
    CallEnding,
    DivertFailed,
    DivertTo,
    EntityView,
    PrimaryFailed,
    PullQueue,
    Raise,
    SendCall,
    Step,
    TryPrimary,
    WaitEnded,
    WaitForRetry,
)
from twinbus.pairing.core.classify import meaning_of
from twinbus.pairing.core.events import Route, SendFailed
from twinbus.pairing.sdk.guards import flaws
from twinbus.pairing.sdk.sender_pool import PooledSender, SenderPool, attempt, was_carried_out

if TYPE_CHECKING:
    from twinbus.pairing.sdk.outgoing import Outgoing
    from twinbus.pairing.sending.client import PairedClient
    from twinbus.pairing.sending.watched_entity import WatchedEntity

__all__ = ["PairedCall", "SendTarget", "SendingCall"]


@dataclass(frozen=True, slots=True)
class SendTarget:
    """Where the calls of one sender go: the pair, the entity, its senders, its backlog queue."""

    client: PairedClient
    entity: WatchedEntity
    pool: SenderPool
    backlog: BacklogChoice

    def call(self, outgoing: Outgoing, deadline: float | None) -> SendingCall:
        """The call that sends these messages."""
        return SendingCall(self, outgoing, deadline)

    def backlog_for(self, outgoing: Outgoing) -> BacklogChoice:
        """The choice of backlog queues for these messages."""
        return self.backlog

    def route_for(self, outgoing: Outgoing) -> EntityView:
        """What says where these messages go now."""
        return self.entity.failover


class PairedCall:
    """The loop that both kinds of call share."""

    def __init__(self, place: SendTarget, view: EntityView, deadline: float | None) -> None:
        self.client, self.entity, self.pool = place.client, place.entity, place.pool
        self.place = place
        self.view = view
        self.deadline = deadline
        self.loop = asyncio.get_running_loop()
        self._decisions: SendCall | None = None

    @property
    def call(self) -> SendCall:
        """What decides, made when there is something to decide: a healthy call never needs it.

        A call that begins with a failed attempt on the primary is as good as one that was started
        and told to make it.
        """
        if self._decisions is None:
            policy = self.client.policy
            self._decisions = SendCall(self.view, self.choice(), policy, deadline=self.deadline)
        return self._decisions

    async def run(self) -> Any:
        """Do it: the SDK's answer on the primary, None from the backlog, or the error to raise."""
        return await self._go_on(None)

    async def go_on_after(self, failed: BaseException, began: float, timeout_s: float) -> Any:
        """The same of a call whose first attempt on the primary was made, and failed."""
        if not isinstance(failed, Exception):
            self.record(began, failed)
            raise failed
        return await self._go_on(self._judged(failed, began, timeout_s))

    async def _go_on(self, steps: list[Step] | None) -> Any:
        """From where decisions are needed; None: from the beginning."""
        try:
            if steps is None:
                steps = self.call.start(self.loop.time())
            while True:
                self.client.require_open()
                done, result = await self._do(self._take(steps))
                if done:
                    return result
                steps = result
        except Exception as error:
            # Also where it is one of the SDK's own, or ours about a sender that was closed.
            _with_ids(error, self.ids())
            raise

    async def _do(self, step: Step) -> tuple[bool, Any]:
        """The end of the call, or the next steps."""
        match step:
            case TryPrimary(timeout_s):
                return await self._primary(timeout_s)
            case DivertTo(queue, timeout_s):
                return await self._divert(queue, timeout_s)
            case WaitForRetry(until):
                await self.entity.changes(until)
                return False, self._woken()
            case Raise():
                raise self._error(step)
        raise AssertionError(f"{step} is not the last of its steps")

    def _take(self, steps: list[Step]) -> Step:
        for step in steps[:-1]:
            assert isinstance(step, PullQueue)
            self.client.pull(step.queue, step.reason)
        return steps[-1]

    def _woken(self) -> list[Step]:
        return self.call.handle(WaitEnded(), self.loop.time())

    async def _primary(self, timeout_s: float) -> tuple[bool, Any]:
        """The SDK's answer, or the next steps."""
        conduit = self.pool.take() or await self._lease(self.pool)
        if conduit is None:
            return False, self._woken()
        return await self._attempt(conduit, timeout_s)

    async def _attempt(self, conduit: PooledSender, timeout_s: float) -> tuple[bool, Any]:
        began, timeout_s = self._begin(timeout_s)
        try:
            answer = await attempt(self.pool, conduit, self.on_primary, timeout_s)
        except asyncio.CancelledError as cancelled:
            if was_carried_out(cancelled):
                self.succeeded(began)
            else:
                self.record(began, cancelled)
            raise
        except Exception as caught:  # noqa: BLE001  # every failure is judged, then raised or not
            return False, self._judged(caught, began, timeout_s)
        self.succeeded(began)
        return True, answer

    def _judged(self, caught: Exception, began: float, timeout_s: float) -> list[Step]:
        """An attempt on the primary failed: tell the ledger and the entity; what to do next."""
        error = _translated(caught, self.entity.path, timeout_s)
        self.record(began, error)
        if self.client.tracing is not None:
            self.client.tracing.failed(self.entity.path, error, diverting=False)
        meaning = meaning_of(error)
        counts = self.client.counts(error)
        text = f"{type(error).__name__}: {error}"
        self.entity.tell(SendFailed(counts=counts, error=text))
        return self.call.handle(PrimaryFailed(error, counts, meaning), self.loop.time())

    def _begin(self, timeout_s: float) -> tuple[float, float]:
        """The time, and how long the attempt may take: waiting for a sender may have cost some."""
        now = self.loop.time()
        return now, timeout_s if self.deadline is None else min(timeout_s, self.deadline - now)

    async def _lease(
        self, pool: SenderPool, is_worth: Callable[[], bool] = lambda: True
    ) -> PooledSender | None:
        """A sender, once one is free; None when there is something better to do than to wait."""
        while self.call.stays and is_worth() and not self._is_over():
            conduit = pool.take()
            if conduit is not None:
                return conduit
            await pool.wait(self.deadline)
            self.client.require_open()
            if pool.closed and pool is self.pool:
                raise ValueError(f"the sender to {self.entity.path} was closed; get a new one")
        pool.pass_on()
        return None

    def _is_over(self) -> bool:
        return self.deadline is not None and self.loop.time() >= self.deadline

    async def _divert(self, queue: str, timeout_s: float) -> tuple[bool, Any]:
        raise NotImplementedError

    def on_primary(self, sdk: Any) -> Awaitable[Any]:
        """The SDK call that this is about."""
        raise NotImplementedError

    def choice(self) -> BacklogChoice:
        """The backlog queues that the call may use."""
        raise NotImplementedError

    def succeeded(self, began: float) -> None:
        """The primary took it: tell the ledger and the entity."""
        raise NotImplementedError

    def record(self, began: float, error: BaseException | None) -> None:
        """Put an attempt on the primary into the ledger."""
        raise NotImplementedError

    def ids(self) -> tuple[str, ...]:
        """The messages that an error is about."""
        raise NotImplementedError

    def unavailable(self) -> PairingError:
        """The error of a call that left the primary and found no other place."""
        raise NotImplementedError

    def _error(self, step: Raise) -> BaseException:
        """What the caller gets, with the ids of its messages on it."""
        path, ids = self.entity.path, self.ids()
        error: BaseException
        match step.ending:
            case CallEnding.BACKLOG:
                error = self.unavailable()
                error.__cause__ = step.error
            case CallEnding.UNUSABLE:
                reason = self.entity.failover.reason
                error = EntityUnusableError(
                    f"{path} cannot be used: the primary answers {reason}; repair the entity,"
                    " a ping will find it",
                    message_ids=ids,
                )
                error.__cause__ = step.error
            case CallEnding.TIMED_OUT:
                error = OperationTimeoutError(
                    message=f"{path}: the time given was over before an attempt could be made"
                )
            case _:
                assert step.error is not None
                error = step.error
        return error


class SendingCall(PairedCall):
    """One call of `send_messages`."""

    def __init__(self, place: SendTarget, outgoing: Outgoing, deadline: float | None) -> None:
        super().__init__(place, place.route_for(outgoing), deadline)
        self.outgoing = outgoing

    @property
    def route(self) -> Route:
        """Where the last attempt went."""
        is_diverted = self._decisions is not None and self._decisions.diverting
        return Route.BACKLOG if is_diverted else Route.PRIMARY

    def choice(self) -> BacklogChoice:
        return self.place.backlog_for(self.outgoing)

    def on_primary(self, sdk: Any) -> Awaitable[None]:
        sending: Awaitable[None] = sdk.send_messages(self.outgoing.payload)
        return sending

    def succeeded(self, began: float) -> None:
        self.record(began, None)
        self.entity.took(len(self.outgoing.messages))

    def guard(self) -> None:
        """Look closer at suspects (SPEC 4): count what the backlog could not take, or refuse."""
        limits = self.client.limits
        if limits.smallest is None:
            # It may be too large, and nobody knows: have a backlog queue asked for the next one.
            self.client.warm(self.place.backlog)
        found = flaws(self.outgoing.suspects, self.entity.path, limits.smallest)
        if not found:
            return
        if self.client.options.strict_guards:
            raise _with_ids(found[0], self.ids())
        if self.view.route is Route.PRIMARY:
            for flaw in self.entity.could_not_divert(found):
                self.client.warned(self.entity.path, flaw)

    async def _divert(self, queue: str, timeout_s: float) -> tuple[bool, Any]:
        """The next steps, or the end: the messages are in the backlog queue."""
        # Before a sender is leased: a message that cannot be diverted is its sender's to mend.
        diverted = self._for_backlog(queue)
        pool = self.client.backlog_pool(queue)
        conduit = pool.take() or await self._lease(pool, lambda: self.client.is_in_use(queue))
        if conduit is None:
            return False, self._without_sender(queue)
        if self.client.tracing is not None:
            self.client.tracing.diverting(queue, diverted)
        began, timeout_s = self._begin(timeout_s)
        try:
            await attempt(pool, conduit, lambda sdk: sdk.send_messages(diverted), timeout_s)
        except asyncio.CancelledError as cancelled:
            if was_carried_out(cancelled):
                self._diverted(queue, began)
            else:
                self._record_divert(queue, began, cancelled)
            raise
        except Exception as caught:  # noqa: BLE001  # every failure is judged, then raised or not
            error = _translated(caught, queue, timeout_s)
            self._record_divert(queue, began, error)
            if self.client.tracing is not None:
                self.client.tracing.failed(queue, error, diverting=True)
            if isinstance(error, MessageSizeExceededError):
                # The link has said its limit now, and so we can say what is wrong with which.
                self._for_backlog(queue)
                if len(self.outgoing) > 1:
                    # A batch that is too large with its aliases goes as two (SPEC 3, Batches).
                    await self._part_by_part(self.outgoing.halves())
                    return True, None
            timed_out = isinstance(error, OperationTimeoutError)
            answers_others = self.client.rotation.has_answered(queue, since=began)
            return False, self._divert_failed(error, timed_out, answers_others)
        self._diverted(queue, began)
        return True, None

    def _for_backlog(self, queue: str) -> Any:
        """The copies for a queue; BacklogGuardError if one could not be stored there."""
        try:
            return self.outgoing.diverted(self.client.limits.of(queue))
        except BacklogGuardError as refusal:
            refusal.__cause__ = refusal.__cause__ or self.call.primary_error
            raise

    def _diverted(self, queue: str, began: float) -> None:
        self._record_divert(queue, began, None)
        self.client.took(queue)
        self.client.tallies.diverts.observe(self.loop.time() - began)
        self.entity.diverted += len(self.outgoing)

    def _without_sender(self, queue: str) -> list[Step]:
        """Nothing was tried: time is over, the entity is back, or others found the queue bad."""
        reason = self.client.rotation.absences(self.loop.time()).get(queue)
        if reason is None or not self.call.stays:
            return self._woken()
        error = OperationTimeoutError(message=f"{queue} was given up meanwhile: {reason}")
        return self._divert_failed(error)

    def _divert_failed(
        self, error: BaseException, timed_out: bool = False, answers_others: bool = False
    ) -> list[Step]:
        event = DivertFailed(error, meaning_of(error), timed_out, answers_others)
        return self.call.handle(event, self.loop.time())

    async def _part_by_part(self, parts: Sequence[Outgoing]) -> None:
        """Send the messages part by part, in order, until one fails: the others are not tried."""
        ids = [part.ids for part in parts]
        for number, part in enumerate(parts):
            try:
                await self.place.call(part, self.deadline).run()
            except PartialDivertError as error:
                raise self._partial(ids, number, error.stored_ids, error.not_stored_ids) from error
            except Exception as error:
                if not number:
                    raise
                raise self._partial(ids, number, (), part.ids) from error

    def _partial(
        self,
        ids: Sequence[tuple[str, ...]],
        number: int,
        stored: tuple[str, ...],
        not_stored: tuple[str, ...],
    ) -> PartialDivertError:
        """The parts before `number` are stored, those after it not; of itself, what was told."""
        stored = (*chain(*ids[:number]), *stored)
        not_stored = (*not_stored, *chain(*ids[number + 1 :]))
        return PartialDivertError(
            f"{self.entity.path}: {len(stored)} of {len(stored) + len(not_stored)} messages of a"
            " batch are stored; send those of not_stored_ids again",
            stored_ids=stored,
            not_stored_ids=not_stored,
        )

    def record(self, began: float, error: BaseException | None) -> None:
        recorder = self.client.recorder
        if recorder.is_on:
            messages, ended = self.outgoing.measured(), self.loop.time()
            path, trace_id = self.entity.path, self._trace_id()
            recorder.sent(path, messages, began, ended, error=error, trace_id=trace_id)

    def _record_divert(self, queue: str, began: float, error: BaseException | None) -> None:
        recorder = self.client.recorder
        if recorder.is_on:
            messages, ended = self.outgoing.measured(), self.loop.time()
            path, trace_id = self.entity.path, self._trace_id()
            recorder.diverted(path, queue, messages, began, ended, error=error, trace_id=trace_id)

    def _trace_id(self) -> str | None:
        return None if self.client.tracing is None else self.client.tracing.trace_id()

    def ids(self) -> tuple[str, ...]:
        return self.outgoing.ids

    def unavailable(self) -> BacklogUnavailableError:
        errors: dict[str, BaseException | str] = {
            **self.client.rotation.absences(self.loop.time()),
            **self.call.queue_errors,
        }
        tried = "; ".join(f"{queue}: {error}" for queue, error in sorted(errors.items()))
        primary_error = self.call.primary_error or self.entity.known_error()
        why = primary_error or self.entity.failover.reason
        return BacklogUnavailableError(
            f"{self.entity.path} has failed over ({why}) and no backlog queue took the message"
            f" ({tried or 'there is none'})",
            message_ids=self.ids(),
            primary_error=primary_error,
            queue_errors=errors,
        )


def _translated(error: Exception, place: str, timeout_s: float) -> Exception:
    """Our own bound as the SDK's error, which is what its users handle; a refusal in its words."""
    refused = refused_token(error)
    if refused is not None:
        return ServiceBusAuthenticationError(message=f"{place}: {refused}", error=_inside(error))
    if type(error) is not TimeoutError:
        return error
    translated = OperationTimeoutError(message=f"{place} did not answer within {timeout_s:g} s")
    translated.__cause__ = error
    return translated


def _inside(error: Exception) -> Exception:
    inside: Exception = getattr(error, "inner_exception", error)
    return inside


def _with_ids(error: BaseException, ids: tuple[str, ...]) -> BaseException:
    """The error with `message_ids` on it, also where it is one of the SDK's own."""
    error.message_ids = ids  # type: ignore[attr-defined]
    return error
