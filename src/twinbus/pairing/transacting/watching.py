"""The transactions of a pair: refused while an entity is failed over, recorded in its ledger.

A send counts as accepted only when its discharge was answered: its line is written at the end of
the transaction, with the result of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from twinbus.errors import TransactionError, TransactionUnavailableError, TransactionUnknownError
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.failover import Route
from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.receiver import PairedReceiver
from twinbus.pairing.receiving.receivers import ANSWER_LEAST_S, PairedReceivers
from twinbus.pairing.sending.client import PairedClient
from twinbus.pairing.transacting.transaction import TransactedSend
from twinbus.pairing.transacting.transactions import Transactions
from twinbus.servicebus.names import entity_of


class WatchedTransactions:
    """What the transactions of one pair have in common, and all that are open."""

    def __init__(
        self, client: PairedClient, primary: Namespace, receivers: PairedReceivers
    ) -> None:
        self._receivers = receivers
        self._client = client
        self._state = client.state
        self._primary = primary
        self._open: set[Transactions] = set()

    def make(self) -> Transactions:
        """Open a connection to the primary for transactions."""
        self.require_open()
        state = self._state
        made = Transactions(
            self._primary,
            answer_s=max(ANSWER_LEAST_S, state.options.attempt_timeout_s),
            requests=state.recorder.requests(Side.PRIMARY.value),
            environment=state.environment,
            watch=self,
        )
        self._open.add(made)
        return made

    async def close(self) -> None:
        """Roll back what is open, and close the connections."""
        await asyncio.gather(*(one.close() for one in tuple(self._open)))

    # For the transactions

    def receiver_opened(self, receiver: PairedReceiver) -> None:
        self._receivers.opened(receiver)

    def receiver_closed(self, receiver: PairedReceiver) -> None:
        self._receivers.closed(receiver)

    def closed(self, one: Transactions) -> None:
        self._open.discard(one)

    def require_open(self) -> None:
        self._state.require_loop()
        self._state.require_open()

    def require_served(self, path: str) -> None:
        entity = self._state.monitors.find(entity_of(path))
        if entity is None or entity.failover.route is not Route.BACKLOG:
            return
        raise TransactionUnavailableError(
            f"{entity.path} has failed over, and a transaction needs the primary, so it is rolled"
            " back; try it again when the entity is healthy, or send without a transaction"
        )

    def send_failed(self, path: str, error: Exception) -> None:
        entity = self._client.entity(path)
        entity.attempt_failed(error, counts=self._state.counts(error))

    def ended(self, sent: Sequence[TransactedSend], error: TransactionError | None) -> None:
        recorded: Exception | None = error
        if isinstance(error, TransactionUnknownError):
            # The ledger knows an attempt without an answer by its kind of error.
            recorded = TimeoutError(str(error))
        for path, measured, began, ended in sent:
            entity = self._client.entity(path)
            self._state.recorder.attempted(
                entity.path, None, measured, began, ended, error=recorded
            )
            if error is None:
                entity.succeeded(len(measured))
            else:
                entity.call_raised(len(measured), error)
            self._state.monitors.release(entity)
