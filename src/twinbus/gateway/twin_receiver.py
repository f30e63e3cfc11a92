"""A client's receiver link with two sides behind it: an entity of the primary, and its twin.

    client  --attach-->  gateway  --its own link-->  primary
                                  --its own link-->  the twin in the secondary, if it has the mark
    client  <--deliveries of both--  gateway: one credit for both (credit_turns.py)
    client  --settlements-->  gateway  -->  the side that delivered

The client's link is open as long as one side is. A side that is lost is opened again for as long as
the client stays; while neither can be reached the link is detached, as one of an entity without a
twin is. The links are the gateway's own (pairing/receiving/side.py), on one connection to each
namespace for all clients: a lock without a session belongs to its token, not to a connection.

A delivery goes on to the client at once. One that the client cannot take, because it took credit
back meanwhile, is given back, or waits for its next credit if its side has deleted it. A second
copy (pairing/receiving/copies.py) is completed and not handed out; what was completed is known to
all links of the client (client_copies.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.amqp.link import SETTLED, LinkState, SenderLink
from twinbus.amqp.performatives import ACCEPTED_BYTES, Rejected, encode_state
from twinbus.broker.links.context import LinkOwner, rejected_with
from twinbus.broker.refusals import QuotaExceeded, Refusal, ServerBusy
from twinbus.broker.sas import LISTEN
from twinbus.client.outcomes import COMPLETE, SettlingOutcome, outcome_of
from twinbus.client.receiving import RECEIVER_NAME, Delivery, ReceivingLink
from twinbus.client.request_node import LinkEnded
from twinbus.errors import error_text
from twinbus.gateway.client_copies import ClientCopies, note_settled
from twinbus.gateway.credit_turns import (
    AnswerDrain,
    ClientCredit,
    CreditTurns,
    DrainSide,
    GrantSide,
    Wait,
)
from twinbus.gateway.node_requests import Holding
from twinbus.gateway.relay import UpstreamRefusal, encoded_state, refusal_of
from twinbus.gateway.relayed_links import ReceivingWindow
from twinbus.gateway.twin_requests import SETTLE_S
from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.copies import Copy, read_copy
from twinbus.pairing.receiving.mark_watch import NotReadable
from twinbus.pairing.receiving.side import (
    LinkSettings,
    ReceivingSide,
    SideOwner,
    is_refusal,
)
from twinbus.servicebus import conditions
from twinbus.servicebus.failures import NamespaceFailure
from twinbus.status.receiving import CLOSED, NOT_READ, OPEN, RECONNECTING, ReceiverStatus
from twinbus.transfer.twin_numbers import with_secondary_number

if TYPE_CHECKING:
    from twinbus.amqp.events import Disposed
    from twinbus.broker.links.context import LinkClient
    from twinbus.gateway.twin_requests import SecondaryLocks

log = logging.getLogger("twinbus.gateway")

LATE_S: Final = 1.0
"""How long a drain of one side holds up the other one. After that both may have the credit: what
comes beyond it is given back. Not with receive-and-delete, where it would be lost."""

REOPEN_S: Final = 1.0
"""How long neither side may be open before the client's link is detached."""

PRIMARY_FIRST_S: Final = 0.5
"""How long a client's attach waits for the primary alone: a refusal of the entity comes first."""

BEYOND_BYTES: Final = 500
"""What a delivery that waits for credit takes besides its message."""

GONE: Final = frozenset({RECONNECTING, NOT_READ, CLOSED})
"""States of a side that cannot be received from."""

MakeSides = Callable[[LinkSettings, SideOwner], list[ReceivingSide]]
"""Makes the two sides of an entity, the primary first."""


class HeldMessage(NamedTuple):
    """A message that the client has and has not settled."""

    side: ReceivingSide
    delivery: Delivery
    copy: Copy | None
    """None: it cannot have a second copy."""


class TwinReceiver(LinkOwner):
    """One receiver of one client, from both sides."""

    is_on_entity = True

    def __init__(
        self,
        client: LinkClient,
        link: SenderLink,
        address: str,
        granted_until_ms: int,
        *,
        name: str | None,
        make_sides: MakeSides,
        label: str,
        locks: SecondaryLocks,
        copies: ClientCopies,
        spawn: Callable[[Coroutine[None, None, None]], None],
        on_close: Callable[[TwinReceiver], None],
    ) -> None:
        """`name` is what the ledger calls the client, `label` that of the primary.

        `copies` are those of the client; `spawn` runs work that outlives the link.
        """
        self.address = address
        self.link = link
        self.second_copies = 0
        """Messages that were completed without being handed out."""
        self._given = 0
        """Messages that the client got."""
        self.client = client
        self._granted_until_ms = granted_until_ms
        self._label = label
        self._locks = locks
        self._spawn = spawn
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._deletes = link.snd_settle_mode == SETTLED
        given = link.properties.get(RECEIVER_NAME)
        settings = LinkSettings(
            path=address,
            receive_and_delete=self._deletes,
            client_id=str(given) if isinstance(given, str) else None,
            gateway_client=name,
        )
        self._sides = make_sides(settings, self)
        self._client_copies = copies
        self._copies = copies.opened(address)
        self._held: dict[int, HeldMessage] = {}
        """By our delivery id."""
        self._beyond: deque[tuple[ReceivingSide, Delivery, Copy | None]] = deque()
        """Received and deleted when the client had no credit; it gets them with the next."""
        self._beyond_bytes = Holding(client.budgets.held_bytes)
        self._turns = CreditTurns()
        self._window = ReceivingWindow()
        self._late: dict[Side, asyncio.Task[bool]] = {}
        """Drains that are not answered yet and no longer waited for."""
        self._down_since: dict[Side, float] = {}
        """Sides whose link ended, or that did not answer a settlement in time."""
        self._losing: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def status(self) -> ReceiverStatus:
        """What this receiver does now, and has done so far. From any thread."""
        return ReceiverStatus(
            path=self.address,
            sides={one.side.value: one.status() for one in self._sides},
            buffered=len(self._beyond),
            handed_out=self._given,
            second_copies=self.second_copies,
        )

    def begin(self) -> None:
        """Open the sides, and answer the client's attach when one of them is open."""
        for side in self._sides:
            side.start()
        self._task = self._loop.create_task(self._run(), name=f"relay both sides {self.address}")

    async def _run(self) -> None:
        try:
            if await self._open():
                await self._attend()
        except Exception:
            log.exception("%s: a receiver of both sides failed in the gateway", self.address)
            self._lose(ServerBusy("The gateway failed; attach again."))

    async def _open(self) -> bool:
        primary, secondary = self._sides
        error: Exception | None = None
        try:
            async with asyncio.timeout(PRIMARY_FIRST_S):
                error = await primary.first_result()
        except TimeoutError:
            # It hangs. If it refuses later, the link is detached then.
            if await secondary.first_result() is not None:
                error = await primary.first_result()
        if error is not None and is_refusal(error):
            self._lose(refusal_of(error))
            return False
        if error is not None:
            await secondary.first_result()
        if self._is_down:
            self._lose(ServerBusy(str(error)))
            return False
        if self.link.state is LinkState.OFFERED:
            self.link.accept()
            self.client.touch()
        return True

    @property
    def _is_down(self) -> bool:
        return all(side.state in GONE for side in self._sides)

    def _lose(self, refusal: Refusal) -> None:
        """Detach the client's link, or refuse it if it is not open yet."""
        if self.link.state is not LinkState.CLOSED:
            self.client.detach(self.link, refusal)

    # For the client's connection

    def granted_until_ms(self, now_ms: int) -> int:
        """When the right to receive ends; raises `Unauthorized` if it has ended."""
        if now_ms >= self._granted_until_ms:
            self._granted_until_ms = self.client.grants.require(self.address, LISTEN, now_ms)
        return self._granted_until_ms

    def credit_changed(self) -> None:
        self._changed.set()

    def may_write_again(self) -> None:
        self._changed.set()

    def close(self, now_ms: int) -> None:
        """The client's link is closed: take back all credit, release what is on its way."""
        self.closing()

    def closing(self) -> asyncio.Task[None]:
        """Close the sides, once; the task ends when they are closed."""
        if self._closing is None:
            if self._task is not None:
                self._task.cancel()
            if self._losing is not None:
                self._losing.cancel()
            if self._beyond:
                self._log_lost(len(self._beyond))
            self._beyond.clear()
            self._beyond_bytes.close()
            for held in self._held.values():
                held.delivery.link.left(held.delivery)
                if held.copy is not None:
                    self._client_copies.left(held.delivery.tag, self._copies, held.copy)
            self._closing = self._loop.create_task(self._close_sides())
        return self._closing

    def _log_lost(self, count: int) -> None:
        log.error(
            "%s: %d messages that were received and deleted are lost: the client took its credit"
            " back and left",
            self.address, count,
        )  # fmt: skip

    async def _close_sides(self) -> None:
        await asyncio.gather(*(side.close([]) for side in self._sides))
        self._client_copies.closed(self.address)
        self._on_close(self)

    # Credit

    async def _attend(self) -> None:
        """Give the client's credit to the sides by turns, while the link is open."""
        while self.link.state is LinkState.OPEN:
            self._changed.clear()
            while self._beyond and self.link.credit > 0:
                side, delivery, copy = self._beyond.popleft()
                self._beyond_bytes.give_back(len(delivery.data) + BEYOND_BYTES)
                self._hand_out(side, delivery, copy)
            match step := self._turns.next(self._loop.time(), self._credit(), self._out()):
                case GrantSide():
                    self._side(step.side).want(step.credit)
                case DrainSide():
                    await self._drain(step)
                case AnswerDrain():
                    self.link.drained()
                    self.client.touch()
                case Wait():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(step.until):
                            await self._changed.wait()

    def _credit(self) -> ClientCredit:
        link = self.link
        return ClientCredit(
            credit=link.credit,
            window=self._window.size,
            takes_more=self.client.takes_more and not link.session.blocks(link),
            is_draining=link.drain,
        )

    def _out(self) -> dict[Side, int]:
        """The credit of each open side; one whose drain is late has none to give back."""
        return {
            side.side: side.outstanding
            for side in self._sides
            if side.state == OPEN and side.side not in self._late
        }

    def _side(self, wanted: Side) -> ReceivingSide:
        return next(side for side in self._sides if side.side is wanted)

    async def _drain(self, drain: DrainSide) -> None:
        side, began = self._side(drain.side), self._loop.time()
        before = side.delivered
        answer = self._loop.create_task(side.drain(drain.credit))
        await asyncio.wait({answer}, timeout=None if self._deletes else LATE_S)
        now = self._loop.time()
        if not answer.done():
            self._turns.not_answered(drain.side, now)
            self._late[drain.side] = answer
            answer.add_done_callback(partial(self._on_late_answer, drain.side))
        elif answer.result():
            self._turns.drained(drain, side.delivered - before, now)
        elif now - began >= LATE_S:  # Else the link has ended, and another one is opened.
            self._turns.not_answered(drain.side, now)

    def _on_late_answer(self, side: Side, answer: asyncio.Task[bool]) -> None:
        self._late.pop(side, None)
        if not answer.cancelled() and answer.exception() is None and answer.result():
            self._turns.answers_again(side)
        self._changed.set()

    # For the sides

    def on_opened(self, side: ReceivingSide, link: ReceivingLink) -> None:
        self._down_since.pop(side.side, None)
        side.want(0)  # The other side may have the credit by now that the link before had.
        self._changed.set()

    def on_failed(self, side: ReceivingSide) -> None:
        if self.link.state is LinkState.OPEN and side.error is not None:
            if side.side is Side.PRIMARY and is_refusal(side.error):
                self._lose(refusal_of(side.error))
            elif self._is_down and self._losing is None:
                # The other one may be up again, and only its next attempt is not due yet.
                if not isinstance((other := self._side(side.side.other)).error, NotReadable):
                    other.retry()
                self._losing = self._loop.call_later(REOPEN_S, self._lose_if_down)
        self._down_since.setdefault(side.side, self._loop.time())
        self._changed.set()

    def _lose_if_down(self) -> None:
        self._losing = None
        if self._is_down and self._closing is None:
            errors = [error_text(side.error) for side in self._sides if side.error is not None]
            text = f"Neither side can be reached: {'; '.join(errors)}"
            self._lose(UpstreamRefusal(conditions.DETACH_FORCED, text))

    def buffered_of(self, side: ReceivingSide) -> int:
        return 0

    def give_back(self, side: ReceivingSide) -> None:
        """Nothing waits here to be handed out."""

    def on_deliveries(self, side: ReceivingSide, run: list[Delivery]) -> None:
        self._changed.set()
        self._down_since.pop(side.side, None)
        for delivery in run:
            self._take(side, delivery)

    def _take(self, side: ReceivingSide, delivery: Delivery) -> None:
        copy = read_copy(side.side, delivery.data, self._label)
        if self._is_second(side, delivery, copy):
            return
        if self.link.state is LinkState.OPEN and self.link.credit > 0:
            self._hand_out(side, delivery, copy)
        elif delivery.settled:
            self._keep(side, delivery, copy)
        else:
            side.release(delivery)

    def _keep(self, side: ReceivingSide, delivery: Delivery, copy: Copy | None) -> None:
        """Keep a message that no side has any more until the client gives credit for it."""
        if self._closing is not None:
            self._log_lost(1)
            return
        self._beyond.append((side, delivery, copy))
        try:
            self._beyond_bytes.take(len(delivery.data) + BEYOND_BYTES)
        except QuotaExceeded as refusal:
            self._lose(refusal)

    def _is_second(self, side: ReceivingSide, delivery: Delivery, copy: Copy | None) -> bool:
        """Whether a message is a second copy; it is being completed then."""
        if copy is None or not self._copies.expects(side.side) or not self._copies.is_second(copy):
            return False
        self.second_copies += 1
        delivery.mark_second_copy()
        log.info(
            "%s: message %r of the %s is a second copy; it is completed and not handed out",
            self.address, copy.message_id, side.side,
        )  # fmt: skip
        if not delivery.settled:
            self._spawn(self._complete(side, delivery, copy))
        return True

    async def _complete(self, side: ReceivingSide, delivery: Delivery, copy: Copy) -> None:
        token = delivery.lock_token
        if token is None:
            return
        try:
            await side.settle(delivery, token, COMPLETE)
        except (NamespaceFailure, TimeoutError) as error:
            # It is delivered again, and known.
            log.info("%s: a second copy stays: %s", self.address, error_text(error))
        else:
            self._copies.second_completed(copy)

    def _hand_out(self, side: ReceivingSide, delivery: Delivery, copy: Copy | None) -> None:
        data, delivery.data, delivery.head = delivery.data, b"", None  # It may be held for long.
        self._window.came(len(data))
        if side.side is Side.SECONDARY:
            data = with_secondary_number(data)
        number = self.link.send(data, delivery.tag, settled=delivery.settled)
        self._given += 1
        if copy is not None:
            self._copies.handed_out(copy.place)
            if delivery.settled:
                self._copies.completed(copy)
        if not delivery.settled:
            side.handed_out(delivery)
            self._held[number] = HeldMessage(side, delivery, copy)
            if side.side is Side.SECONDARY:
                self._locks.add(delivery.tag)
        self.client.touch()

    # Settlement

    def settle(self, numbers: list[int], event: Disposed) -> None:
        """Settle deliveries with the sides that they came from, as the client settled them."""
        outcome = outcome_of(event.state)
        found = [(number, held) for number in numbers if (held := self._held.pop(number, None))]
        answers = None
        if not event.settled:
            answers = Answers(self.client, self.link, len(found), event.state)
        for number, held in found:
            waits = answers
            if answers is not None and self._is_given_up(held.side.side):
                # It is sent all the same. Each one that waits holds up the client again.
                answers.add(number, TimeoutError(f"the {held.side.side} does not answer"))
                waits = None
            done = partial(self._answered, number, held, outcome, waits)
            held.delivery.link.settle(held.delivery, outcome, done)

    def _is_given_up(self, side: Side) -> bool:
        since = self._down_since.get(side)
        return since is not None and self._loop.time() >= since + SETTLE_S

    def _answered(
        self,
        number: int,
        held: HeldMessage,
        outcome: SettlingOutcome,
        answers: Answers | None,
        error: Exception | None,
    ) -> None:
        side = held.side
        if isinstance(error, TimeoutError):
            began = self._loop.time() - side.connection.answer_s
            self._down_since.setdefault(side.side, began)
        elif side.state == OPEN:
            self._down_since.pop(side.side, None)
        if isinstance(error, LinkEnded | TimeoutError):
            self._spawn(self._settle_by_token(number, held, outcome, answers))
            return
        side.was_settled(held.delivery)
        self._ended(number, held, outcome, answers, error)

    async def _settle_by_token(
        self, number: int, held: HeldMessage, outcome: SettlingOutcome, answers: Answers | None
    ) -> None:
        """The link ended before its answer: ask again by the lock token.

        Not for long: a client that settles one message after another receives nothing meanwhile.
        """
        token, failure = held.delivery.lock_token, None
        now = self._loop.time()
        ends_at = self._down_since.setdefault(held.side.side, now) + SETTLE_S
        try:
            if token is not None:
                async with asyncio.timeout_at(ends_at):
                    await held.side.settle(held.delivery, token, outcome)
        except (NamespaceFailure, TimeoutError) as error:
            failure = error
        self._ended(number, held, outcome, answers, failure)

    def _ended(
        self,
        number: int,
        held: HeldMessage,
        outcome: SettlingOutcome,
        answers: Answers | None,
        error: Exception | None,
    ) -> None:
        if held.side.side is Side.SECONDARY:
            self._locks.discard(held.delivery.tag)
        if error is not None:
            self._locks.given_up.add(held.delivery.tag)
        elif held.copy is not None:
            note_settled(self._copies, held.copy, outcome.status)
        if answers is not None:
            answers.add(number, error)


class Answers:
    """The answers to one disposition of the client: the SDKs wait for a frame for each."""

    def __init__(self, client: LinkClient, link: SenderLink, left: int, state: object) -> None:
        self.client = client
        self._link = link
        self._left = left
        # The SDKs read a rejection that has an error as a failure of the settlement.
        echo = Rejected() if isinstance(state, Rejected) else state
        self._confirmation = encoded_state(echo, ACCEPTED_BYTES)

    def add(self, number: int, error: Exception | None) -> None:
        """One message is settled, or was not."""
        link = self._link
        self._left -= 1
        if link.state is not LinkState.OPEN:
            return  # Its session may be gone, and another may have the channel.
        state = self._confirmation
        if error is not None:
            # Settled or not, the client must expect the message again.
            condition = getattr(error, "condition", "") or conditions.MESSAGE_LOCK_LOST
            state = encode_state(rejected_with(condition, error_text(error)))
        link.session.settle(number, number, state, as_receiver=False)
        if not self._left:
            link.session.flush()
        self.client.touch()
