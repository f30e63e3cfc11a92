"""One call of an application, performed: what `attempts` decides, done with senders of the SDK.

Every attempt is one SDK call on a leased sender, bounded in time, and one line in the ledger for
each message, also when it failed or when nobody knows (a timeout, a cancellation).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError

from twinbus.errors import (
    BacklogUnavailableError,
    EntityUnusableError,
    PairingError,
    PartialDivertError,
    ScheduleUnavailableError,
)
from twinbus.pairing.attempts import (
    BacklogChoice,
    Divert,
    DivertFailed,
    Ending,
    PrimaryFailed,
    PullQueue,
    Raise,
    SendCall,
    Step,
    TryPrimary,
    Wait,
    Woken,
)
from twinbus.pairing.classify import meaning_of
from twinbus.pairing.events import SendFailed, SendSucceeded
from twinbus.pairing.pool import Conduit, SenderPool, attempt

if TYPE_CHECKING:
    from twinbus.pairing.client import PairedClient
    from twinbus.pairing.entity import WatchedEntity
    from twinbus.pairing.outgoing import Outgoing

__all__ = ["Place", "ScheduleCall", "SendingCall"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the calls of one sender go: the pair, the entity, its senders, its backlog queue."""

    client: PairedClient
    entity: WatchedEntity
    pool: SenderPool
    backlog: BacklogChoice


class _Call:
    """The loop that both kinds of call share."""

    def __init__(self, place: Place, backlog: BacklogChoice, deadline: float | None) -> None:
        self.client, self.entity, self.pool = place.client, place.entity, place.pool
        self.place = place
        self.deadline = deadline
        self.loop = asyncio.get_running_loop()
        policy = place.client.policy
        self.call = SendCall(place.entity.failover, backlog, policy, deadline=deadline)

    async def run(self) -> Any:
        """Do it: the SDK's answer on the primary, None from the backlog, or the error to raise."""
        steps = self.call.start(self.loop.time())
        while True:
            self.client.require_open()
            step = self._take(steps)
            match step:
                case TryPrimary(timeout_s):
                    done, result = await self._primary(timeout_s)
                case Divert(queue, timeout_s):
                    done, result = await self._divert(queue, timeout_s)
                case Wait(until):
                    await self.entity.changes(until)
                    done, result = False, self._woken()
                case Raise():
                    raise self._error(step)
                case _:
                    raise AssertionError(f"{step} is not the last of its steps")
            if done:
                return result
            steps = result

    def _take(self, steps: list[Step]) -> Step:
        for step in steps[:-1]:
            assert isinstance(step, PullQueue)
            self.client.pull(step.queue, step.reason)
        return steps[-1]

    def _woken(self) -> list[Step]:
        return self.call.handle(Woken(), self.loop.time())

    async def _primary(self, timeout_s: float) -> tuple[bool, Any]:
        """The SDK's answer, or the next steps."""
        conduit = self.pool.take() or await self._lease(self.pool)
        if conduit is None:
            return False, self._woken()
        began, timeout_s = self._begin(timeout_s)
        try:
            answer = await attempt(self.pool, conduit, self.on_primary, timeout_s)
        except asyncio.CancelledError as cancelled:
            self.record(began, cancelled)
            raise
        except Exception as caught:  # noqa: BLE001  # every failure is judged, then raised or not
            error = _translated(caught, self.entity.path, timeout_s)
            self.record(began, error)
            meaning = meaning_of(error)
            counts = self.client.counts(error)
            text = f"{type(error).__name__}: {error}"
            self.entity.tell(SendFailed(counts=counts, error=text))
            return False, self.call.handle(PrimaryFailed(error, counts, meaning), self.loop.time())
        self.record(began, None)
        self.entity.tell(SUCCEEDED)
        return True, answer

    def _begin(self, timeout_s: float) -> tuple[float, float]:
        """The time, and how long the attempt may take: waiting for a sender may have cost some."""
        now = self.loop.time()
        return now, timeout_s if self.deadline is None else min(timeout_s, self.deadline - now)

    async def _lease(
        self, pool: SenderPool, is_worth: Callable[[], bool] = lambda: True
    ) -> Conduit | None:
        """A sender, once one is free; None when there is something better to do than to wait."""
        while self.call.stays and is_worth() and not self._is_over():
            conduit = pool.take()
            if conduit is not None:
                return conduit
            await pool.wait(self.deadline)
            self.client.require_open()
            if pool.closed:
                raise ValueError(f"the sender to {self.entity.path} was closed; get a new one")
        pool.pass_on()
        return None

    def _is_over(self) -> bool:
        return self.deadline is not None and self.loop.time() >= self.deadline

    async def _divert(self, queue: str, timeout_s: float) -> tuple[bool, Any]:
        raise NotImplementedError

    async def on_primary(self, sdk: Any) -> Any:
        """The SDK call that this is about."""
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
            case Ending.BACKLOG:
                error = self.unavailable()
                error.__cause__ = step.error
            case Ending.UNUSABLE:
                reason = self.entity.failover.reason
                error = EntityUnusableError(
                    f"{path} cannot be used: the primary answers {reason}; repair the entity,"
                    " a ping will find it",
                    message_ids=ids,
                )
                error.__cause__ = step.error
            case Ending.TIMED_OUT:
                error = OperationTimeoutError(
                    message=f"{path}: the time given was over before an attempt could be made"
                )
            case _:
                assert step.error is not None
                error = step.error
        return _with_ids(error, ids)


class SendingCall(_Call):
    """One call of `send_messages`."""

    def __init__(self, place: Place, outgoing: Outgoing, deadline: float | None) -> None:
        super().__init__(place, place.backlog, deadline)
        self.outgoing = outgoing

    async def on_primary(self, sdk: Any) -> None:
        await sdk.send_messages(self.outgoing.payload)
        self.entity.sent += len(self.outgoing)

    async def _divert(self, queue: str, timeout_s: float) -> tuple[bool, Any]:
        """The next steps, or the end: the messages are in the backlog queue."""
        try:
            # Before a sender is leased: a message that cannot be diverted is its sender's to mend.
            diverted = self.outgoing.diverted
        except PairingError as refusal:
            raise _with_ids(refusal, self.ids()) from self.call.primary_error
        pool = self.client.backlog_pool(queue)
        conduit = pool.take() or await self._lease(pool, lambda: self.client.is_in_use(queue))
        if conduit is None:
            return False, self._without_sender(queue)

        async def send(sdk: Any) -> None:
            await sdk.send_messages(diverted)

        began, timeout_s = self._begin(timeout_s)
        try:
            await attempt(pool, conduit, send, timeout_s)
        except asyncio.CancelledError as cancelled:
            self._record_divert(queue, began, cancelled)
            raise
        except Exception as caught:  # noqa: BLE001  # every failure is judged, then raised or not
            error = _translated(caught, queue, timeout_s)
            self._record_divert(queue, began, error)
            if isinstance(error, MessageSizeExceededError) and len(self.outgoing) > 1:
                await self._in_halves()
                return True, None
            return False, self._divert_failed(error)
        self._record_divert(queue, began, None)
        self.client.rotation.succeeded(queue)
        self.entity.diverted += len(self.outgoing)
        return True, None

    def _without_sender(self, queue: str) -> list[Step]:
        """Nothing was tried: time is over, the entity is back, or others found the queue bad."""
        reason = self.client.rotation.absences(self.loop.time()).get(queue)
        if reason is None or not self.call.stays:
            return self._woken()
        error = OperationTimeoutError(message=f"{queue} was given up meanwhile: {reason}")
        return self._divert_failed(error, timed_out=False)

    def _divert_failed(self, error: BaseException, *, timed_out: bool | None = None) -> list[Step]:
        if timed_out is None:
            timed_out = isinstance(error, OperationTimeoutError)
        event = DivertFailed(error, meaning_of(error), timed_out)
        return self.call.handle(event, self.loop.time())

    async def _in_halves(self) -> None:
        """Send a batch that is too large with its aliases as two (SPEC 3, Batches)."""
        ids = self.ids()
        stored: list[str] = []
        for half in self.outgoing.halves():
            try:
                await SendingCall(self.place, half, self.deadline).run()
            except PartialDivertError as error:
                stored += error.stored_ids
                raise self._partial(stored, ids) from error
            except Exception as error:
                if not stored:
                    raise _with_ids(error, ids) from error.__cause__
                raise self._partial(stored, ids) from error
            stored += half.ids

    def _partial(self, stored: list[str], ids: tuple[str, ...]) -> PartialDivertError:
        not_stored = [one for one in ids if one not in set(stored)]
        return PartialDivertError(
            f"{self.entity.path}: {len(stored)} of {len(ids)} messages of a batch are stored;"
            " send those of not_stored_ids again",
            stored_ids=stored,
            not_stored_ids=not_stored,
        )

    def record(self, began: float, error: BaseException | None) -> None:
        recorder = self.client.recorder
        if recorder.is_on:
            messages, ended = self.outgoing.measured(), self.loop.time()
            recorder.sent(self.entity.path, messages, began, ended, error=error)

    def _record_divert(self, queue: str, began: float, error: BaseException | None) -> None:
        recorder = self.client.recorder
        if recorder.is_on:
            messages, ended = self.outgoing.measured(), self.loop.time()
            recorder.diverted(self.entity.path, queue, messages, began, ended, error=error)

    def ids(self) -> tuple[str, ...]:
        return self.outgoing.ids

    def unavailable(self) -> BacklogUnavailableError:
        errors: dict[str, BaseException | str] = {
            **self.client.rotation.absences(self.loop.time()),
            **self.call.queue_errors,
        }
        tried = "; ".join(f"{queue}: {error}" for queue, error in sorted(errors.items()))
        return BacklogUnavailableError(
            f"{self.entity.path} has failed over and no backlog queue took the message"
            f" ({tried or 'there is none'})",
            message_ids=self.ids(),
            primary_error=self.call.primary_error,
            queue_errors=errors,
        )


class ScheduleCall(_Call):
    """One call that needs the primary's sequence numbers, and so cannot be diverted."""

    def __init__(
        self,
        place: Place,
        operation: Callable[[Any], Awaitable[Any]],
        ids: tuple[str, ...],
        deadline: float | None,
    ) -> None:
        super().__init__(place, _NoBacklog(place.backlog), deadline)
        self._operation = operation
        self._ids = ids

    async def on_primary(self, sdk: Any) -> Any:
        return await self._operation(sdk)

    def record(self, began: float, error: BaseException | None) -> None:
        self.client.recorder.managed(
            "primary", began, self.loop.time(),
            error=error, entity=self.entity.path, cause="application",
        )  # fmt: skip

    def ids(self) -> tuple[str, ...]:
        return self._ids

    def unavailable(self) -> ScheduleUnavailableError:
        return ScheduleUnavailableError(
            f"{self.entity.path} has failed over, and only the primary gives sequence numbers; send"
            " messages with scheduled_enqueue_time_utc instead, these are diverted",
            message_ids=self._ids,
        )


class _NoBacklog:
    """The backlog as a call sees it that cannot use it: there, if it is, but with no queue."""

    def __init__(self, backlog: BacklogChoice) -> None:
        self._backlog = backlog

    @property
    def protected(self) -> bool:
        return self._backlog.protected

    def choose(self, now: float, tried: object) -> None:
        """None, always."""


SUCCEEDED = SendSucceeded()


def _translated(error: Exception, place: str, timeout_s: float) -> Exception:
    """Our own bound as the SDK's error, which is what its users handle."""
    if type(error) is not TimeoutError:
        return error
    translated = OperationTimeoutError(message=f"{place} did not answer within {timeout_s:g} s")
    translated.__cause__ = error
    return translated


def _with_ids(error: BaseException, ids: tuple[str, ...]) -> BaseException:
    """The error with `message_ids` on it, also where it is one of the SDK's own."""
    error.message_ids = ids  # type: ignore[attr-defined]
    return error
