"""The other processes of a pair, in its status: whom it hears, and who pings. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PINGS_ITSELF: Final = "this process"
PINGED_HERE: Final = "another process of this host"
PINGED_ELSEWHERE: Final = "another host"
EACH_PINGS: Final = "each host for itself"
"""Who pings an entity that has failed over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetStatus:
    """With whom this process shares evidence (docs/failures.md)."""

    host_id: str = ""
    """The random id of this host; empty: the process shares nothing yet."""
    files_off: str = ""
    """Why it shares nothing with other processes of this host; empty: it does."""
    board_off: str = ""
    """Why it shares nothing with other hosts; empty: the notice board can be used."""
    speaks: bool = False
    """Whether this process reads and writes the board for all of this host."""
    processes: int = 0
    """Other processes of this host that have something to say."""
    hosts: int = 0
    """Other hosts with a fresh notice on the board."""

    def __str__(self) -> str:
        parts = []
        if self.files_off:
            parts.append(f"shares nothing with other processes of this host: {self.files_off}")
        elif self.processes:
            parts.append(f"hears {_counted(self.processes, 'other process', 'es')} of this host")
        if self.board_off:
            parts.append(f"notice board off: {self.board_off}")
        elif self.hosts:
            parts.append(f"{_counted(self.hosts, 'other host', 's')} on the notice board")
        return "; ".join(parts)


def _counted(count: int, noun: str, plural: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{plural}"
