"""What a broker is in the table of peers, and the processor time that its processes took."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Peer:
    """A running broker under test."""

    name: str
    synced: bool
    """Whether a message is on the disk before it is confirmed, not only in the kernel's memory."""
    session: int
    """Of its processes: the id of the one that was started."""
    send: Callable[[str, int, int], float]
    """Send so many messages to a new queue of that name, so many unconfirmed at once; the rate."""


def processor_seconds(session: int) -> float:
    """What all processes of a session, and the children they waited for, took so far."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        # Numbered as in proc(5), from the third field on: session 6, utime 14 to cstime 17.
        if int(fields[6 - 3]) == session:
            total += sum(map(int, fields[14 - 3 : 18 - 3]))
    return total * TICK_S
