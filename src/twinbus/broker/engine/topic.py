"""A topic: each message goes, as a copy, to every subscription whose rules take it.

A topic keeps only what is scheduled; when its time comes it is published like any other. Everything
else lives in the subscriptions, each a queue of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, NamedTuple

from twinbus.broker.descriptions import (
    CorrelationFilter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    check_name,
    rule_record,
)
from twinbus.broker.engine.limits import MESSAGE_BYTES, rule_bytes
from twinbus.broker.engine.message_states import EngineContext
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import FILTER_FAILED, NO_SESSION_ID
from twinbus.broker.filters.rules import (
    MessageSeen,
    apply_action,
    begin_rules,
    compiled_parts,
    matches,
    validate,
)
from twinbus.broker.filters.values import FilterError
from twinbus.broker.journal import DamagedMessage, StoredMessage, copy_message
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.broker.messages.rendering import render
from twinbus.broker.refusals import ArgumentOutOfRange, Refusal, check_count, entity_full
from twinbus.servicebus.names import subscription_path

RULES_AT_ONCE: Final = 8
"""Rules that are evaluated in one step ahead."""

COPIES_AHEAD_MAX: Final = 10_000
"""Copies that are worked out ahead for one delivery; a hundred bytes each."""

Copies = list[Incoming] | Refusal
"""What the rules of a subscription make of a message, or why that cannot be worked out."""


class Ahead(NamedTuple):
    """The copies of a message, as the rules of a topic were after so many changes."""

    topic: Topic
    rule_changes: int
    copies: dict[Subscription, Copies]


class Subscription(Queue):
    """A queue that takes those messages of its topic that its rules take."""

    description: SubscriptionDescription

    def __init__(
        self,
        topic_path: str,
        name: str,
        entity_id: int,
        description: SubscriptionDescription,
        context: EngineContext,
        dead_letter: Queue,
    ) -> None:
        path = subscription_path(topic_path, name)
        super().__init__(path, entity_id, description, context, dead_letter)
        self.topic_path = topic_path
        self.name = name
        self.rules: dict[str, RuleDescription] = {}
        """By lower-case name, in order of creation, which is the order of evaluation."""
        self.rule_numbers: dict[str, int] = {}
        """Numbers by which the store keeps the order of the rules."""
        self.rules_memory_bytes = 0
        self._compiled: dict[str, object] = {}
        self.require_room: Callable[[int, int], None] = lambda _size, _memory: None
        """Takes bytes and memory to add; raises if the topic has no room for them."""
        self.rules_changed: Callable[[], None] = lambda: None

    def put_rule(self, rule: RuleDescription) -> None:
        """Add a rule, or replace the one of its name in its place."""
        key = rule.name.lower()
        if key in self.rules:
            self.rules_memory_bytes -= rule_bytes(self.rules[key])
        else:
            self.rule_numbers[key] = next(reversed(self.rule_numbers.values()), 0) + 1
        self.rules[key] = rule
        self.rules_memory_bytes += rule_bytes(rule)
        self._compiled[key] = compiled_parts(rule)
        self.rules_changed()

    def remove_rule(self, key: str) -> None:
        self.rules_memory_bytes -= rule_bytes(self.rules.pop(key))
        del self.rule_numbers[key], self._compiled[key]
        self.rules_changed()

    def offer(
        self,
        incoming: Incoming,
        now_ms: int,
        hops: int = 0,
        origin: StoredMessage | None = None,
        ahead: Copies | None = None,
    ) -> None:
        """Take the copies of a published message that the rules make; it is never refused.

        A status other than Active does not keep messages out: they wait here. `ahead`: the copies,
        where they are known.
        """
        try:
            if isinstance(ahead, Refusal):
                raise ahead
            copies = self._copies(incoming) if ahead is None else ahead
            if copies and (copies[0] is not incoming or len(copies) > 1):
                # Only the message itself was admitted, and its sender did not write the rules.
                more_bytes = sum(each.size_bytes for each in copies) - incoming.size_bytes
                if more_bytes > 0 or len(copies) > 1:
                    self.require_room(more_bytes, MESSAGE_BYTES * (len(copies) - 1))
        except Refusal as failure:
            self._dead_letter_new(
                incoming, now_ms, FILTER_FAILED, failure.description, hops, origin
            )
            return
        for each in copies:
            if self.requires_session and each.session_id is None:
                text = "Session enabled entity doesn't allow a message whose session id is null."
                self._dead_letter_new(each, now_ms, NO_SESSION_ID, text, hops, origin)
            else:
                self.take(each, now_ms, hops, origin)

    def _copies(self, incoming: Incoming) -> list[Incoming]:
        """One copy for all rules without an action that match, and one for each with an action."""
        copies: list[Incoming] = []
        self._add_copies(incoming, self.rules.values(), copies, begin_rules(incoming))
        return copies

    def copies_in_steps(self, incoming: Incoming) -> Generator[None, None, Copies]:
        """The copies that `offer` will take, some rules at a time; nothing changes here."""
        copies: list[Incoming] = []
        rules, seen = list(self.rules.values()), begin_rules(incoming)
        try:
            for first in range(0, len(rules), RULES_AT_ONCE):
                self._add_copies(incoming, rules[first : first + RULES_AT_ONCE], copies, seen)
                yield
        except Refusal as failure:
            return failure
        return copies

    def _add_copies(
        self,
        incoming: Incoming,
        rules: Iterable[RuleDescription],
        copies: list[Incoming],
        seen: MessageSeen,
    ) -> None:
        is_taken = any(each is incoming for each in copies)
        for rule in rules:
            try:
                if not matches(rule, incoming, seen):
                    continue
                if rule.action is not None:
                    copies.append(apply_action(rule, incoming, seen))
                elif not is_taken:
                    is_taken = True
                    copies.append(incoming)
            except Refusal:
                if self.description.dead_letter_on_filter_error:
                    raise
            except Exception as error:
                self.states.report(f"apply rule {rule.name!r}", error)
                if self.description.dead_letter_on_filter_error:
                    raise FilterError(f"Rule {rule.name!r} failed unexpectedly: {error}") from error

    def _dead_letter_new(
        self,
        incoming: Incoming,
        now_ms: int,
        reason: str,
        text: str,
        hops: int,
        origin: StoredMessage | None,
    ) -> None:
        message = self.states.store(incoming, now_ms, origin)
        self.states.move_to_dead_letter(message, now_ms, reason=reason, description=text, hops=hops)


class Schedule(Queue):
    kind = "Topic"

    def __init__(self, topic: Topic, context: EngineContext) -> None:
        self._topic = topic
        self._reached: dict[int, set[int]] = {}
        """Subscriptions, by entity id, that have a message which another could not take; by number.
        Only in memory: after a restart such a message is published to all again."""
        description = _schedule_description(topic.description)
        super().__init__(topic.path, topic.entity_id, description, context)
        self.states.activate = self._publish
        self.states.announce = lambda: None  # Clients do not receive from a topic.

    def _publish(self, message: StoredMessage, now_ms: int) -> None:
        """Publish a message whose time has come; it stays until every subscription has it."""
        number = message.sequence_number
        try:
            payload = self._journal.payload(self.entity_id, number)
        except DamagedMessage:
            # Set aside: its record stays on the disk.
            self.states.index.remove(message)
            return
        incoming = resent(payload, message)
        reached = self._reached.pop(number, None) or set()
        try:
            self._topic.fan_out(incoming, now_ms, origin=message, reached=reached)
        except Exception:
            self._reached[number] = reached
            raise
        self.states.forget(message)


class Topic:
    requires_session = False

    def __init__(
        self, path: str, entity_id: int, description: TopicDescription, context: EngineContext
    ) -> None:
        self.path = path
        self.entity_id = entity_id
        self.description = description
        self.subscriptions: dict[str, Subscription] = {}
        """By lower-case name."""
        self.rule_changes = 0
        """How often a rule or a subscription was added or changed, or a rule removed."""
        self.created_at_ms = 0
        self.updated_at_ms = 0
        self._journal = context.journal
        self.schedule = Schedule(self, context)
        self.is_duplicate = self.schedule.is_duplicate
        self.cancel_scheduled = self.schedule.cancel_scheduled
        self.restore = self.schedule.restore

    def __repr__(self) -> str:
        return f"<topic {self.path!r}, {len(self.subscriptions)} subscriptions>"

    @property
    def filter_count(self) -> int:
        """Filters that are evaluated for each message."""
        return sum(len(each.rules) for each in self.subscriptions.values())

    @property
    def max_message_bytes(self) -> int:
        return self.schedule.max_message_bytes

    @property
    def scheduled_count(self) -> int:
        return self.schedule.scheduled_count

    @property
    def size_bytes(self) -> int:
        """Bytes of the scheduled messages; the others are their subscriptions'."""
        return self.schedule.size_bytes

    @property
    def accessed_at_ms(self) -> int:
        """When a client last published, or did anything with a subscription."""
        times = [self.schedule.accessed_at_ms]
        times += (each.accessed_at_ms for each in self.subscriptions.values())
        return max(times)

    @accessed_at_ms.setter
    def accessed_at_ms(self, at_ms: int) -> None:
        self.schedule.accessed_at_ms = at_ms

    def admit(
        self,
        incoming: Incoming | StoredMessage,
        now_ms: int,
        *,
        reserved_bytes: int = 0,
        reserved_memory_bytes: int = 0,
    ) -> None:
        """Raise unless the message could be published now, beside what is reserved for others."""
        held_bytes, memory_bytes = self._held()
        self.schedule.admit(
            incoming,
            now_ms,
            reserved_bytes=reserved_bytes + held_bytes,
            reserved_memory_bytes=reserved_memory_bytes + memory_bytes,
        )

    def require_room(self, added_bytes: int, added_memory_bytes: int) -> None:
        """Raise unless topic and subscriptions have room for these bytes and this memory."""
        held_bytes, memory_bytes = self._held()
        held_bytes += self.size_bytes
        if held_bytes + added_bytes > self.schedule.quota_bytes:
            advice = f"the copies that the rules make need {added_bytes} bytes"
            raise entity_full("Topic", self.path, held_bytes, self.schedule.quota_bytes, advice)
        self.schedule.require_memory(added_memory_bytes, memory_bytes)

    def _held(self) -> tuple[int, int]:
        """Stored bytes and memory of all subscriptions, dead letters included."""
        size_bytes = memory_bytes = 0
        for subscription in self.subscriptions.values():
            states = subscription.states
            size_bytes += states.index.size_bytes
            memory_bytes += states.memory_bytes + subscription.rules_memory_bytes
            if states.dead_letter is not None:
                size_bytes += states.dead_letter.index.size_bytes
        return size_bytes, memory_bytes

    def require_memory(self, added_bytes: int) -> None:
        """Raise unless the memory of topic and subscriptions may grow by `added_bytes`."""
        self.schedule.require_memory(added_bytes, self._held()[1])

    def enqueue(self, incoming: Incoming, now_ms: int) -> StoredMessage | None:
        """Hand a message to the subscriptions; returned is what is kept here: a scheduled one."""
        self.admit(incoming, now_ms)
        return self.take(incoming, now_ms)

    def take(self, incoming: Incoming, now_ms: int) -> StoredMessage | None:
        """Publish a message that was admitted; never refuses."""
        if incoming.scheduled_for_ms > now_ms:
            return self.schedule.take(incoming, now_ms)
        if self.schedule.states.remember(incoming.message_id, now_ms):
            self._fan_out_or_retract(incoming, now_ms)
        return None

    def take_over(self, source_id: int, message: StoredMessage, now_ms: int, hops: int) -> None:
        """Publish what another entity forwards; if this raises, the message is still there.

        After a `Refusal` nothing has changed.
        """
        self.admit(message, now_ms)
        payload = self._journal.payload(source_id, message.sequence_number)
        incoming = resent(payload, message)
        is_new = self.schedule.states.remember(message.message_id, now_ms)
        if is_new:
            self._fan_out_or_retract(incoming, now_ms, hops, message)
        self._journal.remove(source_id, message.sequence_number)
        engine_log = self.schedule.states.engine_log
        if engine_log is not None:
            state = None if is_new else "duplicate"
            engine_log.note("forward", self.path, [message], now_ms, state=state)

    def evaluate(self, batch: Sequence[Incoming], now_ms: int) -> Generator[None, None, None]:
        """Work out which copies `take` will make of messages, in steps; nothing changes.

        What is too much to keep, or is worked out before a rule changes, `take` works out itself.
        """
        left = COPIES_AHEAD_MAX
        for incoming in batch:
            if incoming.is_ping or incoming.scheduled_for_ms > now_ms:
                continue
            ahead = Ahead(self, self.rule_changes, {})
            for subscription in list(self.subscriptions.values()):
                copies = yield from subscription.copies_in_steps(incoming)
                if copies:
                    ahead.copies[subscription] = copies
                    left -= 1 if isinstance(copies, Refusal) else len(copies)
            if left < 0:
                return
            incoming.ahead = ahead

    def _copies_ahead(self, incoming: Incoming) -> dict[Subscription, Copies] | None:
        ahead = incoming.ahead
        if not isinstance(ahead, Ahead) or ahead.topic is not self:
            return None
        return ahead.copies if ahead.rule_changes == self.rule_changes else None

    def _rules_changed(self) -> None:
        self.rule_changes += 1

    def _fan_out_or_retract(
        self, incoming: Incoming, now_ms: int, hops: int = 0, origin: StoredMessage | None = None
    ) -> None:
        """Publish a message whose id was remembered; forget the id if that fails."""
        try:
            self.fan_out(incoming, now_ms, hops, origin)
        except Exception:
            # The sender will try again, which must not count as a duplicate.
            self.schedule.states.retract(incoming.message_id)
            raise

    def fan_out(
        self,
        incoming: Incoming,
        now_ms: int,
        hops: int = 0,
        origin: StoredMessage | None = None,
        reached: set[int] | None = None,
    ) -> None:
        """Offer a message to every subscription that is not in `reached`; add those that took it.

        A subscription that fails does not keep the message from the others; its error is raised
        at the end.
        """
        failure: Exception | None = None
        known = self._copies_ahead(incoming)
        for subscription in list(self.subscriptions.values()):
            if reached and subscription.entity_id in reached:
                continue
            ahead = None if known is None else known.get(subscription, [])
            try:
                subscription.offer(incoming, now_ms, hops, origin, ahead)
            except Exception as error:  # noqa: BLE001 - raised below, when all others have it
                failure = error
                continue
            if reached is not None:
                reached.add(subscription.entity_id)
        if failure is not None:
            raise failure

    def update(self, description: TopicDescription, now_ms: int) -> None:
        self.description = description
        self.updated_at_ms = now_ms
        self.schedule.update(_schedule_description(description), now_ms)
        for subscription in self.subscriptions.values():
            self.attach(subscription)

    def attach(self, subscription: Subscription) -> None:
        """Publish to a subscription from now on, under the topic's limits."""
        self.subscriptions[subscription.name.lower()] = subscription
        subscription.max_message_bytes = self.max_message_bytes
        subscription.states.share_quota(self.require_memory)
        subscription.require_room = self.require_room
        subscription.rules_changed = self._rules_changed
        self._rules_changed()
        subscription.states.ttl_limit_ms = self.description.default_ttl_ms


def resent(payload: bytes, message: StoredMessage) -> Incoming:
    """A stored message as if its sender sent it again now, with what was added to it since."""
    # Without a time to live, so that no time of expiry is put into its properties.
    bare = copy_message(message)
    bare.ttl_ms = 0
    incoming = parse(render(payload, bare), lambda: message.message_id or "")
    incoming.size_bytes = message.size_bytes
    incoming.ttl_ms = message.ttl_ms
    incoming.scheduled_for_ms = 0
    return incoming


def _schedule_description(topic: TopicDescription) -> QueueDescription:
    return QueueDescription(
        max_size_mb=topic.max_size_mb,
        requires_duplicate_detection=topic.requires_duplicate_detection,
        duplicate_detection_window_ms=topic.duplicate_detection_window_ms,
        status=topic.status,
        max_message_size_kb=topic.max_message_size_kb,
    )


RULES_MAX = 2_000
"""Rules of one subscription, as many as Azure evaluates SQL filters of one topic."""

ACTION_RULES_MAX = 50
"""Rules with an action of one subscription: each makes a copy of a message, on disk and in memory.
"""

RULE_BYTES_MAX = 32 * 1024
"""One rule as it is stored. An expression has 1,024 characters; the rest is for the properties of a
correlation filter and for parameters."""

RULE_PROPERTIES_MAX = 100
"""Properties of a correlation filter, and parameters of a filter or an action: all are compared
for a message."""


def check_rule(rule: RuleDescription) -> None:
    """Refuse a rule that is too large or cannot be carried out."""
    check_name("rule", rule.name)
    for part in (rule.filter, rule.action):
        pairs: tuple[tuple[str, object], ...] = ()
        if isinstance(part, CorrelationFilter):
            pairs = part.properties
        elif isinstance(part, SqlFilter | SqlAction):
            pairs = part.parameters
        if len(pairs) > RULE_PROPERTIES_MAX:
            raise ArgumentOutOfRange(
                f"the rule {rule.name!r} has {len(pairs)} properties or parameters, the limit is"
                f" {RULE_PROPERTIES_MAX}; compare fewer of them"
            )
    size_bytes = len(json.dumps(rule_record(rule)))
    if size_bytes > RULE_BYTES_MAX:
        raise ArgumentOutOfRange(
            f"the rule {rule.name!r} has {size_bytes} bytes, the limit is {RULE_BYTES_MAX};"
            " shorten the values that it compares with"
        )
    validate(rule)


def check_rule_counts(
    owner: Subscription, rule: RuleDescription, before: RuleDescription | None = None
) -> None:
    """Refuse one rule, or one rule with an action, more than a subscription can have."""
    path, advice = f"the subscription {owner.path!r}", "delete some, or use several subscriptions"
    if before is None:
        check_count(path, "rules", len(owner.rules), RULES_MAX, advice)
    if rule.action is not None and (before is None or before.action is None):
        count = sum(each.action is not None for each in owner.rules.values())
        check_count(path, "rules with an action", count, ACTION_RULES_MAX, advice)
