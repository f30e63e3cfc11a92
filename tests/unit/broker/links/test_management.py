"""Requests as the SDK builds them, responses through the SDK's own decoder and handlers."""

from __future__ import annotations

import uuid
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import exceptions
from azure.servicebus._common import mgmt_handlers
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message
from azure.servicebus._pyamqp.message import Properties as SdkProperties
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport as Sdk

from tests.unit.broker.links.management_world import LINK, NOW_MS, SUBSCRIPTION, World, wire
from twinbus.amqp.message import (
    Properties,
    Sections,
    decode_properties,
    encode_message,
    split,
)
from twinbus.amqp.types import Array, Described, Int, Timestamp, ULong
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import SettlementOutcome
from twinbus.broker.journal import StoredMessage
from twinbus.broker.links import cbs
from twinbus.broker.links.management import DELETED_AT_ONCE, OPERATIONS, PEEK_BYTES_MAX
from twinbus.broker.links.requests import ITEMS_MAX
from twinbus.broker.refusals import EntityNotFound, MalformedMessage, Refusal, Unauthorized
from twinbus.broker.sas import AccessPolicy, ConnectionGrants, Grant
from twinbus.namespace.tokens import sign

LOCK_MS = 60_000

read_deferred = partial(mgmt_handlers.deferred_message_op, receiver=SimpleNamespace())


@pytest.fixture
def world() -> World:
    return World()


def tokens(*lock_tokens: bytes) -> Any:
    """Delivery tags as the SDK puts them into a request."""
    return Sdk.AMQP_ARRAY_VALUE([uuid.UUID(bytes_le=token) for token in lock_tokens])


def longs(*numbers: int) -> Any:
    return Sdk.AMQP_ARRAY_VALUE([Sdk.AMQP_LONG_VALUE(number) for number in numbers])


def peek(world: World, start: int = 1, count: int = 100, **extra: Any) -> list[Any]:
    body = {
        "from-sequence-number": Sdk.AMQP_LONG_VALUE(start),
        "message-count": count,
        **{key.replace("_", "-"): value for key, value in extra.items()},
    }
    receiver = SimpleNamespace(_last_received_sequenced_number=None)
    handler = partial(mgmt_handlers.peek_op, receiver=receiver)
    found: list[Any] = world.ask("peek-message", body, handler)
    return found


# Peek


def test_peek_shows_messages_as_the_sdk_reads_them(world: World) -> None:
    world.send(b"one", message_id="a")
    world.send(b"two", message_id="b", subject="s")
    found = peek(world)
    assert [(each.sequence_number, each.message_id, b"".join(each.body)) for each in found] == [
        (1, "a", b"one"),
        (2, "b", b"two"),
    ]
    assert found[1].subject == "s"
    assert found[0].enqueued_time_utc.timestamp() * 1000 == NOW_MS
    assert [each.sequence_number for each in peek(world, start=2)] == [2]
    assert [each.sequence_number for each in peek(world, count=1)] == [1]


def test_peek_of_nothing_is_204(world: World) -> None:
    assert peek(world) == []
    assert world.status("peek-message", {"from-sequence-number": 1})[0] == 204


def test_peek_of_one_session(world: World) -> None:
    world.send(address="talks", group_id="s1")
    world.send(address="talks", group_id="s2")
    body = {"from-sequence-number": 1, "message-count": Int(9), "session-id": "s2"}
    status, _, answer = world.status("peek-message", body, "talks")
    assert (status, len(answer["messages"])) == (200, 1)


def test_peek_leaves_out_the_body_where_that_is_asked_for(world: World) -> None:
    world.send(b"long", message_id="a", subject="s")
    asked = {"from-sequence-number": 1, "message-count": Int(9), "omit-message-body": True}
    _, _, answer = world.status("peek-message", asked)
    (entry,) = answer["messages"]
    bare = split(entry["message"])
    assert bare.body == b""
    assert decode_properties(bare.properties) == Properties(message_id="a", subject="s")
    asked["omit-message-body"] = False
    _, _, answer = world.status("peek-message", asked)
    assert split(answer["messages"][0]["message"]).body == encode_message(data=b"long")


def test_a_peeked_deferred_message_has_a_time_of_its_lock(world: World) -> None:
    defer_one(world)
    (found,) = peek(world)
    assert b"x-opt-locked-until" in found.raw_amqp_message.annotations


def test_peek_stops_at_a_bounded_response_but_shows_at_least_one(world: World) -> None:
    for _ in range(6):
        world.send(bytes(PEEK_BYTES_MAX // 5))
    assert [each.sequence_number for each in peek(world)] == [1, 2, 3, 4]
    assert [each.sequence_number for each in peek(world, start=5)] == [5, 6]


# Locks


def test_renew_lock_gives_an_expiration_for_each_token(world: World) -> None:
    world.send()
    world.send()
    held = world.queue().acquire(world.holder, 2, NOW_MS)
    world.now_ms += 30_000
    body = {"lock-tokens": tokens(*(each.lock_token for each in held))}
    answer = world.ask("renew-lock", body, mgmt_handlers.message_lock_renew_op)
    assert answer[b"expirations"] == [NOW_MS + 30_000 + LOCK_MS] * 2


def test_a_lost_lock_is_the_sdks_message_lock_lost_error(world: World) -> None:
    world.send()
    (held,) = world.queue().acquire(world.holder, 1, NOW_MS)
    world.now_ms += LOCK_MS
    with pytest.raises(exceptions.MessageLockLostError):
        world.ask("renew-lock", {"lock-tokens": tokens(held.lock_token)})


def test_javascript_tokens_as_strings_are_understood(world: World) -> None:
    world.send()
    (held,) = world.queue().acquire(world.holder, 1, NOW_MS)
    body = {"lock-tokens": [str(uuid.UUID(bytes_le=held.lock_token))]}
    assert world.status("renew-lock", body)[0] == 200


# Deferred messages and dispositions


def defer_one(world: World) -> int:
    number = world.send(b"later", message_id="m")
    (held,) = world.queue().acquire(world.holder, 1, world.now_ms)
    world.queue().settle(held.lock_token, SettlementOutcome.DEFER, world.now_ms)
    return number


def receive_deferred(world: World, *numbers: int, mode: int = 1) -> list[Any]:
    body = {
        "sequence-numbers": longs(*numbers),
        "receiver-settle-mode": Sdk.AMQP_UINT_VALUE(mode),
    }
    found: list[Any] = world.ask("receive-by-sequence-number", body, read_deferred)
    return found


@pytest.mark.parametrize("status", ["completed", "abandoned", "defered", "suspended"])
def test_a_deferred_message_is_received_by_number_and_settled(world: World, status: str) -> None:
    number = defer_one(world)
    (found,) = receive_deferred(world, number)
    assert (found.sequence_number, found.message_id) == (number, "m")
    assert found.locked_until_utc.timestamp() * 1000 == NOW_MS + LOCK_MS
    # 7.14 reads the token from the delivery annotations inside the message only.
    assert found.raw_amqp_message.delivery_annotations[b"x-opt-lock-token"] == found.lock_token
    body = {
        "disposition-status": status,
        "lock-tokens": Sdk.AMQP_ARRAY_VALUE([found.lock_token]),
        "deadletter-reason": "why",
        "deadletter-description": "because",
    }
    assert world.ask("update-disposition", body) == {}
    remaining = [each.sequence_number for each in peek(world)]
    assert remaining == ([number] if status in ("abandoned", "defered") else [])
    dead = world.queue("orders/$DeadLetterQueue").peek(0, 9, NOW_MS)
    assert [each.overrides for each in dead] == (
        [{"DeadLetterReason": "why", "DeadLetterErrorDescription": "because"}]
        if status == "suspended"
        else []
    )


def test_receive_by_number_can_delete(world: World) -> None:
    number = defer_one(world)
    (found,) = receive_deferred(world, number, mode=0)
    assert b"".join(found.body) == b"later"
    assert peek(world) == []


def test_a_number_that_is_not_deferred_is_the_sdks_message_not_found(world: World) -> None:
    with pytest.raises(exceptions.MessageNotFoundError):
        receive_deferred(world, world.send())


def test_a_disposition_changes_properties_and_one_lost_lock_stops_no_other(world: World) -> None:
    world.send()
    (held,) = world.queue().acquire(world.holder, 1, NOW_MS)
    body = {
        "disposition-status": "abandoned",
        "lock-tokens": [uuid.UUID(int=99), uuid.UUID(bytes_le=held.lock_token)],
        "properties-to-modify": {"note": "tried"},
    }
    assert world.status("update-disposition", body)[:2] == (410, "com.microsoft:message-lock-lost")
    (message,) = peek(world)
    assert message.application_properties == {b"note": b"tried"}
    assert message.delivery_count == 1


def test_an_unknown_disposition_is_refused_with_the_known_ones(world: World) -> None:
    body = {"disposition-status": "eaten", "lock-tokens": [uuid.UUID(int=1)]}
    assert world.status("update-disposition", body)[:2] == (400, "com.microsoft:argument-error")


# Scheduling


def schedule(world: World, *messages: bytes, address: str = "orders") -> list[int]:
    body = {"messages": [{"message-id": None, "message": bytearray(each)} for each in messages]}
    numbers: list[int] = world.ask(
        "schedule-message", body, mgmt_handlers.schedule_op, address=address
    )
    return numbers


@pytest.mark.parametrize("address", ["orders", "news"])
def test_messages_are_scheduled_and_cancelled_by_number(world: World, address: str) -> None:
    at_ms = NOW_MS + 5_000
    numbers = schedule(world, wire(b"1", at_ms), wire(b"2", at_ms), address=address)
    assert len(set(numbers)) == 2
    assert all(number > 0 for number in numbers)
    cancelled = {"sequence-numbers": longs(numbers[0])}
    assert world.ask("cancel-scheduled-message", cancelled, address=address) == {}
    with pytest.raises(exceptions.MessageNotFoundError):
        world.ask("cancel-scheduled-message", cancelled, address=address)
    world.now_ms = at_ms
    world.namespace.run_timers(at_ms)
    receiver = world.queue("orders" if address == "orders" else "news/Subscriptions/all")
    assert len(receiver.acquire(world.holder, 9, at_ms)) == 1


def test_scheduling_is_all_or_nothing(world: World) -> None:
    too_large = wire(bytes(300_000), NOW_MS + 1)
    with pytest.raises(exceptions.MessageSizeExceededError):
        schedule(world, wire(b"1", NOW_MS + 1), too_large)
    assert peek(world) == []


def test_scheduling_refuses_what_is_no_message(world: World) -> None:
    assert world.status("schedule-message", {"messages": [{"message": "text"}]})[0] == 400
    malformed = {"messages": [{"message": b"\x00\x53"}]}
    assert world.status("schedule-message", malformed)[:2] == (400, "amqp:decode-error")


def test_a_message_due_at_once_or_a_ping_has_no_number_to_cancel(world: World) -> None:
    ping = wire(b"", NOW_MS + 9, content_type="application/vnd.ms-servicebus-ping")
    assert schedule(world, wire(b"now"), ping, address="news") == [0, 0]
    assert len(world.queue("news/Subscriptions/all").acquire(world.holder, 9, NOW_MS)) == 1


# Sessions


def test_a_held_session_is_renewed_and_keeps_a_state(world: World) -> None:
    world.queue("talks").sessions.accept("s", world.holder, NOW_MS)
    world.now_ms += 20_000
    body = {"session-id": "s"}
    renewed = world.ask(
        "renew-session-lock", body, mgmt_handlers.session_lock_renew_op, address="talks"
    )
    assert renewed[b"expiration"] == NOW_MS + 20_000 + LOCK_MS
    # The Go SDK removes a state with an empty one.
    for told, kept in ((b"half way", b"half way"), (b"", None), (b"more", b"more"), (None, None)):
        state = None if told is None else bytearray(told)
        asked = {"session-id": "s", "session-state": state}
        assert world.ask("set-session-state", asked, address="talks") == {}
        got = world.ask("get-session-state", body, address="talks")
        assert got.get(b"session-state") == kept


@pytest.mark.parametrize(
    "operation", ["renew-session-lock", "get-session-state", "set-session-state"]
)
def test_a_session_of_another_link_is_lost(world: World, operation: str) -> None:
    world.queue("talks").sessions.accept("s", object(), NOW_MS)
    for link in (LINK, "closed-link"):
        with pytest.raises(exceptions.SessionLockLostError):
            world.ask(operation, {"session-id": "s"}, address="talks", link=link)


def test_deferred_messages_of_a_session_need_its_lock(world: World) -> None:
    queue = world.queue("talks")
    number = world.send(address="talks", group_id="s")
    queue.sessions.accept("s", world.holder, NOW_MS)
    (held,) = queue.acquire(world.holder, 1, NOW_MS, session_id="s")
    queue.settle(held.lock_token, SettlementOutcome.DEFER, NOW_MS)
    body = {"sequence-numbers": longs(number), "session-id": "s"}
    (found,) = world.ask("receive-by-sequence-number", body, read_deferred, address="talks")
    assert found.session_id == "s"
    with pytest.raises(exceptions.SessionLockLostError):
        world.ask("receive-by-sequence-number", body, read_deferred, address="talks", link="other")


def list_sessions(world: World, skip: int, top: int) -> Any:
    body = {
        "last-updated-time": Sdk.AMQP_TIMESTAMP_VALUE(253_402_300_800_000),
        "skip": Sdk.AMQP_INT_VALUE(skip),
        "top": Sdk.AMQP_INT_VALUE(top),
    }
    return world.ask("get-message-sessions", body, mgmt_handlers.list_sessions_op, address="talks")


def test_sessions_are_listed_page_by_page(world: World) -> None:
    for name in ("c", "a", "b"):
        world.send(address="talks", group_id=name)
    assert list_sessions(world, 0, 2) == ["a", "b"]
    assert list_sessions(world, 2, 2) == ["c"]
    assert list_sessions(world, 3, 2) == []


# Batch delete


def test_batch_delete_removes_the_old_ones_and_counts_them(world: World) -> None:
    world.send()
    world.send()
    world.now_ms += 10
    young = world.send()
    body = {"message-count": Int(50), "enqueued-time-utc": Timestamp(NOW_MS + 5)}
    status, _, answer = world.status("batch-delete-messages", body)
    assert (status, answer, type(answer["message-count"])) == (200, {"message-count": 2}, Int)
    assert [each.sequence_number for each in peek(world)] == [young]
    assert world.status("batch-delete-messages", body)[0] == 204
    assert world.status("batch-delete-messages", {"message-count": Int(1)})[2] == {
        "message-count": 1
    }


def test_batch_delete_locks_few_messages_that_it_does_not_delete(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(10 * DELETED_AT_ONCE):
        world.send()
    queue = world.namespace.resolve("orders")
    assert isinstance(queue, Queue)
    locked = []
    lock = queue.states.lock

    def counted(messages: list[StoredMessage], *terms: Any) -> Any:
        locked.extend(messages)
        return lock(messages, *terms)

    monkeypatch.setattr(queue.states, "lock", counted)
    body = {"message-count": Int(ITEMS_MAX), "enqueued-time-utc": Timestamp(NOW_MS - 5)}
    assert world.status("batch-delete-messages", body)[0] == 204
    assert len(locked) <= DELETED_AT_ONCE
    assert queue.active_count == 10 * DELETED_AT_ONCE
    body = {"message-count": Int(3 * DELETED_AT_ONCE + 5)}
    status, _, answer = world.status("batch-delete-messages", body)
    assert (status, answer) == (200, {"message-count": 3 * DELETED_AT_ONCE + 5})


def test_batch_delete_has_a_limit(world: World) -> None:
    for count in (0, ITEMS_MAX + 1):
        status, condition, _ = world.status("batch-delete-messages", {"message-count": Int(count)})
        assert (status, condition) == (400, "com.microsoft:argument-out-of-range")


@pytest.mark.parametrize(
    ("operation", "body", "address", "expected"),
    [
        ("add-rule", {"rule-name": "$Default"}, SUBSCRIPTION, 409),
        (
            "add-rule",
            {"rule-name": "x", "rule-description": {"sql-filter": {"expression": "a ="}}},
            SUBSCRIPTION,
            400,
        ),
        (
            "add-rule",
            {"rule-name": "x", "rule-description": {"sql-filter": {}, "correlation-filter": {}}},
            SUBSCRIPTION,
            400,
        ),
        ("add-rule", {"rule-name": "x", "rule-description": {"sql-filter": 5}}, SUBSCRIPTION, 400),
        ("add-rule", {}, SUBSCRIPTION, 400),
        ("remove-rule", {"rule-name": "missing"}, SUBSCRIPTION, 404),
        ("enumerate-rules", {}, "orders", 400),
        ("peek-message", {}, "news", 400),
        ("peek-message", {}, "nowhere", 404),
        ("peek-message", {"message-count": "many"}, "orders", 400),
        ("peek-message", {"message-count": Int(-1)}, "orders", 400),
        ("renew-lock", {"lock-tokens": ["no guid"]}, "orders", 400),
        ("renew-lock", {"lock-tokens": []}, "orders", 400),
        ("renew-lock", {"lock-tokens": [uuid.UUID(int=1)] * (ITEMS_MAX + 1)}, "orders", 400),
        ("cancel-scheduled-message", {"sequence-numbers": Array(["x"])}, "orders", 400),
        ("set-session-state", {"session-id": "s", "session-state": "text"}, "talks", 400),
        ("get-session-state", {"session-id": 5}, "talks", 400),
        ("peek-message", ["not a map"], "orders", 400),
        ("fly", {}, "orders", 501),
    ],
)
def test_bad_requests_get_a_status_and_a_condition(
    world: World, operation: str, body: object, address: str, expected: int
) -> None:
    status, condition, answer = world.status(operation, body, address)
    assert (status, answer) == (expected, {})
    assert ":" in condition


@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_every_operation_needs_a_right(world: World, operation: str) -> None:
    sends = ("com.microsoft:schedule-message", "com.microsoft:cancel-scheduled-message")
    world.missing_right = "Send" if operation in sends else "Listen"
    status, condition, _ = world.status(operation.removeprefix("com.microsoft:"), {}, SUBSCRIPTION)
    assert (status, condition) == (401, "amqp:unauthorized-access")


def test_the_response_bears_the_request_id_in_its_own_type(world: World) -> None:
    for request_id in ("text", uuid.UUID(int=7), ULong(9), b"\x01"):
        request = encode_message(properties=Properties(message_id=request_id), value={})
        response = split(world.respond(split(request)))
        correlation_id = decode_properties(response.properties).correlation_id
        assert (type(correlation_id), correlation_id) == (type(request_id), request_id)


def test_a_request_that_cannot_be_answered_raises(world: World) -> None:
    with pytest.raises(MalformedMessage):
        world.respond(Sections(properties=b"\x00\x53\x73\xc0\x02\x01"))


def rules_of(world: World) -> list[Any]:
    status, _, answer = world.status(
        "enumerate-rules", {"top": Int(2**31 - 1), "skip": Int(0)}, SUBSCRIPTION
    )
    return [entry["rule-description"] for entry in answer["rules"]] if status == 200 else []


def described(descriptor: int, *fields: object) -> Described:
    return Described(ULong(descriptor), list(fields))


def test_rules_are_added_enumerated_and_removed(world: World) -> None:
    sql = {"sql-filter": {"expression": "a = 1"}, "sql-rule-action": {"expression": "SET b = 2"}}
    correlation = {
        "correlation-filter": {
            "label": "l", "to": None, "properties": {"n": Int(7), "t": Timestamp(NOW_MS)}
        }
    }  # fmt: skip
    for name, rule in (("sql", sql), ("corr", correlation)):
        body = {"rule-name": name, "rule-description": rule}
        assert world.status("add-rule", body, SUBSCRIPTION) == (200, None, {})
    assert world.status("remove-rule", {"rule-name": "$Default"}, SUBSCRIPTION)[0] == 200
    nothing = described(1335734829061)
    properties = {"n": 7, "t": Timestamp(NOW_MS)}
    assert sorted(rules_of(world), key=lambda each: str(each.value[2])) == [
        described(
            1335734829060,
            described(83483426825, None, None, None, None, "l", None, None, None, properties),
            nothing,
            "corr",
        ),
        described(
            1335734829060,
            described(83483426822, "a = 1"),
            described(1335734829062, "SET b = 2"),
            "sql",
        ),
    ]
    assert world.status("enumerate-rules", {"top": Int(1), "skip": Int(2)}, SUBSCRIPTION)[0] == 204


def test_the_default_rule_is_a_true_filter_without_an_action(world: World) -> None:
    (rule,) = rules_of(world)
    assert rule == described(
        1335734829060, described(83483426823), described(1335734829061), "$Default"
    )


NOW_S = 1_700_000_000.0
LATER_S = int(NOW_S) + 3600
AUDIENCE = "sb://localhost:5672/orders"
RULE = AuthorizationRule(key_name="root", primary_key="k", rights=frozenset({"Send", "Listen"}))


class CbsAnswer:
    """A request on `$cbs`, by a client and to a broker with one queue, and what came of it."""

    policy = AccessPolicy([RULE])

    def __init__(self, request: Sections) -> None:
        self.grants = ConnectionGrants()
        self.refusal: Refusal | None = None
        self.is_trusted = False
        ours: Any = self
        self.response = cbs.put_token(ours, ours, request, int(NOW_S * 1000))

    def resolve(self, path: str) -> None:
        if path.lower() != "orders":
            raise EntityNotFound.of(path, "this entity does not exist")

    def trust(self, grant: Grant) -> None:
        self.is_trusted = True

    def log_refusal(self, what: str, refusal: Refusal) -> None:
        self.refusal = refusal


def put_token(
    token: object,
    request_id: Any = "1",
    operation: object = "put-token",
    audience: str = AUDIENCE,
) -> CbsAnswer:
    headers = {"operation": operation, "type": "servicebus.windows.net:sastoken", "name": audience}
    wire = encode_message(
        properties=Properties(message_id=request_id), application_properties=headers, value=token
    )
    return CbsAnswer(split(wire))


def read_by_sdk(answer: CbsAnswer) -> Any:
    return decode_payload(memoryview(answer.response))


def status_of(answer: CbsAnswer) -> tuple[int, bytes]:
    """Status and description as the SDK's management link reads them."""
    headers = read_by_sdk(answer).application_properties
    return headers[b"status-code"], headers[b"status-description"]


def test_the_sdks_own_request_is_granted() -> None:
    request_id = uuid.uuid4()
    request = Message(
        value=sign(AUDIENCE, "root", "k", LATER_S),
        properties=SdkProperties(message_id=request_id),
        # The SDK says "jwt" of a shared access signature, and sends some names as binary.
        application_properties={
            b"name": AUDIENCE, b"operation": b"put-token", b"type": "jwt", b"expiration": None
        },
    )  # fmt: skip
    wire = bytearray()
    encode_payload(wire, request)
    answer = CbsAnswer(split(bytes(wire)))
    assert answer.refusal is None
    assert [(each.path, each.rights) for each in answer.grants] == [("orders", RULE.rights)]
    response = read_by_sdk(answer)
    assert response.properties[5] == request_id
    assert response.value is None
    assert status_of(answer) == (202, b"Accepted")


@pytest.mark.parametrize("request_id", ["text", uuid.UUID(int=7), ULong(9), b"\x01\x02"])
def test_the_answer_to_a_token_bears_the_request_id_in_its_own_type(request_id: Any) -> None:
    answer = put_token(sign(AUDIENCE, "root", "k", LATER_S), request_id)
    correlation_id = decode_properties(split(answer.response).properties).correlation_id
    assert (type(correlation_id), correlation_id) == (type(request_id), request_id)


def test_a_bad_token_is_401_with_the_reason_and_no_error_condition() -> None:
    answer = put_token(sign(AUDIENCE, "root", "wrong", LATER_S))
    assert not answer.is_trusted
    assert isinstance(answer.refusal, Unauthorized)
    status, description = status_of(answer)
    assert status == 401
    assert b"does not match a key of a shared access rule named 'root'" in description
    # With an error condition the SDK would drop the status and the reason.
    assert b"error-condition" not in read_by_sdk(answer).application_properties


@pytest.mark.parametrize("path", ["ghost", "ghost/$management", "Ghost/$Management"])
def test_a_token_for_a_missing_entity_is_404(path: str) -> None:
    audience = f"amqps://localhost:5672/{path}"
    answer = put_token(sign(audience, "root", "k", LATER_S), audience=audience)
    status, description = status_of(answer)
    assert (status, type(answer.refusal)) == (404, EntityNotFound)
    assert b"host' could not be found" in description
    # The client is no stranger: its token is valid.
    assert answer.is_trusted
    assert not list(answer.grants)


@pytest.mark.parametrize("path", ["", "ORDERS", "orders/$Management", "$coordinator"])
def test_a_token_for_an_entity_the_namespace_or_a_node_of_it_is_taken(path: str) -> None:
    audience = f"sb://localhost:5672/{path}"
    assert put_token(sign(audience, "root", "k", LATER_S), audience=audience).refusal is None


def test_a_token_without_rights_on_an_entity_does_not_tell_whether_it_exists() -> None:
    # The name of a request is what the client writes there; the signature covers the audience.
    token = sign(AUDIENCE, "root", "k", LATER_S)
    for path in ("ghost", "orders2", "ordersx/$management"):
        answer = put_token(token, audience=f"sb://localhost:5672/{path}")
        assert status_of(answer) == (202, b"Accepted")
    wrong = sign("sb://localhost:5672/ghost", "root", "wrong", LATER_S)
    assert status_of(put_token(wrong, audience="sb://localhost:5672/ghost"))[0] == 401


def test_a_jwt_is_refused_with_a_hint() -> None:
    assert b"Use a shared access key" in status_of(put_token("eyJ0eXAiOiJKV1QifQ.x.y"))[1]


def test_requests_that_put_no_token_are_refused() -> None:
    assert status_of(put_token("t", operation="delete-token"))[0] == 400
    assert status_of(put_token(None)) == (
        400,
        b"The put-token request has no token: its body must be a string.",
    )
    broken = Sections(application_properties=b"\x00\x53\x74\xc1\x02\x01\x40", body=b"")
    assert isinstance(CbsAnswer(broken).refusal, MalformedMessage)


def test_a_request_whose_id_cannot_be_read_cannot_be_answered() -> None:
    with pytest.raises(MalformedMessage):
        CbsAnswer(Sections(properties=b"\x00\x53\x73\xc0\x02\x01"))
