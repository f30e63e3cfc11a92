"""What a peer may make this end keep: taken when it is kept, given back when it is dropped. Pure.

A budget counts one thing for one owner: bytes, links or sessions of a connection. It may be part
of a larger one, such as that of all connections that came in by one key; then it takes from both.
The peer that reaches a limit loses its connection (amqp:resource-limit-exceeded).
"""

from __future__ import annotations

from dataclasses import fields
from sys import getsizeof

from twinbus.amqp.frames import ProtocolViolation
from twinbus.amqp.performatives import Coordinator, Source, Target
from twinbus.amqp.types import Described
from twinbus.servicebus.conditions import RESOURCE_LIMIT

PIECE_BYTES = 100
"""A piece of a delivery beside its payload: an object and its place in a list."""

LINK_BYTES = 4_000
"""A link and what serves it, without names and properties."""

UNSETTLED_BYTES = 250
"""A delivery that the peer has not settled: its id, link and tag."""

UNLIMITED = 1 << 62

_ENTRY_BYTES = 120
"""A place in a map or a list, and what the container itself needs."""


class BudgetExceeded(ProtocolViolation):
    """The peer has reached a limit; the text says which."""

    def __init__(self, budget: Budget) -> None:
        text = f"{budget.owner} has more than {budget.limit} {budget.unit}, which is the limit"
        super().__init__(text, RESOURCE_LIMIT)


class Budget:
    """How much of one thing its owner has, and how much it may have."""

    __slots__ = ("_whole", "limit", "owner", "unit", "used")

    def __init__(
        self, owner: str, unit: str, limit: int = UNLIMITED, whole: Budget | None = None
    ) -> None:
        """`whole` is the larger budget of which this is a part."""
        self.owner = owner
        self.unit = unit
        self.limit = limit
        self.used = 0
        self._whole = whole

    def __repr__(self) -> str:
        return f"<{self.owner}: {self.used} of {self.limit} {self.unit}>"

    def take(self, amount: int = 1) -> None:
        """Count more; `BudgetExceeded` if that is too much, and nothing was counted."""
        if self.used + amount > self.limit:
            raise BudgetExceeded(self)
        if self._whole is not None:
            self._whole.take(amount)
        self.used += amount

    def lacking(self, amount: int) -> Budget | None:
        """The budget, of this and the larger ones, that has no room for so much; None: all have."""
        if self.used + amount > self.limit:
            return self
        return None if self._whole is None else self._whole.lacking(amount)

    def give_back(self, amount: int = 1) -> None:
        assert amount <= self.used, self
        self.used -= amount
        if self._whole is not None:
            self._whole.give_back(amount)

    def move_to(self, whole: Budget | None) -> None:
        """Be a part of another budget from now on; `BudgetExceeded` if it has no room for this."""
        before, self._whole = self._whole, None
        if before is not None:
            before.give_back(self.used)
        if whole is not None:
            whole.take(self.used)
        self._whole = whole


class PeerBudgets:
    """What the peer of one connection may make this end keep."""

    __slots__ = ("held_bytes", "links", "sessions")

    def __init__(
        self,
        held_bytes: Budget | None = None,
        links: Budget | None = None,
        sessions: Budget | None = None,
    ) -> None:
        """Without budgets of the owner there is no limit: this end chose its peer."""
        owner = "this connection"
        self.held_bytes = held_bytes or Budget(owner, "bytes")
        self.links = links or Budget(owner, "links")
        self.sessions = sessions or Budget(owner, "sessions")

    def all(self) -> tuple[Budget, Budget, Budget]:
        return self.held_bytes, self.links, self.sessions


def link_bytes(
    name: str, properties: object, *termini: Source | Target | Coordinator | None
) -> int:
    """The memory of a link, with all that the peer said of it."""
    size = LINK_BYTES + getsizeof(name) + value_bytes(properties)
    for terminus in termini:
        for field in fields(terminus) if terminus is not None else ():
            value = getattr(terminus, field.name)
            if value is not None:
                size += value_bytes(value)
    return size


def value_bytes(value: object) -> int:
    """The memory of an AMQP value; maps and lists with all they hold."""
    if isinstance(value, dict):
        entries = [*value, *value.values()]
    elif isinstance(value, (list, tuple)):
        entries = [*value]
    elif isinstance(value, Described):
        entries = [value.descriptor, value.value]
    else:
        return getsizeof(value)
    return getsizeof(None) + sum(_ENTRY_BYTES + value_bytes(each) for each in entries)
