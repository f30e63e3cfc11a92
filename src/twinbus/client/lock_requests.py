"""Requests to the `$management` node of an entity about its messages, their locks and sessions.

    until = await renew_locks(connection, "orders", [delivery.lock_token])
    found = await receive_deferred(connection, "orders", numbers)
    await settle_by_token(connection, "orders", found[0].lock_token, COMPLETE)

Each raises ConnectionLost (the namespace did not answer), RequestRefused (`status` and `condition`
say why) or, about one lock, LockLost. A session is named with the link that holds its lock
(`link.session_id`, `link.name`): the service accepts such requests only on that link's connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from twinbus.amqp.types import Array, Int, UInt
from twinbus.client.connection import RECEIVE, NamespaceConnection, Record
from twinbus.client.consumer_records import NO_NAMES, operation_of
from twinbus.client.links import UpstreamConnection
from twinbus.client.outcomes import RELEASE, SettlingOutcome
from twinbus.client.request_node import ConnectionLost, LockLost, RequestRefused
from twinbus.servicebus import conditions
from twinbus.servicebus.names import utc_of_ms
from twinbus.transfer.identity import MessageNames

T = TypeVar("T")

TOKENS_MAX: Final = 100
"""Lock tokens or sequence numbers in one request."""

ABOUT_ONE: Final = (404, 410)
"""Statuses of a refusal because of one message of the request: it is gone, locked by another
receiver, or its lock has ended. Any other status (busy, unauthorized, internal error) concerns all
of them."""

LOCK_GONE: Final = 410

FIRST, SECOND = UInt(0), UInt(1)
"""Receiver settle modes: received is deleted, and received is locked."""


class HeldSession(Protocol):
    """What requests about a session need of the link that holds it."""

    path: str
    name: str
    session_id: str | None


class ReceivedByNumber(NamedTuple):
    """A deferred message that was received."""

    data: bytes
    """All sections of the message, as they were on the wire."""
    lock_token: UUID | None
    """None in receive-and-delete mode."""


# For receivers


async def renew_locks(
    connection: UpstreamConnection, path: str, tokens: Sequence[UUID]
) -> dict[UUID, datetime]:
    """Renew the locks of messages; return until when each is locked, without those that are lost.

    Messages of a session have its lock: renew that with `renew_session_lock`.
    """
    until: dict[UUID, datetime] = {}

    def note(group: list[UUID], answer: dict[str, Any]) -> None:
        times = answer.get("expirations") or ()
        for token, at_ms in zip(group, times, strict=False):
            if (moment := utc_of_ms(at_ms)) is not None:
                until[token] = moment

    opened = await connection.opened()
    result = await request_by_tokens(
        opened, path, "renew-lock", list(tokens), _itself, on_answer=note
    )
    if result.error is not None:
        raise result.error
    return until


async def receive_deferred(
    connection: UpstreamConnection,
    path: str,
    numbers: Sequence[int],
    *,
    receive_and_delete: bool = False,
    session: HeldSession | None = None,
) -> list[ReceivedByNumber]:
    """Receive deferred messages by their sequence numbers: all of them, or RequestRefused."""
    opened = await connection.opened()
    mode = FIRST if receive_and_delete else SECOND
    found = await receive_by_numbers(opened, path, numbers, mode=mode, session=session)
    if (records := connection.records(path)) is not None:
        for message in found:
            records.received(message.data, is_deleted=receive_and_delete)
    return found


async def settle_by_token(
    connection: UpstreamConnection,
    path: str,
    token: UUID,
    outcome: SettlingOutcome,
    *,
    session: HeldSession | None = None,
    names: MessageNames = NO_NAMES,
    ledger_state: str | None = None,
) -> None:
    """Settle a message by its lock token: a deferred one, or one whose link has ended.

    The ledger names it by `names`, and its line has `ledger_state`.
    """
    record: Record | None = None
    records = connection.records(path)
    # A release has its line from the link that could not send it, and must not count twice.
    if records is not None and outcome is not RELEASE:
        record = partial(records.settled, operation_of(outcome), names, state=ledger_state)
    arguments = {
        "disposition-status": outcome.status,
        "lock-tokens": Array([token]),
        **outcome.arguments,
    }
    await _request(connection, path, "update-disposition", arguments, session, record)


async def peek(
    connection: UpstreamConnection,
    path: str,
    from_number: int,
    count: int,
    *,
    session_id: str | None = None,
) -> list[bytes]:
    """Return at most `count` messages from a sequence number on, in any state; none is locked."""
    return await peek_page(await connection.opened(), path, from_number, count, session_id)


async def session_state(connection: UpstreamConnection, session: HeldSession) -> bytes | None:
    """Return the state that the application stored with a session; None: it stored none."""
    answer = await _request(connection, session.path, "get-session-state", {}, session)
    state = answer.get("session-state")
    return state if isinstance(state, bytes) else None


async def set_session_state(
    connection: UpstreamConnection, session: HeldSession, state: bytes | None
) -> None:
    """Store a state with a session; None removes it."""
    arguments = {"session-state": state}
    await _request(connection, session.path, "set-session-state", arguments, session)


async def renew_session_lock(connection: UpstreamConnection, session: HeldSession) -> datetime:
    """Renew the lock of a session; return until when it is locked."""
    answer = await _request(connection, session.path, "renew-session-lock", {}, session)
    until = utc_of_ms(answer.get("expiration"))
    if until is None:
        text = f"{session.path} did not say until when session {session.session_id!r} is locked"
        raise RequestRefused(text, 0, conditions.INVALID_FIELD)
    return until


async def _request(
    connection: UpstreamConnection,
    path: str,
    operation: str,
    arguments: dict[str, Any],
    session: HeldSession | None,
    record: Record | None = None,
) -> dict[str, Any]:
    """Ask about one lock."""
    try:
        opened = await connection.opened()
        return await _ask(opened, path, operation, arguments, session, record)
    except RequestRefused as refusal:
        condition = refusal.condition
        if condition not in LockLost.CONDITIONS and refusal.status == LOCK_GONE:
            lost = conditions.SESSION_LOCK_LOST, conditions.MESSAGE_LOCK_LOST
            condition = lost[session is None]
        if condition in LockLost.CONDITIONS:
            raise LockLost(str(refusal), condition) from refusal
        raise


async def _ask(
    connection: NamespaceConnection,
    path: str,
    operation: str,
    arguments: dict[str, Any],
    session: HeldSession | None,
    record: Record | None = None,
) -> dict[str, Any]:
    if session is None:
        return await connection.request(path, operation, arguments, record=record)
    of_session = {**arguments, "session-id": session.session_id}
    return await connection.request(
        path, operation, of_session, link_name=session.name, record=record
    )


# For receivers and the syphon


@dataclass(slots=True)
class RequestResult(Generic[T]):
    """The result of a request about many messages."""

    done: list[T] = field(default_factory=list)
    lost: list[T] = field(default_factory=list)
    """They lost their locks."""
    rest: list[T] = field(default_factory=list)
    """Not done, or not known to be done; `error` says why."""
    error: RequestRefused | ConnectionLost | None = None


async def request_by_tokens(
    connection: NamespaceConnection,
    path: str,
    operation: str,
    items: list[T],
    token_of: Callable[[T], UUID],
    arguments: dict[str, Any] | None = None,
    *,
    on_answer: Callable[[list[T], dict[str, Any]], None] | None = None,
) -> RequestResult[T]:
    """Request an operation on the locks of all these messages, in groups.

    `on_answer` gets each group that was answered, and the answer's body.
    """
    result = RequestResult[T]()
    groups = [items[at : at + TOKENS_MAX] for at in range(0, len(items), TOKENS_MAX)]
    while groups:
        group = groups.pop()
        tokens = Array([token_of(item) for item in group])
        try:
            body = {**(arguments or {}), "lock-tokens": tokens}
            answer = await connection.request(path, operation, body)
        except (ConnectionLost, RequestRefused) as error:
            if isinstance(error, ConnectionLost) or error.status not in ABOUT_ONE:
                result.rest = [item for each in (group, *groups) for item in each]
                result.error = error
                break
            if len(group) == 1:
                result.lost += group
            else:
                # One bad token fails the whole request: halve it until the token is alone.
                middle = len(group) // 2
                groups += [group[:middle], group[middle:]]
        else:
            result.done += group
            if on_answer is not None:
                on_answer(group, answer)
    return result


async def receive_by_numbers(
    connection: NamespaceConnection,
    path: str,
    numbers: Sequence[int],
    *,
    mode: UInt = SECOND,
    session: HeldSession | None = None,
) -> list[ReceivedByNumber]:
    """Receive deferred messages with one request, which takes all of them or none."""
    arguments = {"sequence-numbers": Array(numbers), "receiver-settle-mode": mode}
    answer = await _ask(connection, path, RECEIVE, arguments, session)
    found = []
    for entry in _entries(answer):
        token = entry.get("lock-token")
        found.append(ReceivedByNumber(entry["message"], token if isinstance(token, UUID) else None))
    return found


async def peek_page(
    connection: NamespaceConnection,
    path: str,
    from_number: int,
    count: int,
    session_id: str | None = None,
) -> list[bytes]:
    """Return one page of messages in any state, from a sequence number on."""
    arguments: dict[str, Any] = {"from-sequence-number": from_number, "message-count": Int(count)}
    if session_id is not None:
        arguments["session-id"] = session_id
    answer = await connection.request(path, "peek-message", arguments)
    return [entry["message"] for entry in _entries(answer)]


def _entries(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The messages of an answer; what is not a message is left out."""
    for entry in answer.get("messages") or ():
        if isinstance(entry, dict) and isinstance(entry.get("message"), bytes):
            yield entry


def _itself(token: UUID) -> UUID:
    return token
