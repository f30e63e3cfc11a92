"""One transaction, with the SDK's messages: leaving its block commits it, an exception undoes it.

async with transactions.transaction() as t:
    await t.send_messages("invoices", ServiceBusMessage("1"))
    await t.complete_message(order)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from azure.servicebus import (
    ServiceBusMessageBatch,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
)
from azure.servicebus.exceptions import ServiceBusError

from twinbus.client.outcomes import COMPLETE, SettlingOutcome, abandon, dead_letter, defer
from twinbus.client.receiving import Delivery
from twinbus.client.transactions import Ending, NamespaceTransaction
from twinbus.errors import TransactionError, TransactionRolledBackError, TransactionUnknownError
from twinbus.pairing.lifecycle.closing import AsyncOnly
from twinbus.pairing.receiving.side import ReceivingSide
from twinbus.pairing.sdk.encoding import encoded, too_large
from twinbus.pairing.sdk.failures import sdk_error
from twinbus.pairing.sdk.outgoing import Outgoing
from twinbus.pairing.sdk.received import (
    mark_settled,
    origin_of,
    require_settleable,
    require_unexpired,
)
from twinbus.pairing.sending.sender import Messages
from twinbus.servicebus.failures import NamespaceFailure

if TYPE_CHECKING:
    from types import TracebackType

    from twinbus.client.links import UpstreamConnection
    from twinbus.pairing.sdk.outgoing import MessageIds

SPANS: Final = "Local transactions cannot span"
SETTLE_FIRST: Final = (
    "Settle before you send: then the entity of the message is that of the transaction, which can"
    " send to any entity."
)


class TransactedSend(NamedTuple):
    """One send of a transaction, for the ledger."""

    path: str
    measured: tuple[tuple[str | None, int | None], ...]
    """Id and size of each message."""
    began: float
    ended: float


class _Settled(NamedTuple):
    side: ReceivingSide
    delivery: Delivery
    message: ServiceBusReceivedMessage


class TransactionOwner(Protocol):
    """The connection that a transaction is on (transactions.py)."""

    message_ids: MessageIds

    @property
    def connection(self) -> UpstreamConnection: ...

    @property
    def now(self) -> float: ...

    def require_open(self) -> None: ...

    def require_served(self, path: str) -> None: ...

    def entity_path(self, name: Any) -> str: ...

    def send_failed(self, path: str, error: Exception) -> None: ...

    def ended(self, sent: Sequence[TransactedSend], error: TransactionError | None) -> None: ...

    async def close(self) -> None: ...


class Transaction(AsyncOnly):
    """Sends and settlements that happen together, at the end of its block, or not at all.

    `Transactions.transaction` and `pair.primary.transaction` make one, for one `async with` block.
    It is rolled back by an exception in the block, and by an operation that fails.
    """

    def __init__(self, owner: TransactionOwner, *, closes_owner: bool = False) -> None:
        self._owner = owner
        self._closes_owner = closes_owner
        self._work: NamespaceTransaction | None = None
        self._sent: list[TransactedSend] = []
        self._settled: list[_Settled] = []
        self._ids: list[str] = []

    def __repr__(self) -> str:
        return f"Transaction({self._work!r})"

    async def __aenter__(self) -> Self:
        if self._work is not None:
            raise TransactionError("a transaction is for one block; begin another one")
        self._owner.require_open()
        self._work = NamespaceTransaction(self._owner.connection, self._ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        work = self._begun()
        try:
            if error is None:
                await self._commit(work)
            else:
                # One who cancels does not wait.
                await work.roll_back(waits=not isinstance(error, asyncio.CancelledError))
        finally:
            if self._closes_owner:
                await self._owner.close()

    async def _commit(self, work: NamespaceTransaction) -> None:
        try:
            self._owner.require_open()
        except Exception as error:  # noqa: BLE001  # the commit raises it
            work.refuse(error)
        try:
            await work.commit()
        except TransactionError as error:
            error.message_ids = tuple(self._ids)
            raise

    # Its work

    async def send_messages(
        self, entity_name: str, message: Messages | ServiceBusMessageBatch
    ) -> None:
        """Send a message, a list or a batch to a queue or topic when the block ends.

        It returns when the entity has taken them into the transaction: nobody can receive them yet.
        Raises what the SDK's sender raises, and TransactionError.
        """
        work, owner = self._begun(), self._owner
        path = owner.entity_path(entity_name)
        outgoing = Outgoing.of(message, path, owner.message_ids)
        if not outgoing.messages:
            return
        began = owner.now
        try:
            owner.require_served(path)
            data, message_format = encoded(outgoing.payload)
        except Exception as error:
            work.refuse(error)
            raise
        self._ids += outgoing.ids
        try:
            await work.send(path, (data, message_format), len(outgoing))
        except (NamespaceFailure, TimeoutError) as error:
            raised = sdk_error(error, path)
            limit_bytes = owner.connection.pool(path, splits=True).limit_bytes
            if limit_bytes is not None and len(data) > limit_bytes:
                raised = too_large(path, len(data), limit_bytes)
            owner.send_failed(path, raised)
            raise raised from error
        finally:
            measured = tuple(outgoing.measured())
            self._sent.append(TransactedSend(path, measured, began, owner.now))
        owner.message_ids.forget(outgoing.mappings)

    async def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Remove a message from its entity when the block ends.

        A receiver of the same `Transactions` received it. It stays locked until then, and also
        after a rollback, so that it can be settled again.
        """
        await self._settle(message, "complete", COMPLETE)

    async def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Let a message be delivered again, when the block ends."""
        await self._settle(message, "abandon", abandon())

    async def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """Put a message aside when the block ends; it is received only by its sequence number."""
        await self._settle(message, "defer", defer())

    async def dead_letter_message(
        self,
        message: ServiceBusReceivedMessage,
        reason: str | None = None,
        error_description: str | None = None,
    ) -> None:
        """Move a message to the dead-letter queue of its entity when the block ends."""
        await self._settle(message, "dead-letter", dead_letter(reason, error_description))

    async def _settle(
        self, message: ServiceBusReceivedMessage, action: str, outcome: SettlingOutcome
    ) -> None:
        work, owner = self._begun(), self._owner
        try:
            side, delivery = self._place_of(message, action)
            path = side.settings.path
            owner.require_served(path)
        except Exception as error:
            work.refuse(error)
            raise
        try:
            await work.settle(delivery, outcome)
        except (NamespaceFailure, TimeoutError) as error:
            raised = sdk_error(error, path)
            if str(error).startswith(SPANS):
                raised = ServiceBusError(f"{error} {SETTLE_FIRST}")
            raise raised from error
        self._settled.append(_Settled(side, delivery, message))

    def _place_of(
        self, message: ServiceBusReceivedMessage, action: str
    ) -> tuple[ReceivingSide, Delivery]:
        # The message itself knows whether it was received and deleted.
        require_settleable(message, action, ServiceBusReceiveMode.PEEK_LOCK)
        origin = origin_of(message)
        side, delivery = origin.side, origin.delivery
        if side is None or side.connection is not self._owner.connection:
            raise TransactionError(
                "the message was received on another connection, and a transaction has one:"
                " receive it with get_queue_receiver or get_subscription_receiver of these"
                " transactions"
            )
        if delivery is None:
            raise TransactionError(
                "the message was received by its sequence number, and is settled by a request,"
                " which is part of no transaction; settle it with its receiver"
            )
        if any(one.delivery is delivery for one in self._settled):
            raise TransactionError("the transaction settles this message already")
        if not side.is_session:
            require_unexpired(message)
        return side, delivery

    def _begun(self) -> NamespaceTransaction:
        if self._work is None:
            raise TransactionError("a transaction begins with its block: write `async with`")
        return self._work

    # Its end

    def _ended(self, ending: Ending, why: str) -> None:
        error: TransactionError | None = None
        if ending is Ending.ROLLED_BACK:
            error = TransactionRolledBackError(why)
        elif ending is Ending.UNKNOWN:
            error = TransactionUnknownError(why)
        else:
            for side, delivery, message in self._settled:
                side.was_settled(delivery)
                mark_settled(message)
        self._owner.ended(self._sent, error)
