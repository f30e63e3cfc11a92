"""`$management` and `$cbs`: all operations, by arguments of wrong types, by each right."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tests.fuzz.engine import FuzzEngine, create_entities, facts, queues_of
from tests.fuzz.messages import NOW_MS, specs
from tests.fuzz.part import Part
from tests.fuzz.values import ANY_VALUE, INTEGERS, integers, scalars
from tests.fuzz.world import ADDRESSES, MANAGE_TOKEN, TOKENS, message
from twinbus.amqp import encoding
from twinbus.amqp.message import decode_map, encode_message, split
from twinbus.amqp.types import Array, Described, Timestamp, UInt, ULong
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.links import management
from twinbus.broker.links.cbs import put_token
from twinbus.broker.links.requests import ManagementContext
from twinbus.broker.messages.incoming import parse
from twinbus.broker.refusals import MalformedMessage
from twinbus.broker.sas import AUDIENCE_PATH_MAX, LISTEN, SEND, AccessPolicy, ConnectionGrants

LINK = "the-link"
OPERATIONS = tuple(name.removeprefix("com.microsoft:") for name in management.OPERATIONS)
NEEDS_SEND = {"schedule-message", "cancel-scheduled-message"}
ONE_BY_ONE = {"update-disposition", "renew-lock", "receive-by-sequence-number"}
"""Operations that may do a part of what they are asked: the rest is refused for itself."""


def _token(number: int) -> UUID:
    return UUID(bytes_le=number.to_bytes(16, "big"))


_numbers = st.lists(
    st.one_of(st.integers(1, 9), st.sampled_from((0, -1, 2**62, 2**63 - 1, -(2**63)))),
    min_size=1,
    max_size=4,
)
_tokens = st.lists(st.integers(1, 12).map(_token), min_size=1, max_size=3)
_expression = st.sampled_from(("n = 5", "n LIKE t", "when + '' = t", "1=1", "x", "@p = 1", ""))
_properties = st.dictionaries(st.sampled_from(("n", "t", "", 5, b"k")), ANY_VALUE, max_size=3)
_correlation = st.fixed_dictionaries(
    {},
    optional={
        "correlation-id": scalars,
        "properties": st.one_of(_properties, scalars),
        "label": st.sampled_from(("x", b"x", 5)),
    },
)
_rule = st.fixed_dictionaries(
    {},
    optional={
        "sql-filter": st.one_of(st.fixed_dictionaries({"expression": _expression}), scalars),
        "correlation-filter": st.one_of(_correlation, scalars),
        "sql-rule-action": st.fixed_dictionaries(
            {"expression": st.sampled_from(("SET n = 1", "REMOVE t", "SET sys.Label = when", "x"))}
        ),
    },
)
_scheduled = specs.map(lambda spec: {"message": spec.wire()})


GOOD: dict[str, st.SearchStrategy[Any]] = {
    "from-sequence-number": integers,
    "message-count": integers,
    "session-id": st.sampled_from(("s", "", "s2")),
    "lock-tokens": _tokens.map(Array),
    "sequence-numbers": st.one_of(_numbers.map(Array), _numbers),
    "receiver-settle-mode": st.sampled_from((UInt(0), UInt(1), 5)),
    "disposition-status": st.sampled_from((*management.OUTCOMES, "x")),
    "deadletter-reason": st.one_of(st.text(max_size=3), scalars),
    "properties-to-modify": _properties,
    "enqueued-time-utc": integers.map(lambda number: Timestamp(max(-(2**63), min(number, 2**62)))),
    "messages": st.lists(_scheduled, min_size=1, max_size=3),
    "session-state": st.one_of(st.none(), st.binary(max_size=9)),
    "last-updated-time": integers,
    "skip": integers,
    "top": integers,
    "rule-name": st.sampled_from(("r", "$Default", "", "a" * 60, "../x")),
    "rule-description": _rule,
}
WANTED = {
    "peek-message": ("from-sequence-number", "message-count", "session-id"),
    "renew-lock": ("lock-tokens",),
    "receive-by-sequence-number": ("sequence-numbers", "receiver-settle-mode", "session-id"),
    "update-disposition": (
        *("lock-tokens", "disposition-status", "deadletter-reason", "properties-to-modify"),
        "session-id",
    ),
    "batch-delete-messages": ("message-count", "enqueued-time-utc", "session-id"),
    "schedule-message": ("messages",),
    "cancel-scheduled-message": ("sequence-numbers",),
    "renew-session-lock": ("session-id",),
    "get-session-state": ("session-id",),
    "set-session-state": ("session-id", "session-state"),
    "get-message-sessions": ("last-updated-time", "skip", "top"),
    "add-rule": ("rule-name", "rule-description"),
    "remove-rule": ("rule-name",),
    "enumerate-rules": ("skip", "top"),
}
"""The arguments of each operation."""


@dataclass(frozen=True)
class Request:
    operation: str
    address: str
    right: str
    body: Any
    headers: dict[str, Any]
    request_id: Any


@st.composite
def requests(draw: st.DrawFn) -> Request:
    operation = draw(st.sampled_from(OPERATIONS))
    body: Any = {}
    for name in WANTED[operation]:
        if draw(st.integers(0, 5)):
            body[name] = draw(GOOD[name] if draw(st.integers(0, 3)) else ANY_VALUE)
    if not draw(st.integers(0, 15)):
        body = draw(ANY_VALUE)
    headers: dict[str, Any] = {"operation": f"com.microsoft:{operation}"}
    if draw(st.booleans()):
        headers["associated-link-name"] = draw(st.sampled_from((LINK, "other", 5, b"x")))
    if not draw(st.integers(0, 15)):
        headers["operation"] = draw(ANY_VALUE)
    return Request(
        operation,
        draw(st.sampled_from(ADDRESSES)),
        draw(st.sampled_from(("Manage", "Manage", "Manage", "Listen", "Send", "Nobody"))),
        body,
        headers,
        draw(scalars),
    )


def check(calls: list[Request]) -> None:
    """Make several requests of a namespace that holds messages in every state."""
    engine, holder = FuzzEngine(), object()
    create_entities(engine.namespace, NOW_MS)
    _stock(engine, holder)
    for call in calls:
        before = [facts(queue) for queue in queues_of(engine.namespace)]
        status = _status(engine, holder, call)
        if status >= 400 and call.operation not in ONE_BY_ONE:
            assert before == [facts(queue) for queue in queues_of(engine.namespace)], status
        needed = SEND if call.operation in NEEDS_SEND else LISTEN
        if call.right not in ("Manage", needed) and "operation" not in str(call.body):
            assert status != 200, f"{call.operation} was done with the right {call.right}"
            assert before == [facts(queue) for queue in queues_of(engine.namespace)]
        engine.check()


def _stock(engine: FuzzEngine, holder: object) -> None:
    """Messages that are ready, locked, deferred and scheduled; a session that the link holds."""
    namespace = engine.namespace
    for target in ("orders", "once", "talks", "news"):
        for number in range(4):
            incoming = parse(message(f"{target}-{number}", session="s"), str)
            namespace.send(namespace.send_target(target), [incoming], NOW_MS)
    later = parse(message("later"), str)
    later.scheduled_for_ms = NOW_MS + 10**9
    namespace.schedule(namespace.send_target("orders"), [later], NOW_MS)
    orders = namespace.receive_source("orders")
    orders.acquire(holder, 2, NOW_MS)
    for delivery in orders.acquire(holder, 1, NOW_MS):
        orders.settle(delivery.lock_token, management.OUTCOMES["defered"], NOW_MS)
    talks = namespace.receive_source("talks")
    talks.sessions.accept("s", holder, NOW_MS)
    talks.acquire(holder, 1, NOW_MS, session_id="s")


def _status(engine: FuzzEngine, holder: object, call: Request) -> int:
    grants = ConnectionGrants()
    policy = AccessPolicy([], tokens=lambda: TOKENS)
    text = next(token.text for token in TOKENS if token.name == call.right)
    grants.put("a", policy.verify(text, NOW_MS / 1000))
    context = ManagementContext(
        namespace=engine.namespace,
        address=call.address,
        require=lambda right: _require(grants, call.address, right),
        holder={LINK: holder}.get,
        payload=engine.store.payload,
        new_message_id=lambda: "assigned",
    )
    wire = _request(call.request_id, call.headers, call.body)
    try:
        response = split(management.handle(split(wire), context, NOW_MS))
    except MalformedMessage:
        return 400
    return int(decode_map(response.application_properties)["statusCode"])


def _request(request_id: object, headers: dict[str, Any], body: object) -> bytes:
    """A request whose id may be of a type that no id has."""
    properties = encoding.encode(Described(ULong(0x73), [request_id]))
    return properties + encode_message(application_properties=headers, value=body)


def _require(grants: ConnectionGrants, address: str, right: str) -> None:
    grants.require(address, right, NOW_MS)


MANAGEMENT = Part(
    "management", st.lists(requests(), min_size=1, max_size=6), check, short=30, round=200
)

# Tokens

_KEY = "c2VjcmV0"
_RULE = AuthorizationRule(key_name="root", primary_key=_KEY, rights=frozenset({"Manage"}))
DEEP_AUDIENCES = (
    "sb://h/a" + "/" * 7_900 + "a",
    "sb://h" + "/a" * 3_950,
    "sb://h" + "%2Fa" * 1_980,
    "sb://h" + "/a" * 260,
    "sb://h/orders" + "/$transfer/$deadletterqueue" * 19,
)
"""Rules are looked for at each part of an audience, and a stranger chooses how many it has."""

LOOKUPS_MAX = AUDIENCE_PATH_MAX // 2 + 1
_paths = st.one_of(
    st.sampled_from(
        ("sb://h/orders", "sb%3A%2F%2Fh%2Forders", "://[", "amqps://[x", "http://h:port/", "%ff")
    ),
    st.sampled_from(("", *DEEP_AUDIENCES)),
)
_digits = st.one_of(
    st.sampled_from(INTEGERS).map(str), st.sampled_from(("", "x", "1e9", "9" * 400))
)
_signatures = st.builds(
    "SharedAccessSignature sr={}&sig={}&se={}&skn={}".format,
    _paths,
    st.sampled_from(("x", "%3D", "", "=" * 9, "é")),
    _digits,
    st.sampled_from(("root", "%72oot", "", "nobody")),
)
_texts = st.one_of(
    _signatures, st.sampled_from((MANAGE_TOKEN, "Bearer x", "", "x" * 9000)), ANY_VALUE
)
_put = st.tuples(
    st.one_of(st.just("put-token"), ANY_VALUE), st.one_of(st.just("a"), ANY_VALUE), _texts, scalars
)


def check_token(given: tuple[Any, Any, Any, Any]) -> None:
    """A request on `$cbs` gives a grant or says why not; only a good token gives one."""
    operation, name, token, request_id = given
    wire = _request(request_id, {"operation": operation, "name": name}, token)
    looked_for: list[str] = []

    def rules_of(path: str) -> tuple[AuthorizationRule, ...]:
        looked_for.append(path)
        return ()

    policy = AccessPolicy([_RULE], rules_of, lambda: TOKENS)
    grants = ConnectionGrants()
    refusals: list[object] = []
    client: Any = SimpleNamespace(
        policy=policy,
        grants=grants,
        resolve=lambda _: None,
        trust=lambda _grant: None,
        log_refusal=lambda _, refusal: refusals.append(refusal),
    )
    try:
        response = put_token(client, client, split(wire), NOW_MS)
    except MalformedMessage:
        return
    assert len(looked_for) <= LOOKUPS_MAX, f"rules looked for at {len(looked_for)} paths"
    assert len(list(grants)) + len(refusals) == 1
    assert refusals or token == MANAGE_TOKEN
    split(response)


_deep = f"SharedAccessSignature sr={DEEP_AUDIENCES[0]}&sig=x&se=9999999999&skn=%2572oot"
_finds = ("put-token", "a", _deep, "1"), ("put-token", "a", MANAGE_TOKEN, "1")
CBS = Part("cbs", _put, check_token, finds=_finds, short=60, round=400)
