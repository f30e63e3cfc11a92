"""Requests to a node of a namespace (`$cbs`, an entity's `$management`) and their answers.

One link carries the requests, another the answers. A request ends with its answer, with
RequestRefused, with ConnectionLost, or with its time limit.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from twinbus.amqp.events import CreditChanged, DeliveryArrived, Detached, Event
from twinbus.amqp.link import LinkState
from twinbus.amqp.message import (
    Properties,
    decode_map,
    decode_properties,
    decode_value,
    encode_message,
    split,
)
from twinbus.amqp.performatives import ACCEPTED_BYTES, Source, Target
from twinbus.amqp.session import Session
from twinbus.amqp.types import DecodeError
from twinbus.servicebus import conditions
from twinbus.servicebus.failures import (
    FailureMeaning,
    NamespaceFailure,
    of_condition,
    of_token_status,
)

CREDIT: Final = 100
"""Requests that may be pending at once; granted again with each request."""

OK, ACCEPTED, NO_CONTENT = 200, 202, 204

_numbers = itertools.count(1)


class ConnectionLost(NamespaceFailure):
    """The connection is lost, or did not answer in time; the text says which."""

    def __init__(self, text: str) -> None:
        super().__init__(text, FailureMeaning.UNREACHABLE, may_be_stored=False)


class RequestRefused(NamespaceFailure):
    """A node refused a request; `status` and `condition` say why."""

    def __init__(
        self, text: str, status: int, condition: str, meaning: FailureMeaning | None = None
    ) -> None:
        meaning = meaning or of_token_status(status)
        if meaning is FailureMeaning.UNAUTHORIZED and condition:
            meaning = of_condition(condition)
        super().__init__(text, meaning, condition, may_be_stored=False)
        self.status = status


def refusal_in(headers: Mapping[Any, Any], address: str) -> RequestRefused | None:
    """What the answer of a node says against a request; None: it was carried out."""
    # $cbs writes header names with hyphens, $management in camel case.
    status = headers.get("status-code", headers.get("statusCode"))
    if status in (OK, ACCEPTED, NO_CONTENT):
        return None
    text = headers.get("status-description", headers.get("statusDescription", ""))
    condition = headers.get("errorCondition") or headers.get("error-condition") or ""
    number = status if isinstance(status, int) else 0
    return RequestRefused(f"{address}: {text}", number, str(condition))


class DeliveryRejected(NamespaceFailure):
    """The namespace answered that it does not take a delivery; `condition` says why."""

    def __init__(self, text: str, condition: str) -> None:
        meaning = of_condition(condition)
        may_be_stored = meaning is FailureMeaning.UNREACHABLE
        super().__init__(text, meaning, condition, may_be_stored=may_be_stored)


class LinkEnded(NamespaceFailure):
    """A link ended before its answer; `condition` says why, "" if the namespace gave none."""

    def __init__(
        self,
        text: str,
        condition: str = "",
        *,
        was_sent: bool = False,
        meaning: FailureMeaning | None = None,
    ) -> None:
        """`was_sent`: the delivery was on its way. A detach is no answer, whatever its reason.

        `meaning`: None for that of the condition.
        """
        if meaning is None:
            # An unknown condition (detach-forced, ...) names no configuration error.
            meaning = of_condition(condition, FailureMeaning.UNREACHABLE)
        may_be_stored = was_sent or meaning is FailureMeaning.UNREACHABLE
        super().__init__(text, meaning, condition, may_be_stored=may_be_stored)


class SettlementRefused(NamespaceFailure):
    """The namespace answered that it does not settle a message; `condition` says why."""

    def __init__(self, text: str, condition: str) -> None:
        super().__init__(text, of_condition(condition), condition, may_be_stored=False)


class LockLost(SettlementRefused):
    """The lock of a message, or of its session, has ended; others may have the message."""

    CONDITIONS: Final = frozenset({conditions.MESSAGE_LOCK_LOST, conditions.SESSION_LOCK_LOST})


def uuid_of_token(lock_token: bytes) -> UUID:
    """Return a delivery's lock token as requests carry it: the same GUID, in big-endian order."""
    return UUID(bytes_le=lock_token)


class RequestNode:
    """Sends requests to one node on one session."""

    def __init__(self, session: Session, address: str) -> None:
        self.address = address
        self._session = session
        self._reply_to = f"{address}-answers-{next(_numbers)}"
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when both links are open."""
        self._pending: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._changed = asyncio.Event()
        """Set when credit, or the number of pending requests, changed."""
        self._failed: Exception | None = None
        self._sender = session.attach_sender(
            f"{self._reply_to}-questions",
            source=Source(address=self._reply_to),
            target=Target(address=address),
        )
        self._receiver = session.attach_receiver(
            self._reply_to,
            source=Source(address=address),
            target=Target(address=self._reply_to),
        )
        self._sender.owner = self._receiver.owner = self

    @property
    def is_open(self) -> bool:
        return LinkState.CLOSED not in (self._sender.state, self._receiver.state)

    def send(self, headers: dict[str, Any], body: object) -> asyncio.Future[dict[str, Any]]:
        """Send a request after `wait_for_credit`; return a future of the answer's body."""
        request_id = f"{self._reply_to}-{next(_numbers)}"
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = answer
        answer.add_done_callback(lambda _: self._forget(request_id))
        message = encode_message(
            properties=Properties(message_id=request_id, reply_to=self._reply_to),
            application_properties=headers,
            value=body,
        )
        self._receiver.grant(CREDIT)
        self._sender.send(message, b"q", settled=True)
        return answer

    async def wait_for_credit(self) -> None:
        """Wait until the credit of both links allows one more request."""
        while self._failed is None and (self._sender.credit <= 0 or len(self._pending) >= CREDIT):
            self._changed.clear()
            await self._changed.wait()
        if self._failed is not None:
            raise self._failed

    def _forget(self, request_id: str) -> None:
        self._pending.pop(request_id, None)
        self._changed.set()

    def handle(self, event: Event) -> None:
        match event:
            case DeliveryArrived():
                self._handle_answer(event)
            case CreditChanged():
                self._changed.set()
                if event.link.credit and not self.ready.done():
                    self.ready.set_result(None)
            case Detached():
                condition = str(event.error.condition) if event.error else ""
                text = (event.error.description if event.error else "") or "it was closed"
                self.fail(RequestRefused(f"{self.address}: {text}", 0, condition))

    def fail(self, error: Exception) -> None:
        """End every pending request with an error, and detach."""
        self._failed = self._failed or error
        self._changed.set()
        waiting: list[asyncio.Future[Any]] = [self.ready, *self._pending.values()]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(error)
                # Mark it as retrieved: nothing may await it any more.
                answer.exception()
        for link in (self._sender, self._receiver):
            link.detach()

    def _handle_answer(self, event: DeliveryArrived) -> None:
        if not event.settled:
            self._session.settle(
                event.delivery_id, event.delivery_id, ACCEPTED_BYTES, as_receiver=True
            )
        try:
            sections = split(event.payload)
            request_id = decode_properties(sections.properties).correlation_id
            headers = decode_map(sections.application_properties)
            body = decode_value(sections.body) if sections.body else None
        except DecodeError:
            # The answer names no request; the request runs into its time limit.
            return
        answer = self._pending.get(str(request_id))
        if answer is None or answer.done():
            return
        refusal = refusal_in(headers, self.address)
        if refusal is None:
            answer.set_result(body if isinstance(body, dict) else {})
        else:
            answer.set_exception(refusal)
