"""Counts of judged messages: what a report of conservation is made of. Pure.

Memory holds a row of counts for each entity and a limited number of named messages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from twinbus.pipeline.core import rules
from twinbus.pipeline.core.calculus import PLAIN
from twinbus.pipeline.core.messages import FoundMessage, RecordShape
from twinbus.pipeline.core.rules import (
    BESIDE_FATES,
    DEAD_LETTER_QUEUE,
    FATES_OF_ACCEPTED,
)


@dataclass
class RecordCounts:
    """Counts of records, whatever their message."""

    records: int = 0
    broker_records: int = 0
    nameless: int = 0
    """Accepted messages without an id or an entity."""
    unrecorded: int = 0
    message_operations: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    deleted_ms: dict[str, int] = field(default_factory=dict)
    """Entities that a broker deleted, with the last time of each."""

    def add(self, shape: RecordShape, at_ms: int, *, is_named: bool) -> None:
        self.records += 1
        self.broker_records += shape.is_broker
        self.message_operations += shape.is_about_message
        self.nameless += shape.is_accepted and not is_named
        if self.first_ms is None or self.last_ms is None:
            self.first_ms = self.last_ms = at_ms
        elif at_ms > self.last_ms:
            self.last_ms = at_ms
        elif at_ms < self.first_ms:
            self.first_ms = at_ms
        if shape.deleted:
            self.deleted_ms[shape.deleted] = max(at_ms, self.deleted_ms.get(shape.deleted, at_ms))


class FirstFew:
    """The first few of many rows, by their keys."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: list[tuple[Any, ...]] = []

    def add(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) > 4 * self._most:
            self._cut()

    def rows(self) -> list[tuple[Any, ...]]:
        self._cut()
        return self._rows

    def _cut(self) -> None:
        self._rows.sort()
        del self._rows[self._most :]


class MessageCounts:
    """Counts of messages by entity, and the messages to name: give it the messages of each id."""

    def __init__(self, *, ranks: Sequence[str], named_max: int, standing_at: Sequence[int]) -> None:
        """`ranks` are the fates of missing messages, the worst first. `standing_at` are times for
        which the messages in backlog queues are counted.
        """
        self.unsent = 0
        """Messages that the broker stored in a backlog queue and no client recorded."""
        self.missing = 0
        self.standing = dict.fromkeys(standing_at, 0)
        self.windows = Counter[str]()
        self.named = FirstFew(named_max)
        """Missing messages as (rank, time, destination, id, label)."""
        self.duplicates = FirstFew(named_max)
        """As (entity, id, label, destination, times, window)."""
        self._ranks = {fate: rank for rank, fate in enumerate(ranks)}
        self._by_entity: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def add(self, messages: Sequence[FoundMessage]) -> None:
        """Count the messages of one id."""
        held = [one for one in messages if one.is_in_backlog]
        for one in messages:
            if not one.is_in_backlog:
                self._add(one)
        if held:
            self._add_held(held, messages)

    def _add(self, one: FoundMessage) -> None:
        judged = one.judged
        counts = self._by_entity[one.label, one.destination]
        for name in judged.counts:
            counts[name] += 1
        if judged.m.second_copies:
            counts["second_copies"] += judged.m.second_copies
            counts["redeliveries"] += judged.m.redeliveries
        elif judged.m.redeliveries:
            counts["redeliveries"] += judged.m.redeliveries
        if judged.is_missing:
            assert one.fate is not None
            counts[one.fate] += 1
            self.missing += 1
            rank = self._ranks[one.fate]
            self.named.add((rank, one.accepted_ms, one.destination, one.message_id, one.label))
        if judged.is_duplicate:
            self._add_duplicate(one, counts)

    def _add_duplicate(self, one: FoundMessage, counts: Counter[str]) -> None:
        m = one.judged.m
        window = rules.window_of(PLAIN, m)
        counts["repeated"] += 1
        self.windows[window] += 1
        entity = one.repeated_at or one.destination
        times = max(m.repeats, m.copies - 1) + 1
        named = (entity, one.message_id, one.label, one.destination, times, window)
        self.duplicates.add(named)

    def _add_held(self, held: Sequence[FoundMessage], messages: Sequence[FoundMessage]) -> None:
        """Count what the broker recorded of an id in backlog queues."""
        known = {one.label for one in messages if one.judged.is_known_by_clients}
        stored = {
            one.label
            for one in held
            if one.judged.m.broker_copies and not one.destination.endswith(DEAD_LETTER_QUEUE)
        }
        # A client need not name its pair.
        self.unsent += 0 if "" in known else len(stored - known)
        for at_ms in self.standing:
            self.standing[at_ms] += sum(_stands(one, at_ms) for one in held)

    def by_entity(self) -> list[dict[str, Any]]:
        """Return the counts of each entity, as `reports.judgement` takes them."""
        names = (*FATES_OF_ACCEPTED, "accepted", *BESIDE_FATES, "repeated")
        return [
            {
                "primary_label": label,
                "destination": destination,
                "heard": counts["received"] > 0,
                **{name: counts[name] for name in names},
            }
            for (label, destination), counts in self._by_entity.items()
        ]


def _stands(one: FoundMessage, at_ms: int) -> bool:
    m = one.judged.m
    told = SimpleNamespace(
        destination=one.destination,
        first_ms=one.first_ms,
        last_ms=one.last_ms,
        broker_copies=m.broker_copies,
        broker_ended=m.broker_ended,
    )
    return bool(rules.stands_at(PLAIN, told, at_ms))
