"""A client's receiver link: delivers messages within its credit and settles them.

A link on a session entity must first get its session: the named one at once or a refusal, or the
next free one within the time that the client gave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from twinbus.amqp.events import Disposed
from twinbus.amqp.link import SETTLED, LinkSession, LinkState, SenderLink
from twinbus.amqp.performatives import (
    Accepted,
    DeliveryState,
    Modified,
    Rejected,
    Released,
    Source,
    encode_state,
)
from twinbus.amqp.types import Described, Symbol
from twinbus.broker.engine.limits import CreditAccount
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import (
    ERROR_DESCRIPTION,
    REASON,
    LockedMessage,
    SettlementOutcome,
)
from twinbus.broker.journal import DamagedMessage, Payload
from twinbus.broker.links.context import BrokerContext, EntityLink, LinkClient, rejected
from twinbus.broker.messages.rendering import render, render_run
from twinbus.broker.refusals import (
    ArgumentInvalid,
    LinkExpired,
    NotAllowed,
    NotSupported,
    OperationTimedOut,
    Refusal,
    SessionLockLost,
    Unauthorized,
)
from twinbus.broker.sas import LISTEN
from twinbus.servicebus import names
from twinbus.servicebus.names import (
    EPOCH_TICKS,
    MANAGEMENT_SUFFIX,
    SESSION_LOCKED_UNTIL,
    TICKS_PER_MS,
)

SESSION_FILTER = Symbol(names.SESSION_FILTER)
SESSION_WAIT = Symbol("com.microsoft:timeout")
LOCKED_UNTIL = Symbol(SESSION_LOCKED_UNTIL)
BROWSING = "copy"
"""Distribution mode of a receiver that leaves the messages where they are, such as a JMS
QueueBrowser. To serve it as another receiver would consume them."""

SELECTORS = ("jms-selector", "apache.org:selector-filter:string", 0x0000_468C_0000_0004)
"""How clients name the filter of a selector, or its descriptor."""

SESSION_WAIT_DEFAULT_MS = 60_000
SESSION_WAIT_MAX_MS = 3_600_000


class DeliveringLink(EntityLink[SenderLink]):
    """One receiver of a queue, subscription or dead-letter queue."""

    right = LISTEN

    def __init__(
        self,
        context: BrokerContext,
        client: LinkClient,
        link: SenderLink,
        queue: Queue,
        address: str,
        granted_until_ms: int,
    ) -> None:
        super().__init__(context, client, link, address, granted_until_ms)
        self.queue = queue
        self.session_id: str | None = None
        self.settles = link.snd_settle_mode != SETTLED
        """False for receive-and-delete."""
        self._wait: asyncio.TimerHandle | None = None
        self._settled_there: set[bytes] = set()
        """Lock tokens that the client settled by requests; few, they are dropped together."""
        self._is_throttled = False
        """A timer will continue the deliveries when the namespace has credits again."""

    def attach(self, now_ms: int) -> None:
        """Answer the client's attach, at once or when a session is free; raises a `Refusal`."""
        source = self.link.source or Source()
        if source.distribution_mode == BROWSING:
            raise NotSupported(
                f"Messages of {self.queue.path!r} cannot be browsed on a link (distribution-mode"
                f" {BROWSING}); peek at them with com.microsoft:peek-message on"
                f" {self.address + MANAGEMENT_SUFFIX!r}, or receive them."
            )
        filters = source.filter or {}
        if any(_is_selector(name, value) for name, value in filters.items()):
            # A client that does not check the answer would take what it did not select.
            raise NotSupported(
                f"Messages of {self.queue.path!r} cannot be selected by a receiver (a JMS"
                " selector). Give a subscription a rule with that condition, and receive from it."
            )
        wants_session = SESSION_FILTER in filters
        if wants_session != self.queue.requires_session:
            raise NotAllowed(
                "It is not possible for an entity that requires sessions to create a non-sessionful"
                f" message receiver. Accept a session of {self.queue.path!r}."
                if self.queue.requires_session
                else f"{self.queue.path!r} has no sessions: receive without a session id"
            )
        states = self.queue.states
        # As in Azure. The dead letters of such a queue can be received.
        if states.forwarding is not None and states.dead_letter is not None:
            raise NotAllowed(
                f"Cannot create a message receiver on {self.queue.path!r}, an entity with"
                " auto-forwarding enabled"
            )
        if not wants_session:
            self.link.accept()
            self._start()
            return
        wanted = _plain(filters[SESSION_FILTER])
        granted = self.queue.sessions.accept(wanted, self, now_ms)
        if granted is not None:
            self._open_session(*granted)
        else:
            self._wait_for_session()

    def take_next_session(self, now_ms: int) -> bool:
        try:
            granted = self.queue.sessions.accept(None, self, now_ms)
        except Refusal as refusal:
            self.stop_waiting()
            self._client.refuse(self.link, self.address, refusal)
            return True
        if granted is None:
            return False
        self.stop_waiting()
        self._open_session(*granted)
        return True

    @property
    def can_take(self) -> bool:
        """Whether a message could be sent now; if not, the client's next step asks again."""
        link = self.link
        return link.credit > 0 and self._client.takes_more and not link.session.blocks(link)

    def deliver(self, limit: int, now_ms: int) -> int:
        link = self.link
        if not self._may_receive(now_ms):
            return 0
        takes_more = self._client.takes_more and not link.session.blocks(link)
        limit = min(limit, link.credit) if takes_more else 0
        account = self._context.credits
        if account is not None:
            limit = self._affordable(account, limit, now_ms)
        sent = self._deliver(limit, now_ms) if limit > 0 else 0
        if account is not None:
            account.spend(sent, now_ms)
        if link.drain and (link.credit == 0 or sent < limit or self._is_dry):
            link.drained()
            self._client.touch()
        return sent

    @property
    def _is_dry(self) -> bool:
        """Whether no message is left, so that no other turn follows a full one."""
        return self.session_id is None and not self.queue.concerns_receivers

    def _affordable(self, account: CreditAccount, limit: int, now_ms: int) -> int:
        """How many messages the namespace's credits allow; the rest goes on in the next second."""
        left = int(account.left(now_ms))
        if left >= limit:
            return limit
        if not self._is_throttled:
            self._is_throttled = True
            self._client.later(account.wait_ms(now_ms), self._resume)
        return max(0, left)

    def _resume(self) -> None:
        self._is_throttled = False
        self._context.dispatcher.ask(self)

    def _may_receive(self, now_ms: int) -> bool:
        """Whether the link may be served now; one whose token expired is detached."""
        context = self._context
        try:
            self.granted_until_ms(now_ms)
        except Unauthorized as refusal:
            self._client.detach(self.link, LinkExpired(self.link.name, refusal))
            return False
        faults = context.faults
        fault = faults.decide("receive", self.queue.path, now_ms) if faults else None
        if fault is None:
            return True
        if fault.kind == "delay":
            self._client.later(fault.delay_ms, lambda: context.dispatcher.ask(self))
        return False

    def _deliver(self, limit: int, now_ms: int) -> int:
        try:
            batch = self._acquire(limit, now_ms)
        except Refusal as refusal:
            # A client that drains is about to close the link: it would not read an error.
            if not self.link.drain:
                self._client.detach(self.link, refusal)
            return 0
        numbers = [delivery.message.sequence_number for delivery in batch]
        try:
            payloads = self._context.store.payloads(self.queue.entity_id, numbers)
        except DamagedMessage:
            batch, payloads = self._readable(batch)
        if self.settles:
            self._send_locked(batch, payloads)
        else:
            for (message, token, _, _), payload in zip(batch, payloads, strict=True):
                wire = render(payload, message)
                self.queue.settle(token, SettlementOutcome.COMPLETE, now_ms)
                self.link.send(wire, token, settled=True)
        if batch:
            self._client.touch()
        return len(batch)

    def _send_locked(self, batch: list[LockedMessage], payloads: Sequence[Payload]) -> None:
        tokens = [delivery.lock_token for delivery in batch]
        heads, rests = render_run(payloads, batch)
        # What is larger than a frame, or has to wait for the session, goes one by one.
        sent = self.link.send_run(tokens, heads, rests)
        for token, head, rest in zip(tokens[sent:], heads[sent:], rests[sent:], strict=True):
            self.link.send(b"".join((head, rest)), token)

    def _readable(
        self, batch: list[LockedMessage]
    ) -> tuple[list[LockedMessage], Sequence[Payload]]:
        """The messages that the disk can give, and their payloads; the others are set aside."""
        found, payloads = [], list[Payload]()
        for delivery in batch:
            number = delivery.message.sequence_number
            try:
                payloads.append(self._context.store.payload(self.queue.entity_id, number))
                found.append(delivery)
            except DamagedMessage:
                self.queue.set_aside(delivery.lock_token)
        # There may be more, though this turn sends less than the client has credit for.
        self._context.dispatcher.ask(self)
        return found, payloads

    def _acquire(self, limit: int, now_ms: int) -> list[LockedMessage]:
        try:
            return self.queue.acquire(self, limit, now_ms, session_id=self.session_id)
        except SessionLockLost:
            if self.settles:
                raise
        # In receive-and-delete mode nothing is settled, so an expired lock matters only if another
        # receiver has the session now.
        self.queue.sessions.accept(self.session_id, self, now_ms)
        return self.queue.acquire(self, limit, now_ms, session_id=self.session_id)

    def settle(self, lock_token: bytes, state: object, now_ms: int) -> bytes | None:
        """Settle with a client's outcome; returns the state to answer with if that failed."""
        outcome, given = outcome_of(state)
        try:
            self.queue.settle(lock_token, outcome, now_ms, session_id=self.session_id, **given)
        except Refusal as refusal:
            return encode_state(rejected(refusal))
        return None

    def give_back(self, lock_token: bytes, refusal: Refusal, now_ms: int) -> None:
        """Abandon a message whose settlement is refused as part of a transaction, as Azure does."""
        self._client.log_refusal(f"a settlement in {self.queue.path!r}", refusal)
        with suppress(Refusal):  # The lock was lost: then the message is back already.
            self.queue.settle(
                lock_token, SettlementOutcome.ABANDON, now_ms, session_id=self.session_id
            )

    def settled_by_request(self, lock_tokens: list[bytes]) -> None:
        """Forget these deliveries: no disposition will come for them."""
        self._settled_there.update(lock_tokens)
        if self.link.session.drop_settled(self.link, self._settled_there):
            self._settled_there.clear()

    def complete_all(self, lock_tokens: list[bytes], now_ms: int) -> bool:
        """Complete all of these; false, and nothing done, if they must be settled one by one."""
        return self.session_id is None and self.queue.complete_all(lock_tokens, now_ms)

    def credit_changed(self) -> None:
        self.may_write_again()
        if self.link.drain and self.link.credit == 0:
            self.link.drained()

    def may_write_again(self) -> None:
        if self.link.credit > 0 or self.link.drain:
            self._context.dispatcher.ask(self)

    def session_lost(self) -> None:
        """Detach the client: the lock of its session has expired, and another may have it.

        Without locks nothing is lost: the session is taken again with the next message.
        """
        if self.settles and self.link.state is LinkState.OPEN:
            self._client.detach(
                self.link,
                SessionLockLost(
                    f"The lock of session {self.session_id!r} of {self.queue.path!r} expired;"
                    " accept the session again, and renew its lock if processing takes longer"
                ),
            )

    def abandon(self) -> None:
        self.stop_waiting()

    def stop_waiting(self) -> None:
        if self._wait is not None:
            self._wait.cancel()

    def close(self, now_ms: int) -> None:
        """Release the session, if there is one; message locks stay until they expire."""
        self.stop_waiting()
        self._context.dispatcher.remove(self)
        self.queue.sessions.release_holder(self, now_ms)

    def _open_session(self, session_id: str, locked_until_ms: int) -> None:
        self.session_id = session_id
        source = self.link.source or Source()
        asked = (source.filter or {}).get(SESSION_FILTER)
        # The Go SDK sends a described value, as AMQP prescribes for filters, and reads no other.
        answer: object = session_id
        if isinstance(asked, Described):
            answer = Described(asked.descriptor, session_id)
        granted = Source(address=source.address, filter={SESSION_FILTER: answer})
        ticks = locked_until_ms * TICKS_PER_MS + EPOCH_TICKS
        self.link.accept(source=granted, properties={LOCKED_UNTIL: ticks})
        self._start()

    def _start(self) -> None:
        self._context.dispatcher.add(self)
        self._client.touch()

    def _wait_for_session(self) -> None:
        given = self.link.properties.get(SESSION_WAIT)
        wait_ms = given if isinstance(given, int) else SESSION_WAIT_DEFAULT_MS
        self._wait = self._context.loop.call_later(
            min(wait_ms, SESSION_WAIT_MAX_MS) / 1000, self._give_up
        )
        self._context.dispatcher.wait_for_session(self)

    def _give_up(self) -> None:
        if self.link.state is LinkState.OFFERED:
            self._context.dispatcher.remove(self)
            text = f"no session of {self.queue.path!r} became free in the time given"
            self._client.refuse(self.link, self.address, OperationTimedOut(text))


def settle(event: Disposed, now_ms: int) -> None:
    """Settle the deliveries of a disposition, and answer it."""
    if event.state is None and not event.settled:
        return
    session = event.session
    answer = encode_state(_echo(event.state))
    taken = session.take_unsettled(event.first, event.last)
    if type(event.state) is Accepted and not event.settled:
        taken = _complete_all(session, taken, answer, now_ms)
    for delivery_id, link, lock_token in taken:
        owner = link.owner
        if not isinstance(owner, DeliveringLink):
            continue
        failure = owner.settle(lock_token, event.state, now_ms)
        if not event.settled:
            session.settle(delivery_id, delivery_id, failure or answer, as_receiver=False)
    # One answer for each disposition, as wide as that: the SDK waits for a frame of its own
    # for each of many completes at once, 0.2 s where one frame answers them all.
    session.flush()


def _complete_all(
    session: LinkSession,
    taken: list[tuple[int, SenderLink, bytes]],
    answer: bytes,
    now_ms: int,
) -> list[tuple[int, SenderLink, bytes]]:
    """Complete the deliveries of one link at once; return those to be settled one by one.

    That is all of them if they came by several links or one of them cannot be completed.
    """
    if len(taken) < 2 or len({link for _, link, _ in taken}) > 1:
        return taken
    first, last = taken[0][0], taken[-1][0]
    owner = taken[0][1].owner
    if not isinstance(owner, DeliveringLink) or last - first != len(taken) - 1:
        return taken
    if not owner.complete_all([token for _, _, token in taken], now_ms):
        return taken
    session.settle(first, last, answer, as_receiver=False)
    return []


_COMPLETE: tuple[SettlementOutcome, dict[str, Any]] = (SettlementOutcome.COMPLETE, {})


def outcome_of(state: object) -> tuple[SettlementOutcome, dict[str, Any]]:
    """What a client's state asks for, and what it gives to the message."""
    match state:
        case Released() | None:
            return SettlementOutcome.RELEASE, {}
        case Modified():
            given: dict[str, Any] = {"overrides": _named(state.message_annotations)}
            is_deferred = state.undeliverable_here
            return SettlementOutcome.DEFER if is_deferred else SettlementOutcome.ABANDON, given
        case Rejected():
            info = _named(state.error.info if state.error else None) or {}
            # Values that are no text stay properties of their own type.
            reason, text = (_popped_text(info, name) for name in (REASON, ERROR_DESCRIPTION))
            given = {"overrides": info or None, "reason": reason, "description": text}
            return SettlementOutcome.DEAD_LETTER, given
    return _COMPLETE


def _echo(state: object) -> DeliveryState:
    """The state that confirms a client's own: a rejection is echoed without its error.

    The SDKs read a rejection that carries an error as a failure of the settlement.
    """
    if isinstance(state, Rejected):
        return Rejected()
    return state if isinstance(state, DeliveryState) else Accepted()


def _is_selector(name: object, value: object) -> bool:
    return name in SELECTORS or (isinstance(value, Described) and value.descriptor in SELECTORS)


def _plain(value: object) -> str | None:
    inner = value.value if isinstance(value, Described) else value
    if inner is not None and not isinstance(inner, str):
        raise ArgumentInvalid(f"a session id is a string; this one is {inner!r}")
    return inner


def _popped_text(info: dict[str, object], name: str) -> str | None:
    if not isinstance(info.get(name), str | None):
        return None
    text = info.pop(name, None)
    return None if text is None else str(text)


def _named(values: dict[object, object] | None) -> dict[str, object] | None:
    return {str(key): value for key, value in values.items()} if values else None
