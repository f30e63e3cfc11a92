"""Calls that need the primary's sequence numbers: to schedule messages, and to cancel that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from twinbus.errors import ScheduleUnavailableError
from twinbus.pairing.sending.calls import PairedCall, SendTarget

if TYPE_CHECKING:
    from twinbus.pairing.core.attempts import BacklogChoice

__all__ = ["ScheduleCall"]


class ScheduleCall(PairedCall):
    """One call that needs the primary's sequence numbers, and so cannot be diverted."""

    def __init__(
        self,
        place: SendTarget,
        operation: Callable[[Any], Awaitable[Any]],
        ids: tuple[str, ...],
        deadline: float | None,
    ) -> None:
        super().__init__(place, place.entity.failover, deadline)
        self._operation = operation
        self._ids = ids

    def choice(self) -> BacklogChoice:
        return _NoBacklog(self.place.backlog)

    def on_primary(self, sdk: Any) -> Awaitable[Any]:
        return self._operation(sdk)

    def succeeded(self, began: float) -> None:
        self.record(began, None)
        self.entity.took(0)

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
