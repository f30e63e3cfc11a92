"""Performs calls that need the primary's sequence numbers: to schedule messages, and to cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from twinbus.errors import ScheduleUnavailableError, ScheduleUnknownError, error_text
from twinbus.pairing.core.backlog import KeptChoice, Rotation
from twinbus.pairing.sdk.failures import ScheduleTimedOutError, is_refusal
from twinbus.pairing.sending.calls import PairedCall, SendTarget
from twinbus.servicebus.failures import is_timeout

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
