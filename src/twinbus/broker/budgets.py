"""What one client, one rule and all clients together may make a process keep. Pure.

docs/security.md has the table. A connection takes from its own budgets (`twinbus.amqp.budgets`),
from those of the rule or bearer token that it came in by, and from those of the process, so many
connections of one tenant cannot take what the others need.
"""

from __future__ import annotations

from typing import Final, Protocol

from twinbus.amqp.budgets import Budget, PeerBudgets
from twinbus.broker.sas import Grant

MB: Final = 1024 * 1024

CONNECTION_BYTES: Final = 16 * MB
"""Unfinished deliveries, names and properties of links, tokens, responses, unsettled deliveries;
and one message more of the largest entity that the connection sends to."""

CONNECTION_LINKS: Final = 5_000
CONNECTION_SESSIONS: Final = 5_000

TRANSACTION_BYTES: Final = 64 * MB
"""Messages that wait in the open transactions of one connection; they are in memory."""

RULE_BYTES: Final = 256 * MB
"""Enough for one message of any size and some hundreds of small ones that come at once."""

RULE_LINKS: Final = 20_000
RULE_SESSIONS: Final = 20_000

CONNECTIONS_MAX: Final = 10_000
PROCESS_BYTES: Final = 1024 * MB
PROCESS_LINKS: Final = 100_000
PROCESS_SESSIONS: Final = 100_000


def share_of_connections(connections_max: int) -> int:
    """How many of all connections one rule, or one address without a token, may have.

    The rest is for other tenants. Of one connection there is no rest.
    """
    return max(1, connections_max * 9 // 10)


UNREAD_BYTES: Final = 512 * MB
"""What all clients together may leave unread; one alone may leave 17 MiB (`client_limits`)."""

UNREAD_BYTES_EACH: Final = 64 * 1024
"""What each client may leave unread, whatever the others do: the buffer of a socket."""


class Reader(Protocol):
    """A client's connection, to which this process writes."""

    def close_unread(self, text: str) -> None:
        """Close the connection: its client reads least. `text` says which limit is reached."""


class UnreadBytes:
    """What the clients of a process have not read of what was written for them.

    A client may leave as much unread as is free, so the one that has most gets no more first. When
    all is used up all the same, the connection that has most is closed.
    """

    __slots__ = ("_of", "free_bytes", "limit", "used")

    def __init__(self, limit: int = UNREAD_BYTES) -> None:
        self.limit = limit
        self.used = 0
        self.free_bytes = limit
        """What one client may have before it gets no more."""
        self._of: dict[Reader, int] = {}

    def count(self, reader: Reader, size_bytes: int) -> None:
        """A client has now left so much unread."""
        before = self._of.get(reader, 0)
        if size_bytes == before:
            return
        self._set(reader, size_bytes)
        while self.used > self.limit:
            largest = max(self._of, key=self._of.__getitem__)
            text = (
                f"the clients of this process have not read {self.used} bytes, the limit is"
                f" {self.limit}, and this connection has most of them; read what it gets"
            )
            self._set(largest, 0)
            largest.close_unread(text)

    def _set(self, reader: Reader, size_bytes: int) -> None:
        self.used += size_bytes - self._of.pop(reader, 0)
        if size_bytes:
            self._of[reader] = size_bytes
        self.free_bytes = max(self.limit - self.used, UNREAD_BYTES_EACH)


RuleKey = tuple[str, str, str]
"""Namespace, name of the rule or token, and the key that signed."""


class RuleBudgets(PeerBudgets):
    """What all connections that came in by one key or bearer token have."""

    __slots__ = ("connections",)

    def __init__(self, name: str, process: ProcessBudgets) -> None:
        owner = f"the rule {name[:80]!r}"
        super().__init__(
            Budget(owner, "bytes", RULE_BYTES, process.held_bytes),
            Budget(owner, "links", RULE_LINKS, process.links),
            Budget(owner, "sessions", RULE_SESSIONS, process.sessions),
        )
        self.connections = Budget(owner, "connections", process.share_of_connections)


class ProcessBudgets(PeerBudgets):
    """What all clients of a process have, those without a token included."""

    __slots__ = ("_rules", "share_of_connections", "unread")

    def __init__(self, connections_max: int = CONNECTIONS_MAX) -> None:
        owner = "this process"
        super().__init__(
            Budget(owner, "bytes", PROCESS_BYTES),
            Budget(owner, "links", PROCESS_LINKS),
            Budget(owner, "sessions", PROCESS_SESSIONS),
        )
        self.unread = UnreadBytes(UNREAD_BYTES)
        self.share_of_connections = share_of_connections(connections_max)
        self._rules: dict[RuleKey, RuleBudgets] = {}
        """Those that have a connection."""

    def enter(self, key: RuleKey) -> RuleBudgets:
        """Count a connection of a rule; `BudgetExceeded` if it has too many."""
        rule = self._rules.get(key)
        if rule is None:
            rule = self._rules[key] = RuleBudgets(key[1], self)
        rule.connections.take()
        return rule

    def leave(self, key: RuleKey) -> None:
        rule = self._rules[key]
        rule.connections.give_back()
        if not rule.connections.used:
            del self._rules[key]


class ClientBudgets(PeerBudgets):
    """What one connection has."""

    __slots__ = ("_key", "_process", "transaction_bytes")

    def __init__(self, process: ProcessBudgets) -> None:
        owner = "this connection"
        self.transaction_bytes = Budget(
            "this connection", "bytes in open transactions", TRANSACTION_BYTES, process.held_bytes
        )
        super().__init__(
            Budget(owner, "bytes", CONNECTION_BYTES, process.held_bytes),
            Budget(owner, "links", CONNECTION_LINKS, process.links),
            Budget(owner, "sessions", CONNECTION_SESSIONS, process.sessions),
        )
        self._process = process
        self._key: RuleKey | None = None

    def join(self, namespace: str, grant: Grant) -> None:
        """Count with the rule of the connection's first token; `BudgetExceeded` if it is full."""
        key = (namespace, grant.rule_name, grant.signed_with)
        rule = self._process.enter(key)
        self._key = key
        for mine, whole in zip(self.all(), rule.all(), strict=True):
            mine.move_to(whole)
        self.transaction_bytes.move_to(rule.held_bytes)

    def room_for(self, message_bytes: int) -> None:
        """Let one delivery of this size come in pieces, whatever else is held."""
        self.held_bytes.limit = max(self.held_bytes.limit, CONNECTION_BYTES + message_bytes)

    def close(self) -> None:
        """Give everything back: the connection is gone."""
        for budget in (*self.all(), self.transaction_bytes):
            budget.move_to(None)
        if self._key is not None:
            self._process.leave(self._key)
            self._key = None
