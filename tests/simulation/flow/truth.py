"""What consumers were given and did, beside what the namespaces know of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from twinbus.broker.engine.settlement import SettlementOutcome

FOREIGN: Final = b"somebody else's"
FOREIGN_MESSAGES: Final = 3
"""What a queue without the mark holds, and how many of them."""


@dataclass(eq=False)
class Given:
    """One delivery of a message to a consumer's receiver, as the namespace knows it."""

    side: str
    path: str
    number: int
    serial: int | None
    """None: a message of another application."""
    is_ambiguous: bool
    """A twin's message whose mark says that an attempt on the primary was not answered."""
    who: str
    """The process, and which start of it."""
    at: float
    asked: str | None = None
    """What the consumer asked for: complete, abandon, defer or dead-letter."""
    handed_out_at: float | None = None
    confirmed_at: float | None = None
    """When the receiver told the consumer that its settlement is done."""
    performed: SettlementOutcome | None = None
    performed_at: float | None = None

    @property
    def place(self) -> tuple[str, str, int]:
        return self.side, self.path, self.number

    def __str__(self) -> str:
        return f"#{self.serial} ({self.side} {self.path}, number {self.number}, {self.who})"


@dataclass(eq=False)
class FlowTruth:
    """All deliveries to consumers, by lock token."""

    given: dict[bytes, Given] = field(default_factory=dict)

    @property
    def handed_out(self) -> list[Given]:
        """What applications got, in the order in which they got it."""
        found = [one for one in self.given.values() if one.handed_out_at is not None]
        return sorted(found, key=lambda one: one.handed_out_at or 0.0)
