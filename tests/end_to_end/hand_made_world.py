"""Two namespaces in a process, whose backlog queues an administrator makes, or does not."""

from __future__ import annotations

import zlib

from tests.processes import ServedBroker
from twinbus.servicebus.names import backlog_paths

ENTITIES = ("orders", "payments")
KEY = "s3cret"
"""Of the rules `sender`, `listener` and `both`."""


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
        return self._broker.connection_string("contoso-dr", rule=rule, key=KEY)
