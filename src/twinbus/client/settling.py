"""The settlements of one receiving link: sent in groups, and ended once each by an answer.

A settlement leaves without being settled here: it counts when the service settles it. It leaves at
once if no other one waits for its answer, as in a loop that awaits each. Otherwise those of one
turn of the event loop leave together, neighbours with the same outcome as one range.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from twinbus.amqp.link import LinkSession
from twinbus.amqp.performatives import Accepted, Error, Rejected, TransactionalState
from twinbus.client.consumer_records import RELEASED, ConsumerRecords, result_of
from twinbus.client.in_flight import Done
from twinbus.client.incoming import IncomingOwner
from twinbus.client.links import UpstreamConnection
from twinbus.client.outcomes import COMPLETE, SettlingOutcome, ranges
from twinbus.client.request_node import LinkEnded, LockLost, SettlementRefused
from twinbus.servicebus import conditions
from twinbus.servicebus.failures import NamespaceFailure
from twinbus.transfer.identity import MessageNames

log = logging.getLogger("twinbus.client")

NOT_SENT: Final = 0.0


class Settleable:
    """A delivery, as far as its settlement goes."""

    __slots__ = (
        "done",
        "ends_at",
        "ledger_state",
        "names",
        "number",
        "operation",
        "outcome",
        "settled",
    )

    number: int
    """The delivery id."""
    settled: bool
    """True in receive-and-delete mode: there is nothing to settle."""
    outcome: SettlingOutcome | None
    """What was asked for; None: nothing yet."""
    done: Done | None
    ends_at: float
    """When the settlement must be confirmed, or `NOT_SENT`."""
    operation: str | None
    """The ledger's operation of the settlement; None: its link does not record it."""
    names: MessageNames
    """What the ledger names it by."""
    ledger_state: str | None
    """What the ledger's line of its settlement says about it."""


class LinkSettlements:
    """What one link settles, until the service has confirmed it."""

    def __init__(
        self,
        connection: UpstreamConnection,
        owner: IncomingOwner,
        session: LinkSession,
        owners: dict[int, IncomingOwner],
        records: ConsumerRecords | None = None,
    ) -> None:
        """`owners` has the owner of each unconfirmed settlement on `session`, for all its links."""
        self._records = records
        self.has_session = False
        """The lock is that of a session of messages."""
        self._connection = connection
        self._loop = connection.loop
        self._owner = owner
        self._dispose = session.dispose
        self._owners = owners
        self._unconfirmed: dict[int, Settleable] = {}
        """By delivery id, in the order of their settlement."""
        self._unwritten: list[Settleable] = []
        self._timer: asyncio.TimerHandle | None = None
        self._all_ended: asyncio.Future[None] | None = None

    def add(self, delivery: Settleable, done: Done) -> None:
        """Settle with the outcome of `delivery`, at the end of this turn at the latest."""
        number, connection = delivery.number, self._connection
        delivery.done = done
        # On a lost connection it is not sent, and its link will say so.
        leaves_now = not self._unconfirmed and not connection.is_lost
        self._unconfirmed[number] = delivery
        self._owners[number] = self._owner
        if leaves_now:
            assert delivery.outcome is not None
            delivery.ends_at = self._loop.time() + connection.answer_s
            if self._timer is None:
                self._timer = self._loop.call_at(delivery.ends_at, self._end_overdue)
            self._dispose(number, number, delivery.outcome.state)
            connection.flush_now()
            return
        self._unwritten.append(delivery)
        if len(self._unwritten) == 1:
            self._connection.flush(self.write)

    def write(self) -> None:
        """Write what was added, as ranges of neighbours with the same outcome."""
        if not self._unwritten:
            return
        unwritten, self._unwritten = self._unwritten, []
        self._sends(unwritten)
        by_state: dict[bytes, list[int]] = {}
        for delivery in unwritten:
            assert delivery.outcome is not None
            state = delivery.outcome.state
            numbers = by_state.get(state)
            if numbers is None:
                by_state[state] = [delivery.number]
            else:
                numbers.append(delivery.number)
        for state, numbers in by_state.items():
            for first, last in ranges(numbers):
                self._dispose(first, last, state)

    def _sends(self, deliveries: Iterable[Settleable]) -> None:
        """From now on an answer is due for each."""
        ends_at = self._loop.time() + self._connection.answer_s
        for delivery in deliveries:
            delivery.ends_at = ends_at
        if self._timer is None:
            self._timer = self._loop.call_at(ends_at, self._end_overdue)

    def confirm(self, numbers: list[int], state: object) -> None:
        """Take the service's answer to settlements."""
        records, unconfirmed = self._records, self._unconfirmed
        # What is part of a transaction is confirmed with the state that was sent.
        is_accepted = type(state) is Accepted or type(state) is TransactionalState
        if records is not None:
            records.gather()
        for number in numbers:
            delivery = unconfirmed.pop(number, None)
            if delivery is not None:
                self._end(delivery, None if is_accepted else self._refusal(delivery, state))
        if self._all_ended is not None and not self._unconfirmed:
            self._wake()
        if records is not None:
            records.write()

    def _end(self, delivery: Settleable, error: Exception | None) -> None:
        """Record and report the result of a settlement, once."""
        done, delivery.done = delivery.done, None
        if done is None:
            return
        try:
            if delivery.operation is not None:
                self.record(delivery, delivery.operation, error)
            done(error)
        except Exception:
            # The others of the same answer must hear theirs, and the connection must go on.
            log.exception("the owner of a settlement failed")

    def record(self, delivery: Settleable, operation: str, error: Exception | None) -> None:
        """Note the result of a settlement that was sent, and of each release."""
        was_sent = delivery.ends_at != NOT_SENT
        if self._records is None or not (was_sent or operation == RELEASED):
            return
        names, state = delivery.names, delivery.ledger_state
        if error is None:
            self._records.settled(operation, names, state=state)
        else:
            text, is_known = result_of(error)
            is_known |= not was_sent
            self._records.settled(operation, names, text, is_known=is_known, state=state)

    async def wait(self) -> None:
        """Wait until each settlement has ended."""
        while self._unconfirmed:
            self._all_ended = self._loop.create_future()
            await self._all_ended

    def end(self, why: NamespaceFailure) -> None:
        """The link is gone: end each settlement with an error of its own."""
        if self._timer is not None:
            self._timer.cancel()
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        self._unwritten = []
        for number in unconfirmed:
            self._owners.pop(number, None)
        self._wake()
        for delivery in unconfirmed.values():
            was_sent = delivery.ends_at != NOT_SENT
            self._end(delivery, LinkEnded(str(why), why.condition, was_sent=was_sent))

    def _refusal(self, delivery: Settleable, state: object) -> Exception | None:
        """Why the service did not settle as asked; None: it did."""
        error = state.error if isinstance(state, Rejected) else None
        if error is not None and error.condition != conditions.DEAD_LETTER:
            return self._refused(error)
        # A rejection without an error, or with our own, confirms a dead letter.
        if delivery.outcome is COMPLETE and state is not None:
            return SettlementRefused(f"answered a completion with {state!r:.60}", "")
        return None

    def _refused(self, error: Error) -> SettlementRefused:
        text = error.description or "the namespace gave no reason"
        condition = str(error.condition)
        if condition == conditions.NOT_FOUND:  # The service no longer knows the lock.
            lost = conditions.SESSION_LOCK_LOST, conditions.MESSAGE_LOCK_LOST
            return LockLost(text, lost[0] if self.has_session else lost[1])
        kind = LockLost if condition in LockLost.CONDITIONS else SettlementRefused
        return kind(text, condition)

    def _end_overdue(self) -> None:
        """End settlements that were not confirmed in time; drop a connection that is silent."""
        self._timer = None
        now, answer_s = self._loop.time(), self._connection.answer_s
        overdue: list[Settleable] = []
        for delivery in self._unconfirmed.values():
            # Each later one ends later, and those that were not sent yet come last.
            if delivery.ends_at == NOT_SENT or delivery.ends_at > now:
                break
            overdue.append(delivery)
        for delivery in overdue:
            del self._unconfirmed[delivery.number]
            self._owners.pop(delivery.number, None)
        first = next(iter(self._unconfirmed.values()), None)
        if first is not None and first.ends_at != NOT_SENT:
            self._timer = self._loop.call_at(first.ends_at, self._end_overdue)
        for delivery in overdue:
            self._end(
                delivery, TimeoutError(f"the settlement was not confirmed for {answer_s:g} s")
            )
        if overdue and self._connection.heard_at <= now - answer_s:
            self._connection.drop(f"it sent nothing for {answer_s:g} s")
        if not self._unconfirmed:
            self._wake()

    def _wake(self) -> None:
        if self._all_ended is not None and not self._all_ended.done():
            self._all_ended.set_result(None)
