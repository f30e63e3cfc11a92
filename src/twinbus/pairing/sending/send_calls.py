"""Performs calls of `send_messages`: on the primary or, in an outage, into the backlog."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from itertools import chain
from typing import Any

from twinbus.errors import BacklogGuardError, BacklogUnavailableError, PartialDivertError
from twinbus.pairing.core.attempts import DivertTo, Step
from twinbus.pairing.core.failover import Route
from twinbus.pairing.core.secondary import DivertFault
from twinbus.pairing.core.session_order import Diversion
from twinbus.pairing.observing.events import GuardWarned
from twinbus.pairing.sdk.failures import is_lost_connection, timed_out, too_large, translated
from twinbus.pairing.sdk.outgoing import Outgoing
from twinbus.pairing.sdk.sender_pool import OpeningFailed, was_carried_out
from twinbus.pairing.sending.calls import CallResult, PairedCall, SendTarget, with_ids
from twinbus.pairing.sending.carrier import OutgoingMessages
from twinbus.pairing.sending.sessions import SPLIT, CallSessions
from twinbus.servicebus.failures import MESSAGE, is_too_large, of_error, outcome_of
from twinbus.servicebus.twins import ATTEMPTS_MAX, DivertMark


class SendCall(PairedCall):
    tries_for_others = True

    def __init__(
        self,
        target: SendTarget,
        outgoing: OutgoingMessages,
        deadline: float | None,
        ends_at: float | None = None,
    ) -> None:
        self.places = target.backlog
        if target.twin is not None and may_use_twin(target, outgoing):
            self.places = target.twin
        if target.sessions is None:
            self._sessions = None
            super().__init__(target, target.entity.failover, self.places, deadline, ends_at)
        else:
            self._sessions = sessions = CallSessions(
                target.sessions, target.entity, outgoing.by_session(), target.backlog
            )
            super().__init__(target, sessions, sessions, deadline, ends_at)
        self.outgoing = outgoing

    async def run(self) -> None:
        if self._sessions is not None:
            await self._sessions.wait_until_free(self.ends_at)
        await super().run()

    @property
    def route(self) -> Route:
        return Route.BACKLOG if self.decisions.diverting else Route.PRIMARY

    def on_primary(self, sdk: Any) -> Awaitable[None]:
        # The link is open and has reported its limit. The service would detach it for a message
        # that is too large, and the SDK would report that as a lost connection.
        refusal = self._too_large()
        if refusal is not None:
            raise refusal
        self._was_sent = True
        sending: Awaitable[None] = sdk.send_messages(self.outgoing.payload)
        return sending

    def explained(self, error: Exception) -> Exception:
        """A lost connection is the message's fault if the message is too large for the link."""
        if not is_lost_connection(error):
            return error
        refusal = self._too_large(was_sent=True)
        if refusal is None:
            return error
        refusal.__cause__ = error
        return refusal

    def _too_large(self, *, was_sent: bool = False) -> Exception | None:
        """The error for messages that are larger than the link takes; None: they are not."""
        limit_bytes, outgoing = self.pool.limit_bytes, self.outgoing
        if limit_bytes is None:
            return None
        size_bytes = outgoing.refused_size(limit_bytes, was_sent=was_sent)
        if size_bytes is None:
            return None
        return too_large(self.entity.path, limit_bytes, size_bytes)

    def succeeded(self, began: float) -> None:
        self.record(began, None)
        self.entity.succeeded(len(self.outgoing))

    def guard(self) -> None:
        """Check the suspects: count those the backlog could not take, or refuse them."""
        limits = self.state.limits
        if limits.smallest is None:
            # The message may be too large: an open link reports the limit of a backlog queue.
            self.state.warm(self.target.backlog)
        found = self.outgoing.flaws(limits.smallest)
        if not found:
            return
        if self.state.options.strict_guards:
            raise with_ids(found[0], self.ids())
        if self.view.route is Route.PRIMARY:
            for flaw in self.entity.could_not_divert(found):
                self.state.listeners.tell(GuardWarned(path=self.entity.path, reason=str(flaw)))

    async def divert(self, step: DivertTo) -> CallResult:
        if step.queue is SPLIT:
            await self._send_parts(self.outgoing.parts())
            return True, None
        if not step.is_turn:
            return await self._divert_in_order(step)
        state, secondary = self.state, self.state.rotation.secondary
        secondary.begin_turn(state.now, step.timeout_s)
        try:
            return await self._divert_in_order(step)
        finally:
            secondary.end_turn(state.now, state.jitter())
            state.waiting.arm()

    async def _divert_in_order(self, step: DivertTo) -> CallResult:
        """Divert; under strict order report the session's divert too."""
        sessions, queue = self._sessions, step.queue
        if sessions is None or sessions.key is None:
            return await self._divert(step)
        before = self.decisions.queue_errors.get(queue)
        sessions.begin_divert()
        ended = Diversion.DOUBTFUL
        try:
            done, result = await self._divert(step)
            error = self.decisions.queue_errors.get(queue)
            if done:
                ended = Diversion.STORED
            elif error is before or outcome_of(error) == "failed":
                ended = Diversion.REFUSED
        except Exception:
            # The attempt itself raises none: nothing was sent, or the parts have reported theirs.
            ended = Diversion.REFUSED
            raise
        finally:
            sessions.end_divert(ended)
        return done, result

    async def _divert(self, step: DivertTo) -> CallResult:
        queue, began = step.queue, self.loop.time()
        # Before a sender is leased: only the application can repair a message with a flaw.
        try:
            copies = self._copies_for(queue)
        except BacklogGuardError as refusal:
            if queue != self.places.twin:
                raise
            return False, self._twin_refused(refusal)
        pool = self.state.backlog_pool(queue)
        try:
            pooled = pool.take() or await self.lease(pool, lambda: self._is_usable(step))
        except OpeningFailed as shared:
            return False, self._divert_failed(queue, shared.own_error(), began, step.timeout_s)
        if pooled is None:
            return False, self._without_sender(queue)
        if self.state.tracing is not None:
            self.state.tracing.diverting(queue, copies)
        began = self.loop.time()
        timeout_s = min(step.timeout_s, self.ends_at - began)
        try:
            await pool.attempt(pooled, lambda sdk: sdk.send_messages(copies), timeout_s)
        except asyncio.CancelledError as cancelled:
            if was_carried_out(cancelled):
                self._diverted(queue, began)
            else:
                self.record(began, cancelled, queue)
            raise
        except Exception as caught:  # noqa: BLE001  # every failure is judged, then raised or not
            if is_too_large(caught) and len(self.outgoing) > 1:
                # A batch that is too large with its aliases goes as two (docs/failures.md).
                self._record_failure(queue, caught, began)
                if queue != self.places.twin:
                    self._copies_for(queue)
                await self._send_parts(self.outgoing.halves())
                return True, None
            return False, self._divert_failed(queue, caught, began, timeout_s)
        self._diverted(queue, began)
        return True, None

    def _copies_for(self, queue: str) -> Any:
        """The copies for a place; BacklogGuardError if it could not store one of them."""
        try:
            if queue == self.places.twin:
                attempts = min(max(self.unanswered_attempts, 1), ATTEMPTS_MAX)
                label, since_ms = self.state.primary.label, self.unanswered_since_ms
                mark = DivertMark(label, since_ms, attempts)
                return self.outgoing.twinned(self.state.twin_limits.of(queue), mark)
            return self.outgoing.diverted(self.state.limits.of(queue))
        except BacklogGuardError as refusal:
            refusal.__cause__ = refusal.__cause__ or self.decisions.primary_error
            raise

    def _twin_refused(self, refusal: BacklogGuardError) -> list[Step]:
        """The twin would not take one of the messages: the backlog does, or says why not."""
        now = self.loop.time()
        return self.decisions.divert_failed(refusal, MESSAGE, DivertFault.QUEUE, now)

    def _diverted(self, queue: str, began: float) -> None:
        self.record(began, None, queue)
        self.state.divert_succeeded(queue)
        self.places.answered(queue)
        self.state.diverts.observe(self.loop.time() - began)
        self.entity.diverted += len(self.outgoing)
        if queue == self.places.twin:
            self.entity.twinned += len(self.outgoing)

    def _without_sender(self, queue: str) -> list[Step]:
        """No attempt was made: time is over, the entity is back, or the queue cannot be used."""
        if self.state.rotation.is_in(queue, self.loop.time()) or not self.decisions.stays:
            return self.wait_ended()
        reason = self.state.rotation.absences(self.loop.time(), self.places.twin).get(queue)
        error = timed_out(f"{queue} was pulled meanwhile: {reason}")
        now = self.loop.time()
        is_refusing = self.state.rotation.is_refusing(queue, now)
        fault = DivertFault.QUEUE if is_refusing else DivertFault.SILENT_QUEUE
        return self.decisions.divert_failed(error, of_error(error), fault, now)

    def _is_usable(self, step: DivertTo) -> bool:
        """Whether to go on waiting for a sender to the queue of this step."""
        state, queue = self.state, step.queue
        if step.is_turn:
            # Not a queue that was left out meanwhile, as all are when the secondary is closed.
            return state.rotation.has(queue)
        return state.rotation.is_in(queue, state.now) and not state.rotation.secondary.is_lost

    def _divert_failed(
        self, queue: str, caught: Exception, began: float, timeout_s: float
    ) -> list[Step]:
        """Report a failed divert to ledger and secondary; return the next steps."""
        error = self._record_failure(queue, translated(caught, queue, timeout_s), began)
        if is_too_large(error) and queue != self.places.twin:
            # The link has reported its limit by now, so this can name the message at fault.
            self._copies_for(queue)
        meaning = self.state.divert_meaning(queue, error)
        fault = self.state.divert_failed(queue, error, began, timeout_s)
        if fault is DivertFault.CALLER:
            self.places.cut_short(queue, self.loop.time())
        return self.decisions.divert_failed(error, meaning, fault, self.loop.time())

    def _record_failure(self, queue: str, error: Exception, began: float) -> Exception:
        self.record(began, error, queue)
        if self.state.tracing is not None:
            self.state.tracing.failed(queue, error, diverting=True)
        return error

    async def _send_parts(self, parts: Sequence[OutgoingMessages]) -> None:
        """Send the messages part by part, in order; after a failure the rest is not tried."""
        ids = [part.ids for part in parts]
        for number, part in enumerate(parts):
            call = SendCall(self.target, part, self.deadline, self.ends_at)
            call.unanswered_since_ms = self.unanswered_since_ms
            call.unanswered_attempts = self.unanswered_attempts
            try:
                await call.run()
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
        """The error of part `number`, whose own ids are given: parts before it are stored."""
        stored = (*chain(*ids[:number]), *stored)
        not_stored = (*not_stored, *chain(*ids[number + 1 :]))
        return PartialDivertError(
            f"{self.entity.path}: {len(stored)} of {len(stored) + len(not_stored)} messages of a"
            " batch are stored; send those of not_stored_ids again",
            stored_ids=stored,
            not_stored_ids=not_stored,
        )

    def record(self, began: float, error: BaseException | None, queue: str | None = None) -> None:
        recorder, tracing = self.state.recorder, self.state.tracing
        if recorder.is_on:
            recorder.attempted(
                self.entity.path,
                queue,
                self.outgoing.measured(),
                began,
                self.loop.time(),
                error=error,
                trace_id=None if tracing is None else tracing.trace_id(),
                client=self.target.client,
            )

    def ids(self) -> tuple[str, ...]:
        return self.outgoing.ids

    def unavailable(self) -> BacklogUnavailableError:
        errors: dict[str, BaseException | str] = {
            **self.state.rotation.absences(self.loop.time(), self.places.twin),
            **self.decisions.queue_errors,
        }
        tried = "; ".join(f"{queue}: {error}" for queue, error in sorted(errors.items()))
        primary_error = self.decisions.primary_error or self.entity.known_error()
        why = primary_error or self.entity.failover.reason
        return BacklogUnavailableError(
            f"{self.entity.path} has failed over ({why}) and no backlog queue took the message"
            f" ({tried or 'there is none'})",
            primary_error=primary_error,
            queue_errors=errors,
        )


def may_use_twin(target: SendTarget, outgoing: OutgoingMessages) -> bool:
    """Whether the twin may take these messages: they have no sessions, or the options allow it."""
    return target.state.options.twins_with_sessions or not any(
        session is not None for session in outgoing.by_session()
    )


def call_of(target: SendTarget, message: Any, deadline: float | None) -> SendCall:
    """The call of one message that has an id."""
    new_id = target.state.message_ids.for_backlog
    return SendCall(target, Outgoing(message, (message,), target.entity.path, new_id), deadline)
