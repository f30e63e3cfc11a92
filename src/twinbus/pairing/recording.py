"""What a pair writes into the ledger: one line for each message and attempt, ping, state, call."""

from __future__ import annotations

import os
from asyncio import CancelledError
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from twinbus.pairing.classify import Meaning, meaning_of

if TYPE_CHECKING:
    from twinbus.options import SendAvailabilityOptions
    from twinbus.pairing.events import State
    from twinbus.pairing.namespaces import Namespace

__all__ = ["Ledger", "Recorder", "open_recorder"]

Outcome = Literal["ok", "failed", "unknown"]

NEVER_LEFT: Final = "Failed to initiate the connection"
"""What the SDK says when there was no connection to send on."""

ERROR_LENGTH_MAX: Final = 300
"""Of an error's text; the service's own can be pages."""


class Ledger(Protocol):
    """The one thing a pair does with its ledger while it runs."""

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None: ...

    def close(self) -> None: ...


class Recorder:
    """Writes the lines of one pair; `is_on` is False when there is no ledger to write to."""

    def __init__(
        self, ledger: Ledger, primary: Namespace, secondary: Namespace, *, is_on: bool = True
    ) -> None:
        self.ledger = ledger
        self.is_on = is_on
        self._pair = f"{primary.label}+{secondary.label}"
        self._labels = {"primary": primary.label, "secondary": secondary.label}

    def sent(
        self,
        entity: str,
        messages: Iterable[tuple[str | None, int | None]],
        began: float,
        ended: float,
        *,
        error: BaseException | None = None,
    ) -> None:
        """One attempt on the primary: a line for each message, `(id, size in bytes)`."""
        for message_id, size_bytes in messages:
            self._write(
                "send", "application", "primary", began, ended, error,
                entity=entity, message_id=message_id, size_bytes=size_bytes,
            )  # fmt: skip

    def diverted(
        self,
        entity: str,
        queue: str,
        messages: Iterable[tuple[str | None, int | None]],
        began: float,
        ended: float,
        *,
        error: BaseException | None = None,
    ) -> None:
        """One attempt on a backlog queue."""
        for message_id, size_bytes in messages:
            self._write(
                "divert", "failover", "secondary", began, ended, error,
                entity=entity, backlog_queue=queue, message_id=message_id, size_bytes=size_bytes,
            )  # fmt: skip

    def pinged(
        self, entity: str, began: float, ended: float, error: BaseException | None = None
    ) -> None:
        """One ping."""
        self._write("ping", "ping", "primary", began, ended, error, entity=entity)

    def managed(
        self, side: str, began: float, ended: float, *,
        error: BaseException | None = None, entity: str | None = None, queue: str | None = None,
        cause: str = "administration",
    ) -> None:  # fmt: skip
        """One management call: of a backlog queue, or of the application's scheduled messages."""
        self._write("manage", cause, side, began, ended, error, entity=entity, backlog_queue=queue)

    def changed(self, entity: str, state: State, reason: str) -> None:
        """An entity's new state, with the reason where an error would be."""
        if self.is_on:
            self.ledger.record(
                "state", pair=self._pair, namespace=self._labels["primary"], side="primary",
                entity=entity, state=state.value, error=reason[:ERROR_LENGTH_MAX], view="client",
            )  # fmt: skip

    def _write(
        self, operation: str, cause: str, side: str, began: float, ended: float,
        error: BaseException | None, **fields: Any,
    ) -> None:  # fmt: skip
        if self.is_on:
            self.ledger.record(
                operation, cause=cause, pair=self._pair, namespace=self._labels[side], side=side,
                outcome=outcome_of(error), latency_us=int((ended - began) * 1e6),
                error=None if error is None else _text(error), view="client", **fields,
            )  # fmt: skip


def outcome_of(error: BaseException | None) -> Outcome:
    """Whether the call was carried out. Only an answer, or no connection, says that it was not."""
    if error is None:
        return "ok"
    if isinstance(error, ConnectionRefusedError) or NEVER_LEFT in str(error):
        return "failed"
    if isinstance(error, CancelledError) or meaning_of(error) is Meaning.UNREACHABLE:
        return "unknown"
    return "failed"


def _text(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:ERROR_LENGTH_MAX]


def open_recorder(
    primary: Namespace, secondary: Namespace, options: SendAvailabilityOptions
) -> Recorder:
    """The recorder that the options and the environment ask for."""
    from twinbus.ledger import NullLedger, open_ledger

    ledger = open_ledger(options.ledger_location(os.environ))
    return Recorder(ledger, primary, secondary, is_on=not isinstance(ledger, NullLedger))
