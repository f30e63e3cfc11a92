"""What a call needs of its messages and senders, whatever carries them.

The application's calls use messages and senders of the SDK (`Outgoing`, `SenderPool`, which
describe the methods); a gateway uses encoded messages and AMQP links.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from twinbus.errors import BacklogGuardError


class OutgoingMessages(Protocol):
    """The messages of one call."""

    payload: Any
    suspects: list[Any]

    @property
    def ids(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def measured(self) -> Sequence[tuple[str | None, int | None]]: ...

    def diverted(self, limit_bytes: int | None) -> Any: ...

    def flaws(self, limit_bytes: int | None) -> list[BacklogGuardError]: ...

    def refused_size(self, limit_bytes: int, *, was_sent: bool) -> int | None: ...

    def halves(self) -> Sequence[OutgoingMessages]: ...

    def by_session(self) -> Mapping[str | None, list[Any]]: ...

    def parts(self) -> Sequence[OutgoingMessages]: ...


class AttemptPool(Protocol):
    """Senders to one queue or topic."""

    @property
    def closed(self) -> bool: ...

    @property
    def limit_bytes(self) -> int | None: ...

    def take(self) -> Any | None: ...

    async def wait(self, until: float | None) -> None: ...

    async def attempt(
        self,
        pooled: Any,
        operation: Callable[[Any], Awaitable[Any]],
        timeout_s: float,
        *,
        is_late: bool = False,
    ) -> Any: ...

    def invalidate(self) -> None: ...

    def open_ahead(self) -> None: ...

    def wake_one(self) -> None: ...

    def wake_all(self) -> None: ...

    async def close(self, limit_s: float) -> None: ...
