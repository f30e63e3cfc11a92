"""What `twinbus syphon` says: how far it is, what is in the way, what came of it. Pure text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from twinbus.console.terminal.table import aligned, duration, visible
from twinbus.syphon.core.forecast import time_to_empty_s
from twinbus.syphon.host import DrainProgress
from twinbus.syphon.relay.lease import WAITING

__all__ = [
    "SyphonProgress",
    "needs_attention",
    "outcome",
    "progress_line",
    "reasons",
    "status_lines",
]

BAR_WIDTH: Final = 24
STILL_S: Final = 5.0
"""Without a message moved for so long a drain does not move, whatever its last speed was."""


@dataclass(frozen=True, slots=True)
class SyphonProgress:
    """How a drain stands at one moment."""

    progress: DrainProgress
    first: int
    """Messages that were there at the start."""
    per_s: float
    still_s: float
    """Since the last message left the backlog."""

    @property
    def moved(self) -> int:
        return self.progress.forwarded + self.progress.dead_lettered

    @property
    def is_moving(self) -> bool:
        return self.still_s < STILL_S


def progress_line(standing: SyphonProgress) -> str:
    """A bar, how many, how fast, and when it is done; or why it does not move."""
    progress = standing.progress
    total = max(standing.first, progress.waiting)
    done = total - progress.waiting
    share = done / total if total else 1.0
    bar = "#" * int(share * BAR_WIDTH)
    words = [f"[{bar:.<{BAR_WIDTH}}] {share:4.0%}", f"{progress.waiting:,} of {total:,} left"]
    if progress.is_paused:
        words.append("paused: `twinbus syphon resume` goes on")
    elif standing.is_moving and standing.per_s > 0:
        words.append(f"{standing.per_s:,.0f}/s")
        left_s = time_to_empty_s(progress.waiting, standing.per_s)
        words.append(f"{duration(left_s)} to go" if left_s is not None else "")
    elif progress.waiting and not standing.is_moving:
        words.append("not moving: " + ("; ".join(reasons(progress)) or "nothing was received"))
        return "  ".join(words)
    return "  ".join(words + reasons(progress))


def reasons(progress: DrainProgress) -> list[str]:
    """What keeps messages where they are, each in a few words."""
    given_up = [
        f"{visible(path)} is missing: its messages are dead-lettered in {duration(left_s)}"
        " (--grace)"
        for path, left_s in progress.giving_up.items()
    ]
    missing = tuple(f"{path}: " for path in progress.giving_up)
    others = [
        visible(why) for why in progress.problems if not (missing and why.startswith(missing))
    ]
    return given_up + others


def outcome(
    *, forwarded: int, dead_lettered: int, left_aside: int, seconds: float, is_drained: bool
) -> str:
    """What a drain came to, in one line."""
    per_s = f", {forwarded / seconds:,.0f}/s" if seconds >= 1 else ""
    words = "drained" if is_drained else "stopped"
    line = f"{words}: {forwarded:,} messages brought home in {duration(seconds)}{per_s}"
    if dead_lettered:
        line += f"; {dead_lettered:,} dead-lettered, `twinbus backlog dead-letters list` says why"
    if left_aside:
        line += (
            f"; {left_aside:,} of other destinations were deferred on the way, the next syphon"
            " that serves them finds them"
        )
    return line


COLUMNS: Final = ("BACKLOG QUEUE", "MOVED", "IN FLIGHT", "DEAD", "DEFERRED", "RATE")


def status_lines(title: str, document: Mapping[str, Any]) -> list[str]:
    """One syphon: a line for each queue, and what is in the way."""
    queues: Mapping[str, Mapping[str, Any]] = document["queues"]
    is_paused = any(state["paused"] for state in queues.values()) or document.get("paused")
    lines = [title + (", PAUSED" if is_paused else "")]
    rows: list[Sequence[str]] = [COLUMNS]
    rows += [
        (
            visible(queue),
            f"{state['completed']:,}",
            f"{state['in_flight']:,}",
            f"{state['dead_lettered']:,}",
            f"{state['deferred']:,}",
            f"{state['rate_per_s']:,.0f}/s",
        )
        for queue, state in queues.items()
    ]
    lines += [f"  {line}" for line in aligned(rows, right={1, 2, 3, 4, 5})]
    if not queues:
        lines.append("  no backlog queue was found yet")
    lines += [f"  ! {visible(reason)}" for reason in _in_the_way(queues)]
    if document.get("waiting") is not None:
        lines.append("  " + _forecast(document))
    return lines


STANDING_BY: Final = (WAITING, "the lease is gone")
"""How a problem begins that is none: another syphon serves the queue, and this one waits."""


def needs_attention(document: Mapping[str, Any]) -> bool:
    """Whether a syphon needs somebody; one that stands by for its lease does not."""
    states = document["queues"].values()
    is_troubled = any(
        state["held"]
        or state["dead_lettered"]
        or not all(why.startswith(STANDING_BY) for why in state["problems"].values())
        for state in states
    )
    return bool(document.get("paused")) or is_troubled


def _forecast(document: Mapping[str, Any]) -> str:
    waiting, left_s = document["waiting"], document["empty_in_s"]
    if not waiting:
        return "nothing waits in the backlog"
    rate = f"{document['rate_per_s']:,.0f}/s"
    soon = "not moving" if left_s is None else f"empty in {duration(left_s)}"
    return f"{waiting:,} messages wait, {rate}, {soon}"


def _in_the_way(queues: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found: dict[str, list[str]] = {}
    for queue, state in queues.items():
        for what, why in {**state["problems"], **state["held"]}.items():
            left_s = state["gives_up_in_s"].get(what)
            more = "" if left_s is None else f" (dead-lettered in {duration(left_s)})"
            found.setdefault(f"{what}: {why}{more}", []).append(queue)
    return [
        f"{reason} [{where[0] if len(where) == 1 else f'{len(where)} queues'}]"
        for reason, where in found.items()
    ]
