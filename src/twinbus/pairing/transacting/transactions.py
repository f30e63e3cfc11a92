"""A connection of its own for transactions: its receivers and its sends take part in them.

    async with twinbus.transactions(namespace) as transactions:
        async with transactions.get_queue_receiver("orders") as receiver:
            async for order in receiver:
                async with transactions.transaction() as t:
                    await t.complete_message(order)
                    await t.send_messages("invoices", invoice_of(order))

Service Bus takes the entity of the first operation for the transaction's own: it settles messages
of no other one, and sends to all. Azure keeps that for the connection, so open one for each queue
or topic that is received from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol, Self

from azure.servicebus.aio import ServiceBusReceiver

from twinbus.client.connection import ANSWER_S, MACHINE, Environment
from twinbus.client.links import UpstreamConnection
from twinbus.errors import TransactionError
from twinbus.ledger.requests import BilledRequests
from twinbus.ledger.writer import NullLedger
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.sides import Side
from twinbus.pairing.lifecycle.closing import AsyncOnly
from twinbus.pairing.receiving.receiver import PairedReceiver
from twinbus.pairing.receiving.settings import receiver_settings
from twinbus.pairing.receiving.side import ReceivingSide
from twinbus.pairing.sdk.outgoing import MessageIds
from twinbus.pairing.transacting.transaction import TransactedSend, Transaction
from twinbus.servicebus.names import is_entity_name, not_an_entity_name, subscription_path

CLOSED: Final = "the transactions were closed; open others"


class PrimaryWatch(Protocol):
    """What a pair knows and writes about the transactions on its primary."""

    def receiver_opened(self, receiver: PairedReceiver) -> None: ...

    def receiver_closed(self, receiver: PairedReceiver) -> None: ...

    def closed(self, one: Transactions) -> None: ...

    def require_open(self) -> None:
        """Raise if the pair was closed or faulted."""

    def require_served(self, path: str) -> None:
        """TransactionUnavailableError if the entity has failed over."""

    def send_failed(self, path: str, error: Exception) -> None: ...

    def ended(self, sent: Sequence[TransactedSend], error: TransactionError | None) -> None: ...


def transactions(namespace: str | Namespace) -> Transactions:
    """Open a connection to one namespace, without a pair, for transactions.

    `namespace` is a connection string, sb://HOST?credential=SOURCE, or a Namespace.
    """
    given = Namespace.of(namespace)
    return Transactions(given, requests=BilledRequests(given.label, ledger=NullLedger()))


class Transactions(AsyncOnly):
    """Transactions on one connection, one after another or many at once.

    `transactions` and `pair.primary.transactions` make one.
    """

    def __init__(
        self,
        namespace: Namespace,
        *,
        answer_s: float = ANSWER_S,
        requests: BilledRequests,
        environment: Environment = MACHINE,
        watch: PrimaryWatch | None = None,
    ) -> None:
        """`watch` has what a pair knows of its primary; None: there is no pair."""
        self._namespace = namespace
        self._answer_s = answer_s
        self._requests = requests
        self._environment = environment
        self._watch = watch
        self.message_ids = MessageIds(new_id=environment.new_id)
        self._connection: UpstreamConnection | None = None
        self._receivers: set[PairedReceiver] = set()
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Transactions({self._namespace.endpoint})"

    async def __aenter__(self) -> Self:
        self.require_open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def get_queue_receiver(self, queue_name: str, **sdk_options: Any) -> ServiceBusReceiver:
        """A guarded receiver from a queue, whose messages a transaction can settle.

        It reads this namespace alone: of a pair the primary, also for an entity with a twin.
        """
        return self._receiver(queue_name, queue_name, sdk_options)  # type: ignore[no-any-return]

    def get_subscription_receiver(
        self, topic_name: str, subscription_name: str, **sdk_options: Any
    ) -> ServiceBusReceiver:
        """A guarded receiver from a subscription, as `get_queue_receiver`."""
        path = subscription_path(topic_name, subscription_name)
        return self._receiver(topic_name, path, sdk_options)  # type: ignore[no-any-return]

    def transaction(self) -> Transaction:
        """A transaction for one `async with` block, which commits at its end."""
        self.require_open()
        return Transaction(self)

    async def close(self) -> None:
        """Roll back what is open, close the receivers and the connection. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"close {self!r:.200}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await asyncio.gather(*(receiver.close() for receiver in tuple(self._receivers)))
        if self._connection is not None:
            await self._connection.close()
        if self._watch is not None:
            self._watch.closed(self)

    def _receiver(self, entity: str, path: str, sdk_options: dict[str, Any]) -> Any:
        self.require_open()
        self.entity_path(entity)
        settings = receiver_settings(path, **sdk_options)
        link = settings.for_link()
        receiver = PairedReceiver(
            settings,
            lambda owner: [
                ReceivingSide(
                    Side.PRIMARY, self.connection, link, owner, environment=self._environment
                )
            ],
            namespace=self._namespace.fully_qualified_namespace,
            label=self._namespace.label,
            has_twin=False,
            on_close=self._receiver_closed,
        )
        self._receivers.add(receiver)
        if self._watch is not None:
            self._watch.receiver_opened(receiver)
        return receiver

    def _receiver_closed(self, receiver: PairedReceiver) -> None:
        if receiver in self._receivers:  # One that could not be opened is closed twice.
            self._receivers.discard(receiver)
            if self._watch is not None:
                self._watch.receiver_closed(receiver)

    # For its transactions

    @property
    def connection(self) -> UpstreamConnection:
        """The connection, which opens with the first link; on the running loop."""
        if self._connection is None:
            self._connection = UpstreamConnection(
                self._namespace,
                self._answer_s,
                self._environment.connect,
                self._requests,
                transacts=True,
            )
        return self._connection

    @property
    def now(self) -> float:
        return self.connection.loop.time()

    def require_open(self) -> None:
        """Raise if these transactions, or their pair, were closed."""
        if self._watch is not None:
            self._watch.require_open()
        if self._closing is not None:
            raise TransactionError(CLOSED)

    def entity_path(self, name: Any) -> str:
        """Return the path of a queue or topic; ValueError for what is none of this namespace."""
        if not isinstance(name, str) or not is_entity_name(name.strip("/")):
            raise ValueError(not_an_entity_name(str(name).strip("/")))
        only = self._namespace.entity_path
        if only is not None and name != only:
            raise ValueError(
                f"the connection string is for {only!r} (EntityPath), so it cannot reach {name!r}"
            )
        return name.strip("/")

    def require_served(self, path: str) -> None:
        """TransactionUnavailableError if an entity of the pair has failed over."""
        if self._watch is not None:
            self._watch.require_served(path)

    def send_failed(self, path: str, error: Exception) -> None:
        if self._watch is not None:
            self._watch.send_failed(path, error)

    def ended(self, sent: Sequence[TransactedSend], error: TransactionError | None) -> None:
        """A transaction has ended; None: it was committed."""
        if self._watch is not None:
            self._watch.ended(sent, error)
