"""HTTP requests and Atom documents from a grammar, as bytes on the broker's port."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

import h11
from hypothesis import strategies as st

from tests.fuzz.engine import facts, queues_of
from tests.fuzz.part import Part, run_async
from tests.fuzz.requests import DEEP_AUDIENCES
from tests.fuzz.sql import expressions
from tests.fuzz.values import EDGES
from tests.fuzz.work import WORK_S_PER_KIB
from tests.fuzz.world import MANAGE_TOKEN, TOKENS, FuzzWorld
from twinbus.broker.http import HttpHost, MetricsAccess, application

ATOM = "http://www.w3.org/2005/Atom"
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
METRICS_TOKEN = "fuzz-metrics"
TICKS = 60
REQUEST_S = 0.25
"""Processor time that any request may take; a stranger's longer one takes `WORK_S_PER_KIB` more."""

_durations = ("PT30S", "P1D", "PT0S", "PT-1S", "P", "P99999999999D", "PT0.0001S", "P1Y2M3W", "x")
_texts = st.one_of(
    st.sampled_from((*_durations, "true", "False", "", "orders", "orders/$management", "..", "on")),
    st.sampled_from(EDGES).map(str),
    st.text(max_size=5),
)
_settings = st.sampled_from(
    """LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession
    DefaultMessageTimeToLive DeadLetteringOnMessageExpiration MaxDeliveryCount Status ForwardTo
    DuplicateDetectionHistoryTimeWindow AutoDeleteOnIdle MaxMessageSizeInKilobytes UserMetadata
    ForwardDeadLetteredMessagesTo EnablePartitioning""".split()
)
_types = st.sampled_from(
    "string int long double boolean dateTime duration base64Binary guid decimal x".split()
)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _pair(key: str, kind: str, text: str) -> str:
    value = f'<Value xmlns:d="http://www.w3.org/2001/XMLSchema" i:type="d:{kind}">'
    return f"<P><Key>{_escaped(key)}</Key>{value}{_escaped(text)}</Value></P>"


_pairs = st.lists(st.builds(_pair, _texts, _types, _texts), max_size=3).map("".join)
_filters = st.one_of(
    st.builds(
        lambda text, pairs: (
            f'<Filter i:type="SqlFilter"><SqlExpression>{_escaped(text)}</SqlExpression>'
            f"<Parameters>{pairs}</Parameters></Filter>"
        ),
        expressions,
        _pairs,
    ),
    st.builds(
        lambda text, pairs: (
            f'<Filter i:type="CorrelationFilter"><Label>{_escaped(text)}</Label>'
            f"<Properties>{pairs}</Properties></Filter>"
        ),
        _texts,
        _pairs,
    ),
    st.sampled_from(('<Filter i:type="TrueFilter"/>', '<Filter i:type="X"/>', "<Filter/>", "")),
)


def _element(kind: str, inner: str) -> str:
    return f'<{kind} xmlns="{CONNECT}" xmlns:i="{INSTANCE}">{inner}</{kind}>'


def _described(kind: str, fields: list[tuple[str, str]]) -> str:
    return _element(kind, "".join(f"<{name}>{_escaped(text)}</{name}>" for name, text in fields))


_descriptions = st.one_of(
    st.builds(
        _described,
        st.sampled_from(("QueueDescription", "TopicDescription", "SubscriptionDescription")),
        st.lists(st.tuples(_settings, _texts), max_size=4),
    ),
    _filters.map(lambda inner: _element("RuleDescription", inner)),
)


def _entry(content: str) -> bytes:
    text = f'<entry xmlns="{ATOM}"><content type="application/xml">{content}</content></entry>'
    return text.encode("utf-8", "replace")


bodies = st.one_of(
    _descriptions.map(_entry),
    _descriptions.map(_entry),
    st.tuples(_descriptions.map(_entry), st.integers(0, 400)).map(lambda cut: cut[0][: cut[1]]),
    st.sampled_from((b"", b"{}", b'{"kind":"hang","stage":"send"}', b"<!DOCTYPE x>", b"\xff\xfe")),
    st.binary(max_size=20),
)
_segments = st.sampled_from(
    (
        *("orders", "news", "all", "safe", "subscriptions", "Subscriptions", "rules", "$Default"),
        *("$Resources", "queues", "topics", "$namespaceinfo", "$faults", "health", "metrics"),
        *("new", "", "..", "%2e%2e", "%00", "é", "a" * 300, "$servicebus", "websocket", "1"),
    )
)
_targets = st.one_of(
    st.lists(_segments, max_size=5).map(lambda parts: "/" + "/".join(map(quote, parts))),
    st.sampled_from(
        (
            *("/$Resources/queues", "/news/subscriptions/all/rules", "/health", "/metrics", "*"),
            *(
                "http://h/orders",
                "/orders",
                "/new",
                "/news/subscriptions/x",
                "orders",
                "//",
                "/%zz",
            ),
            "/$servicebus/websocket",
        )
    ),
)
_queries = st.sampled_from(
    (
        "",
        "?$skip=0&$top=1",
        "?$skip=-1",
        "?$top=9999999999",
        "?$top=x&$top=",
        "?api-version=2021-05",
    )
)
_hosts = ("localhost", "127.0.0.1:5672", "evil.example", "localhost.evil.example", "[::1]", "[x")
_texts_of_none = ("\xff", "xn--a-")
"""Headers that are decoded, and that is not possible."""
_deep_tokens = tuple(
    f"SharedAccessSignature sr={audience}&sig=x&se=9999999999&skn=%2572oot"
    for audience in DEEP_AUDIENCES
)
_header_values = {
    "Host": st.sampled_from((*_hosts, *_texts_of_none)),
    "Origin": st.sampled_from(
        (
            "http://localhost",
            "https://evil.example",
            "null",
            "http://localhost@evil.example",
            "://[",
        )
    ),
    "Authorization": st.one_of(
        st.sampled_from((*(token.text for token in TOKENS), MANAGE_TOKEN, "Bearer fuzz-metrics")),
        st.sampled_from(("Bearer x", "\xe9", *_deep_tokens)),
    ),
    "If-Match": st.just("*"),
    "Content-Type": st.sampled_from(("application/atom+xml", "x")),
    "ServiceBusSupplementaryAuthorization": st.sampled_from(("x", MANAGE_TOKEN)),
    "Upgrade": st.just("websocket"),
    "Connection": st.sampled_from(("Upgrade", "close", "keep-alive", *_texts_of_none)),
    "Sec-WebSocket-Key": st.just("dGhlIHNhbXBsZSBub25jZQ=="),
    "Sec-WebSocket-Version": st.just("13"),
    "Sec-WebSocket-Protocol": st.sampled_from(("AMQPWSB10", *_texts_of_none)),
    "Transfer-Encoding": st.just("chunked"),
    "Expect": st.just("100-continue"),
    "Content-Length": st.sampled_from(("0", "5", "-1", "99999999999999999999", "x")),
}
_headers = st.fixed_dictionaries(
    {"Host": _header_values["Host"]},
    optional={name: value for name, value in _header_values.items() if name != "Host"},
)


@dataclass(frozen=True)
class HttpRequest:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def wire(self) -> bytes:
        headers = dict(self.headers)
        if "Transfer-Encoding" not in headers:
            headers.setdefault("Content-Length", str(len(self.body)))
        lines = [f"{self.method} {self.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + self.body

    @property
    def is_foreign(self) -> bool:
        host, origin = self.headers["Host"], self.headers.get("Origin", "http://localhost")
        return host not in ("localhost", "127.0.0.1:5672", "[::1]") or origin != "http://localhost"


@st.composite
def _likely(draw: st.DrawFn) -> HttpRequest:
    """A request that comes as far as the document."""
    headers = {"Host": "localhost", "Authorization": MANAGE_TOKEN}
    if draw(st.booleans()):
        headers["If-Match"] = "*"
    target = draw(
        st.sampled_from(
            ("/new", "/orders", "/news", "/news/subscriptions/x", "/news/subscriptions/all/rules/r")
        )
    )
    return HttpRequest("PUT", target, headers, draw(bodies))


_methods = st.sampled_from(("GET", "PUT", "DELETE", "POST", "OPTIONS", "HEAD", "X", "get"))
_requests = st.one_of(
    st.builds(HttpRequest, _methods, st.builds(str.__add__, _targets, _queries), _headers, bodies),
    _likely(),
)


class HttpTransport:
    """A transport that keeps what is written; as much of one as uvicorn asks for."""

    def __init__(self) -> None:
        self.written = b""
        self._is_closing = False
        self.protocol: asyncio.Protocol | None = None
        """Takes over the connection: the WebSocket."""

    def write(self, data: bytes) -> None:
        self.written += data

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 50_000) if name in ("peername", "sockname") else None

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def _nothing(self, *_: Any) -> None: ...

    abort = close
    pause_reading = resume_reading = set_write_buffer_limits = _nothing


_HEALTH = HttpRequest("GET", "/health", {"Host": "localhost"}, b"")


def check(requests: list[HttpRequest]) -> None:
    run_async(_check(requests))


async def _check(requests: list[HttpRequest]) -> None:
    async with FuzzWorld.running() as world:
        metrics = MetricsAccess(METRICS_TOKEN, is_open=False)
        app = application(world.server, metrics)
        host = HttpHost(app, world.server.admission, local_only=True)
        for request in requests:
            before = [facts(queue) for queue in queues_of(world.server.namespace)]
            began_s = time.process_time()
            status = await _answer(host, request)
            spent_s = time.process_time() - began_s
            assert spent_s < REQUEST_S + len(request.wire) / 1024 * WORK_S_PER_KIB, spent_s
            world.check_errors()
            after = [facts(queue) for queue in queues_of(world.server.namespace)]
            assert status in range(100, 500) or status == 0, f"status {status}"
            if request.headers.get("Authorization") != MANAGE_TOKEN or status >= 400:
                assert before == after, status
            path = request.target.partition("?")[0]
            if request.is_foreign and path != "/health":
                assert status in (0, 400, 403), f"a foreign page got {status}"
            if path == "/metrics" and request.headers.get("Authorization") != "Bearer fuzz-metrics":
                assert status != 200, "metrics without their token"
            world.check_stored()
        world.store.gone = "the disk is gone"
        world.server._checked_at_s = 0.0
        assert await _answer(host, _HEALTH) == 503, "healthy without a store"
        await host.close()


async def _answer(host: HttpHost, request: HttpRequest) -> int:
    """The status of the answer; 0: none came, or the connection was closed."""
    transport, protocol = HttpTransport(), host()
    protocol.connection_made(cast(asyncio.Transport, transport))
    protocol.data_received(request.wire)
    for _ in range(TICKS):
        await asyncio.sleep(0)
        if transport.written or transport.is_closing():
            break
    for _ in range(TICKS // 4):
        await asyncio.sleep(0)
    (transport.protocol or protocol).connection_lost(None)
    for _ in range(TICKS // 4):
        await asyncio.sleep(0)
    if not transport.written:
        return 0
    reader = h11.Connection(h11.CLIENT)
    method = request.method if request.method != "CONNECT" else "GET"
    reader.send(h11.Request(method=method, target="/", headers=[("Host", "h")]))
    reader.receive_data(transport.written)
    event = reader.next_event()
    return (
        int(event.status_code) if isinstance(event, h11.Response | h11.InformationalResponse) else 0
    )


_deep = HttpRequest("GET", "/orders", {"Host": "localhost", "Authorization": _deep_tokens[0]}, b"")
HTTP = Part(
    "http",
    st.lists(_requests, min_size=1, max_size=3),
    check,
    finds=([_deep],),
    short=25,
    round=100,
)
