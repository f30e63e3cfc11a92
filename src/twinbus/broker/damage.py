"""What the store found damaged and set aside: in words, each once in the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.engine.queue import Queue
from twinbus.broker.journal import Damage

log = logging.getLogger("twinbus.broker")

LOGGED_AT_ONCE = 20
"""Lines that one round writes; the next one says how many more there are."""


class DamageReport:
    def __init__(self, damaged: Mapping[bytes, Damage]) -> None:
        """`damaged` is the store's own, which grows when something is read."""
        self._damaged = damaged
        self._logged: set[bytes] = set()

    def lines(self, namespace: BrokerNamespace) -> list[str]:
        """One line for each record of an entity that still exists."""
        paths = _paths(namespace) if self._damaged else {}
        return [
            _line(paths[damage.entity_id], damage)
            for damage in list(self._damaged.values())
            if damage.entity_id in paths
        ]

    def log_new(self, namespace: BrokerNamespace) -> None:
        """Log what was found since the last call; costs nothing if that is nothing."""
        if len(self._logged) == len(self._damaged):
            return
        paths = _paths(namespace)
        new = [key for key in self._damaged if key not in self._logged]
        for key in new[:LOGGED_AT_ONCE]:
            damage = self._damaged[key]
            path = paths.get(damage.entity_id, f"entity {damage.entity_id}")
            log.error("%s: %s", namespace.name, _line(path, damage))
        if len(new) > LOGGED_AT_ONCE:
            more = len(new) - LOGGED_AT_ONCE
            log.error("%s: %d more records are damaged and set aside", namespace.name, more)
        self._logged = set(self._damaged)


def _line(path: str, damage: Damage) -> str:
    number = damage.sequence_number
    what = f"message {number}" if number else "an id that duplicate detection remembered"
    return f"{what} of {path!r} is damaged on the disk and set aside: {damage.why}"


def _paths(namespace: BrokerNamespace) -> dict[int, str]:
    paths: dict[int, str] = {}
    for entity in namespace.entities():
        paths[entity.entity_id] = entity.path
        if isinstance(entity, Queue) and entity.dead_letter is not None:
            paths[entity.dead_letter.entity_id] = entity.dead_letter.path
    return paths
