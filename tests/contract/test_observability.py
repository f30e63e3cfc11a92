"""A pair seen from outside, on real namespaces: status, events, metrics, traces."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.request
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
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.pairs import drain, drain_all, embedded, nothing_left, quick, until
from tests.ledger_reading import read
from tests.processes import with_key
from twinbus import (
    BacklogQueuePulled,
    EmbeddedBroker,
    EntityChanged,
    EntityHeld,
    Namespace,
    PairEvent,
    PairFaultedError,
    PingEnded,
    blocking,
    pair_namespaces,
)
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.faults import Fault
from twinbus.pair import Pair, client_of
from twinbus.pairing.observing.metrics import PairCollector
from twinbus.pairing.observing.recording import Tracing
from twinbus.servicebus.names import backlog_paths
from twinbus.status.receiving import OTHERS

pytestmark = pytest.mark.contract

RULES = (AuthorizationRule(key_name="sender", primary_key="send-key", rights=frozenset({"Send"})),)


broker = embedded(rules=RULES)


def sides(broker: EmbeddedBroker) -> tuple[Namespace, Namespace]:
    primary = Namespace.from_connection_string(broker.connection_string("contoso"), "contoso")
    return primary, Namespace.from_connection_string(broker.connection_string("contoso-dr"), "dr")


def paired(broker: EmbeddedBroker, **options: Any) -> Pair:
    return pair_namespaces(*sides(broker), quick(**options))


def samples(text: str) -> dict[str, float]:
    """Every sample of an exposition, as `name{label=value,...}`; the pair's own label left out."""
    result = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "pair"}
            words = ",".join(f"{k}={v}" for k, v in sorted(labels.items()))
            result[f"{sample.name}{{{words}}}"] = sample.value
    return result


def scraped(collector: PairCollector) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(collector)
    return samples(generate_latest(registry).decode())


async def test_the_status_is_complete_and_plain_json(broker: EmbeddedBroker) -> None:
    async with paired(broker, enable_syphon=True, syphon_poll=1.0) as pair:
        sender = pair.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("one"))
        pair.freeze("orders")
        with pytest.raises(Exception, match="nowhere"):
            await pair.get_queue_sender("nowhere").send_messages(ServiceBusMessage("x"))
        status = pair.status()
        plain = status.as_dict()
        assert json.loads(json.dumps(plain)) == plain
        assert plain["entities"]["orders"]["frozen"] is True
        assert plain["entities"]["orders"]["sent"] == 1
        assert plain["entities"]["nowhere"]["raised"] == 1
        assert "nowhere" in plain["entities"]["nowhere"]["last_error"]
        assert set(plain["backlog_queues"]) == set(plain["syphon"]) == set(pair.backlog_queues)
        assert plain["sides"]["primary"]["state"] == "open"
        assert plain["backlog_waiting"] is None
        assert plain["pings"] == {"answered": 0, "failed": 0, "dropped": 0}
        assert "frozen" in str(status)
        assert "1 raised" in str(status)
    assert pair.status().entities["orders"].sent == 1


async def test_a_queue_that_fails_shows_in_status_and_events_with_the_time_of_its_return(
    broker: EmbeddedBroker,
) -> None:
    told: list[PairEvent] = []
    async with paired(broker, retry_total=0, ping_primary_interval=60) as pair:
        stop = pair.on_event(told.append)
        bad, good = pair.backlog_queues
        broker.add_fault(Fault(kind="refuse_attach", entity=bad), "contoso-dr")
        pair.get_queue_sender("orders")
        pair.force_failover("orders")
        # Until a sender has chosen the bad one by chance.
        while not any(isinstance(event, BacklogQueuePulled) for event in told):
            async with pair.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("x"))
        queues = pair.status().backlog_queues
        assert (queues[bad].state, queues[good].state) == ("pulled", "in rotation")
        assert 0 < (queues[bad].returns_in_s or 0) <= 30
        assert f"{bad}: pulled, back in " in str(pair.status())
        stop()
        pair.mark_healthy("orders")
    assert [type(event) for event in told] == [EntityChanged, EntityHeld, BacklogQueuePulled]
    assert len(await drain(broker.connection_string("contoso-dr"), good)) >= 1


async def test_a_real_outage_as_its_numbers_tell_it(broker: EmbeddedBroker) -> None:
    def _waiting(collector: PairCollector) -> float:
        name = "twinbus_backlog_messages{kind=waiting"
        return sum(v for k, v in scraped(collector).items() if k.startswith(name))

    def _oldest_s(collector: PairCollector) -> float:
        name = "twinbus_backlog_old"
        return max(v for k, v in scraped(collector).items() if k.startswith(name))

    async with nothing_left(), paired(broker, attempt_timeout=4.0) as pair:
        collector = pair.collector(backlog_every=1.0)
        stream = pair.events()
        sender = pair.get_queue_sender("orders")
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        before = scraped(collector)
        assert before["twinbus_entities{state=healthy}"] == 1
        assert before["twinbus_messages_stored_total{entity=orders,route=primary}"] == 2
        assert before["twinbus_protected{}"] == 1
        assert before["twinbus_backlog_queues{state=in rotation}"] == 2
        assert not any(name.startswith("twinbus_entity_state") for name in before)
        fault = broker.add_fault(Fault(kind="hang", entity="orders"))
        await sender.send_messages(ServiceBusMessage("c"), timeout=60)
        during = scraped(collector)
        assert during["twinbus_entity_state{entity=orders,state=failed over}"] == 1
        assert during["twinbus_messages_stored_total{entity=orders,route=backlog}"] == 1
        assert during["twinbus_divert_seconds_count{}"] == 1
        assert during["twinbus_divert_seconds_bucket{le=60}"] == 1
        await until(lambda: _waiting(collector) == 1)
        assert pair.status().backlog_waiting == 1
        await until(lambda: _oldest_s(collector) > 1)
        assert _oldest_s(collector) < 60
        broker.remove_fault(fault)
        await until(lambda: pair.status().entities["orders"].state == "healthy")
        after = scraped(collector)
        assert after["twinbus_pings_total{result=answered}"] == 1
        assert after["twinbus_entities{state=failed over}"] == 0
    events = [event async for event in stream]
    changes = [event.after for event in events if isinstance(event, EntityChanged)]
    assert changes == ["suspect", "failed over", "healthy"]
    assert [e.answered for e in events if isinstance(e, PingEnded)][-1] is True
    assert scraped(collector)["twinbus_side_open{side=primary}"] == 0


async def test_a_scrape_over_http_from_another_thread(broker: EmbeddedBroker) -> None:
    def _get(url: str) -> str:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return str(answer.read().decode())

    def _forwarded(pair: Pair) -> int:
        syphon = pair.status().syphon
        assert syphon is not None
        return sum(state.forwarded for state in syphon.values())

    async with paired(broker, enable_syphon=True, syphon_poll=1.0) as pair:
        registry = CollectorRegistry()
        registry.register(pair.collector())
        server, thread = start_http_server(0, "127.0.0.1", registry)
        try:
            sender = pair.get_queue_sender("orders")
            pair.force_failover("orders")
            await sender.send_messages(ServiceBusMessage("x"))
            await drain(broker.connection_string("contoso"), "orders", 1, wait_s=10)
            # The receiver may have the message before the syphon has the primary's answer.
            await until(lambda: _forwarded(pair) == 1)
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            text = await asyncio.to_thread(_get, url)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    moved = {k: v for k, v in samples(text).items() if "outcome=forwarded" in k}
    assert sum(moved.values()) == 1


async def test_ten_thousand_entities_cost_no_more_series_than_the_limit(
    broker: EmbeddedBroker,
) -> None:
    async with paired(broker) as pair:
        collector = pair.collector(entities_max=10)
        client = client_of(pair)
        for number in range(10_000):
            client.entity(f"queue-{number}").succeeded(1)
        first = scraped(collector)
        own = [k for k in first if k.startswith("twinbus_messages_stored_total{entity=queue")]
        assert len(own) == 20
        assert first[f"twinbus_messages_stored_total{{entity={OTHERS},route=primary}}"] == 9_990
        assert first["twinbus_entities{state=healthy}"] == 10_000
        # One past the limit does not take the place of another: no series goes back.
        client.entity("queue-9999").succeeded(99)
        second = scraped(collector)
        assert second.keys() == first.keys()
        assert all(second[name] >= first[name] for name in first)
        with pytest.raises(ValueError, match="entities_max"):
            pair.collector(entities_max=-1)
        with pytest.raises(ValueError, match="backlog_every is a number of seconds from 1"):
            pair.collector(backlog_every=0.5)


async def test_several_pairs_share_one_collector(broker: EmbeddedBroker) -> None:
    first, second = sides(broker)
    async with (
        pair_namespaces(first, second, quick()) as one,
        pair_namespaces(*sides(broker)[::-1], quick()) as other,
    ):
        registry = CollectorRegistry()
        registry.register(one.collector().also(other.collector()))
        text = generate_latest(registry).decode()
    assert text.count("# HELP twinbus_protected ") == 1
    assert 'twinbus_protected{pair="contoso+dr"} 1.0' in text
    assert 'twinbus_protected{pair="dr+contoso"} 1.0' in text


async def test_without_the_right_to_look_the_depth_is_left_out_and_the_log_says_so(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with paired(broker):
        pass
    weak = with_key(broker.connection_string("contoso-dr"), "sender", "send-key")
    async with pair_namespaces(sides(broker)[0], weak, quick(create_backlog_queues=False)) as pair:
        collector = pair.collector(backlog_every=1.0)
        await until(lambda: "is not known: counting the messages of" in caplog.text)
        assert not any(name.startswith("twinbus_backlog_m") for name in scraped(collector))


def test_without_the_library_metrics_are_one_clear_line_and_traces_are_off() -> None:
    program = (
        "import sys\n"
        "sys.modules['prometheus_client'] = None\n"
        "sys.modules['opentelemetry'] = None\n"
        "import twinbus.pair\n"
        "from twinbus.pairing.observing.recording import tracing_now\n"
        "assert tracing_now(None) is None\n"
        "try:\n"
        "    import twinbus.pairing.observing.metrics\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("pair.collector() needs the extra `telemetry`")


def test_code_without_asyncio_sees_and_closes_the_same(broker: EmbeddedBroker) -> None:
    heard: list[PairEvent] = []
    with blocking.pair_namespaces(*sides(broker), quick()) as pair:
        stream = pair.events()
        listener = threading.Thread(target=lambda: heard.extend(stream))
        listener.start()
        called: list[PairEvent] = []
        stop = pair.on_event(called.append)
        with pair.get_queue_sender("orders") as sender:
            pair.force_failover("orders")
            sender.send_messages(ServiceBusMessage("x"))
        stop()
        numbers = scraped(pair.collector(backlog_every=60))
        assert numbers["twinbus_messages_stored_total{entity=orders,route=backlog}"] == 1
        pair.primary.fault(RuntimeError("the key was stolen"))
        with pytest.raises(PairFaultedError, match="the key was stolen"):
            pair.get_queue_sender("orders")
        pair.secondary.close()
        assert (pair.primary.state, pair.secondary.state) == ("faulted", "closed")
    listener.join(60)
    assert not listener.is_alive()
    assert [type(event) for event in called] == [EntityChanged, EntityHeld]
    assert heard[:2] == called
    assert pair.status().faulted == "the primary side was faulted: RuntimeError: the key was stolen"
    pair.primary.close()
    assert list(stream) == []
    missing = {n for n in dir(Pair) if not n.startswith("_")} - set(dir(blocking.Pair))
    assert missing == set()


CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


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
        state = client_of(pair).state
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
