"""A transaction on one connection: sends and settlements that happen together or not at all.

    work = NamespaceTransaction(connection, on_end)     # UpstreamConnection(..., transacts=True)
    await work.send("orders", (data, 0), count=1)
    await work.settle(delivery, COMPLETE)               # delivered by a link of this connection
    await work.commit()                                 # or roll_back()

    open --discharge, accepted---------------------------> COMMITTED
      |----discharge, no answer---------------------------> UNKNOWN
      '----an operation failed, too old, too many, lost---> ROLLED_BACK

It is declared with its first operation. An operation that fails, or that its caller stops waiting
for, lets the commit roll back: a caller who overlooks the error must not commit the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final

from twinbus.amqp.performatives import (
    Declare,
    Declared,
    Discharge,
    TransactionalState,
)
from twinbus.client.coordinator import DischargeLink
from twinbus.client.in_flight import Wire
from twinbus.client.links import LinkPool, UpstreamConnection
from twinbus.client.outcomes import SettlingOutcome
from twinbus.client.receiving import Delivery
from twinbus.client.request_node import LinkEnded, SettlementRefused
from twinbus.errors import (
    TransactionError,
    TransactionRolledBackError,
    TransactionUnknownError,
    error_text,
)
from twinbus.servicebus import conditions
from twinbus.servicebus.failures import NamespaceFailure

OPERATIONS_MAX: Final = 100
LIFETIME_S: Final = 120.0
"""Limits of Service Bus: messages sent and settled in one transaction, and how long it is open."""

ROLL_BACK_S: Final = 2.0
"""How long a rollback waits for its answer: after it, what was settled can be settled again."""


class Ending(Enum):
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"
    """The answer to the discharge is lost."""


OnEnd = Callable[[Ending, str], None]
"""Called once with the end of a transaction, and why it is not committed."""


class NamespaceTransaction:
    def __init__(self, connection: UpstreamConnection, on_end: OnEnd) -> None:
        self.ending: Ending | None = None
        """None: it is open, or its discharge has no answer yet."""
        self.operation_count = 0
        self._connection = connection
        self._loop = connection.loop
        self._on_end = on_end
        self._declaring = asyncio.Lock()
        self._coordinator: DischargeLink | None = None
        self._txn_id = b""
        self._declared_at = 0.0
        self._discharged = False
        self._running = 0
        self._failure: BaseException | None = None
        """Why it cannot be committed."""
        self._enlisted: list[Delivery] = []
        self._pools: set[LinkPool] = set()

    def __repr__(self) -> str:
        state = "open" if self.ending is None else self.ending.value
        return f"<{state} transaction of {self.operation_count} operations>"

    # Its work

    async def send(self, path: str, delivery: tuple[bytes, int], count: int) -> None:
        """Send `count` messages at the commit; returns when the entity has them.

        `delivery` is their bytes and message format.

        Raises NamespaceFailure, TimeoutError or TransactionError.
        """
        with self._operation(count):
            pool = self._connection.pool(path, splits=True)
            if pool not in self._pools:
                self._pools.add(pool)
                pool.users += 1
            await pool.open()
            txn_id = await self._declared()
            await pool.send_messages(Wire(*delivery, TransactionalState(txn_id)))

    async def settle(self, delivery: Delivery, outcome: SettlingOutcome) -> None:
        """Settle at the commit; returns when the entity has noted it, and raises as `send`."""
        with self._operation(1):
            if not delivery.link.is_open:
                raise LinkEnded(
                    f"{delivery.link.path}: the link that brought the message has ended, so its"
                    " settlement cannot be part of a transaction; receive it again",
                    conditions.MESSAGE_LOCK_LOST,
                )
            txn_id = await self._declared()
            answer: asyncio.Future[None] = self._loop.create_future()

            def done(error: Exception | None) -> None:
                if answer.done():
                    return
                if error is None:
                    answer.set_result(None)
                else:
                    answer.set_exception(error)

            self._enlisted.append(delivery)
            delivery.link.settle_within(txn_id, delivery, outcome, done)
            await answer

    def refuse(self, error: Exception) -> None:
        """Let the commit roll back: the owner has refused an operation."""
        self._failure = self._failure or error

    @contextlib.contextmanager
    def _operation(self, count: int) -> Iterator[None]:
        """Count an operation while it runs; one that fails lets the commit fail."""
        self._require_open()
        self._running += 1
        try:
            if self.operation_count + count > OPERATIONS_MAX:
                raise TransactionError(
                    f"a transaction sends and settles at most {OPERATIONS_MAX} messages; it has"
                    f" {self.operation_count}, and {count} would be added. Use several transactions"
                )
            if (text := self._too_old()) is not None:
                raise TransactionError(text)
            self.operation_count += count
            yield
        except BaseException as error:
            self._failure = self._failure or error
            raise
        finally:
            self._running -= 1

    def _require_open(self) -> None:
        if self.ending is not None or self._discharged:
            state = "being committed" if self.ending is None else self.ending.value
            raise TransactionError(
                f"the transaction is {state} and takes no more operations; begin another one"
            )
        if self._failure is not None:
            raise TransactionError(
                f"an operation of the transaction failed ({error_text(self._failure)}), so it is"
                " rolled back; begin another one"
            ) from self._failure

    def _too_old(self) -> str | None:
        age_s = self._loop.time() - self._declared_at
        if not self._txn_id or age_s < LIFETIME_S:
            return None
        return (
            f"the transaction is open for {age_s:.0f} s; after {LIFETIME_S:.0f} s a namespace rolls"
            " it back. Begin another one, and do the slow work outside of it"
        )

    async def _declared(self) -> bytes:
        """Return the id; declare with the first operation."""
        async with self._declaring:
            if not self._txn_id:
                self._coordinator = coordinator = await self._connection.coordinator()
                began = self._loop.time()
                answer = await self._answer(coordinator.ask(Declare()))
                assert isinstance(answer, Declared), answer
                self._declared_at, self._txn_id = began, answer.txn_id
            elif self._coordinator is None or not self._coordinator.is_open:
                raise LinkEnded("the connection of the transaction was lost")
            return self._txn_id

    async def _answer(self, answer: asyncio.Future[object]) -> object:
        async with asyncio.timeout(self._connection.answer_s):
            return await asyncio.shield(answer)

    # Its end

    async def commit(self) -> None:
        """Discharge; raises TransactionRolledBackError or TransactionUnknownError if that failed.

        Cancelled meanwhile, the discharge goes on, and `on_end` gets what comes of it.
        """
        if self._running:
            self.refuse(
                TransactionError(
                    f"{self._running} operations of the transaction are still running at its end;"
                    " await them inside the block"
                )
            )
        if (text := self._too_old()) is not None:
            self.refuse(TransactionError(text))
        if self._failure is not None:
            failure = self._failure
            await self.roll_back(error_text(failure))
            raise _rolled_back(failure) from failure
        if not self._txn_id:
            self._end(Ending.COMMITTED)
            return
        await self._discharge()

    async def _discharge(self) -> None:
        assert self._coordinator is not None
        self._discharged = True
        answer = self._coordinator.ask(Discharge(self._txn_id, False))
        # Also if the caller waits for it no more.
        answer.add_done_callback(self._take_answer)
        error: Exception | None = None
        try:
            await self._answer(answer)
        except TimeoutError:
            error = TimeoutError(f"no answer for {self._connection.answer_s:g} s")
            self._end(Ending.UNKNOWN, str(error))
        except NamespaceFailure as failure:
            error = failure
        if self.ending is None:
            self._take_answer(answer)
        if error is not None:
            is_back = self.ending is Ending.ROLLED_BACK
            raise (_rolled_back if is_back else _unknown)(error) from error

    def _take_answer(self, answer: asyncio.Future[object]) -> None:
        error = answer.exception()
        if error is None:
            self._end(Ending.COMMITTED)
        elif isinstance(error, NamespaceFailure) and not error.may_be_stored:
            self._end(Ending.ROLLED_BACK, str(error))
        else:
            self._end(Ending.UNKNOWN, str(error))

    async def roll_back(self, why: str = "it was rolled back", *, waits: bool = True) -> None:
        """Undo everything; `waits` a moment until the namespace has heard it. Raises nothing."""
        if self.ending is not None or self._discharged:
            return
        answer = None
        if self._coordinator is not None and self._txn_id:
            # Without its answer the namespace rolls back when the link ends, or by the time limit.
            answer = self._coordinator.ask(Discharge(self._txn_id, True))
        self._end(Ending.ROLLED_BACK, why)
        if answer is not None and waits:
            with contextlib.suppress(TimeoutError, NamespaceFailure):
                async with asyncio.timeout(ROLL_BACK_S):
                    await asyncio.shield(answer)

    def _end(self, ending: Ending, why: str = "") -> None:
        if self.ending is not None:
            return  # The answer came after its time limit.
        self.ending = ending
        error: Exception | None = None
        if ending is Ending.ROLLED_BACK:
            error = SettlementRefused(why, conditions.TRANSACTION_ROLLBACK)
        elif ending is Ending.UNKNOWN:
            error = TimeoutError(why)
        for delivery in self._enlisted:
            is_back = ending is Ending.ROLLED_BACK
            delivery.link.discharged(delivery, error, can_be_settled=is_back)
        for pool in self._pools:
            pool.release()
        self._on_end(ending, why)


def _rolled_back(why: BaseException) -> TransactionRolledBackError:
    text = str(why) if isinstance(why, NamespaceFailure) else error_text(why)
    text = text.removeprefix("The transaction was rolled back: ")
    return TransactionRolledBackError(f"the transaction was rolled back: {text}")


def _unknown(why: Exception) -> TransactionUnknownError:
    return TransactionUnknownError(
        f"the answer to the discharge is lost ({why}), so it is unknown whether the transaction was"
        " committed; receive to find out, or send again with the same ids"
    )
