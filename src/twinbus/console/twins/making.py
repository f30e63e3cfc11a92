"""Creates and marks twins by the administration API.

A queue is created with its mark. A topic or subscription is created as unfinished and marked when
its rules are complete: until then no sender uses it, and a creation that was killed is known and
finished by the next one. What exists without our mark is not written to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import RuleProperties, SubscriptionProperties

from twinbus.console.twins.reading import patiently, read_rules, read_subscriptions, rule_text
from twinbus.errors import TwinbusError
from twinbus.pairing.core.twin_plan import PREMIUM, to_create
from twinbus.pairing.core.twin_settings import UNREADABLE, Kind, TwinSettings
from twinbus.pairing.sdk.administration import FOREVER
from twinbus.servicebus.names import FOREVER_MS
from twinbus.servicebus.twins import (
    USER_METADATA_MAX,
    is_unfinished_twin_of,
    marked_label,
    twin_mark,
    unfinished_mark,
)

DEFAULT_RULE: Final = "$Default"
"""The rule that takes every message; the service adds it to a new subscription."""


class TwinNotMade(TwinbusError):
    """A twin was not created, finished or marked; the text says why."""


class TwinMaker:
    """Creates twins in the secondary with the settings of the primary's entities."""

    def __init__(
        self,
        primary_rules: Callable[[str, str], Awaitable[list[RuleProperties]]],
        secondary: ServiceBusAdministrationClient,
        label: str,
        sku: str | None,
    ) -> None:
        """`primary_rules` reads those of a topic and subscription; `sku` is the secondary's tier.

        None: it is not known.
        """
        self.sku = sku
        self.mark = twin_mark(label)
        self._primary_rules = primary_rules
        self._secondary = secondary
        self._label = label

    async def create(self, entity: TwinSettings, twins: Collection[str]) -> None:
        """Create a queue or a topic with its subscriptions; `twins` are the paths of all twins."""
        _require_destinations(entity, twins)
        wanted = to_create(entity, twins, self.sku)
        try:
            if wanted.kind is Kind.QUEUE:
                settings = _received(wanted) | _stored(wanted, self.sku)
                create = partial(self._secondary.create_queue, user_metadata=self.mark)
                await patiently(partial(create, wanted.name, **settings))
                return
            mark = unfinished_mark(self._label)
            settings = _common(wanted) | _stored(wanted, self.sku)
            await patiently(
                partial(self._secondary.create_topic, wanted.name, user_metadata=mark, **settings)
            )
        except ResourceExistsError:
            raise TwinNotMade(
                f"another process created {entity.name} just now: run the command again"
            ) from None
        await self.finish(entity, twins)

    async def finish(self, topic: TwinSettings, twins: Collection[str]) -> None:
        """Create what is missing of an unfinished topic, and mark it."""
        _require_destinations(topic, twins)
        await self.add_missing(topic, twins)
        found = await patiently(partial(self._secondary.get_topic, topic.name))
        self._require_mark(topic.name, found.user_metadata)
        if is_unfinished_twin_of(found.user_metadata, self._label):
            found.user_metadata = self.mark
            await patiently(partial(self._secondary.update_topic, found))

    async def add_missing(
        self, topic: TwinSettings, twins: Collection[str], *, with_sessions: bool = True
    ) -> list[str]:
        """Add missing subscriptions and rules to a topic of ours; return what was added."""
        there = await patiently(partial(self._secondary.get_topic, topic.name))
        self._require_mark(topic.name, there.user_metadata)
        empty = TwinSettings(kind=Kind.TOPIC, name=topic.name)
        found = (await read_subscriptions(self._secondary, empty)).subscriptions
        added = []
        for key, wanted in topic.subscriptions.items():
            if wanted.forward_to and wanted.forward_to.lower() not in twins:
                continue
            if key not in found:
                if wanted.requires_session and not with_sessions:
                    continue
                await self._create_subscription(topic.name, wanted, twins)
                added.append(f"subscription {wanted.name}")
            is_new = key not in found or is_unfinished_twin_of(
                found[key].user_metadata, self._label
            )
            rules = await self._add_rules(topic.name, wanted, is_new=is_new)
            if is_new:
                await self._mark_subscription(topic.name, wanted.name)
            else:
                added += [f"rule {rule} of subscription {wanted.name}" for rule in rules]
        return added

    async def _create_subscription(
        self, topic: str, entity: TwinSettings, twins: Collection[str]
    ) -> None:
        wanted = to_create(entity, twins, self.sku)
        create = partial(
            self._secondary.create_subscription,
            topic,
            wanted.name,
            user_metadata=unfinished_mark(self._label),
            dead_lettering_on_filter_evaluation_exceptions=wanted.dead_letter_on_filter_error,
            **_received(wanted),
        )
        try:
            await patiently(create)
        except ResourceExistsError:
            # Made since they were listed: by the same command in another process, or by someone.
            await self._our_subscription(topic, wanted.name)

    async def _add_rules(self, topic: str, wanted: TwinSettings, *, is_new: bool) -> list[str]:
        """Add the missing rules; remove others, and replace different ones, of a new subscription.

        The rule that takes everything goes last: a message that comes meanwhile is not missed.
        """
        there = {
            rule.name.lower(): rule_text(rule)
            for rule in await read_rules(self._secondary, topic, wanted.name)
        }
        added = []
        for rule in await self._primary_rules(topic, wanted.name):
            found = there.get(rule.name.lower())
            if found is not None and (not is_new or found == rule_text(rule)):
                continue
            if rule.filter is None:
                raise TwinNotMade(
                    f"rule {rule.name} of subscription {wanted.name} has a filter {UNREADABLE}:"
                    " create it by hand, then run the command again"
                )
            if found is not None:
                await self._delete_rule(topic, wanted.name, found.name)
            create = partial(
                self._secondary.create_rule,
                topic,
                wanted.name,
                rule.name,
                filter=rule.filter,
                action=rule.action,
            )
            with suppress(ResourceExistsError):
                await patiently(create)
            added.append(rule.name)
        if is_new:
            extra = [there[key].name for key in there if key not in wanted.rules]
            for name in sorted(extra, key=lambda name: name == DEFAULT_RULE):
                await self._delete_rule(topic, wanted.name, name)
        return added

    async def _delete_rule(self, topic: str, subscription: str, name: str) -> None:
        with suppress(ResourceNotFoundError):
            await patiently(partial(self._secondary.delete_rule, topic, subscription, name))

    async def _mark_subscription(self, topic: str, name: str) -> None:
        found = await self._our_subscription(topic, name)
        if is_unfinished_twin_of(found.user_metadata, self._label):
            found.user_metadata = self.mark
            await patiently(partial(self._secondary.update_subscription, topic, found))

    async def _our_subscription(self, topic: str, name: str) -> SubscriptionProperties:
        """Return a subscription of ours; TwinNotMade if it has no mark of ours."""
        found = await patiently(partial(self._secondary.get_subscription, topic, name))
        self._require_mark(f"subscription {name} of {topic}", found.user_metadata)
        return found

    def _require_mark(self, what: str, metadata: str | None) -> None:
        """Raise TwinNotMade if an entity is not ours now: someone may have made it anew."""
        if marked_label(metadata) != self._label:
            raise TwinNotMade(
                f"{what} does not have the mark of a twin any more: someone else changed it"
                " meanwhile"
            )


def _require_destinations(entity: TwinSettings, twins: Collection[str]) -> None:
    """Raise TwinNotMade if messages of a twin would go to an entity that is not a twin."""
    if gone := sorted(entity.forwards_to - set(twins)):
        raise TwinNotMade(f"it forwards to {gone[0]}, which has no twin")


async def mark_adopted(
    client: ServiceBusAdministrationClient, there: TwinSettings, label: str
) -> None:
    """Mark an entity that a person declared to be a twin; its metadata stays after the mark."""
    found: Any
    if there.kind is Kind.QUEUE:
        found = await patiently(partial(client.get_queue, there.name))
    else:
        found = await patiently(partial(client.get_topic, there.name))
    if (found.user_metadata or "") != there.user_metadata:
        raise TwinNotMade(f"another process changed {there.name} just now: run it again")
    found.user_metadata = adopted_metadata(there, label)
    update: Any = client.update_queue if there.kind is Kind.QUEUE else client.update_topic
    await patiently(partial(update, found))


def adopted_metadata(there: TwinSettings, label: str) -> str:
    """Return the mark and the metadata that is there; TwinNotMade if both are too long."""
    text = f"{twin_mark(label)} {there.user_metadata}".strip()
    if len(text) > USER_METADATA_MAX:
        raise TwinNotMade(
            f"the user metadata of {there.name} and the mark have {len(text):,} characters, and the"
            f" service keeps {USER_METADATA_MAX:,}: shorten the metadata"
        )
    return text


def _common(wanted: TwinSettings) -> dict[str, Any]:
    return {
        "default_message_time_to_live": _span(wanted.default_ttl_ms),
        "auto_delete_on_idle": _span(wanted.auto_delete_on_idle_ms),
    }


def _received(wanted: TwinSettings) -> dict[str, Any]:
    """Settings of what messages are received from: queues and subscriptions."""
    return _common(wanted) | {
        "requires_session": wanted.requires_session,
        "dead_lettering_on_message_expiration": wanted.dead_letter_on_expiration,
        "lock_duration": _span(wanted.lock_duration_ms),
        "max_delivery_count": wanted.max_delivery_count,
        # Paths, never the primary's addresses: the client adds its own namespace.
        "forward_to": wanted.forward_to,
        "forward_dead_lettered_messages_to": wanted.forward_dead_letters_to,
    }


def _stored(wanted: TwinSettings, sku: str | None) -> dict[str, Any]:
    """Settings of what has a quota of its own: queues and topics."""
    detects = wanted.requires_duplicate_detection
    return {
        "requires_duplicate_detection": detects,
        "duplicate_detection_history_time_window": _span(wanted.duplicate_detection_window_ms)
        if detects
        else None,
        "max_size_in_megabytes": wanted.max_size_mb,
        # Other tiers refuse any value.
        "max_message_size_in_kilobytes": wanted.max_message_size_kb if sku == PREMIUM else None,
        "enable_partitioning": wanted.enable_partitioning,
    }


def _span(value_ms: int | None) -> timedelta | str | None:
    if value_ms is None:
        return None
    return FOREVER if value_ms >= FOREVER_MS // 2 else timedelta(milliseconds=value_ms)
