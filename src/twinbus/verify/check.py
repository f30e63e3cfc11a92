"""One question to a namespace, and what it costs to ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from twinbus.verify.facts import Observed
from twinbus.verify.scratch import ScratchNamespace


@dataclass(frozen=True, slots=True)
class Check:
    """One question to a namespace."""

    name: str
    asks: str
    operations: int
    """Billed operations that it makes at most."""
    run: Callable[[ScratchNamespace], Awaitable[Observed]]
    is_intrusive: bool = False
    """Whether it could disturb other users of the namespace."""
