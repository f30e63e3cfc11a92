"""Two namespaces in a process, whose backlog queues an administrator makes, or does not."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.official_sdk import administration
from tests.processes import ServedBroker
from twinbus.servicebus.names import backlog_paths

ENTITIES = ("orders", "bills")
RULES = ("--rule", "sender:k:Send", "--rule", "both:k:Send,Listen")


@contextmanager
def served(directory: Path) -> Iterator[ServedBroker]:
    """`twinbus serve` with a primary that has entities, and a secondary with rules."""
    with ServedBroker(directory, "contoso", "contoso-dr", ephemeral=True, options=RULES) as broker:
        with administration(broker.connection_string("contoso")) as admin:
            for entity in ENTITIES:
                admin.create_queue(entity)
        yield broker


class Sides:
    """Both namespaces, and a name of the primary that no other test has."""

    def __init__(self, broker: ServedBroker, test: str) -> None:
        self._broker = broker
        self.label = f"test-{zlib.crc32(test.encode())}"
        self.primary = broker.connection_string("contoso")
        self.secondary = broker.connection_string("contoso-dr")

    def queues(self, count: int) -> tuple[str, ...]:
        """The paths of the backlog queues."""
        return backlog_paths(self.label, count)

    def weak(self, rule: str) -> str:
        """The secondary, with a rule that has fewer rights: `sender` or `both`."""
        return self._broker.connection_string("contoso-dr", rule=rule, key="k")
