"""What a pair writes about its calls: lines of the ledger, and OpenTelemetry spans.

The ledger has one line for each message and attempt, ping, change of state and management call. A
send has a span with an event for each failed attempt. Spans use only the API, and only if the
application has set a provider before it paired: without one nothing is imported and a send pays one
comparison. Names follow OpenTelemetry's conventions for messaging; our own begin with `twinbus.`.

A message is not changed on its way to the primary: its trace context comes from the application, or
from the SDK with its own tracing on. A diverted message is a copy anyway; if it has no context it
gets that of this span, because the trace would end in the backlog otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from twinbus.errors import error_text
from twinbus.ledger.record import ERROR_LENGTH_MAX, LineForm
from twinbus.ledger.requests import CONSUMER, BilledRequests
from twinbus.servicebus.failures import outcome_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from twinbus.namespace.namespace import Namespace
    from twinbus.options import SendAvailabilityOptions

CLOSED: Final = "closed"
"""State in a ledger record: the pair was closed while the entity was not healthy."""

Message = tuple[str | None, int | None]
"""Id and size in bytes."""

Messages = Sequence[Message]
"""Id and size of each message of a call."""

FORMS_MAX: Final = 20_000
"""Line forms that are cached: one for an entity and one for each queue it diverted to; in a gateway
for each client."""


SEND: Final = ("send", "application", "primary")
DIVERT: Final = ("divert", "failover", "secondary")
"""Operation, cause and side of an attempt."""


class PairLedger(Protocol):
    """The ledger as a running pair uses it."""

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
        self.pair = f"{primary.label}+{secondary.label}"
        """The name of the pair in ledger and metrics."""
        self._labels = {"primary": primary.label, "secondary": secondary.label}
        self._forms: dict[tuple[str, str | None, str | None], LineForm] = {}

    @property
    def unrecorded(self) -> int:
        return int(getattr(self.ledger, "unrecorded", 0))

    def attempted(
        self, entity: str, queue: str | None, messages: Messages, began: float, ended: float, *,
        error: BaseException | None = None, trace_id: str | None = None,
        client: str | None = None,
    ) -> None:  # fmt: skip
        """Record one attempt on a backlog queue, or on the primary without one, message by message.

        The queue of a divert to the entity's twin is the path of the entity.

        Successful attempts share the fixed part of their lines. `client` is the client of a
        gateway that the messages came from.
        """
        if error is None and trace_id is None:
            form = self._forms.get((entity, queue, client)) or self._form(entity, queue, client)
            self.ledger.record_messages(form, int((ended - began) * 1e6), messages)
            return
        operation, cause, side = SEND if queue is None else DIVERT
        for message_id, size_bytes in messages:
            self._write(
                operation, cause, side, began, ended, error,
                entity=entity, backlog_queue=queue, message_id=message_id, size_bytes=size_bytes,
                trace_id=trace_id, client=client,
            )  # fmt: skip

    def message_recorder(self, entity: str) -> Callable[[int, Message], None] | None:
        """A function that records one message stored on the primary; None: there is no ledger.

        It takes the latency in microseconds and the message.
        """
        if not self.is_on:
            return None
        return partial(self.ledger.record_message, self._form(entity, None))

    def _form(self, entity: str, queue: str | None, client: str | None = None) -> LineForm:
        """Make and cache the fixed part of the lines of successful attempts."""
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        operation, cause, side = SEND if queue is None else DIVERT
        form = self._forms[entity, queue, client] = LineForm(
            operation, cause=cause, pair=self.pair, namespace=self._labels[side], side=side,
            outcome="ok", view="client", entity=entity, backlog_queue=queue, client=client,
        )  # fmt: skip
        return form

    def pinged(
        self,
        entity: str,
        began: float,
        ended: float,
        error: BaseException | None = None,
        size_bytes: int = 0,
    ) -> None:
        self._write(
            "ping", "ping", "primary", began, ended, error, entity=entity, size_bytes=size_bytes
        )

    def managed(
        self, side: str, began: float, ended: float, *,
        error: BaseException | None = None, entity: str | None = None, queue: str | None = None,
        cause: str = "administration",
    ) -> None:  # fmt: skip
        self._write("manage", cause, side, began, ended, error, entity=entity, backlog_queue=queue)

    def requests(
        self, side: str, cause: str = CONSUMER, client: str | None = None
    ) -> BilledRequests:
        """Return what requests about entities of the application are recorded with.

        `client` is the client of a gateway that makes them.
        """
        return BilledRequests(
            self._labels[side],
            cause=cause, side=side, pair=self.pair, client=client, ledger=self.ledger,
        )  # fmt: skip

    def changed(self, entity: str, state: str, reason: str) -> None:
        """Record an entity's new state, with the reason in the error field."""
        if self.is_on:
            self.ledger.record(
                "state", pair=self.pair, namespace=self._labels["primary"], side="primary",
                entity=entity, state=state, error=reason[:ERROR_LENGTH_MAX], view="client",
            )  # fmt: skip

    def _write(
        self, operation: str, cause: str, side: str, began: float, ended: float,
        error: BaseException | None, **fields: Any,
    ) -> None:  # fmt: skip
        if self.is_on:
            text = None if error is None else " ".join(error_text(error).split())[:ERROR_LENGTH_MAX]
            self.ledger.record(
                operation, cause=cause, pair=self.pair, namespace=self._labels[side], side=side,
                outcome=outcome_of(error), latency_us=int((ended - began) * 1e6),
                error=text, view="client", **fields,
            )  # fmt: skip


def open_recorder(
    primary: Namespace, secondary: Namespace, options: SendAvailabilityOptions
) -> Recorder:
    """The recorder that the options and the environment ask for."""
    from twinbus.ledger import NullLedger, open_ledger

    ledger = open_ledger(options.ledger_location(os.environ))
    return Recorder(ledger, primary, secondary, is_on=not isinstance(ledger, NullLedger))


SYSTEM: Final = "servicebus"

CONTEXT_NAMES: Final = frozenset({"traceparent", "Diagnostic-Id"})
"""Application properties with the trace context of a message; the SDK writes both."""


def tracing_now(primary: Namespace) -> Tracing | None:
    """Traces with the provider that the application has set; None: it has set none so far."""
    # A program that has not imported this module cannot have set a provider.
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    return Tracing(provider.get_tracer("twinbus"), primary)


class Tracing:
    def __init__(self, tracer: Tracer, primary: Namespace) -> None:
        self._tracer = tracer
        self._common: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "server.address": primary.host,
            "server.port": primary.port,
        }

    def send(self, path: str, count: int) -> AbstractContextManager[Span]:
        """The span of one call of `send_messages`, current while the block runs."""
        more = {"messaging.batch.message_count": count} if count > 1 else {}
        return self._span("send", path, **more)

    def ping(self, path: str) -> AbstractContextManager[Span]:
        """The span of one ping, in a trace of its own: no call of the application caused it."""
        from opentelemetry.context import Context

        return self._span("ping", path, Context())

    def failed(self, path: str, error: BaseException, *, diverting: bool) -> None:
        """Add an event for a failed attempt of the call in progress; more may follow."""
        attributes = {"error.type": type(error).__name__, "twinbus.place": path}
        self._current().add_event(
            "divert failed" if diverting else "attempt failed", attributes=attributes
        )

    def diverting(self, queue: str, copies: Any) -> None:
        """Note that the call in progress is diverted, and put its trace context on the copies."""
        span = self._current()
        span.set_attribute("twinbus.backlog_queue", queue)
        span.add_event("diverted", attributes={"twinbus.backlog_queue": queue})
        if span.is_recording():
            for copy in copies if isinstance(copies, list) else [copies]:
                _stamp(copy)

    def trace_id(self) -> str | None:
        """The trace id of the call in progress, for the ledger; None: there is no trace."""
        context = self._current().get_span_context()
        return f"{context.trace_id:032x}" if context.is_valid else None

    @contextmanager
    def _span(self, operation: str, path: str, context: Any = None, **more: Any) -> Iterator[Span]:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        attributes = {
            **self._common,
            "messaging.operation.name": operation,
            "messaging.operation.type": "send",
            "messaging.destination.name": path,
            **more,
        }
        with self._tracer.start_as_current_span(
            f"{operation} {path}", context, SpanKind.CLIENT, attributes,
            record_exception=False, set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                lines = str(error).strip().splitlines()
                span.set_status(Status(StatusCode.ERROR, lines[0] if lines else ""))
                raise

    @staticmethod
    def _current() -> Span:
        from opentelemetry.trace import get_current_span

        return get_current_span()


def _stamp(copy: Any) -> None:
    """Put the current trace context on our own copy of a message, if it has none."""
    from opentelemetry.propagate import inject

    properties: dict[Any, Any] = copy.application_properties
    names = {name.decode() if isinstance(name, bytes) else str(name) for name in properties}
    if names & CONTEXT_NAMES:
        return
    carrier: dict[str, str] = {}
    inject(carrier)
    if "traceparent" in carrier:
        properties.update(carrier)
        # The name that receivers of the SDK used before the W3C standard.
        properties["Diagnostic-Id"] = carrier["traceparent"]
