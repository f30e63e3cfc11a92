"""Transactions for code without asyncio: the core's, on the thread of the pair or one of its own.

with transactions(namespace) as connection:
    with connection.transaction() as t:
        t.send_messages("orders", ServiceBusMessage("1"))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from azure.servicebus import (
    ServiceBusMessageBatch,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)

from twinbus.blocking.loop_thread import LoopThread
from twinbus.blocking.receiver import PairedReceiver
from twinbus.errors import TransactionError
from twinbus.pairing.lifecycle.closing import BlockingOnly
from twinbus.pairing.receiving.settings import require_locks
from twinbus.pairing.transacting.transactions import transactions as core_transactions

if TYPE_CHECKING:
    from types import TracebackType

    from twinbus.namespace.namespace import Namespace
    from twinbus.pairing.receiving.receiver import PairedReceiver as CoreReceiver
    from twinbus.pairing.sending.sender import Messages
    from twinbus.pairing.transacting.transaction import Transaction as CoreTransaction
    from twinbus.pairing.transacting.transactions import Transactions as CoreTransactions


def transactions(namespace: str | Namespace) -> Transactions:
    """Open a connection to one namespace, without a pair, for transactions.

    `namespace` is a connection string, sb://HOST?credential=SOURCE, or a Namespace.
    """
    return Transactions(
        core_transactions(namespace), LoopThread("twinbus-transactions"), owns_thread=True
    )


class Transaction(BlockingOnly):
    """Sends and settlements that happen together, at the end of its `with` block, or not at all."""

    def __init__(self, begin: Callable[[], CoreTransaction], loop_thread: LoopThread) -> None:
        """`begin` makes the core's transaction, on the thread."""
        self._begin = begin
        self._loop_thread = loop_thread
        self._core: CoreTransaction | None = None

    def __enter__(self) -> Self:
        if self._core is None:
            self._core = self._loop_thread.call(self._begin)
        self._loop_thread.run(self._core.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        core = self._begun()
        self._loop_thread.run(lambda: core.__aexit__(kind, error, traceback))

    def send_messages(self, entity_name: str, message: Messages | ServiceBusMessageBatch) -> None:
        """Send a message, a list or a batch to a queue or topic when the block ends."""
        core = self._begun()
        self._loop_thread.run(lambda: core.send_messages(entity_name, message))

    def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Remove a message from its entity when the block ends."""
        core = self._begun()
        self._loop_thread.run(lambda: core.complete_message(message))

    def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Let a message be delivered again, when the block ends."""
        core = self._begun()
        self._loop_thread.run(lambda: core.abandon_message(message))

    def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """Put a message aside when the block ends; it is received only by its sequence number."""
        core = self._begun()
        self._loop_thread.run(lambda: core.defer_message(message))

    def dead_letter_message(
        self,
        message: ServiceBusReceivedMessage,
        reason: str | None = None,
        error_description: str | None = None,
    ) -> None:
        """Move a message to the dead-letter queue of its entity when the block ends."""
        core = self._begun()
        self._loop_thread.run(lambda: core.dead_letter_message(message, reason, error_description))

    def _begun(self) -> CoreTransaction:
        if self._core is None:
            raise TransactionError("a transaction begins with its block: write `with`")
        return self._core


class Transactions(BlockingOnly):
    """Transactions on one connection, one after another or many at once, from any thread."""

    def __init__(
        self, core: CoreTransactions, loop_thread: LoopThread, *, owns_thread: bool = False
    ) -> None:
        """`owns_thread`: the thread ends with these transactions."""
        self._core = core
        self._loop_thread = loop_thread
        self._owns_thread = owns_thread

    def __repr__(self) -> str:
        return repr(self._core)

    def __enter__(self) -> Self:
        self._loop_thread.run(self._core.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def get_queue_receiver(self, queue_name: str, **sdk_options: Any) -> ServiceBusReceiver:
        """A guarded receiver from a queue, whose messages a transaction can settle."""
        get = self._core.get_queue_receiver
        return self._receiver(lambda options: get(queue_name, **options), sdk_options)  # type: ignore[no-any-return]

    def get_subscription_receiver(
        self, topic_name: str, subscription_name: str, **sdk_options: Any
    ) -> ServiceBusReceiver:
        """A guarded receiver from a subscription, as `get_queue_receiver`."""
        get, names = self._core.get_subscription_receiver, (topic_name, subscription_name)
        return self._receiver(lambda options: get(*names, **options), sdk_options)  # type: ignore[no-any-return]

    def transaction(self) -> Transaction:
        """A transaction for one `with` block, which commits at its end."""
        self._loop_thread.call(self._core.require_open)
        return Transaction(self._core.transaction, self._loop_thread)

    def close(self) -> None:
        """Roll back what is open, close the receivers and the connection. Idempotent."""
        self._loop_thread.finish(self._core.close)
        if self._owns_thread:
            self._loop_thread.stop()

    def _receiver(self, get: Callable[[dict[str, Any]], Any], sdk_options: dict[str, Any]) -> Any:
        options = dict(sdk_options)
        # It renews on threads of its own, through the receiver that the application has.
        renewer = options.pop("auto_lock_renewer", None)
        require_locks(renewer, **options)
        core: CoreReceiver = self._loop_thread.call(lambda: get(options))
        return PairedReceiver(core, self._loop_thread, renewer)
