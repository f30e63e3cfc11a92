"""A queue as its clients see it: what they may ask for, checked, and carried out.

    enqueue --> scheduled --time--> ready <--abandon, release, expiry-- locked --complete--> gone
       '------------------------------^ '-------------acquire-------------^ |
                                                                           defer
              locked by number <--receive_by_sequence-- deferred <----------'
                    '------abandon, release, expiry------^

    ready --time to live--> gone or dead letter;  locked --dead-letter, tries used up--> dead letter

Pure: every call has the time. A call first lets time do what it has to do by then, so no caller
meets a lock, a session or a message that should have expired.
"""

from __future__ import annotations

from collections.abc import Callable

from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription
from twinbus.broker.engine.access import Access
from twinbus.broker.engine.forwarding import Resolve
from twinbus.broker.engine.message_states import DEFERRED, NEVER_MS, SCHEDULED, MessageStates
from twinbus.broker.engine.settlement import Delivery, SettlementOutcome, dead_letter_description
from twinbus.broker.engine.stock import copy_of
from twinbus.broker.journal import Journal, StoredMessage
from twinbus.broker.messages.incoming import Incoming
from twinbus.broker.refusals import (
    MessageLockLost,
    MessageNotFound,
    MessageTooLarge,
    NotAllowed,
    QuotaExceeded,
)

__all__ = ["Delivery", "Queue", "SettlementOutcome"]

EXPIRED_AT_ONCE = 1000
"""Expired messages that one receive clears away before it lets others have their turn."""

DEFAULT_MESSAGE_BYTES = 256 * 1024


class Queue(Access):
    """One queue, subscription or dead-letter queue."""

    dead_letter: Queue | None

    def __init__(
        self,
        path: str,
        entity_id: int,
        description: QueueDescription | SubscriptionDescription,
        journal: Journal,
        tokens: Callable[[], bytes],
        notify: Callable[[Queue], None],
        dead_letter: Queue | None = None,
        *,
        arm: Callable[[MessageStates, int], None] | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self.max_message_bytes = DEFAULT_MESSAGE_BYTES
        self.created_at_ms = 0
        self.updated_at_ms = 0
        self._notify = notify
        self._quota_bytes = NEVER_MS
        super().__init__(path, entity_id, description, journal, tokens, dead_letter, arm, resolve)

    def __repr__(self) -> str:
        return f"<queue {self.path!r}: {self.active_count} active, {self.locked_count} locked>"

    def _apply(self, description: QueueDescription | SubscriptionDescription) -> None:
        super()._apply(description)
        if isinstance(description, QueueDescription):
            self.max_message_bytes = description.max_message_size_kb * 1024
            self._quota_bytes = description.max_size_mb * 1024 * 1024

    def announce(self) -> None:
        """Tell the shell that something may be deliverable; it must only take note of it."""
        self._notify(self)

    def update(self, description: QueueDescription | SubscriptionDescription, now_ms: int) -> None:
        """Put new settings into effect at once."""
        before = self._forwarding
        self._apply(description)
        if self._forwarding is not None and self._forwarding is not before:
            self._forwarding.refill(self.ready(), now_ms)
        if self.dead_letter is not None:
            self.dead_letter.update(dead_letter_description(description), now_ms)
        self.updated_at_ms = self.accessed_at_ms = now_ms
        self.run_timers(now_ms)
        self.announce()

    # Sending

    def admit(
        self, incoming: Incoming | StoredMessage, now_ms: int, *, reserved_bytes: int = 0
    ) -> None:
        """Raise unless the message could be enqueued now, `reserved_bytes` of others before it."""
        if now_ms >= self._wake_ms:
            self.run_timers(now_ms)
        if self.is_deleted or self.description.status != "Active":
            self.require_sending()
        self.accessed_at_ms = now_ms
        size_bytes = incoming.size_bytes
        if size_bytes > self.max_message_bytes:
            raise MessageTooLarge(
                f"the message has {size_bytes} bytes, {self.path!r} takes at most "
                f"{self.max_message_bytes}; send a smaller one"
            )
        if self._sessions is not None and incoming.session_id is None:
            raise NotAllowed(f"{self.path!r} requires sessions: give the message a session id")
        held_bytes = self._stock.size_bytes + reserved_bytes
        if self.dead_letter is not None:
            held_bytes += self.dead_letter.size_bytes
        if held_bytes + size_bytes > self._quota_bytes:
            raise QuotaExceeded(
                f"{self.path!r} holds {held_bytes} bytes, dead letters included, and takes at most "
                f"{self._quota_bytes}; receive some of its messages first"
            )

    def enqueue(self, incoming: Incoming, now_ms: int) -> StoredMessage | None:
        """The message as stored; None if it is a duplicate and was dropped."""
        self.admit(incoming, now_ms)
        return self.take(incoming, now_ms)

    def take(
        self,
        incoming: Incoming,
        now_ms: int,
        hops: int = 0,
        origin: StoredMessage | None = None,
    ) -> StoredMessage | None:
        """Enqueue a message that was admitted; never refuses."""
        if self._history is not None and not self.remember(incoming.message_id, now_ms):
            return None
        try:
            message = self.store(incoming, now_ms, origin)
        except Exception:
            # The sender tries again, and must not be told that it is a duplicate.
            self.retract(incoming.message_id)
            raise
        self.place(message, now_ms, hops)
        return message

    def take_over(
        self, source: MessageStates, message: StoredMessage, now_ms: int, hops: int
    ) -> None:
        """Take what `source` forwards; if this raises, nothing has changed."""
        self.admit(message, now_ms)
        if not self.remember(message.message_id, now_ms):
            self._journal.remove(source.entity_id, message)
            if self.witness is not None:
                self.witness.note("forward", self.path, [message], now_ms, state="duplicate")
            return
        moved = copy_of(message)
        moved.delivery_count = 0
        moved.enqueued_at_ms = now_ms
        moved.ttl_ms = self._ttl_of(message.ttl_ms)
        moved.expires_at_ms = now_ms + moved.ttl_ms if moved.ttl_ms else 0
        try:
            self.adopt(source, message, moved)
        except Exception:
            # The message is tried again, and must not be dropped as a duplicate of itself.
            self.retract(message.message_id)
            raise
        self.place(moved, now_ms, hops)
        if self.witness is not None:
            self.witness.note("forward", self.path, [moved], now_ms)

    def remember(self, message_id: str | None, now_ms: int) -> bool:
        """Note the id of an accepted message; false if it is a duplicate."""
        if self._history is None or message_id is None:
            return True
        if not self._history.accept(message_id, now_ms):
            return False
        self._wake_by(self._history.next_ms())
        return True

    def retract(self, message_id: str | None) -> None:
        """Forget the id of a message that was remembered and could not be stored after all."""
        if self._history is not None and message_id is not None:
            self._history.retract(message_id)

    def cancel_scheduled(self, numbers: list[int], now_ms: int) -> None:
        """Remove messages before their time comes: all of them, or none and `MessageNotFound`."""
        self.catch_up(now_ms)
        found = [self._waiting(number, now_ms) for number in dict.fromkeys(numbers)]
        for message in found:
            self.forget(message)
        if self.witness is not None:
            self.witness.note("manage", self.path, found, now_ms, state="cancelled")

    def is_duplicate(self, message_id: str | None, now_ms: int) -> bool:
        """Whether a message of this id would be dropped now."""
        history = self._history
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
    ) -> list[Delivery]:
        """Up to `limit` ready messages, locked; or removed at once if they are `settled`."""
        self.require_receiving(now_ms)
        session, until_ms = self.lock_terms(session_id, holder, now_ms)
        pop = self._lane.pop if session is None else session.lane.pop
        found: list[StoredMessage] = []
        expired_count = 0
        while len(found) < limit and (message := pop()) is not None:
            if 0 < message.expires_at_ms <= now_ms:
                self.perish(message, now_ms)
                expired_count += 1
                if expired_count == EXPIRED_AT_ONCE:
                    self.announce()
                    break
            else:
                found.append(message)
        if self.witness is not None:
            self._note_received(found, now_ms, settled=settled)
        if settled:
            return [self._hand_over(message) for message in found]
        return self.lock(found, until_ms, session)

    def receive_by_sequence(
        self,
        numbers: list[int],
        holder: object,
        now_ms: int,
        *,
        session_id: str | None = None,
        settled: bool = False,
    ) -> list[Delivery]:
        """The deferred messages of these numbers, all of them, or `MessageNotFound`."""
        self.require_receiving(now_ms)
        session, until_ms = self.lock_terms(session_id, holder, now_ms)
        found = [self._deferred(number, session_id, now_ms) for number in dict.fromkeys(numbers)]
        if self.witness is not None:
            self._note_received(found, now_ms, settled=settled)
        if settled:
            return [self._hand_over(message) for message in found]
        return self.lock(found, until_ms, session)

    def _deferred(self, number: int, session_id: str | None, now_ms: int) -> StoredMessage:
        message = self.messages.get(number)
        if message is None or message.state is not DEFERRED:
            raise MessageNotFound(f"{self.path!r} has no deferred message {number}")
        if session_id is not None and message.session_id != session_id:
            raise MessageNotFound(f"message {number} is not of session {session_id!r}")
        if message.lock_token is not None:
            raise MessageNotFound(f"deferred message {number} is locked by a receiver already")
        if 0 < message.expires_at_ms <= now_ms:
            self.perish(message, now_ms)
            raise MessageNotFound(f"deferred message {number} has expired")
        return message

    def _note_received(self, found: list[StoredMessage], now_ms: int, *, settled: bool) -> None:
        assert self.witness is not None
        self.witness.note("receive", self.path, found, now_ms)
        if settled:
            self.witness.note("complete", self.path, found, now_ms)

    def _hand_over(self, message: StoredMessage) -> Delivery:
        payload = self._journal.payload(self.entity_id, message.sequence_number)
        self.forget(message)
        return Delivery(message, self._tokens(), 0, payload)

    def peek(
        self,
        from_sequence_number: int,
        limit: int,
        now_ms: int,
        *,
        session_id: str | None = None,
    ) -> list[StoredMessage]:
        """Up to `limit` messages in any state from that number on; they stay where they are."""
        self.catch_up(now_ms)
        found: list[StoredMessage] = []
        if limit > 0:
            for message in self._stock.from_number(from_sequence_number):
                if session_id is None or message.session_id == session_id:
                    found.append(message)
                    if len(found) >= limit:
                        break
        return found

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
        if now_ms >= self._wake_ms:
            self.run_timers(now_ms)
        self.accessed_at_ms = now_ms
        self._require_lock(lock_token, session_id, now_ms)
        if outcome is SettlementOutcome.COMPLETE:
            message = self.unlock(lock_token)
            self.forget(message)
            if self.witness is not None:
                self.witness.note("complete", self.path, [message], now_ms)
            return
        if outcome is SettlementOutcome.DEAD_LETTER and self.dead_letter is None:
            raise NotAllowed(f"{self.path!r} is a dead-letter queue; complete or abandon instead")
        message = self.unlock(lock_token)
        if overrides and outcome is not SettlementOutcome.RELEASE:
            message.overrides = {**(message.overrides or {}), **overrides}
        if outcome is SettlementOutcome.DEAD_LETTER:
            self.bury(message, now_ms, reason=reason, description=description)
        elif outcome is SettlementOutcome.DEFER:
            self._stock.defer(message)
            self._journal.amend(self.entity_id, message)
            if self.witness is not None:
                self.witness.note("defer", self.path, [message], now_ms)
        else:
            self.put_back(message, now_ms, counted=outcome is SettlementOutcome.ABANDON)

    def complete_all(self, lock_tokens: list[bytes], now_ms: int) -> bool:
        """End these deliveries as completed; false, and nothing done, unless all hold their locks.

        What `settle` does for each, for less. Not for a queue with sessions.
        """
        if now_ms >= self._wake_ms:
            self.run_timers(now_ms)
        if self._sessions is not None or not self._locks.hold(lock_tokens, now_ms):
            return False
        self.accessed_at_ms = now_ms
        if self.witness is not None:
            done = [
                delivery.message for token in lock_tokens if (delivery := self._locks.get(token))
            ]
            self.witness.note("complete", self.path, done, now_ms)
        for token in lock_tokens:
            self.forget(self._locks.remove(token))
        return True

    def renew(self, lock_token: bytes, now_ms: int) -> int:
        """Lock a message for another lock duration from now; returns until when."""
        self.catch_up(now_ms)
        if self._sessions is not None:
            raise NotAllowed(f"{self.path!r} has sessions: renew the session's lock instead")
        self._require_lock(lock_token, None, now_ms)
        until_ms = now_ms + self.description.lock_duration_ms
        self._locks.renew(lock_token, until_ms)
        self._wake_by(until_ms)
        return until_ms

    def _require_lock(self, lock_token: bytes, session_id: str | None, now_ms: int) -> Delivery:
        delivery = self._locks.get(lock_token)
        if delivery is not None:
            if self._sessions is not None:
                self._sessions.held(delivery.message.session_id or "", None, now_ms)
            elif delivery.locked_until_ms <= now_ms:
                delivery = None
        if delivery is not None:
            return delivery
        if self._sessions is not None:
            self._sessions.held(session_id or "", None, now_ms)
        raise MessageLockLost(
            f"the message's lock in {self.path!r} expired, or the message was settled already; "
            "receive it again, and renew locks that take longer"
        )
