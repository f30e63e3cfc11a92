"""A queue: checks the requests of clients and carries them out.

    enqueue --> scheduled --time--> ready <--abandon, release, expiry-- locked --complete--> gone
       '------------------------------^ '-------------acquire-------------^ |
                                                                           defer
              locked by number <--receive_by_sequence-- deferred <----------'
                    '------abandon, release, expiry------^

    ready --time to live--> gone or dead letter;  locked --dead-letter, tries used up--> dead letter

Pure: every call has the time. A call first runs the timers that are due, so no caller meets a lock,
a session or a message that should have expired.
"""

from __future__ import annotations

from twinbus.amqp.budgets import value_bytes
from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription
from twinbus.broker.engine.limits import MESSAGE_BYTES
from twinbus.broker.engine.message_index import copy_of
from twinbus.broker.engine.message_states import (
    DEFERRED,
    NEVER_MS,
    SCHEDULED,
    EngineContext,
    MessageStates,
)
from twinbus.broker.engine.sessions import MessageSession, Sessions
from twinbus.broker.engine.settlement import (
    LockedMessage,
    RequestedSettlement,
    SettlementOutcome,
    dead_letter_description,
    require_bounded,
)
from twinbus.broker.journal import DamagedMessage, StoredMessage
from twinbus.broker.messages.incoming import Incoming
from twinbus.broker.refusals import (
    EntityDisabled,
    EntityNotFound,
    MessageLockLost,
    MessageNotFound,
    MessageTooLarge,
    NotAllowed,
    QuotaExceeded,
    SessionLockLost,
    entity_full,
)
from twinbus.servicebus.names import STANDARD_MESSAGE_BYTES

EXPIRED_AT_ONCE = 1000
"""Expired messages that one receive removes before others have their turn."""

EVERYTHING = slice(None)
COMPLETE = SettlementOutcome.COMPLETE
REFUSE_SENDS = ("Disabled", "SendDisabled")
REFUSE_RECEIVES = ("Disabled", "ReceiveDisabled")


class Queue:
    """One queue, subscription or dead-letter queue."""

    def __init__(
        self,
        path: str,
        entity_id: int,
        description: QueueDescription | SubscriptionDescription,
        context: EngineContext,
        dead_letter: Queue | None = None,
    ) -> None:
        self.path = path
        self.entity_id = entity_id
        self.description = description
        self.dead_letter = dead_letter
        self.is_deleted = False
        self.created_at_ms = 0
        self.updated_at_ms = 0
        self.accessed_at_ms = 0
        self.max_message_bytes = STANDARD_MESSAGE_BYTES
        self.quota_bytes = NEVER_MS
        dead_states = None if dead_letter is None else dead_letter.states
        self.states: MessageStates = MessageStates(
            path, entity_id, description, context, dead_states, self
        )
        self.restore = self.states.restore
        self.run_timers = self.states.run_timers
        self.next_deadline_ms = self.states.next_deadline_ms
        self.messages = self.states.messages
        self.states.share_quota(self.require_memory)
        self.sessions = SessionAccess(self)
        self._journal = context.journal
        self._apply(description)

    kind = "Queue"
    """What Azure calls it in the text of a refusal."""

    filter_count = 0
    """A topic has filters; each evaluation costs a credit."""

    def __repr__(self) -> str:
        return f"<queue {self.path!r}: {self.active_count} active, {self.locked_count} locked>"

    def _apply(self, description: QueueDescription | SubscriptionDescription) -> None:
        self.description = description
        self.states.apply(description)
        if isinstance(description, QueueDescription):
            self.max_message_bytes = description.max_message_size_kb * 1024
            self.quota_bytes = description.max_size_mb * 1024 * 1024

    def update(self, description: QueueDescription | SubscriptionDescription, now_ms: int) -> None:
        before = self.states.forwarding
        self._apply(description)
        forwarding = self.states.forwarding
        if forwarding is not None and forwarding is not before:
            forwarding.refill(self.states.ready(), now_ms)
        if self.dead_letter is not None:
            self.dead_letter.update(dead_letter_description(description), now_ms)
        self.updated_at_ms = self.accessed_at_ms = now_ms
        self.run_timers(now_ms)
        self.states.announce()

    def close(self) -> None:
        """Refuse everything from now on: the entity was deleted, but links may still know it."""
        self.is_deleted = True
        self.states.locks.clear()
        self.states.wake_ms = NEVER_MS

    # Figures

    @property
    def requires_session(self) -> bool:
        return self.states.sessions is not None

    @property
    def refuses_receivers(self) -> bool:
        return self.is_deleted or self.description.status in REFUSE_RECEIVES

    @property
    def concerns_receivers(self) -> bool:
        """Whether a receiver that can take messages gets some now, or is to be refused."""
        return len(self.states.ready_messages) > 0 or self.refuses_receivers

    @property
    def locked_count(self) -> int:
        return len(self.states.locks)

    @property
    def deferred_count(self) -> int:
        """Deferred messages, those locked by number included."""
        return self.states.index.deferred_count

    @property
    def scheduled_count(self) -> int:
        return self.states.index.scheduled_count

    @property
    def active_count(self) -> int:
        """Messages that are ready or held by receivers."""
        index = self.states.index
        return len(index.messages) - index.deferred_count - index.scheduled_count

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages here, those of the dead-letter queue not included."""
        return self.states.index.size_bytes

    # Time and status

    def catch_up(self, now_ms: int) -> None:
        """Run what is due by now, before a client's request is checked."""
        if self.is_deleted:
            raise EntityNotFound.of(self.path, "it was deleted")
        self.accessed_at_ms = now_ms
        if now_ms >= self.states.wake_ms:
            self.states.run_timers(now_ms)

    def require_receiving(self, now_ms: int) -> None:
        """Catch up; raise unless the queue's status allows receiving."""
        self.catch_up(now_ms)
        if self.description.status != "Active":
            self._require_status(REFUSE_RECEIVES)

    def _require_status(self, refused: tuple[str, ...]) -> None:
        status = self.description.status
        if status in refused:
            raise EntityDisabled(f"the status of {self.path!r} is {status}; set it to Active first")

    # Sending

    def admit(
        self,
        incoming: Incoming | StoredMessage,
        now_ms: int,
        *,
        reserved_bytes: int = 0,
        reserved_memory_bytes: int = 0,
    ) -> None:
        """Raise unless the message could be enqueued now, beside what is reserved for others."""
        states = self.states
        if now_ms >= states.wake_ms:
            states.run_timers(now_ms)
        if self.is_deleted:
            raise EntityNotFound.of(self.path, "it was deleted")
        if self.description.status != "Active":
            self._require_status(REFUSE_SENDS)
        self.accessed_at_ms = now_ms
        size_bytes = incoming.size_bytes
        if size_bytes > self.max_message_bytes:
            raise MessageTooLarge(
                f"the message has {size_bytes} bytes, {self.path!r} takes at most "
                f"{self.max_message_bytes}; send a smaller one"
            )
        if states.sessions is not None and incoming.session_id is None:
            raise NotAllowed(f"{self.path!r} requires sessions: give the message a session id")
        index, quota_bytes = states.index, self.quota_bytes
        held_bytes = index.size_bytes + reserved_bytes
        count, extra_bytes = len(index.messages), index.extra_bytes + reserved_memory_bytes
        if states.dead_letter is not None and (dead := states.dead_letter.index).messages:
            held_bytes += dead.size_bytes
            count += len(dead.messages)
            extra_bytes += dead.extra_bytes
        if held_bytes + size_bytes > quota_bytes:
            raise self._full(held_bytes, "receive some of its messages first, dead letters too")
        # Added up here, since this is done for every message; sessions and ids come on top.
        if states.has_more_memory or MESSAGE_BYTES * (count + 1) + extra_bytes > quota_bytes:
            self.require_memory(MESSAGE_BYTES, reserved_memory_bytes)

    def require_memory(self, added_bytes: int, reserved_bytes: int = 0) -> None:
        """Raise unless the memory may grow by `added_bytes`, beside what is reserved for others.

        Memory has the same bound as the stored bytes. Only small messages, sessions and remembered
        ids need more memory than disk.
        """
        held_bytes = self.states.memory_bytes + reserved_bytes
        if held_bytes + added_bytes > self.quota_bytes:
            advice = "its messages, session states, remembered ids and rules use that much memory"
            raise self._full(held_bytes, advice)

    def _full(self, held_bytes: int, advice: str) -> QuotaExceeded:
        return entity_full(self.kind, self.path, held_bytes, self.quota_bytes, advice)

    def enqueue(self, incoming: Incoming, now_ms: int) -> StoredMessage | None:
        """The message as stored; None if it is a duplicate and was dropped."""
        self.admit(incoming, now_ms)
        return self.take(incoming, now_ms)

    def take(
        self, incoming: Incoming, now_ms: int, hops: int = 0, origin: StoredMessage | None = None
    ) -> StoredMessage | None:
        """Enqueue a message that was admitted; never refuses."""
        states = self.states
        if states.history is not None and not states.remember(incoming.message_id, now_ms):
            return None
        try:
            message = states.store(incoming, now_ms, origin)
        except Exception:
            # The sender will try again, which must not count as a duplicate.
            states.retract(incoming.message_id)
            raise
        states.place(message, now_ms, hops)
        return message

    def take_over(self, source_id: int, message: StoredMessage, now_ms: int, hops: int) -> None:
        """Take what another entity forwards; if this raises, nothing has changed."""
        states, log = self.states, self.states.engine_log
        self.admit(message, now_ms)
        if not states.remember(message.message_id, now_ms):
            self._journal.remove(source_id, message.sequence_number)
            if log is not None:
                log.note("forward", self.path, [message], now_ms, state="duplicate")
            return
        moved = copy_of(message)
        moved.delivery_count = 0
        moved.enqueued_at_ms = now_ms
        moved.ttl_ms = states.ttl_of(message.ttl_ms)
        moved.expires_at_ms = now_ms + moved.ttl_ms if moved.ttl_ms else 0
        try:
            states.adopt(source_id, message, moved)
        except Exception:
            # The move is tried again, which must not count as a duplicate.
            states.retract(message.message_id)
            raise
        states.place(moved, now_ms, hops)
        if log is not None:
            log.note("forward", self.path, [moved], now_ms)

    def cancel_scheduled(self, numbers: list[int], now_ms: int) -> None:
        """Cancel scheduled messages: all of them, or none and `MessageNotFound`."""
        self.catch_up(now_ms)
        found = [self._waiting(number, now_ms) for number in dict.fromkeys(numbers)]
        for message in found:
            self.states.forget(message)
        if self.states.engine_log is not None:
            self.states.engine_log.note("manage", self.path, found, now_ms, state="cancelled")

    def is_duplicate(self, message_id: str | None, now_ms: int) -> bool:
        """Whether a message of this id would be dropped now."""
        history = self.states.history
        return history is not None and message_id is not None and history.has(message_id, now_ms)

    def _waiting(self, number: int, now_ms: int) -> StoredMessage:
        message = self.messages.get(number)
        if message is None or message.state is not SCHEDULED:
            raise MessageNotFound(f"{self.path!r} has no scheduled message {number}")
        if message.scheduled_for_ms <= now_ms:
            raise MessageNotFound(f"the time of scheduled message {number} has come")
        return message

    # Receiving

    def acquire(
        self,
        holder: object,
        limit: int,
        now_ms: int,
        *,
        session_id: str | None = None,
        settled: bool = False,
    ) -> list[LockedMessage]:
        """Up to `limit` ready messages, locked; or removed at once if they are `settled`."""
        self.require_receiving(now_ms)
        states = self.states
        session, until_ms = self._lock_terms(session_id, holder, now_ms)
        pop = states.ready_messages.pop if session is None else session.ready_messages.pop
        found: list[StoredMessage] = []
        expired_count = 0
        while len(found) < limit and (message := pop()) is not None:
            if 0 < message.expires_at_ms <= now_ms:
                states.expire(message, now_ms)
                expired_count += 1
                if expired_count == EXPIRED_AT_ONCE:
                    if states.sessions is not None and session is not None:
                        states.sessions.feed(session.session_id)
                    states.announce()
                    break
            else:
                found.append(message)
        if session is not None and states.sessions is not None:
            states.sessions.note_change(session.session_id)
        return self._give_out(found, session, until_ms, now_ms, settled=settled)

    def receive_by_sequence(
        self,
        numbers: list[int],
        holder: object,
        now_ms: int,
        *,
        session_id: str | None = None,
        settled: bool = False,
    ) -> list[LockedMessage]:
        """The deferred messages of these numbers, all of them, or `MessageNotFound`."""
        self.require_deferred(numbers, holder, now_ms, session_id=session_id)
        return self.lock_deferred(numbers, holder, now_ms, session_id=session_id, settled=settled)

    def require_deferred(
        self, numbers: list[int], holder: object, now_ms: int, *, session_id: str | None = None
    ) -> None:
        """Raise unless these could be received by their numbers now, and the disk can give them."""
        self.require_receiving(now_ms)
        self._lock_terms(session_id, holder, now_ms)
        for message in [self._deferred(number, session_id, now_ms) for number in numbers]:
            self._require_payload(message)

    def lock_deferred(
        self,
        numbers: list[int],
        holder: object,
        now_ms: int,
        *,
        session_id: str | None = None,
        settled: bool = False,
    ) -> list[LockedMessage]:
        """Like `receive_by_sequence`, after `require_deferred`, which may have been a while ago."""
        self.require_receiving(now_ms)
        session, until_ms = self._lock_terms(session_id, holder, now_ms)
        found = [self._deferred(number, session_id, now_ms) for number in dict.fromkeys(numbers)]
        return self._give_out(found, session, until_ms, now_ms, settled=settled)

    def holds(self, delivery: LockedMessage) -> bool:
        """Whether its message is still locked by it, or by a renewal of it."""
        return self.states.locks.get(delivery.lock_token) is not None

    def _deferred(self, number: int, session_id: str | None, now_ms: int) -> StoredMessage:
        message = self.messages.get(number)
        if message is None or message.state is not DEFERRED:
            raise MessageNotFound(f"{self.path!r} has no deferred message {number}")
        if session_id is not None and message.session_id != session_id:
            raise MessageNotFound(f"message {number} is not of session {session_id!r}")
        if message.lock_token is not None:
            raise MessageNotFound(f"deferred message {number} is locked by a receiver already")
        if 0 < message.expires_at_ms <= now_ms:
            self.states.expire(message, now_ms)
            raise MessageNotFound(f"deferred message {number} has expired")
        return message

    def _require_payload(self, message: StoredMessage) -> None:
        """Raise unless the disk can give the message; one that is damaged is set aside."""
        try:
            self._journal.payload(self.entity_id, message.sequence_number)
        except DamagedMessage as error:
            self.states.index.remove(message)
            number = message.sequence_number
            raise MessageNotFound(
                f"deferred message {number} of {self.path!r} is damaged on the broker's disk and"
                " was set aside; the broker's log says more"
            ) from error

    def set_aside(self, lock_token: bytes) -> None:
        """End the delivery of a message that the disk cannot give; its record stays there."""
        self.states.index.remove(self.states.unlock(lock_token))

    def _give_out(
        self,
        found: list[StoredMessage],
        session: MessageSession | None,
        until_ms: int,
        now_ms: int,
        *,
        settled: bool,
    ) -> list[LockedMessage]:
        log = self.states.engine_log
        if log is not None:
            log.note("receive", self.path, found, now_ms)
            if settled:
                log.note("complete", self.path, found, now_ms)
        if settled:
            return [self._hand_over(message) for message in found]
        return self.states.lock(found, until_ms, session)

    def _hand_over(self, message: StoredMessage) -> LockedMessage:
        payload = self._journal.payload(self.entity_id, message.sequence_number)
        self.states.forget(message)
        return LockedMessage(message, self.states.tokens(), 0, payload)

    def _lock_terms(
        self, session_id: str | None, holder: object, now_ms: int
    ) -> tuple[MessageSession | None, int]:
        """The session to receive from, where there are any, and until when messages are locked."""
        sessions = self.states.sessions
        if sessions is None:
            if session_id is not None:
                raise NotAllowed(f"{self.path!r} has no sessions: receive without a session id")
            return None, now_ms + self.description.lock_duration_ms
        if session_id is None:
            raise NotAllowed(f"{self.path!r} requires sessions: accept one to receive from it")
        session = sessions.held(session_id, holder, now_ms)
        return session, session.locked_until_ms

    def peek(
        self, from_sequence_number: int, limit: int, now_ms: int, *, session_id: str | None = None
    ) -> list[StoredMessage]:
        """Up to `limit` messages in any state from that number on, without locking them."""
        self.catch_up(now_ms)
        found: list[StoredMessage] = []
        if limit > 0:
            index = self.states.index
            for message in index.from_number(from_sequence_number, session_id):
                found.append(message)
                if len(found) >= limit:
                    break
        return found

    def shown_lock_ms(self, message: StoredMessage) -> int:
        """Until when a peeked message is shown as locked; 0: it is not.

        A deferred message was locked once. Until when is not kept: it is shown with the lock of its
        session, or with the time when it was enqueued.
        """
        if message.state is not DEFERRED:
            return 0
        sessions = self.states.sessions
        session = None if sessions is None else sessions.get(message.session_id)
        held_ms = 0 if session is None else session.locked_until_ms
        return held_ms or message.enqueued_at_ms

    # Settling

    def settle(
        self,
        lock_token: bytes,
        outcome: SettlementOutcome,
        now_ms: int,
        *,
        overrides: dict[str, object] | None = None,
        reason: str | None = None,
        description: str | None = None,
        session_id: str | None = None,
    ) -> None:
        """End a delivery; raises `MessageLockLost` or `SessionLockLost` if its lock is gone."""
        if outcome is COMPLETE:  # The common case, in half the time.
            if now_ms >= self.states.wake_ms:
                self.states.run_timers(now_ms)
            self.accessed_at_ms = now_ms
            self._require_lock(lock_token, session_id, now_ms)
            self._complete(lock_token, now_ms)
            return
        wanted = RequestedSettlement(
            lock_token, outcome, overrides, reason, description, session_id
        )
        self.settle_one(wanted, now_ms)

    def settle_one(self, wanted: RequestedSettlement, now_ms: int) -> None:
        """Like `settle`."""
        self.check_settlement(wanted, now_ms)
        self.settle_checked(wanted, now_ms)

    def check_settlement(
        self, wanted: RequestedSettlement, now_ms: int, *, reserved_memory_bytes: int = 0
    ) -> None:
        """Raise unless the delivery could be settled now, beside what is reserved for others."""
        states = self.states
        if now_ms >= states.wake_ms:
            states.run_timers(now_ms)
        self.accessed_at_ms = now_ms
        lock_token, outcome, overrides, reason, description, session_id = wanted
        held = self._require_lock(lock_token, session_id, now_ms).message
        if outcome is COMPLETE:
            return
        if outcome is SettlementOutcome.DEAD_LETTER and self.dead_letter is None:
            raise NotAllowed(f"{self.path!r} is a dead-letter queue; complete or abandon instead")
        if outcome is SettlementOutcome.RELEASE:
            overrides = None
        if overrides or reason or description:
            changes = {**(held.overrides or {}), **(overrides or {})}
            require_bounded(changes, reason, description)
        if overrides:
            states.require_room(value_bytes(overrides) + reserved_memory_bytes)

    def settle_checked(self, wanted: RequestedSettlement, now_ms: int) -> None:
        """End a delivery that was checked; never refuses."""
        states = self.states
        lock_token, outcome, overrides, reason, description, _ = wanted
        if outcome is COMPLETE:
            self._complete(lock_token, now_ms)
            return
        message = states.unlock(lock_token)
        if overrides and outcome is not SettlementOutcome.RELEASE:
            states.index.override(message, {**(message.overrides or {}), **overrides})
        if outcome is SettlementOutcome.DEAD_LETTER:
            states.move_to_dead_letter(message, now_ms, reason=reason, description=description)
        elif outcome is SettlementOutcome.DEFER:
            if self.dead_letter is not None:
                message.delivery_count += 1  # As in Azure, which counts in no dead-letter queue.
            states.index.defer(message)
            self._journal.amend(self.entity_id, message)
            if states.engine_log is not None:
                states.engine_log.note("defer", self.path, [message], now_ms)
        else:
            if states.engine_log is not None:
                states.engine_log.note(outcome.value, self.path, [message], now_ms)
            states.put_back(message, now_ms, counted=outcome is SettlementOutcome.ABANDON)

    def _complete(self, lock_token: bytes, now_ms: int) -> None:
        states = self.states
        message = states.unlock(lock_token)
        states.forget(message)
        if states.engine_log is not None:
            states.engine_log.note("complete", self.path, [message], now_ms)

    def complete_all(self, lock_tokens: list[bytes], now_ms: int) -> bool:
        """Complete these deliveries; false, and nothing done, unless all locks are valid.

        A faster `settle` for many. Not for a queue with sessions.
        """
        states = self.states
        if now_ms >= states.wake_ms:
            states.run_timers(now_ms)
        if states.sessions is not None:
            return False
        done = states.locks.remove_all(lock_tokens, now_ms)
        if done is None:
            return False
        self.accessed_at_ms = now_ms
        if states.engine_log is not None:
            states.engine_log.note("complete", self.path, done, now_ms)
        states.forget_all(done)
        return True

    def renew(self, lock_token: bytes, now_ms: int) -> int:
        """Lock a message for another lock duration from now; returns until when."""
        self.catch_up(now_ms)
        if self.states.sessions is not None:
            raise NotAllowed(f"{self.path!r} has sessions: renew the session's lock instead")
        self._require_lock(lock_token, None, now_ms)
        until_ms = now_ms + self.description.lock_duration_ms
        self.states.locks.renew(lock_token, until_ms)
        self.states.wake_by(until_ms)
        return until_ms

    def _require_lock(
        self, lock_token: bytes, session_id: str | None, now_ms: int
    ) -> LockedMessage:
        delivery, sessions = self.states.locks.get(lock_token), self.states.sessions
        if delivery is not None:
            if sessions is not None:
                sessions.held(delivery.message.session_id or "", None, now_ms)
            elif delivery.locked_until_ms <= now_ms:
                delivery = None
        if delivery is not None:
            return delivery
        if sessions is not None:
            sessions.held(session_id or "", None, now_ms)
        raise MessageLockLost(
            "The lock supplied is invalid. Either the lock expired, or the message has already been"
            f" removed from the queue {self.path!r}. Receive it again, and renew the lock if"
            " processing takes longer."
        )


class SessionAccess:
    """What receivers may do with the sessions of one queue; `NotAllowed` where it has none."""

    __slots__ = ("_queue", "_states")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._states = queue.states

    def _required(self) -> Sessions:
        sessions = self._states.sessions
        if sessions is None:
            raise NotAllowed(f"{self._states.path!r} has no sessions")
        return sessions

    def accept(self, session_id: str | None, holder: object, now_ms: int) -> tuple[str, int] | None:
        """Lock a session, the named one or the next with messages: its id, until when; or None."""
        self._queue.require_receiving(now_ms)
        until_ms = now_ms + self._states.description.lock_duration_ms
        session = self._required().accept(session_id, holder, until_ms)
        if session is None:
            return None
        self._states.wake_by(until_ms)
        return session.session_id, until_ms

    def renew(self, session_id: str, holder: object | None, now_ms: int) -> int:
        """Hold a session for another lock duration from now; returns until when."""
        self._queue.catch_up(now_ms)
        sessions = self._required()
        session = sessions.held(session_id, holder, now_ms)
        sessions.renew(session, now_ms + self._states.description.lock_duration_ms)
        self._states.wake_by(session.locked_until_ms)
        return session.locked_until_ms

    def is_held_by(self, session_id: str, holder: object, now_ms: int) -> bool:
        try:
            return self._required().held(session_id, holder, now_ms).holder is holder
        except SessionLockLost:
            return False

    def release_holder(self, holder: object, now_ms: int) -> None:
        """Free the sessions of a receiver that left; its other locks run on until they expire."""
        sessions = self._states.sessions
        if sessions is not None:
            try:
                self._queue.catch_up(now_ms)
            except EntityNotFound:
                return
            for session in sessions.held_by(holder):
                self._states.free_session(session, now_ms, counted=False)

    def state(self, session_id: str) -> bytes | None:
        state = self._required().states.get(session_id)
        return None if state is None else state.content

    def set_state(
        self, session_id: str, state: bytes | None, now_ms: int, *, holder: object | None = None
    ) -> None:
        self._queue.catch_up(now_ms)
        sessions = self._required()
        sessions.held(session_id, holder, now_ms)
        sessions.set_state(session_id, state, now_ms, self._states.require_room)

    def has_ready(self, session_id: str | None) -> bool:
        session = self._required().get(session_id)
        return session is not None and len(session.ready_messages) > 0

    def take_fed(self) -> list[str]:
        """The sessions that got messages since the last call."""
        return self._required().take_fed()

    def ids(self, updated_since_ms: int | None = None, page: slice = EVERYTHING) -> list[str]:
        """A page of the ids (`Sessions.ids`, `Sessions.updated_since`)."""
        sessions = self._required()
        if updated_since_ms is None:
            return sessions.ids(page)
        return sessions.updated_since(updated_since_ms, page)
