"""OpenTelemetry traces of a pair: a span for each send, with an event for each failed attempt.

This uses only the API, and only if the application has set a provider before it paired: without one
nothing is imported and a send pays one comparison. Names follow OpenTelemetry's conventions for
messaging; our own begin with `twinbus.`.

A message is not changed on its way to the primary: its trace context comes from the application, or
from the SDK with its own tracing on. A diverted message is a copy anyway; if it has no context it
gets that of this span, because the trace would end in the backlog otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from twinbus.namespace.namespace import Namespace
    from twinbus.pairing.sending.entity_monitor import EntityMonitor

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
    """The spans of one pair."""

    def __init__(self, tracer: Tracer, primary: Namespace) -> None:
        self._tracer = tracer
        self._common: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "server.address": primary.host,
            "server.port": primary.port,
        }

    def send(self, entity: EntityMonitor, count: int) -> AbstractContextManager[Span]:
        """The span of one call of `send_messages`, current while the block runs."""
        more = {"messaging.batch.message_count": count} if count > 1 else {}
        return self._span("send", entity.path, **more)

    def ping(self, entity: EntityMonitor) -> AbstractContextManager[Span]:
        """The span of one ping, in a trace of its own: no call of the application caused it."""
        from opentelemetry.context import Context

        return self._span("ping", entity.path, Context())

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
                span.set_status(Status(StatusCode.ERROR, _first_line(error)))
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


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
