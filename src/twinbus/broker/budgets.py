"""What one client, one rule and all clients together may make a process keep. Pure.

docs/security.md has the table. A connection takes from its own budgets (`twinbus.amqp.budgets`),
from those of the rule or bearer token that it came in by, and from those of the process, so many
connections of one tenant cannot take what the others need.
"""

from __future__ import annotations

from typing import Final

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
RULE_CONNECTIONS: Final = 9_000
"""Of the 10,000 that a process takes by default: the rest is for other tenants."""

PROCESS_BYTES: Final = 1024 * MB
PROCESS_LINKS: Final = 100_000
PROCESS_SESSIONS: Final = 100_000

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
        self.connections = Budget(owner, "connections", RULE_CONNECTIONS)


class ProcessBudgets(PeerBudgets):
    """What all clients of a process have, those without a token included."""

    __slots__ = ("_rules",)

    def __init__(self) -> None:
        owner = "this process"
        super().__init__(
            Budget(owner, "bytes", PROCESS_BYTES),
            Budget(owner, "links", PROCESS_LINKS),
            Budget(owner, "sessions", PROCESS_SESSIONS),
        )
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
