"""Performs calls that need the primary's sequence numbers: to schedule messages, and to cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from twinbus.errors import ScheduleUnavailableError
from twinbus.pairing.sending.calls import PairedCall, SendTarget

if TYPE_CHECKING:
    from twinbus.pairing.core.attempts import BacklogChoice


class ScheduleCall(PairedCall):
    """One call that needs the primary's sequence numbers, and so cannot be diverted."""

    def __init__(
        self,
        target: SendTarget,
        operation: Callable[[Any], Awaitable[Any]],
        ids: tuple[str, ...],
        deadline: float | None,
    ) -> None:
        super().__init__(target, target.entity.failover, _NoBacklog(target.backlog), deadline)
        self._operation = operation
        self._ids = ids

    def on_primary(self, sdk: Any) -> Awaitable[Any]:
        return self._operation(sdk)

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


class _NoBacklog:
    """The backlog for a call that cannot be diverted: protected as it is, but without a queue."""

    def __init__(self, backlog: BacklogChoice) -> None:
        self._backlog = backlog

    @property
    def protected(self) -> bool:
        return self._backlog.protected

    is_lost = False

    def choose(self, now: float, tried: object) -> None:
        """None, always."""

    def resting(self, now: float, tried: object) -> None:
        """None, always."""

    def may_return(self, tried: object) -> bool:
        """False: the call raises at once."""
        return False

    def is_turn(self, now: float) -> bool:
        """False: the call takes no turn."""
        return False
