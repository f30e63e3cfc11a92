"""The entities of a pair, by path. Unused ones are forgotten in time.

A program that answers to a reply queue per request has a sender for a moment and an entity for
ever: without an end the pair would grow by two kilobytes a request.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from twinbus.pairing.core.counters import EntityTotals

if TYPE_CHECKING:
    from twinbus.pairing.sending.watched_entity import WatchedEntity

UNUSED_MAX: Final = 1_000
"""Healthy entities without a sender that are kept, the latest ones: the status still shows them."""


class WatchedEntities:
    """Finds an entity by its path, whatever the letter case (SPEC 3)."""

    def __init__(self, unused_max: int = UNUSED_MAX) -> None:
        self._unused_max = unused_max
        self._entities: dict[str, WatchedEntity] = {}
        self._unused: dict[str, None] = {}
        self.forgotten = EntityTotals()
        """The numbers of the entities that are no longer here."""

    def all(self) -> list[WatchedEntity]:
        """A copy: other threads read it."""
        return list(self._entities.values())

    def numbers(self) -> tuple[list[WatchedEntity], EntityTotals]:
        """The entities, and the totals of those forgotten before; from any thread."""
        while True:
            count = self.forgotten.entities
            entities, totals = self.all(), replace(self.forgotten)
            if self.forgotten.entities == count and totals.entities == count:
                return entities, totals

    def find(self, path: str) -> WatchedEntity | None:
        return self._entities.get(path.strip("/").lower())

    def add(self, entity: WatchedEntity) -> None:
        """Add one that `find` did not find."""
        self._entities[entity.path.lower()] = entity

    def release(self, entity: WatchedEntity) -> None:
        """A sender of the entity was closed: forget the one that was not used for longest."""
        key = entity.path.lower()
        self._unused.pop(key, None)
        self._unused[key] = None
        while len(self._unused) > self._unused_max:
            oldest = next(iter(self._unused))
            del self._unused[oldest]
            # One that is in use again, or not healthy, comes back when a sender is closed.
            if self._entities[oldest].is_unused:
                self.forgotten.add(self._entities.pop(oldest))
