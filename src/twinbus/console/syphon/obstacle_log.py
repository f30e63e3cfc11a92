"""The lines of `twinbus syphon run` about obstacles: one when an obstacle begins, one at its end.

An outage of a side is one obstacle, however many queues meet it and whatever each attempt to
reconnect reports; it is over when every queue has the side again. A destination that is held is one
obstacle for all queues. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from twinbus.status.document import SyphonQueueStatus
from twinbus.wording import counted, duration

SIDES: Final = ("primary", "secondary")

PARTLY_S: Final = 5.0
"""The queues lose a side one after the other: before this time a loss of some is not printed."""


@dataclass(slots=True)
class _Obstacle:
    begins: str
    ends: str
    since: float
    is_told: bool = False


class ObstacleLog:
    """What the queues of one program cannot get past."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], _Obstacle] = {}

    def observe(self, queues: Mapping[str, SyphonQueueStatus], now: float) -> list[tuple[str, str]]:
        """Take the state of the queues; return the lines to print, each with its event."""
        found = self._found(queues)
        lines: list[tuple[str, str]] = []
        for key, (begins, ends, is_told_later) in found.items():
            known = self._known.setdefault(key, _Obstacle(begins, ends, now))
            if not known.is_told and now - known.since >= (PARTLY_S if is_told_later else 0.0):
                known.is_told = True
                lines.append(("held", begins))
        for key in [key for key in self._known if key not in found]:
            gone = self._known.pop(key)
            if gone.is_told:
                lines.append(("released", f"{gone.ends} after {duration(now - gone.since)}"))
        return lines

    def _is_told(self, *key: str) -> bool:
        return key in self._known and self._known[key].is_told

    def _found(
        self, queues: Mapping[str, SyphonQueueStatus]
    ) -> dict[tuple[str, ...], tuple[str, str, bool]]:
        """Return each obstacle: its first line, its last one, and whether it may still grow."""
        found: dict[tuple[str, ...], tuple[str, str, bool]] = {}
        for side in SIDES:
            lost = {q: s.problems[side] for q, s in queues.items() if side in s.problems}
            # A queue that was lost alone before, as a disabled one, says nothing of the side.
            alone = {queue: why for queue, why in lost.items() if self._is_told(side, queue)}
            together = {queue: why for queue, why in lost.items() if queue not in alone}
            is_whole = len(lost) == len(queues) or (side,) in self._known
            if together and is_whole:
                why = next(iter(together.values()))
                found[(side,)] = f"the {side} is lost: {why}", f"the {side} is back", False
            for queue, why in (alone if is_whole else lost).items():
                begins = f"{queue}: the {side} is lost: {why}"
                found[side, queue] = begins, f"{queue}: the {side} is back", True
        others: dict[str, list[str]] = {}
        for state in queues.values():
            for what, why in state.problems.items():
                if what not in SIDES:
                    others.setdefault(what, []).append(why)
            for path, why in state.held.items():
                found["held", path] = f"{path} is held: {why}", f"{path} is no longer held", False
        for what, reasons in others.items():
            begins = f"{what}: {reasons[0]} [{counted(len(reasons), 'queue')}]"
            found[what, "*"] = begins, f"{what}: no longer so", False
        return found
