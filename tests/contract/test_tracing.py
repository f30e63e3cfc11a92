"""Traces of a pair on real namespaces: spans, and a context that survives the backlog."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from azure.core.settings import settings as azure
from azure.servicebus import ServiceBusMessage
from opentelemetry import trace
from opentelemetry.propagate import inject
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.contract.pairs import drain, drain_all, embedded, until
from tests.contract.test_observability import paired
from tests.ledger_reading import read
from twinbus import EmbeddedBroker
from twinbus.broker.faults import Fault
from twinbus.pair import Pair
from twinbus.pairing.observing.recording import Tracing
from twinbus.servicebus.names import backlog_paths

pytestmark = pytest.mark.contract

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


broker = embedded()


def test_with_the_library_but_no_provider_nothing_is_traced() -> None:
    program = (
        "import opentelemetry.trace\n"
        "from twinbus.pairing.observing.recording import tracing_now\n"
        "assert tracing_now(None) is None\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "opentelemetry.trace.set_tracer_provider(TracerProvider())\n"
        "from twinbus import Namespace\n"
        "text = 'Endpoint=sb://contoso/;SharedAccessKeyName=a;SharedAccessKey=b'\n"
        "assert tracing_now(Namespace.from_connection_string(text)) is not None\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


class Traced:
    """A pair whose spans are kept."""

    def __init__(self, pair: Pair) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("application")
        state = pair._started().state
        # As if the application had set this provider before it paired: that can be done only once
        # in a process, and the test above does it in one of its own.
        state.tracing = Tracing(provider.get_tracer("twinbus"), state.primary)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


async def test_a_send_is_one_span_with_its_route_and_a_turn_for_each_attempt(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    settings = {"failover_interval": 0.0, "ping_primary_interval": 1.0}
    async with paired(broker, **settings, ledger=str(tmp_path)) as pair:
        traced = Traced(pair)
        sender = pair.get_queue_sender("orders")
        with traced.tracer.start_as_current_span("checkout") as parent:
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        fault = broker.add_fault(Fault(kind="refuse_send", entity="orders"))
        await sender.send_messages(ServiceBusMessage("c"))
        broker.remove_fault(fault)
        await until(lambda: bool(traced.spans("ping orders")))
        with pytest.raises(Exception, match="nowhere"):
            await pair.get_queue_sender("nowhere").send_messages(ServiceBusMessage("x"))
    healthy, diverted = traced.spans("send orders")
    assert healthy.parent is not None
    assert healthy.parent.span_id == parent.get_span_context().span_id
    assert dict(healthy.attributes or {}) == {
        "messaging.system": "servicebus",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 2,
        "server.address": "localhost",
        "server.port": broker.port("contoso"),
        "twinbus.route": "primary",
    }
    assert diverted.attributes is not None
    assert diverted.attributes["twinbus.route"] == "backlog"
    assert diverted.attributes["twinbus.backlog_queue"] in backlog_paths("contoso", 2)
    assert [event.name for event in diverted.events] == ["attempt failed", "diverted"]
    lines = [line for line in read(tmp_path) if line.get("entity") == "orders"]
    assert [
        (line["operation"], line["outcome"], line["trace_id"])
        for line in lines
        if line["operation"] in ("send", "divert")
    ] == [
        ("send", "ok", _trace_id(healthy)),
        ("send", "ok", _trace_id(healthy)),
        ("send", "unknown", _trace_id(diverted)),
        ("divert", "ok", _trace_id(diverted)),
    ]
    assert diverted.events[0].attributes is not None
    assert diverted.events[0].attributes["error.type"] == "ServiceBusError"
    (ping,) = traced.spans("ping orders")
    assert ping.parent is None
    (failed,) = traced.spans("send nowhere")
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "MessagingEntityNotFoundError"
    assert failed.status.status_code is trace.StatusCode.ERROR


def _trace_id(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}"


async def test_the_trace_survives_the_backlog(broker: EmbeddedBroker) -> None:
    """A real divert and a real syphon; one message with a context of its own, one without."""

    async with paired(broker, enable_syphon=True, syphon_poll=1.0) as pair:
        traced = Traced(pair)
        sender = pair.get_queue_sender("orders")
        own: dict[Any, Any] = {
            "traceparent": CONTEXT,
            "tracestate": "a=b",
            "Diagnostic-Id": CONTEXT,
        }
        mine = ServiceBusMessage("own", application_properties=dict(own))
        bare = ServiceBusMessage("bare")
        straight = ServiceBusMessage("straight")
        await sender.send_messages(straight)
        pair.force_failover("orders")
        await sender.send_messages(mine)
        await sender.send_messages(bare)
        received = await drain(broker.connection_string("contoso"), "orders", 3, wait_s=10)
    found = {str(m): _texts(m.application_properties) for m in received}
    assert found["own"] == own
    assert found["straight"] == {}
    *_, span = traced.spans("send orders")
    context = span.get_span_context()
    assert context is not None
    assert set(found["bare"]) == {"traceparent", "Diagnostic-Id"}
    begins = f"00-{context.trace_id:032x}-{context.span_id:016x}-"
    assert all(value.startswith(begins) for value in found["bare"].values())
    # The application's own objects are as they were (SPEC 3).
    assert (bare.application_properties, mine.application_properties) == (None, own)


class SdkSpan:
    """What azure-core asks of a tracing plug-in, as far as a sender uses it."""

    tracer: ClassVar[trace.Tracer]

    def __init__(self, name: str, **_: Any) -> None:
        self._current = self.tracer.start_as_current_span(name)

    def __enter__(self) -> SdkSpan:
        self._current.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._current.__exit__(*exc)

    def to_header(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        inject(headers)
        return headers

    def add_attribute(self, *_: Any) -> None:
        """Not looked at here."""


async def test_with_the_sdks_own_tracing_its_spans_are_ours_children_by_either_route(
    broker: EmbeddedBroker,
) -> None:
    try:
        async with paired(broker, enable_syphon=True, syphon_poll=1.0) as pair:
            traced = Traced(pair)
            SdkSpan.tracer = traced.tracer
            azure.tracing_implementation.set_value(cast("Any", SdkSpan))
            sender = pair.get_queue_sender("orders")
            await sender.send_messages(ServiceBusMessage("straight", message_id="1"))
            pair.force_failover("orders")
            await sender.send_messages(ServiceBusMessage("detour", message_id="2"))
            azure.tracing_implementation.unset_value()
            received = await drain(broker.connection_string("contoso"), "orders", 2, wait_s=10)
        found = {str(m): _texts(m.application_properties) for m in received}
        spans = traced.spans("send orders")
        for body, span in zip(("straight", "detour"), spans, strict=True):
            context = span.get_span_context()
            assert context is not None
            # The message belongs to a span of the SDK, in the trace of our own.
            assert found[body]["traceparent"].startswith(f"00-{context.trace_id:032x}-")
            assert f"{context.span_id:016x}" not in found[body]["traceparent"]
        messages = {s.parent.span_id for s in traced.spans("ServiceBus.message") if s.parent}
        assert {span.context.span_id for span in spans if span.context} <= messages
    finally:
        azure.tracing_implementation.unset_value()


async def test_without_traces_a_diverted_message_gets_no_context(broker: EmbeddedBroker) -> None:
    async with paired(broker) as pair:
        sender = pair.get_queue_sender("orders")
        pair.force_failover("orders")
        await sender.send_messages(ServiceBusMessage("x"))
        queues = pair.backlog_queues
    (stored,) = await drain_all(broker.connection_string("contoso-dr"), queues)
    assert set(_texts(stored.application_properties)) == {"x-ms-path"}


def _texts(properties: Any) -> dict[str, str]:
    def text(value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    return {text(name): text(value) for name, value in (properties or {}).items()}
