"""An attempt and a ping of an explored application, and how they fail."""

from __future__ import annotations

from dataclasses import dataclass


class OperationTimeoutError(Exception):
    """Judged by its name, as the SDK's."""


class ServiceBusServerBusyError(Exception):
    """Judged by its name, as the SDK's."""


@dataclass(eq=False, slots=True)
class Attempt:
    place: str
    began: float
    timeout_s: float
    could_arrive: bool
    """Whether it may be stored although no answer comes."""
    is_turn: bool = False
    is_lost: bool = False
    """Nothing answers it any more."""
    is_broken: bool = False
    """Its connection is gone."""

    @property
    def until(self) -> float:
        return self.began + self.timeout_s


@dataclass(eq=False, slots=True)
class Ping:
    began: float
    is_lost: bool = False
