"""Performs one call of an application: what `attempts` decides, done with senders of the SDK.

Every attempt is one SDK call on a leased sender, bounded in time. Each writes one ledger line per
message, also when it failed or when the result is unknown (a timeout, a cancellation).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twinbus.errors import (
    EntityUnusableError,
    PairingError,
    ScheduleUnavailableError,
    ScheduleUnknownError,
    error_text,
)
from twinbus.pairing.core.attempts import (
    CallEnding,
    DivertTo,
    EntityView,
    PullQueue,
    Raise,
    RetryPolicy,
    SendDecisions,
    Step,
    TryPrimary,
    WaitForRetry,
    WaitForSecondary,
)
from twinbus.pairing.core.backlog import KeptChoice, Rotation
from twinbus.pairing.core.failover import PrimaryTried
from twinbus.pairing.core.twins import TwinFirst
from twinbus.pairing.sdk.failures import (
    ScheduleTimedOutError,
    is_refusal,
    is_unanswered,
    timed_out,
    translated,
)
from twinbus.pairing.sdk.sender_pool import OpeningFailed, was_carried_out
from twinbus.pairing.sending.carrier import Carrier
from twinbus.servicebus.failures import CutShort, FailureMeaning, is_timeout, of_error

if TYPE_CHECKING:
    from twinbus.pairing.sending.entity_monitor import EntityMonitor
    from twinbus.pairing.sending.sessions import SessionScan
    from twinbus.pairing.sending.shared_state import SharedState

CallResult = tuple[bool, Any]
"""True and the result of the call; or False and the next steps."""


@dataclass(frozen=True, slots=True)
class SendTarget:
    """Where the calls of one sender go: the entity, its senders, its backlog queue."""

    state: SharedState
    entity: EntityMonitor
    pool: Carrier
    backlog: KeptChoice
    sessions: SessionScan | None = None
    """Knows the bound sessions under strict order; None: the order is relaxed."""
    client: str | None = None
    """The client of a gateway for whom this sends, for the ledger; None: the application itself."""
    twin: TwinFirst | None = None
    """The entity's twin, then `backlog`; None: the entity is to have no twin."""

    @property
    def first(self) -> KeptChoice:
        """Where its messages are diverted to first, unless they have sessions."""
        return self.backlog if self.twin is None else self.twin


class PairedCall:
    """One call: makes attempts until one succeeds or the decisions end it with an error."""

    tries_for_others: ClassVar[bool] = False
    """Whether it may try the primary for the others when their entity is said to be back."""

    def __init__(
        self,
        target: SendTarget,
        view: EntityView,
        backlog: KeptChoice,
        deadline: float | None,
        ends_at: float | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        """`view` is the entity and `backlog` the backlog as this call's messages see them.

        `deadline` is the end of the caller's timeout. Without one the call ends at `ends_at`, or
        after the time that the options allow. `policy`: other retries than the options say.
        """
        self.target, self.view, self.deadline = target, view, deadline
        self.state, self.entity, self.pool = target.state, target.entity, target.pool
        self.loop = self.state.loop
        self.unanswered_since_ms: int | None = None
        """When the first attempt on the primary began that sent the messages and ended without an
        answer, in milliseconds since 1970; None: the primary has no copy."""
        self.unanswered_attempts = 0
        """How many attempts ended so: the primary may have a copy of each."""
        self._was_sent = False
        """Whether the messages of the present attempt may have gone out."""
        if deadline is not None:
            ends_at = deadline
        elif ends_at is None:
            ends_at = self.loop.time() + self.state.call_limit_s
        self.decisions = SendDecisions(
            view,
            backlog,
            policy or self.state.policy,
            ends_at=ends_at,
            is_patient=deadline is not None,
            jitter=self.state.jitter,
            tries_for_others=self.tries_for_others,
        )

    @property
    def ends_at(self) -> float:
        return self.decisions.ends_at

    async def run(self) -> Any:
        """Return the SDK's answer on the primary or None from the backlog, or raise an error."""
        return await self._perform(self.decisions.start(self.loop.time()))

    async def run_after(self, failed: BaseException, began: float, timeout_s: float) -> Any:
        """Run on after a first attempt on the primary that was made elsewhere, and failed."""
        if not isinstance(failed, Exception):
            self.record(began, failed)
            raise failed
        if self.deadline is None:
            self.decisions.ends_at = began + self.state.call_limit_s
        self._was_sent = True
        return await self._perform(self._primary_failed(failed, began, timeout_s))

    async def _perform(self, steps: list[Step]) -> Any:
        try:
            while True:
                self.state.require_open()
                for pull in steps[:-1]:
                    assert isinstance(pull, PullQueue)
                    self.state.pull(pull.queue, pull.reason, pull.cause)
                match steps[-1]:
                    case TryPrimary(timeout_s, is_trial):
                        if is_trial:
                            self.entity.tell(PrimaryTried())
                        done, result = await self._try_primary(timeout_s)
                    case DivertTo() as step:
                        done, result = await self.divert(step)
                    case WaitForRetry(until):
                        await self.entity.changes(until)
                        done, result = False, self.wait_ended()
                    case WaitForSecondary(until):
                        await self.state.waiting.wait(self.entity, until)
                        done, result = False, self.wait_ended()
                    case Raise() as step:
                        raise self._error(step)
                    case step:
                        raise AssertionError(f"{step} is not the last of its steps")
                if done:
                    return result
                steps = result
        except Exception as error:
            # Errors of the SDK get the ids as well.
            with_ids(error, self.ids())
            raise

    async def _try_primary(self, timeout_s: float) -> CallResult:
        began = self.loop.time()
        self._require_open_pool()
        self._was_sent = False
        pooled = self.pool.take()
        is_late = pooled is None or self.decisions.primary_error is not None
        try:
            pooled = pooled or await self.lease(self.pool)
        except OpeningFailed as shared:
            return False, self._primary_failed(shared.own_error(), began, timeout_s)
        if pooled is None:
            return False, self.wait_ended()
        began = self.loop.time()
        timeout_s = min(timeout_s, self.ends_at - began)  # waiting for a sender takes time
        try:
            answer = await self.pool.attempt(pooled, self.on_primary, timeout_s, is_late=is_late)
        except asyncio.CancelledError as cancelled:
            if was_carried_out(cancelled):
                self.succeeded(began)
            else:
                self.record(began, cancelled)
            raise
        except Exception as caught:  # noqa: BLE001  # every failure is judged, then raised or not
            return False, self._primary_failed(caught, began, timeout_s)
        self.succeeded(began)
        return True, answer

    def _primary_failed(self, caught: Exception, began: float, timeout_s: float) -> list[Step]:
        """Report a failed attempt on the primary to ledger and entity; return the next steps."""
        error = self.explained(translated(caught, self.entity.path, timeout_s))
        self.record(began, error)
        if self._was_sent and is_unanswered(error):
            self.unanswered_attempts += 1
            if self.unanswered_since_ms is None:
                ago_s = self.loop.time() - began
                self.unanswered_since_ms = self.state.environment.wall_ms() - int(ago_s * 1_000)
        if self.state.tracing is not None:
            self.state.tracing.failed(self.entity.path, error, diverting=False)
        # The caller's own short timeout is no evidence if the link's opening used it up. If
        # the opening fails, the pool reports that.
        counts = not isinstance(caught, CutShort) and self.state.counts(error)
        self.entity.attempt_failed(error, counts=counts)
        meaning = of_error(error)
        if meaning is FailureMeaning.BUSY:
            self.state.on_busy()
        self.require_repeatable(error)
        return self.decisions.primary_failed(error, meaning, self.loop.time(), counts=counts)

    async def lease(
        self, pool: Carrier, is_usable: Callable[[], bool] = lambda: True
    ) -> Any | None:
        """Wait for a free sender; None: the time is over, or the call must go elsewhere.

        OpeningFailed: the link that this call waited for could not be opened.
        """

        def is_wanted() -> bool:
            self.state.require_open()
            if pool is self.pool:
                self._require_open_pool()
            return self.decisions.stays and is_usable() and self.loop.time() < self.ends_at

        return await pool.lease(self.ends_at, is_wanted)

    def _require_open_pool(self) -> None:
        """Raise if the sender was closed, while this call waited or was attempted elsewhere."""
        if self.pool.closed:
            raise ValueError(f"the sender to {self.entity.path} was closed; get a new one")

    def wait_ended(self) -> list[Step]:
        return self.decisions.wait_ended(self.loop.time())

    async def divert(self, step: DivertTo) -> CallResult:
        """Make one attempt on a backlog queue."""
        raise NotImplementedError

    def on_primary(self, sdk: Any) -> Awaitable[Any]:
        """Begin the SDK call that this is about."""
        raise NotImplementedError

    def succeeded(self, began: float) -> None:
        """Report a success on the primary to ledger and entity."""
        raise NotImplementedError

    def explained(self, error: Exception) -> Exception:
        """The error of a failed attempt on the primary, or another that names its true cause."""
        return error

    def require_repeatable(self, error: Exception) -> None:
        """Raise if the call must not be repeated after an attempt that ended with this error."""

    def record(self, began: float, error: BaseException | None) -> None:
        raise NotImplementedError

    def ids(self) -> tuple[str, ...]:
        """The ids of the messages that an error is about."""
        raise NotImplementedError

    def unavailable(self) -> PairingError:
        """The error of a call that left the primary and could not be diverted."""
        raise NotImplementedError

    def _error(self, step: Raise) -> BaseException:
        path = self.entity.path
        match step.ending:
            case CallEnding.BACKLOG:
                error: BaseException = self.unavailable()
            case CallEnding.UNUSABLE:
                error = EntityUnusableError(
                    f"{path} cannot be used: the primary answers {self.entity.failover.reason};"
                    " repair the entity, a ping will find it"
                )
            case CallEnding.TIMED_OUT:
                error = timed_out(f"{path}: the timeout ended before an attempt could be made")
            case _:
                assert step.error is not None
                return step.error
        error.__cause__ = step.error
        return error


def with_ids(error: BaseException, ids: tuple[str, ...]) -> BaseException:
    """The error with `message_ids` on it, also where it is one of the SDK's own."""
    error.message_ids = ids  # type: ignore[attr-defined]
    return error


NO_NUMBER: Final = 0
"""The broker's answer for a scheduled message that it dropped as a duplicate. (Azure answers with a
new number, which belongs to no message.)"""


class ScheduleCall(PairedCall):
    """One call that needs the primary's sequence numbers, and so cannot be diverted."""

    def __init__(
        self,
        target: SendTarget,
        operation: Callable[[Any], Awaitable[Any]],
        ids: tuple[str, ...],
        deadline: float | None,
        *,
        doubt: str,
    ) -> None:
        """`doubt` says what may have happened if no answer comes."""
        # A failover would end the call, so it does not retry until then.
        policy = replace(target.state.policy, total=target.state.policy.retries)
        backlog = _NoBacklog(target.backlog)
        super().__init__(target, target.entity.failover, backlog, deadline, policy=policy)
        self._operation = operation
        self._ids = ids
        self._doubt = doubt
        self._has_begun = False
        """Whether the request of the present attempt may have gone out."""

    def on_primary(self, sdk: Any) -> Awaitable[Any]:
        self._has_begun = True
        return self._operation(sdk)

    def require_repeatable(self, error: Exception) -> None:
        """A repeated request makes a second copy, so only one that was refused is."""
        has_begun, self._has_begun = self._has_begun, False
        if has_begun and not is_refusal(error):
            kind = ScheduleTimedOutError if is_timeout(error) else ScheduleUnknownError
            raise kind(
                f"{self.entity.path} did not answer ({error_text(error)}), and the call is not"
                f" repeated: {self._doubt}"
            ) from error

    def succeeded(self, began: float) -> None:
        self.record(began, None)
        self.entity.succeeded(0)

    def record(self, began: float, error: BaseException | None) -> None:
        self.state.recorder.managed(
            "primary", began, self.loop.time(),
            error=error, entity=self.entity.path, cause="application",
        )  # fmt: skip

    def ids(self) -> tuple[str, ...]:
        return self._ids

    def unavailable(self) -> ScheduleUnavailableError:
        return ScheduleUnavailableError(
            f"{self.entity.path} has failed over, and only the primary gives sequence numbers; send"
            " messages with scheduled_enqueue_time_utc instead, these are diverted"
        )


def require_numbers(numbers: Sequence[int], path: str, ids: Sequence[str]) -> None:
    """ScheduleUnknownError for messages that the entity dropped as duplicates."""
    dropped = [each for each, number in zip(ids, numbers, strict=True) if number == NO_NUMBER]
    if not dropped:
        return
    others = [number for number in numbers if number != NO_NUMBER]
    rest = f"; the others have the numbers {others}" if others else ""
    raise ScheduleUnknownError(
        f"{path} dropped {dropped} as duplicates of messages that it took before, whose sequence"
        f" numbers are not known{rest}",
        message_ids=ids,
    )


class _NoBacklog(KeptChoice):
    """The backlog for a call that cannot be diverted: protected as it is, but without a queue."""

    def __init__(self, backlog: KeptChoice) -> None:
        super().__init__(Rotation(), lambda queues: queues[0])
        self._backlog = backlog

    @property
    def protected(self) -> bool:
        return self._backlog.protected
