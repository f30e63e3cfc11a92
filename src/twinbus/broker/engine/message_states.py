"""The messages of one queue and every transition they make: in, ready, locked, out, dead.

The part of a queue that changes things. Each method is one transition, made in memory and noted in
the journal together, so that a message is always in exactly one place: ready, locked, deferred or
scheduled here, or in another entity. It refuses nothing: `Queue` has checked the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.engine.forwarding import Forwarding, Resolve
from twinbus.broker.engine.message_index import (
    DuplicateHistory,
    MessageIndex,
    ReadyMessages,
    copy_of,
    first_number,
)
from twinbus.broker.engine.sessions import MessageSession, Sessions
from twinbus.broker.engine.settlement import (
    DELIVERED_TOO_OFTEN,
    ERROR_DESCRIPTION,
    EXPIRED,
    REASON,
    Deadlines,
    LockedMessage,
    Locks,
)
from twinbus.broker.journal import EntityImage, Journal, MessageState, StoredMessage
from twinbus.broker.messages.incoming import Incoming
from twinbus.servicebus.names import FOREVER_MS

if TYPE_CHECKING:
    from twinbus.broker.messages.plain import PlainRun

ACTIVE, DEFERRED, SCHEDULED = MessageState.ACTIVE, MessageState.DEFERRED, MessageState.SCHEDULED

NEVER_MS = FOREVER_MS
"""Later than any deadline."""

TIMERS_AT_ONCE = 1000
"""Most timers that one call fires, so that many due timers do not block everything else."""

FAILED_RETRY_MS = 10_000
"""Delay before a timer that failed unexpectedly is tried again; each failure is reported."""

Failed = Callable[[str, str, Exception], None]
"""Takes the path of an entity, what was being done, and the unexpected error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineContext:
    """What the entities of one namespace share."""

    journal: Journal
    tokens: Callable[[], bytes]
    notify: Callable[[Any], None]
    """Gets a queue that may have something to deliver, and must only take note of it."""
    arm: Callable[[Any, int], None]
    """Gets a queue and the time at which its timers must run."""
    resolve: Resolve
    session_lost: Callable[[object], None] = lambda _: None
    """Gets the holder of a session whose lock has expired, and must only take note of it."""
    engine_log: EngineLog | None = None
    """Gets every operation, if the broker writes a ledger."""
    failed: Failed | None = None
    """Gets unexpected errors, which then stop nothing else; None: raise them."""


class MessageStates:
    """Messages, locks, sessions and timers of one entity."""

    def __init__(
        self,
        path: str,
        entity_id: int,
        description: QueueDescription | SubscriptionDescription,
        context: EngineContext,
        dead_letter: MessageStates | None,
        queue: object,
    ) -> None:
        """`queue` is the owner, for `notify` and `arm` of the context."""
        self.path = path
        self.entity_id = entity_id
        self.description = description
        self.dead_letter = dead_letter
        self._has_copies = isinstance(description, SubscriptionDescription)
        self.last_sequence_number = 0
        self.ttl_limit_ms = FOREVER_MS
        """An upper limit for times to live beside the description's: a topic's own."""
        self.engine_log = context.engine_log
        self._failed = context.failed
        self.announce: Callable[[], None] = partial(context.notify, queue)
        """Called when something may be deliverable."""
        self.activate: Callable[[StoredMessage, int], None] = self._enqueue_scheduled
        """Called with a scheduled message whose time has come; a topic publishes it."""
        self.journal = context.journal
        self.tokens = context.tokens
        self._arm = partial(context.arm, queue)
        self._session_lost = context.session_lost
        self._resolve = context.resolve
        self.index = MessageIndex()
        self.messages = self.index.messages
        self.ready_messages = ReadyMessages()
        self.sessions = (
            Sessions(path, entity_id, context.journal) if description.requires_session else None
        )
        self._ready = self.ready_messages if self.sessions is None else self.sessions
        self.take_out = self._ready.drop
        """Removes a message from the ready ones; the caller puts it somewhere at once."""
        self.locks = Locks()
        self._schedule: Deadlines[int] = Deadlines(self._activation_of)
        self._expiries: Deadlines[int] = Deadlines(self._expiry_of)
        self._retries: dict[int, int] = {}
        """Next try of messages whose timer failed, by sequence number."""
        self.history: DuplicateHistory | None = None
        self.has_more_memory = self.sessions is not None
        """Whether there may be more than messages: sessions, or remembered ids."""
        self.forwarding: Forwarding | None = None
        self.wake_ms = NEVER_MS
        """No timer is due before this time; it may be early, never late."""
        self.require_room: Callable[[int], None] = lambda _: None
        """Takes a number of bytes; raises unless the memory may grow by that."""
        self.apply(description)

    def share_quota(self, require_room: Callable[[int], None]) -> None:
        """Have the quota checked by `require_room`, for the dead-letter queue too."""
        self.require_room = require_room
        if self.dead_letter is not None:
            self.dead_letter.require_room = require_room

    def apply(self, description: QueueDescription | SubscriptionDescription) -> None:
        old, self.description = self.description, description
        if isinstance(description, QueueDescription) and description.requires_duplicate_detection:
            if self.history is None:
                self.history = DuplicateHistory(self.entity_id, self.journal, 0)
                self.has_more_memory = True
            self.history.window_ms = description.duplicate_detection_window_ms
        if description.forward_to is None:
            self.forwarding = None
        elif self.forwarding is None or description.forward_to != old.forward_to:
            self.forwarding = Forwarding(self, self._resolve, description.forward_to)

    @property
    def memory_bytes(self) -> int:
        """Memory of messages, sessions and remembered ids, dead letters included, by estimate."""
        size = self.index.memory_bytes
        if self.sessions is not None:
            size += self.sessions.memory_bytes
        if self.history is not None:
            size += self.history.memory_bytes
        return size if self.dead_letter is None else size + self.dead_letter.index.memory_bytes

    # In

    def store(
        self, incoming: Incoming, now_ms: int, origin: StoredMessage | None = None
    ) -> StoredMessage:
        """Store a new message under the next number; `origin` is its copy in another entity."""
        ttl_ms = self.ttl_of(incoming.ttl_ms)
        scheduled_for_ms = incoming.scheduled_for_ms
        is_scheduled = scheduled_for_ms > now_ms
        self.last_sequence_number += 1
        # By position: eight keyword arguments would cost a good part of a microsecond.
        message = StoredMessage(
            self.last_sequence_number,
            now_ms,
            incoming.size_bytes,
            incoming.message_id,
            incoming.session_id,
            ttl_ms,
            now_ms + ttl_ms if ttl_ms and not is_scheduled else 0,
            scheduled_for_ms if is_scheduled else 0,
            SCHEDULED if is_scheduled else ACTIVE,
        )
        if origin is not None:
            message.enqueued_sequence_number = first_number(origin)
            message.dead_letter_source = origin.dead_letter_source
            message.scheduled_for_ms = origin.scheduled_for_ms
        elif self._has_copies:
            # A topic gives no numbers to what it hands on at once; clients expect one of a copy.
            message.enqueued_sequence_number = message.sequence_number
        self.journal.put(self.entity_id, message, incoming.payload)
        self.index.add(message)
        return message

    def store_run(self, run: PlainRun, now_ms: int) -> list[StoredMessage]:
        """Store new messages of one shape and make them ready.

        Not for an entity that forwards or has sessions.
        """
        messages = self.messages_of(run, self.last_sequence_number + 1, now_ms)
        self.journal.put_run(self.entity_id, messages, run.ids, run.prefix, run.rests)
        self.place_run(messages)
        return messages

    def messages_of(self, run: PlainRun, first: int, now_ms: int) -> list[StoredMessage]:
        """The messages of a run as they are stored, numbered from `first` on; nothing changes."""
        ttl_ms = self.ttl_of(run.ttl_ms)
        expires_at_ms = now_ms + ttl_ms if ttl_ms else 0
        numbers = range(first, first + len(run))
        # By position and without a loop of Python's: this is done for every message.
        fields = (
            numbers,
            repeat(now_ms),
            run.sizes,
            run.message_ids,
            repeat(None),
            repeat(ttl_ms),
            repeat(expires_at_ms),
        )
        return list(map(StoredMessage, *fields))

    def place_run(self, messages: list[StoredMessage]) -> None:
        """Make messages ready that were made by `messages_of` together and are in the journal."""
        first, last = messages[0], messages[-1]
        self.last_sequence_number = last.sequence_number
        self.index.add_run(messages)
        self.ready_messages.extend(messages)
        if first.expires_at_ms:
            numbers = range(first.sequence_number, last.sequence_number + 1)
            self._expiries.add_all(first.expires_at_ms, numbers)
            self.wake_by(first.expires_at_ms)
        self.announce()

    def ttl_of(self, ttl_ms: int) -> int:
        """The shorter of a message's time to live and the entity's; 0: unlimited."""
        default_ms = min(self.description.default_ttl_ms, self.ttl_limit_ms)
        if 0 < ttl_ms < default_ms:
            return ttl_ms
        return default_ms if default_ms < FOREVER_MS else 0

    def adopt(self, source_id: int, message: StoredMessage, moved: StoredMessage) -> None:
        """Take a message over, as `moved`; if this raises, the message is still with its source.

        The caller then removes it from the memory of the source and places `moved`.
        """
        self.last_sequence_number += 1
        moved.sequence_number = self.last_sequence_number
        moved.enqueued_sequence_number = first_number(message)
        self.journal.move(source_id, message.sequence_number, self.entity_id, moved)
        self.index.add(moved)

    def place(self, message: StoredMessage, now_ms: int, hops: int = 0) -> None:
        """Make a new message ready or, if it is scheduled, let it wait for its time."""
        if message.state is SCHEDULED:
            self._schedule.add(message.scheduled_for_ms, message.sequence_number)
            self.wake_by(message.scheduled_for_ms)
            return
        self._ready.append(message)
        if message.expires_at_ms:
            self._expiries.add(message.expires_at_ms, message.sequence_number)
            self.wake_by(message.expires_at_ms)
        self._offer(message, now_ms, hops)

    def _offer(self, message: StoredMessage, now_ms: int, hops: int) -> None:
        """Forward a message that has become ready, or announce it to receivers."""
        if self.forwarding is not None:
            self.forwarding.offer(message, now_ms, hops)
            if self.forwarding.retry_at_ms:
                self.wake_by(self.forwarding.retry_at_ms)
            if not self.is_ready(message):
                return
        self.announce()

    def remember(self, message_id: str | None, now_ms: int) -> bool:
        """Note the id of an accepted message; false if it is a duplicate."""
        history = self.history
        if history is None or message_id is None:
            return True
        if not history.accept(message_id, now_ms):
            return False
        self.wake_by(history.next_ms())
        return True

    def retract(self, message_id: str | None) -> None:
        """Forget the id of a message that was remembered and could not be stored after all."""
        history = self.history
        if history is not None and message_id is not None:
            history.retract(message_id)

    # Locked

    def lock(
        self, messages: list[StoredMessage], until_ms: int, session: MessageSession | None
    ) -> list[LockedMessage]:
        """Lock messages, popped or deferred, for a receiver."""
        deliveries = self.locks.add(messages, self.tokens, until_ms, timed=session is None)
        if session is not None:
            session.tokens.update(dict.fromkeys(each.lock_token for each in deliveries))
        elif messages:
            self.wake_by(until_ms)
        return deliveries

    def unlock(self, token: bytes) -> StoredMessage:
        """End the lock of a message; the caller puts it somewhere at once."""
        message = self.locks.remove(token)
        if self.sessions is not None:
            session = self.sessions.get(message.session_id)
            if session is not None:
                session.tokens.pop(token, None)
        return message

    def put_back(self, message: StoredMessage, now_ms: int, *, counted: bool) -> None:
        """Make an unlocked message ready again; dead-letter it after its last delivery."""
        if counted and self.dead_letter is None:
            self.journal.amend(self.entity_id, message)  # A dead-letter queue counts nothing.
        elif counted:
            message.delivery_count += 1
            tries = self.description.max_delivery_count
            if message.delivery_count >= tries:
                text = f"The message was delivered {tries} times without being completed."
                self.move_to_dead_letter(
                    message, now_ms, reason=DELIVERED_TOO_OFTEN, description=text
                )
                return
            self.journal.amend(self.entity_id, message)
        if message.state is DEFERRED:
            return
        if 0 < message.expires_at_ms <= now_ms:
            self.expire(message, now_ms)
            return
        self._ready.give_back(message)
        self._offer(message, now_ms, 0)

    def _end_lock(self, token: bytes, now_ms: int, *, counted: bool) -> None:
        """Put a locked message back; if that fails, it is ready again where it was."""
        message = self.unlock(token)
        if self.engine_log is not None and not counted:
            self.engine_log.note("release", self.path, [message], now_ms, state="left")
        put_back = partial(self.put_back, message, now_ms, counted=counted)
        if not self._attempt("put a message back", put_back) and self.is_ready(message):
            # Still here and not locked, but not ready yet.
            self._ready.give_back(message)
            self.announce()

    def free_session(self, session: MessageSession, now_ms: int, *, counted: bool) -> None:
        """End a session's lock and put its messages back."""
        assert self.sessions is not None
        for token in list(session.tokens):
            self._end_lock(token, now_ms, counted=counted)
        self.sessions.free(session)
        self.announce()

    # Out

    def is_ready(self, message: StoredMessage) -> bool:
        return (
            message.lock_token is None
            and message.state is ACTIVE
            and self.messages.get(message.sequence_number) is message
        )

    def ready(self) -> list[StoredMessage]:
        return [message for message in self.messages.values() if self.is_ready(message)]

    def forget_moved(self, message: StoredMessage) -> None:
        """Remove a ready message that another entity has taken over; the journal has the move."""
        self.take_out(message)
        self.index.remove(message)

    def forget(self, message: StoredMessage) -> None:
        """Remove a message for good; it must be not ready and not locked."""
        self.index.remove(message)
        self.journal.remove(self.entity_id, message.sequence_number)

    def forget_all(self, messages: list[StoredMessage]) -> None:
        """The same for many."""
        self.index.remove_all(messages)
        self.journal.remove_all(self.entity_id, [each.sequence_number for each in messages])

    def expire(self, message: StoredMessage, now_ms: int) -> None:
        """End a message whose time to live is over; the caller calls `take_out`."""
        if self.description.dead_letter_on_expiration and self.dead_letter is not None:
            text = "The message expired and was dead lettered."
            self.move_to_dead_letter(message, now_ms, reason=EXPIRED, description=text)
        else:
            self.forget(message)
            if self.engine_log is not None:
                self.engine_log.note("expire", self.path, [message], now_ms)

    def move_to_dead_letter(
        self,
        message: StoredMessage,
        now_ms: int,
        *,
        reason: str | None,
        description: str | None,
        hops: int = 0,
    ) -> None:
        """Move a message to the dead-letter queue; the caller calls `take_out`.

        If this raises, the message is where it was.
        """
        assert self.dead_letter is not None, f"{self.path} has no dead-letter queue"
        overrides = dict(message.overrides or {})
        if reason is not None:
            overrides[REASON] = reason
        if description is not None:
            overrides[ERROR_DESCRIPTION] = description
        dead = copy_of(message)
        dead.expires_at_ms = 0
        dead.state = ACTIVE
        dead.dead_letter_source = self.path
        dead.overrides = overrides or None
        self.dead_letter.adopt(self.entity_id, message, dead)
        self.index.remove(message)
        if self.engine_log is not None:
            self.engine_log.note("dead_letter", self.path, [message], now_ms, error=reason)
        self.dead_letter.place(dead, now_ms, hops)

    def give_up(
        self, message: StoredMessage, reason: str, text: str, now_ms: int, hops: int
    ) -> bool:
        """Dead-letter a message that cannot be forwarded; in a dead-letter queue it just stays.

        False if it could not be dead-lettered now and must wait.
        """
        if self.dead_letter is None:
            return True
        move = partial(self.move_to_dead_letter, reason=reason, description=text, hops=hops)
        doing = "dead-letter a message that cannot be forwarded"
        is_moved = self._attempt(doing, partial(move, message, now_ms))
        if is_moved:
            self.take_out(message)
        return is_moved

    # Time

    def run_timers(self, now_ms: int, limit: int = TIMERS_AT_ONCE) -> None:
        """Do what is due by now, at most about `limit` things; the rest stays due.

        A timer that fails is reported and tried again later; the others run.
        """
        self.wake_ms = NEVER_MS
        is_done = False
        try:
            is_done = self._attempt("run the timers", partial(self._run_due, now_ms, limit))
        finally:
            due_ms = self.next_deadline_ms() or NEVER_MS
            self.wake_by(due_ms if is_done else max(due_ms, now_ms + FAILED_RETRY_MS))

    def _run_due(self, now_ms: int, left: int) -> None:
        while left > 0 and (token := self.locks.deadlines.pop(now_ms)) is not None:
            left -= 1
            self._end_lock(token, now_ms, counted=True)
        while left > 0 and self.sessions and (session := self.sessions.expired(now_ms)):
            left -= 1 + len(session.tokens)
            holder = session.holder
            self.free_session(session, now_ms, counted=True)
            self._session_lost(holder)
        while left > 0 and (number := self._schedule.pop(now_ms)) is not None:
            left -= 1
            message = self.messages[number]
            if not self._attempt("enqueue a message", partial(self.activate, message, now_ms)):
                self._try_later(self._schedule, number, now_ms)
        while left > 0 and (number := self._expiries.pop(now_ms)) is not None:
            left -= 1
            message = self.messages[number]
            # A locked message expires when its lock ends: `put_back` checks the time.
            if message.lock_token is not None:
                continue
            if self._attempt("end an expired message", partial(self.expire, message, now_ms)):
                self.take_out(message)
            else:
                self._try_later(self._expiries, number, now_ms)
        if left > 0 and self.forwarding and 0 < self.forwarding.retry_at_ms <= now_ms:
            left -= self.forwarding.run(now_ms, left)
        if left > 0 and self.history is not None:
            self.history.forget_old(now_ms, left)

    def _attempt(self, doing: str, act: Callable[[], None]) -> bool:
        """Call `act`; return whether it worked. An unexpected error is reported, not raised."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - reported; the others go on
            self.report(doing, error)
            return False
        return True

    def report(self, doing: str, error: Exception) -> None:
        """Report an unexpected error to the shell; raise it where there is none."""
        if self._failed is None:
            raise error
        self._failed(self.path, doing, error)

    def _try_later(self, deadlines: Deadlines[int], number: int, now_ms: int) -> None:
        """Arm the timer of a message again, unless the message has left."""
        retries, messages = self._retries, self.messages
        if len(retries) > 2 * len(messages):
            # More than half are of messages that have left since.
            self._retries = retries = {each: retries[each] for each in retries if each in messages}
        if number in messages:
            retries[number] = now_ms + FAILED_RETRY_MS
            deadlines.add(now_ms + FAILED_RETRY_MS, number)

    def _enqueue_scheduled(self, message: StoredMessage, now_ms: int) -> None:
        """Enqueue a scheduled message whose time has come, under a new number.

        Its time to live begins now: a broker that was down at the time does not shorten it.
        """
        active = copy_of(message)
        active.state = ACTIVE
        active.enqueued_at_ms = now_ms
        active.expires_at_ms = now_ms + message.ttl_ms if message.ttl_ms else 0
        self.adopt(self.entity_id, message, active)
        self.index.remove(message)
        self.place(active, now_ms)

    def next_deadline_ms(self) -> int:
        """When `run_timers` has something to do, 0 if nothing waits."""
        due = [
            self.locks.deadlines.next_ms(),
            self.sessions.deadlines.next_ms() if self.sessions else 0,
            self._schedule.next_ms(),
            self._expiries.next_ms(),
            self.forwarding.retry_at_ms if self.forwarding else 0,
            self.history.next_ms() if self.history else 0,
        ]
        return min((due_ms for due_ms in due if due_ms), default=0)

    def wake_by(self, due_ms: int) -> None:
        if due_ms < self.wake_ms:
            self.wake_ms = due_ms
            self._arm(due_ms)

    def _activation_of(self, number: int) -> int:
        message = self.messages.get(number)
        if message is None or message.state is not SCHEDULED:
            return 0
        return self._retries.get(number) or message.scheduled_for_ms

    def _expiry_of(self, number: int) -> int:
        # A deferred message expires only when it is requested, as in Azure.
        message = self.messages.get(number)
        if message is None or message.state is not ACTIVE:
            return 0
        return self._retries.get(number) or message.expires_at_ms

    def restore(self, image: EntityImage) -> None:
        """Restore everything from the store; locks are gone, delivery counts are not."""
        last = image.messages[-1].sequence_number if image.messages else 0
        self.last_sequence_number = max(image.last_sequence_number, last)
        add, make_ready = self.index.add, self._ready.append
        for message in image.messages:
            add(message)
            if message.state is ACTIVE:
                make_ready(message)
                if message.expires_at_ms:
                    self._expiries.add(message.expires_at_ms, message.sequence_number)
            elif message.state is SCHEDULED:
                self._schedule.add(message.scheduled_for_ms, message.sequence_number)
        if self.sessions is not None:
            self.sessions.restore_states(image.session_states)
        if self.history is not None:
            self.history.restore(image.message_ids)
        if self.forwarding is not None:
            self.forwarding.refill(self.ready(), 1)
        self.wake_by(self.next_deadline_ms() or NEVER_MS)
