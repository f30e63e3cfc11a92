"""What a pair writes into the ledger: one line for each message and attempt, ping, state, call."""

from __future__ import annotations

import os
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from twinbus.ledger.record import LineForm
from twinbus.pairing.core.classify import FailureMeaning, meaning_of

if TYPE_CHECKING:
    from twinbus.namespace.namespace import Namespace
    from twinbus.options import SendAvailabilityOptions
    from twinbus.pairing.core.events import EntityState

__all__ = ["CLOSED", "PairLedger", "Recorder", "open_recorder"]

Outcome = Literal["ok", "failed", "unknown"]

NEVER_LEFT: Final = "Failed to initiate the connection"
"""What the SDK says when there was no connection to send on."""

CLOSED: Final = "closed"
"""In a state record: the pair was closed, and the entity had not come back."""

ERROR_LENGTH_MAX: Final = 300
"""Of an error's text; the service's own can be pages."""


Message = tuple[str | None, int | None]
"""Id and size in bytes."""

Messages = Sequence[Message]
"""Of each message of a call."""


FORMS_MAX: Final = 20_000
"""Common parts of lines that are kept, one for an entity and one for each queue it diverted to.
Past that they are made anew."""


class PairLedger(Protocol):
    """What a pair does with its ledger while it runs."""

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None: ...

    def record_message(self, form: LineForm, latency_us: int, message: Message) -> None: ...

    def record_messages(self, form: LineForm, latency_us: int, messages: Messages) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Recorder:
    """Writes the lines of one pair; `is_on` is False when there is no ledger to write to."""

    def __init__(
        self, ledger: PairLedger, primary: Namespace, secondary: Namespace, *, is_on: bool = True
    ) -> None:
        self.ledger = ledger
        self.is_on = is_on
        self._pair = f"{primary.label}+{secondary.label}"
        self._labels = {"primary": primary.label, "secondary": secondary.label}
        self._forms: dict[object, LineForm] = {}

    @property
    def unrecorded(self) -> int:
        """Lines that the ledger could not take so far."""
        return int(getattr(self.ledger, "unrecorded", 0))

    @property
    def pair(self) -> str:
        """The pair as ledger and metrics call it."""
        return self._pair

    def sent(
        self, entity: str, messages: Messages, began: float, ended: float, *,
        error: BaseException | None = None, trace_id: str | None = None,
    ) -> None:  # fmt: skip
        """One attempt on the primary: a line for each message."""
        if error is None and trace_id is None:
            form = self._forms.get(entity) or self._sent_form(entity)
            self.ledger.record_messages(form, int((ended - began) * 1e6), messages)
            return
        for message_id, size_bytes in messages:
            self._write(
                "send", "application", "primary", began, ended, error,
                entity=entity, message_id=message_id, size_bytes=size_bytes, trace_id=trace_id,
            )  # fmt: skip

    def diverted(
        self, entity: str, queue: str, messages: Messages, began: float, ended: float, *,
        error: BaseException | None = None, trace_id: str | None = None,
    ) -> None:  # fmt: skip
        """One attempt on a backlog queue."""
        if error is None and trace_id is None:
            form = self._forms.get((entity, queue)) or self._form(
                (entity, queue), "divert", "failover", "secondary",
                entity=entity, backlog_queue=queue,
            )  # fmt: skip
            self.ledger.record_messages(form, int((ended - began) * 1e6), messages)
            return
        for message_id, size_bytes in messages:
            self._write(
                "divert", "failover", "secondary", began, ended, error,
                entity=entity, backlog_queue=queue, message_id=message_id, size_bytes=size_bytes,
                trace_id=trace_id,
            )  # fmt: skip

    def noting(self, entity: str) -> Callable[[int, Message], None] | None:
        """What notes a message that an entity took after so many microseconds; None: no ledger."""
        if not self.is_on:
            return None
        return partial(self.ledger.record_message, self._sent_form(entity))

    def _sent_form(self, entity: str) -> LineForm:
        return self._form(entity, "send", "application", "primary", entity=entity)

    def _form(self, key: object, operation: str, cause: str, side: str, **place: str) -> LineForm:
        """What the lines of all good attempts at one place have in common, kept for the next."""
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        form = self._forms[key] = LineForm(
            operation, cause=cause, pair=self._pair, namespace=self._labels[side], side=side,
            outcome="ok", view="client", **place,
        )  # fmt: skip
        return form

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

    def changed(self, entity: str, state: EntityState, reason: str) -> None:
        """An entity's new state, with the reason where an error would be."""
        self._state(entity, state.value, reason)

    def left(self, entity: str, state: EntityState) -> None:
        """The pair was closed while the entity was in this state: nobody watches it any more."""
        self._state(entity, CLOSED, f"the pair was closed, the entity was {state.value}")

    def _state(self, entity: str, word: str, reason: str) -> None:
        if self.is_on:
            self.ledger.record(
                "state", pair=self._pair, namespace=self._labels["primary"], side="primary",
                entity=entity, state=word, error=reason[:ERROR_LENGTH_MAX], view="client",
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
    if isinstance(error, CancelledError) or meaning_of(error) is FailureMeaning.UNREACHABLE:
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
