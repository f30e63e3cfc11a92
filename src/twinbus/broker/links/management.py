"""The `$management` node of an entity: what clients ask for by request and response.

Pure: `handle` takes one request and returns the whole response message; a `Refusal` becomes its
status and condition. Every operation is one function, found by name in `OPERATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from twinbus.amqp.message import Sections, join, split
from twinbus.amqp.types import Array, Described, Int, Timestamp, ULong
from twinbus.broker.descriptions import (
    CORRELATION_FIELDS,
    FILTERS,
    CorrelationFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import LockedMessage, RequestedSettlement, SettlementOutcome
from twinbus.broker.engine.topic import Subscription
from twinbus.broker.filters.values import to_amqp, to_value
from twinbus.broker.journal import DamagedMessage, StoredMessage
from twinbus.broker.links.context import LinkOwner, new_message_id
from twinbus.broker.links.requests import (
    INT_MAX,
    ITEMS_MAX,
    SCHEDULE,
    Body,
    ManagementContext,
    ManagementRequest,
    correlation_id,
    failure,
    sections_of,
    success,
    text_of,
)
from twinbus.broker.links.turns import at_once
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.broker.messages.rendering import render
from twinbus.broker.refusals import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    NotAllowed,
    NotSupported,
    Refusal,
    SessionLockLost,
)
from twinbus.broker.sas import LISTEN, SEND

_RULE_DESCRIPTION = ULong(0x1370_0000_004)
_ACTION_CODES = ULong(0x1370_0000_005), ULong(0x1370_0000_006)
"""Of no action, and of a SQL action."""
_FILTER_CODES = {kind: ULong(0x13_7000_0006 + index) for index, kind in enumerate(FILTERS.values())}


def add_rule(request: ManagementRequest, context: ManagementContext, now_ms: int) -> Body:
    subscription = _subscription(context)
    wanted = request.table("rule-description")
    action = wanted.get("sql-rule-action")
    if action is not None:
        action = SqlAction(expression=_expression(action, "sql-rule-action"))
    rule = RuleDescription(
        name=request.text("rule-name"),
        filter=_filter(wanted),
        action=action,
        created_at_ms=now_ms,
    )
    context.namespace.create_rule(subscription.topic_path, subscription.name, rule, now_ms)
    return {}


def remove_rule(request: ManagementRequest, context: ManagementContext, now_ms: int) -> Body:
    subscription = _subscription(context)
    name = request.text("rule-name")
    context.namespace.delete_rule(subscription.topic_path, subscription.name, name, now_ms)
    return {}


def enumerate_rules(request: ManagementRequest, context: ManagementContext, now_ms: int) -> Body:
    subscription = _subscription(context)
    rules = context.namespace.rules(subscription.topic_path, subscription.name)
    rules = rules[_page(request)]
    return {"rules": [{"rule-description": _described(rule)} for rule in rules]} if rules else None


def _page(request: ManagementRequest) -> slice:
    skip = request.integer("skip", 0, minimum=0)
    return slice(skip, skip + request.integer("top", INT_MAX, minimum=0))


def _subscription(context: ManagementContext) -> Subscription:
    # Azure asks no more than Listen for rules here, unlike in its administration API.
    context.require(LISTEN)
    entity = context.namespace.resolve(context.address)
    if not isinstance(entity, Subscription):
        raise NotAllowed(f"{entity.path!r} has no rules; only a subscription has.")
    return entity


def _filter(wanted: dict[str, Any]) -> Filter:
    sql, correlation = wanted.get("sql-filter"), wanted.get("correlation-filter")
    if sql is not None and correlation is not None:
        raise ArgumentInvalid("A rule has a sql-filter or a correlation-filter, not both.")
    if sql is not None:
        return SqlFilter(expression=_expression(sql, "sql-filter"))
    if correlation is None:
        return TrueFilter()
    table = _table(correlation, "correlation-filter")
    fields = {field: text_of(table.get(field.replace("_", "-"))) for field in CORRELATION_FIELDS}
    properties = _table(table.get("properties") or {}, "properties of the correlation-filter")
    return CorrelationFilter(**fields, properties=tuple(properties.items()))


def _expression(entry: object, name: str) -> str:
    text = text_of(_table(entry, name).get("expression"))
    if text is None:
        raise ArgumentInvalid(f"The {name} needs an expression, which is a string.")
    return text


def _table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ArgumentInvalid(f"The {name} must be a map, not a {type(value).__name__}.")
    return {str(key): entry for key, entry in value.items()}


def _described(rule: RuleDescription) -> Described:
    action = [] if rule.action is None else [rule.action.expression]
    parts = (_described_filter(rule.filter), Described(_ACTION_CODES[len(action)], action))
    return Described(_RULE_DESCRIPTION, [*parts, rule.name])


def _described_filter(filter_: Filter) -> Described:
    fields: list[Any] = []
    if isinstance(filter_, SqlFilter):
        fields = [filter_.expression]
    elif isinstance(filter_, CorrelationFilter):
        # The order of the described list is that of the fields.
        fields = [getattr(filter_, field) for field in CORRELATION_FIELDS]
        fields.append({name: to_amqp(to_value(value)) for name, value in filter_.properties})
    return Described(_FILTER_CODES[type(filter_)], fields)


PEEK_BYTES_MAX = 1024 * 1024
"""Of one peek's messages together: a client that asks for more peeks on from the last number."""

DELETED_AT_ONCE = 64
"""A batch delete by time goes on while all of so many messages were old enough."""

ANY_TIME_MS = 253_402_300_799_999
"""The end of the year 9999, or later: what SDKs send if they do not select sessions by time."""

OUTCOMES = {
    "completed": SettlementOutcome.COMPLETE,
    "abandoned": SettlementOutcome.ABANDON,
    "defered": SettlementOutcome.DEFER,  # codespell:ignore - the wire's own spelling
    "suspended": SettlementOutcome.DEAD_LETTER,
}


AT_ONCE = 16
"""Messages that are parsed, rendered or settled in one step: a quarter of a slice."""

InSteps = Generator[None, None, Body]
"""What an operation returns that may take long."""


def read_in_steps(payload: bytes) -> Generator[None, None, ManagementRequest | None]:
    """Read a request for `handle`, with the messages that it schedules; nothing is refused here.

    None: it cannot be read.
    """
    try:
        request = ManagementRequest(sections_of(payload))
    except Refusal:
        return None
    yield
    entries = request.get("messages")
    if request.operation != SCHEDULE or not isinstance(entries, list) or len(entries) > ITEMS_MAX:
        return request
    for first in range(0, len(entries), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        try:
            entries[part] = [_scheduled(entry, new_message_id) for entry in entries[part]]
        except Refusal:
            return request  # `handle` comes to the same entry.
        yield
    return request


def handle(request: Sections | ManagementRequest, context: ManagementContext, now_ms: int) -> bytes:
    """The whole response to a request; `MalformedMessage` if it cannot even be addressed."""
    return at_once(handle_in_steps(request, context, now_ms))


def handle_in_steps(
    request: Sections | ManagementRequest, context: ManagementContext, now_ms: int
) -> Generator[None, None, bytes]:
    """The same, some messages at a time."""
    request_id = correlation_id(request if isinstance(request, Sections) else request.sections)
    try:
        wanted = ManagementRequest(request) if isinstance(request, Sections) else request
        operation = OPERATIONS.get(wanted.operation)
        if operation is None:
            raise NotSupported(
                f"The operation {wanted.operation!r} is unknown; known are {', '.join(OPERATIONS)}."
            )
        if context.settle is not None and operation is not _update_disposition:
            raise NotSupported(
                f"{wanted.operation!r} cannot be part of a transaction; sends and settlements can."
            )
        if context.credits is not None:
            context.credits.require(1, now_ms)
        found = operation(wanted, context, now_ms)
        body = (yield from found) if isinstance(found, Generator) else found
        if context.credits is not None:
            # A request with several messages costs a credit for each.
            context.credits.spend(max(0, _message_count(body) - 1), now_ms)
        return success(request_id, body)
    except Refusal as refusal:
        context.track(refusal)
        return failure(request_id, refusal)


def _message_count(body: Body) -> int:
    """Messages that a response returns, or that its request scheduled."""
    return max(len((body or {}).get(key, ())) for key in ("messages", "sequence-numbers"))


def _peek(request: ManagementRequest, context: ManagementContext, now_ms: int) -> InSteps:
    queue = context.queue()
    number = request.integer("from-sequence-number", 0)
    limit = min(request.integer("message-count", 1, minimum=0), ITEMS_MAX)
    session_id = request.optional_text("session-id")
    omits_body = request.get("omit-message-body") is True
    entries: list[dict[str, Any]] = []
    room = PEEK_BYTES_MAX
    while len(entries) < limit:
        # A page at a time: what is left of the queue after a step is what the next one shows.
        page = queue.peek(number, min(AT_ONCE, limit - len(entries)), now_ms, session_id=session_id)
        for message, payload in _readable(context, queue, page):
            wire = render(payload, message, locked_until_ms=queue.shown_lock_ms(message))
            if omits_body:
                wire = join(replace(split(wire), body=b""))
            room -= len(wire)
            if room < 0 and entries:
                return {"messages": entries}
            entries.append({"message": wire})
        if not page:
            break
        number = page[-1].sequence_number + 1
        yield
    return {"messages": entries} if entries else None


def _readable(
    context: ManagementContext, queue: Queue, page: list[StoredMessage]
) -> Iterator[tuple[StoredMessage, bytes]]:
    """Messages with their payloads; those that are damaged on the disk are passed over."""
    for message in page:
        with suppress(DamagedMessage):
            yield message, context.payload(queue.entity_id, message.sequence_number)


def _renew_lock(request: ManagementRequest, context: ManagementContext, now_ms: int) -> InSteps:
    queue, until = context.queue(), []
    for number, token in enumerate(request.lock_tokens(), 1):
        until.append(Timestamp(queue.renew(token, now_ms)))
        if not number % AT_ONCE:
            yield
    return {"expirations": Array(until)}


def _receive_by_number(
    request: ManagementRequest, context: ManagementContext, now_ms: int
) -> InSteps:
    queue = context.queue()
    # Receiver settle mode "first" means that the transfer settles the message: receive and delete.
    is_deleted = request.integer("receiver-settle-mode", 1) == 0
    session_id = request.optional_text("session-id")
    numbers = request.integers("sequence-numbers")
    holder = _holder(request, context, session_id)
    for first in range(0, len(numbers), AT_ONCE):
        part = numbers[first : first + AT_ONCE]
        queue.require_deferred(part, holder, now_ms, session_id=session_id)
        yield
    # All of them, or none: some may be gone by now.
    deliveries = queue.lock_deferred(numbers, holder, now_ms, session_id=session_id)
    entries = []
    for number, delivery in enumerate(deliveries, 1):
        if queue.holds(delivery):
            entries.append(_entry(context, queue, delivery, is_deleted))
            if is_deleted:
                queue.settle(
                    delivery.lock_token, SettlementOutcome.COMPLETE, now_ms, session_id=session_id
                )
        if not number % AT_ONCE:
            yield
    return {"messages": entries}


def _entry(
    context: ManagementContext, queue: Queue, delivery: LockedMessage, is_deleted: bool
) -> dict[str, Any]:
    message, payload = delivery.message, delivery.payload
    if payload is None:
        payload = context.payload(queue.entity_id, message.sequence_number)
    if is_deleted:
        return {"message": render(payload, message)}
    token = UUID(bytes_le=delivery.lock_token)
    wire = render(
        payload, message, locked_until_ms=delivery.locked_until_ms, lock_token=delivery.lock_token
    )
    return {"message": wire, "lock-token": token}


def _holder(
    request: ManagementRequest, context: ManagementContext, session_id: str | None
) -> object:
    holder = context.holder(request.link_name) if request.link_name else None
    if holder is None and session_id is not None:
        raise SessionLockLost(
            f"No open link {request.link_name!r} of this connection holds session {session_id!r}; "
            "accept the session again."
        )
    return holder if holder is not None else context


def _update_disposition(
    request: ManagementRequest, context: ManagementContext, now_ms: int
) -> InSteps:
    queue = context.queue()
    status = request.text("disposition-status")
    outcome = OUTCOMES.get(status)
    if outcome is None:
        raise ArgumentInvalid(
            f"disposition-status must be one of {', '.join(OUTCOMES)}, not {status!r}."
        )
    is_dead_letter = outcome is SettlementOutcome.DEAD_LETTER
    settlement = partial(
        RequestedSettlement,
        outcome=outcome,
        overrides=request.table("properties-to-modify") or None,
        reason=request.optional_text("deadletter-reason") if is_dead_letter else None,
        description=request.optional_text("deadletter-description") if is_dead_letter else None,
        session_id=request.optional_text("session-id"),
    )
    settle = context.settle or Queue.settle_one
    # Each message is settled for itself: one lost lock must not hold up the others.
    refusals: list[Refusal] = []
    settled: list[bytes] = []
    for number, token in enumerate(request.lock_tokens(), 1):
        try:
            settle(queue, settlement(token), now_ms)
            settled.append(token)
        except Refusal as refusal:
            refusals.append(refusal)
        if not number % AT_ONCE:
            yield
    receiver = context.holder(request.link_name) if request.link_name else None
    if isinstance(receiver, LinkOwner) and context.settle is None:
        receiver.settled_by_request(settled)
    if refusals:
        raise refusals[0]
    return {}


def _batch_delete(request: ManagementRequest, context: ManagementContext, now_ms: int) -> InSteps:
    queue = context.queue()
    limit = request.integer("message-count", minimum=1)
    if limit > ITEMS_MAX:
        raise ArgumentOutOfRange(f"message-count must be at most {ITEMS_MAX}, not {limit}.")
    before_ms = request.integer("enqueued-time-utc", now_ms)
    session_id = request.optional_text("session-id")
    holder = _holder(request, context, session_id)
    count = 0
    while count < limit:
        # A page at a time: a request that deletes nothing must not lock thousands of messages.
        page = min(DELETED_AT_ONCE, limit - count)
        found = queue.acquire(holder, page, now_ms, session_id=session_id)
        deleted = 0
        for delivery in found:
            is_old = delivery.message.enqueued_at_ms <= before_ms
            outcome = SettlementOutcome.COMPLETE if is_old else SettlementOutcome.RELEASE
            queue.settle(delivery.lock_token, outcome, now_ms, session_id=session_id)
            deleted += is_old
        count += deleted
        if deleted < page:
            break
        yield
    return {"message-count": Int(count)} if count else None


def _schedule(request: ManagementRequest, context: ManagementContext, now_ms: int) -> Body:
    context.require(SEND)
    target = context.namespace.send_target(context.address)
    messages = [_scheduled(entry, context.new_message_id) for entry in request.items("messages")]
    return {"sequence-numbers": Array(context.namespace.schedule(target, messages, now_ms))}


def _scheduled(entry: object, new_id: Callable[[], str]) -> Incoming:
    if isinstance(entry, Incoming):
        return entry  # It was read ahead.
    wire = entry.get("message") if isinstance(entry, dict) else None
    if not isinstance(wire, bytes):
        raise ArgumentInvalid("Each entry of messages needs the encoded message as binary.")
    return parse(wire, new_id)


def _cancel_scheduled(request: ManagementRequest, context: ManagementContext, now_ms: int) -> Body:
    context.require(SEND)
    target = context.namespace.send_target(context.address)
    target.cancel_scheduled(request.integers("sequence-numbers"), now_ms)
    return {}


def _renew_session(request: ManagementRequest, context: ManagementContext, now_ms: int) -> Body:
    queue, session_id = context.queue(), request.text("session-id")
    until_ms = queue.sessions.renew(session_id, _holder(request, context, session_id), now_ms)
    return {"expiration": Timestamp(until_ms)}


def _get_session_state(request: ManagementRequest, context: ManagementContext, now_ms: int) -> Body:
    queue, session_id = context.queue(), request.text("session-id")
    if not queue.sessions.is_held_by(session_id, _holder(request, context, session_id), now_ms):
        raise SessionLockLost(f"The lock of session {session_id!r} is lost; accept it again.")
    return {"session-state": queue.sessions.state(session_id)}


def _set_session_state(request: ManagementRequest, context: ManagementContext, now_ms: int) -> Body:
    queue, session_id = context.queue(), request.text("session-id")
    state = request.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise ArgumentInvalid("session-state must be binary or null.")
    holder = _holder(request, context, session_id)
    # Azure keeps no empty state: the Go SDK removes one so.
    queue.sessions.set_state(session_id, state or None, now_ms, holder=holder)
    return {}


def _list_sessions(request: ManagementRequest, context: ManagementContext, now_ms: int) -> Body:
    queue = context.queue()
    since_ms = request.integer("last-updated-time", ANY_TIME_MS)
    page = _page(request)
    found = queue.sessions.ids(since_ms if since_ms < ANY_TIME_MS else None, page)
    return {"skip": Int(page.start), "sessions-ids": Array(found)} if found else None


SENDING_OPERATIONS = frozenset({SCHEDULE, "com.microsoft:cancel-scheduled-message"})
"""Operations that need the right to send; all others need the right to listen."""

OPERATIONS: dict[str, Callable[[ManagementRequest, ManagementContext, int], Body | InSteps]] = {
    "com.microsoft:peek-message": _peek,
    "com.microsoft:renew-lock": _renew_lock,
    "com.microsoft:receive-by-sequence-number": _receive_by_number,
    "com.microsoft:update-disposition": _update_disposition,
    "com.microsoft:batch-delete-messages": _batch_delete,
    SCHEDULE: _schedule,
    "com.microsoft:cancel-scheduled-message": _cancel_scheduled,
    "com.microsoft:renew-session-lock": _renew_session,
    "com.microsoft:get-session-state": _get_session_state,
    "com.microsoft:set-session-state": _set_session_state,
    "com.microsoft:get-message-sessions": _list_sessions,
    "com.microsoft:add-rule": add_rule,
    "com.microsoft:remove-rule": remove_rule,
    "com.microsoft:enumerate-rules": enumerate_rules,
}
