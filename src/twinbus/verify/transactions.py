"""The check of transactions: what a namespace answers to those of AMQP, which the SDK lacks."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final
from uuid import uuid4

from twinbus.amqp.events import Attached, Closed, CreditChanged, Detached, Disposed, Ended, Event
from twinbus.amqp.link import LinkState, SenderLink
from twinbus.amqp.message import encode_message
from twinbus.amqp.performatives import (
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from twinbus.amqp.transactions import LOCAL_TRANSACTIONS, encode_request
from twinbus.amqp.types import Symbol, Timestamp
from twinbus.servicebus.names import SCHEDULED_TIME
from twinbus.verify.scratch import ANSWER_S, Observed, ScratchNamespace

TOO_LARGE: Final = 300 * 1_024
"""Larger than the 256 KB of the Standard tier."""

LATER_S: Final = 600
"""When the scheduled message is due: long after the check."""


async def transactions(world: ScratchNamespace) -> Observed:
    """Send in transactions to two queues on one session; commit, and end what cannot be.

    One message of a transaction is scheduled: whether it is there after the commit, and as what.
    """
    first, second = await world.queue("first"), await world.queue("second")
    asking = _Asking(world)
    await asking.open(first, second)
    try:
        observed = await _observed(asking, first, second)
    finally:
        await asking.connection.close()
    async with world.link("receiver", first) as receiver:
        found = await receiver.peek_messages(10, sequence_number=1)
    return {**observed, "found": [(str(message), str(message.state)) for message in found]}


async def _observed(asking: _Asking, first: str, second: str) -> dict[str, Any]:
    coordinator = await asking.attach(Coordinator([LOCAL_TRANSACTIONS]))
    if not coordinator.credit:
        return {"coordinator": asking.refusals}
    senders = [await asking.attach(Target(address=path)) for path in (first, second)]
    message, large = encode_message(data=b"x"), encode_message(data=bytes(TOO_LARGE))
    due_ms = int((time.time() + LATER_S) * 1_000)
    annotations = {Symbol(SCHEDULED_TIME): Timestamp(due_ms)}
    scheduled = encode_message(message_annotations=annotations, data=b"later")

    async def ask(request: Declare | Discharge) -> object:
        return await asking.send(coordinator, encode_request(request))

    async def declare() -> bytes:
        declared = await ask(Declare())
        assert isinstance(declared, Declared), declared
        return declared.txn_id

    async def sent(txn_id: bytes, sender: SenderLink, payload: bytes = message) -> Any:
        state = await asking.send(sender, payload, TransactionalState(txn_id))
        return asking.told(state, txn_id)

    async def discharged(txn_id: bytes, *, fail: bool = False) -> Any:
        return asking.told(await ask(Discharge(txn_id, fail)), txn_id)

    whole = await declare()
    observed = {
        "send": await sent(whole, senders[0]),
        "send to another queue": await sent(whole, senders[1]),
        "commit": await discharged(whole),
        "commit again": await discharged(whole),
        "send after the commit": await sent(whole, senders[0]),
    }
    undone = await declare()
    observed["send to be undone"] = await sent(undone, senders[0])
    observed["roll back"] = await discharged(undone, fail=True)
    refused = await declare()
    observed["send too much"] = await sent(refused, senders[0], large)
    observed["commit after a refusal"] = await discharged(refused)
    later = await declare()
    observed["send a scheduled message"] = await sent(later, senders[0], scheduled)
    observed["commit a scheduled message"] = await discharged(later)
    return observed


class _Asking:
    """A connection on which each question waits for its answer."""

    def __init__(self, world: ScratchNamespace) -> None:
        self._world = world
        self.connection = world.connection(self._heard)
        self.refusals: list[Any] = []
        """Why links or the connection were closed."""
        self._seen = asyncio.Event()
        self._answers: dict[int, object] = {}

    async def open(self, *paths: str) -> None:
        await self.connection.open()
        for path in paths:
            await self.connection.authorize(path)

    def _heard(self, event: Event) -> None:
        match event:
            case Disposed() if event.by_receiver:
                for number, _, _ in event.session.take_unsettled(event.first, event.last):
                    self._answers[number] = event.state
            case Detached() | Ended() | Closed() if event.error is not None:
                text = self._world.settled(str(event.error.description))
                self.refusals.append({"condition": str(event.error.condition), "text": text})
            case Attached() | CreditChanged():
                pass
            case _:
                return
        self._seen.set()

    async def attach(self, target: Target | Coordinator) -> SenderLink:
        """A link with credit; it is closed if it was refused."""
        session = self.connection.session
        link = session.attach_sender(uuid4().hex, source=Source(address="me"), target=target)
        self.connection.flush()
        await self._until(lambda: link.credit > 0 or link.state is LinkState.CLOSED)
        return link

    async def send(
        self, link: SenderLink, payload: bytes, state: TransactionalState | None = None
    ) -> object:
        """The answer to a delivery; None if the link was closed instead."""
        if not link.credit:
            return None
        number = link.send(payload, uuid4().bytes, state=state)
        self.connection.flush()
        await self._until(lambda: number in self._answers or link.state is LinkState.CLOSED)
        return self._answers.pop(number, None)

    async def _until(self, is_so: Any) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                while not is_so() and not self.connection.lost.done():
                    self._seen.clear()
                    await self._seen.wait()
        except TimeoutError:
            self.refusals.append("no answer")

    def told(self, state: object, txn_id: bytes) -> Any:
        """An answer in a form that can be compared."""
        if isinstance(state, TransactionalState):
            same = "" if state.txn_id == txn_id else " of another transaction"
            return f"transactional {type(state.outcome).__name__}{same}"
        if isinstance(state, Rejected) and state.error is not None:
            text = str(state.error.description).replace(txn_id.hex(), "ID")
            condition = str(state.error.condition)
            return {"condition": condition, "text": self._world.settled(text)}
        return None if state is None else type(state).__name__
