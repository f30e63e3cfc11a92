"""A receiver of both sides, or a guarded one of the primary, with the SDK receiver's interface.

    async with pair.get_queue_receiver("orders", guard=True) as receiver:
        async for message in receiver:
            await receiver.complete_message(message)

It takes the place of `azure.servicebus.aio.ServiceBusReceiver`: same methods, arguments, message
objects and exceptions. It differs in this: a side that cannot be reached raises nothing, the
receiver goes on with the other one and connects again for as long as it lives; a sequence number
of the secondary has bit 62 set; credit is drained when a call ends and when the receiver is closed.
"""

# ruff: noqa: ASYNC109  # the SDK named the parameter `timeout`

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.exceptions import SessionLockLostError

from twinbus.client import lock_requests
from twinbus.client.consumer_records import NO_NAMES
from twinbus.client.outcomes import COMPLETE, SettlingOutcome, abandon, dead_letter, defer
from twinbus.client.receiving import NEXT_SESSION, NO_SESSION, Delivery, ReceivingLink
from twinbus.client.request_node import LinkEnded
from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.copies import SecondCopies
from twinbus.pairing.receiving.inbox import Entry, Inbox
from twinbus.pairing.receiving.settings import ReceiverSettings
from twinbus.pairing.receiving.settlement import MessageSettlement, SettlementAnswer
from twinbus.pairing.receiving.side import ReceivingSide, SideOwner, is_refusal
from twinbus.pairing.sdk.failures import sdk_error
from twinbus.pairing.sdk.received import (
    Origin,
    PairedSession,
    Undecodable,
    lock_token_of,
    mark_renewed,
    mark_settled,
    origin_of,
    received_message,
    require_settleable,
    require_timeout,
    require_unexpired,
    set_origin,
)
from twinbus.servicebus import conditions
from twinbus.servicebus.failures import NamespaceFailure
from twinbus.servicebus.twins import is_of_secondary, own_number
from twinbus.status.receiving import ReceiverStatus
from twinbus.transfer.identity import MessageNames

log = logging.getLogger("twinbus.receiving")

T = TypeVar("T")

RECEIVE_WAIT_S: Final = 60.0
"""How long `receive_messages` waits unless told otherwise, as in the SDK."""

SHUT_DOWN: Final = "The handler has already been shutdown. Make a new receiver."

OUTCOMES: Final[dict[str, Callable[..., SettlingOutcome]]] = {
    "abandon": abandon,
    "defer": defer,
    "dead-letter": dead_letter,
}
"""What becomes of a message, by what the application asks for, other than to complete it."""

Texts = tuple[str | None, ...]
"""Reason and description of a dead letter."""

MakeSides = Callable[[SideOwner], list[ReceivingSide]]
"""Makes the sides that a receiver reads, the primary first."""


class PairedReceiver(AsyncIterator[ServiceBusReceivedMessage]):
    """Receives from an entity of the primary, and from its twin if it has one."""

    _handler: Final = None
    """Read by the deprecated `message.message` of the SDK, which does not settle here."""

    def __init__(
        self,
        settings: ReceiverSettings,
        make_sides: MakeSides,
        *,
        namespace: str,
        label: str,
        has_twin: bool,
        on_close: Callable[[PairedReceiver], None] = lambda _: None,
    ) -> None:
        """Belongs to the running event loop. `label` is the primary's."""
        self.fully_qualified_namespace = namespace
        self.entity_path = settings.entity_path
        self._settings = settings
        self._inbox = Inbox(
            self,
            prefetch=settings.prefetch_count,
            copies=SecondCopies() if has_twin else None,
            label=label,
        )
        self._inbox.sides = make_sides(self._inbox)
        self._session: PairedSession | None = None
        if settings.session is not NO_SESSION:
            session_id = None if settings.session is NEXT_SESSION else settings.session
            self._session = PairedSession(session_id, self)
        self._on_close = on_close
        self._running = False
        """The SDK's AutoLockRenewer reads it."""
        self._shutdown = False
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._peeked: dict[Side, int] = {}
        """The last number of each side that was received or peeked at: a peek goes on there."""

    def __str__(self) -> str:
        return f"Receiver client id: {self.client_identifier}, entity: {self.entity_path}"

    @property
    def client_identifier(self) -> str:
        return self._settings.client_identifier

    @property
    def session(self) -> Any:
        """The session of this receiver; None: it receives without one."""
        return self._session

    def status(self) -> ReceiverStatus:
        """What this receiver does now, and has done so far."""
        return self._inbox.status(self.entity_path)

    # Opening and closing

    async def __aenter__(self) -> Self:
        if self._shutdown:
            raise ValueError(SHUT_DOWN)
        await self._open()
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.close()

    async def _open(self) -> None:
        """Open the sides once; raise why the primary refuses. One that is down is waited for."""
        if self._running:
            return
        if self._opening is None:
            self._opening = asyncio.create_task(self._open_sides(), name=f"open {self!s:.200}")
        try:
            await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if here is None or here.cancelling() or not self._shutdown:
                raise
            raise ValueError(SHUT_DOWN) from None

    async def _open_sides(self) -> None:
        sides = self._inbox.sides
        for side in sides:
            side.start()
        try:
            if self._settings.session is NEXT_SESSION:
                await self._keep_first(sides)
            else:
                error = await sides[0].first_result()
                if error is not None and (sides[0].has_ended or is_refusal(error)):
                    raise sdk_error(error, self.entity_path)
        except BaseException:
            self._shutdown = True
            await self._inbox.close()
            self._on_close(self)
            raise
        self._running = True
        renewer = self._settings.auto_lock_renewer
        if renewer is not None and self._session is not None:
            renewer.register(self, self._session)

    async def _keep_first(self, sides: list[ReceivingSide]) -> None:
        """Keep the side that gives a session first; a session is in one namespace."""
        waiting = {asyncio.create_task(side.first_result()): side for side in sides}
        errors: list[Exception] = []
        try:
            for task in asyncio.as_completed(waiting):
                error = await task
                if error is None:
                    break
                errors.append(error)
            else:
                raise sdk_error(errors[0], self.entity_path)
        finally:
            for task in waiting:
                task.cancel()
        kept = next((side for side in sides if side.link is not None), None)
        if kept is None or kept.link is None:  # It ended in the moment after it was opened.
            raise SessionLockLostError(message=f"{self.entity_path}: the session was lost at once")
        assert self._session is not None
        self._session.opened(kept.link.session_id or "", kept.link.session_locked_until)
        for side in sides:
            if side is not kept:
                # With what it prefetched: those are messages of another session.
                await self._inbox.close_side(side.side)
        self._inbox.sides = [kept]

    async def close(self) -> None:
        """Let settlements in flight end, drain, release what was not handed out. Idempotent."""
        self._shutdown = True
        self._inbox.stop()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"close {self!s:.200}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait({self._opening})
        await self._inbox.close()
        self._running = False
        self._on_close(self)

    async def close_side(self, side: Side) -> None:
        """Read one side no more: it was closed by hand."""
        await self._inbox.close_side(side)

    # For the inbox

    def on_opened(self, side: ReceivingSide, link: ReceivingLink) -> None:
        session = self._session
        if session is None or link.session_id is None:
            return
        first = self._inbox.sides[0]
        if side is first or first.state != "open":
            session.opened(link.session_id, link.session_locked_until)

    def on_failed(self, side: ReceivingSide) -> None:
        if self._session is not None and self._running and side.has_ended:
            self._session.lose()
            self._inbox.stop()

    def require_live(self) -> None:
        """Raise what the SDK raises if the receiver is closed or has lost its session."""
        if self._shutdown:
            raise ValueError(SHUT_DOWN)
        if self._session is not None and self._session.is_lost:
            raise SessionLockLostError(error=self._session.auto_renew_error)

    # Receiving

    def __aiter__(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        return self

    async def __anext__(self) -> ServiceBusReceivedMessage:
        self.require_live()
        await self._open()
        found: list[ServiceBusReceivedMessage] = []
        while not found:
            found = await self._receive(1, self._settings.max_wait_time)
            if not found and (self._settings.max_wait_time is not None or self._shutdown):
                raise StopAsyncIteration
        return found[0]

    async def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Receive up to `max_message_count` messages; an empty list if none came in time."""
        self.require_live()
        if max_wait_time is not None and max_wait_time <= 0:
            raise ValueError("The max_wait_time must be greater than 0.")
        if max_message_count is not None and max_message_count <= 0:
            raise ValueError("The max_message_count must be greater than 0")
        wait_s = max_wait_time or self._settings.max_wait_time or RECEIVE_WAIT_S
        until = asyncio.get_running_loop().time() + wait_s
        await self._open()
        count = max_message_count or self._settings.prefetch_count or 1
        return await self._receive(count, until - asyncio.get_running_loop().time())

    async def _receive(self, count: int, wait_s: float | None) -> list[ServiceBusReceivedMessage]:
        until = None if wait_s is None else asyncio.get_running_loop().time() + max(0.0, wait_s)
        entries = await self._inbox.take(count, until)
        if not entries:
            self._raise_why_none()
        # Nothing is awaited from here on, so a cancelled call has handed out nothing.
        handed_out = [self._hand_out(entry) for entry in entries]
        return [message for message in handed_out if message is not None]

    def _raise_why_none(self) -> None:
        # A lock that merely ran out while the call waited counts with the next call, as in the SDK.
        if self._session is not None and (self._shutdown or self._session.is_taken_away):
            self.require_live()
        sides = self._inbox.sides
        error = sides[0].error
        if error is not None and is_refusal(error) and all(one.state != "open" for one in sides):
            raise sdk_error(error, self.entity_path)

    def _hand_out(self, entry: Entry) -> ServiceBusReceivedMessage | None:
        side, delivery = entry
        try:
            message = received_message(
                self,
                side.side,
                delivery.data,
                head=delivery.head,
                tag=delivery.tag,
                number=delivery.number,
                mode=self._settings.receive_mode,
            )
        except Undecodable as error:
            text = "%s: a message of the %s is abandoned: %s"
            log.error(text, self.entity_path, side.side, error)  # noqa: TRY400
            if not delivery.settled:
                delivery.link.settle(delivery, abandon(), lambda _: None)
            return None
        stamps = set_origin(message, side, delivery).stamps
        number = own_number(message.sequence_number or 0) if stamps is None else stamps[0]
        self._peeked[side.side] = number
        self._inbox.handed_out(entry, number)
        self._renew_from_now_on(message)
        return message

    def _renew_from_now_on(self, message: ServiceBusReceivedMessage) -> None:
        renewer = self._settings.auto_lock_renewer
        if renewer is not None and self._session is None and not self._settings.deletes:
            renewer.register(self, message)

    async def receive_deferred_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> list[ServiceBusReceivedMessage]:
        """Receive messages that were deferred, each from the side that its number names."""
        self.require_live()
        require_timeout(timeout, kwargs)
        given = sequence_numbers
        numbers = [given] if isinstance(given, int) else list(given)
        await self._open()
        found: list[ServiceBusReceivedMessage] = []
        for side in (Side.PRIMARY, Side.SECONDARY):
            here = [own_number(one) for one in numbers if _side_of(one) is side]
            if here:
                found += await self._receive_deferred(self._side(side), here, timeout)
        return found

    async def _receive_deferred(
        self, side: ReceivingSide, numbers: list[int], timeout: float | None
    ) -> list[ServiceBusReceivedMessage]:
        answers = await self._request(
            side,
            timeout,
            lambda: lock_requests.receive_deferred(
                side.connection,
                self.entity_path,
                numbers,
                receive_and_delete=self._settings.deletes,
                session=self._held(side),
            ),
        )
        found = []
        for answer in answers:
            message = received_message(
                self,
                side.side,
                answer.data,
                mode=self._settings.receive_mode,
                lock_token=answer.lock_token,
                is_deferred_message=True,
            )
            set_origin(message, side, None, answer.data)
            self._renew_from_now_on(message)
            found.append(message)
        return found

    async def peek_messages(
        self,
        max_message_count: int = 1,
        *,
        sequence_number: int = 0,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[ServiceBusReceivedMessage]:
        """Browse messages without locking them: those of the primary, then those of the twin.

        A number of the secondary begins there. A side that cannot be reached is left out if the
        other one answers.
        """
        self.require_live()
        require_timeout(timeout, kwargs)
        if int(max_message_count) < 0:
            raise ValueError("max_message_count must be 1 or greater.")
        await self._open()
        found: list[ServiceBusReceivedMessage] = []
        failure: Exception | None = None
        for side in self._inbox.sides:
            named = _side_of(sequence_number)
            is_before = named is Side.SECONDARY and side.side is Side.PRIMARY
            if len(found) >= max_message_count or is_before:
                continue
            is_named = sequence_number and named is side.side
            start = own_number(sequence_number) if is_named else self._peeked.get(side.side, 0) + 1
            try:
                found += await self._peek(side, start, max_message_count - len(found), timeout)
            except Exception as error:  # noqa: BLE001  # raised below if no side answered
                failure = failure or error
        if failure is not None and not found:
            raise failure
        return found

    async def _peek(
        self, side: ReceivingSide, start: int, count: int, timeout: float | None
    ) -> list[ServiceBusReceivedMessage]:
        held = self._held(side)
        session_id = None if held is None else held.session_id
        path, connection = self.entity_path, side.connection
        found = await self._request(
            side,
            timeout,
            lambda: lock_requests.peek(connection, path, start, count, session_id=session_id),
        )
        peeked = partial(received_message, self, side.side, is_peeked_message=True)
        messages = [peeked(data) for data in found]
        if messages:
            self._peeked[side.side] = own_number(messages[-1].sequence_number or 0)
        return messages

    # Settlement and locks

    async def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Remove the message from its entity."""
        await self._settle(message, "complete")

    async def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Let the message be delivered again."""
        await self._settle(message, "abandon")

    async def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """Put the message aside; it is received only by its sequence number."""
        await self._settle(message, "defer")

    async def dead_letter_message(
        self,
        message: ServiceBusReceivedMessage,
        reason: str | None = None,
        error_description: str | None = None,
    ) -> None:
        """Move the message to the dead-letter queue of its side."""
        await self._settle(message, "dead-letter", (reason, error_description))

    def _settle(
        self, message: ServiceBusReceivedMessage, action: str, texts: Texts = ()
    ) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begin_settling(message, action, answer, texts)
        return answer

    def begin_settling(
        self,
        message: ServiceBusReceivedMessage,
        action: str,
        answer: SettlementAnswer,
        texts: Texts = (),
    ) -> None:
        """Settle a message; `answer` gets the result. Raise if the message cannot be settled.

        `action` is "complete" or one of OUTCOMES, and `texts` are the arguments of its outcome.
        """
        self.require_live()
        require_settleable(message, action, self._settings.receive_mode)
        if self._session is None:
            require_unexpired(message)
        origin = origin_of(message)
        side, delivery = self._place_of(message, origin)
        outcome = COMPLETE if action == "complete" else OUTCOMES[action](*texts)
        data, head, token, names = origin.data, None, None, NO_NAMES
        if delivery is not None:
            data, head = delivery.data, delivery.head
        else:
            token, names = _token_of(message), _names_of(message)

        def confirmed() -> None:
            mark_settled(message)
            if outcome is COMPLETE and data is not None:
                self._inbox.completed(side, data, origin.stamps, head)
            elif action != "abandon":
                self._inbox.gone(side, own_number(message.sequence_number or 0))

        side.begin_settling(
            MessageSettlement(answer, outcome, delivery, token, names, confirmed, self._sdk_error)
        )

    async def renew_message_lock(
        self, message: ServiceBusReceivedMessage, *, timeout: float | None = None, **kwargs: Any
    ) -> datetime:
        """Renew the lock of a message; return when it ends."""
        if self._session is not None:
            raise TypeError(
                "Renewing message lock is an invalid operation when working with sessions."
                "Please renew the session lock instead."
            )
        self.require_live()
        require_settleable(message, "renew", self._settings.receive_mode)
        require_timeout(timeout, kwargs)
        (side, _), token = self._place_of(message, origin_of(message)), _token_of(message)
        path, connection = self.entity_path, side.connection
        renew = partial(lock_requests.renew_locks, connection, path, [token])
        until = (await self._request(side, timeout, renew)).get(token)
        if until is None:
            lost = LinkEnded(f"{path}: the lock has ended", conditions.MESSAGE_LOCK_LOST)
            raise sdk_error(lost, path)
        mark_renewed(message, until)
        return until

    async def get_session_state(self, timeout_s: float | None) -> bytes | None:
        side, link = self._held_session()
        ask = partial(lock_requests.session_state, side.connection, link)
        return await self._request(side, timeout_s, ask)

    async def set_session_state(self, state: bytes | None, timeout_s: float | None) -> None:
        side, link = self._held_session()
        ask = partial(lock_requests.set_session_state, side.connection, link, state)
        await self._request(side, timeout_s, ask)

    async def renew_session_lock(self, timeout_s: float | None) -> datetime:
        """Renew the session's lock on each side that has it; return when the first one ends."""
        self._held_session()
        until: list[datetime] = []
        for side in self._inbox.sides:
            if (link := self._held(side)) is not None:
                ask = partial(lock_requests.renew_session_lock, side.connection, link)
                until.append(await self._request(side, timeout_s, ask))
        return min(until)

    async def _request(
        self, side: ReceivingSide, timeout_s: float | None, ask: Callable[[], Awaitable[T]]
    ) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await side.request(ask)
        except (NamespaceFailure, TimeoutError) as error:
            raise self._sdk_error(error) from error

    def _sdk_error(self, error: Exception) -> Exception:
        """Return a failure of our own client as the SDK's error; note that a session is lost."""
        raised = sdk_error(error, self.entity_path)
        if isinstance(raised, SessionLockLostError) and self._session is not None:
            self._session.lose()
            self._inbox.stop()
        return raised

    def _place_of(
        self, message: ServiceBusReceivedMessage, origin: Origin
    ) -> tuple[ReceivingSide, Delivery | None]:
        """The side of a message, and its delivery there; None: it is settled by lock token."""
        if origin.side in self._inbox.sides:
            return origin.side, origin.delivery
        return self._side(_side_of(message.sequence_number or 0)), None

    def _side(self, wanted: Side) -> ReceivingSide:
        for side in self._inbox.sides:
            if side.side is wanted:
                return side
        raise ValueError(
            f"a message of the {wanted}, but this receiver reads only the"
            f" {self._inbox.sides[0].side}; use a receiver of an entity with a twin"
        )

    def _held(self, side: ReceivingSide) -> ReceivingLink | None:
        """The link that holds the session on a side."""
        return side.link if self._session is not None and side.state == "open" else None

    def _held_session(self) -> tuple[ReceivingSide, ReceivingLink]:
        """The first side that holds the session; its state is kept on each side by itself."""
        for side in self._inbox.sides:
            if (link := self._held(side)) is not None:
                return side, link
        raise SessionLockLostError(message=f"{self.entity_path}: no side holds the session now")


def _token_of(message: ServiceBusReceivedMessage) -> UUID:
    token = lock_token_of(message)
    if token is None:
        raise ValueError("Unable to settle or renew: the message has no lock token.")
    return token


def _names_of(message: ServiceBusReceivedMessage) -> MessageNames:
    """What the ledger names a message by that has no delivery."""
    message_id = message.message_id
    number = own_number(message.sequence_number or 0)
    return None if message_id is None else str(message_id), number or None


def _side_of(number: int) -> Side:
    """The side that a sequence number names."""
    return Side.SECONDARY if is_of_secondary(number) else Side.PRIMARY
