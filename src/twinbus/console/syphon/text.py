"""Text of `twinbus syphon`: progress, obstacles, result and status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from twinbus.console.output import progress_bar, table_lines
from twinbus.status.document import SyphonStatus
from twinbus.status.judgement import PUMP_THEM, no_pump_text, obstacles
from twinbus.syphon.core.pacing import time_to_empty_s
from twinbus.syphon.host import DrainProgress
from twinbus.wording import duration, visible

STILL_S: Final = 5.0
"""A drain that moved no message for this long is not moving, whatever its last rate was."""


def progress_line(progress: DrainProgress, first: int, per_s: float, still_s: float) -> str:
    """Return a bar, the messages left, the rate and the time to go; or why nothing moves.

    `first` is the number of messages at the start, `still_s` the time since the last one left.
    """
    is_moving = still_s < STILL_S
    total = max(first, progress.waiting)
    done = total - progress.waiting
    share = done / total if total else 1.0
    parts = [progress_bar(share), f"{progress.waiting:,} of {total:,} left"]
    if progress.is_paused:
        parts.append("paused: `twinbus syphon resume` resumes it")
    elif is_moving and per_s > 0:
        parts.append(f"{per_s:,.0f}/s")
        left_s = time_to_empty_s(progress.waiting, per_s)
        parts.append(f"{duration(left_s)} to go" if left_s is not None else "")
    elif progress.waiting and not is_moving:
        parts.append("not moving: " + ("; ".join(reasons(progress)) or "nothing was received"))
        return "  ".join(parts)
    return "  ".join(parts + reasons(progress))


def reasons(progress: DrainProgress) -> list[str]:
    """Return what keeps messages in the backlog."""
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


def outcome(done: Mapping[str, Any]) -> str:
    """Return the result of a drain as one line."""
    forwarded, seconds = done["forwarded"], done["seconds"]
    per_s = f", {forwarded / seconds:,.0f}/s" if seconds >= 1 else ""
    verb = "drained" if done["drained"] else "stopped"
    line = f"{verb}: {forwarded:,} messages forwarded in {duration(seconds)}{per_s}"
    if dead := done["dead_lettered"]:
        line += f"; {dead:,} dead-lettered, `twinbus backlog dead-letters list` says why"
    if aside := done["not_served"]:
        line += (
            f"; {aside:,} of other destinations were deferred, the next syphon that serves them"
            " finds them"
        )
    return line


COLUMNS: Final = ("BACKLOG QUEUE", ">MOVED", ">IN FLIGHT", ">DEAD", ">DEFERRED", ">RATE")


def status_lines(title: str, status: SyphonStatus) -> list[str]:
    """Return the lines of one syphon: its queues, and what blocks it."""
    queues = status.queues
    lines = [title + (", PAUSED" if status.paused else "")]
    rows = [
        (path, one.completed, one.in_flight, one.dead_lettered, one.deferred,
         f"{one.rate_per_s:,.0f}/s")
        for path, one in queues.items()
    ]  # fmt: skip
    lines += [f"  {line}" for line in table_lines(COLUMNS, rows)]
    if not queues:
        lines.append("  no backlog queue found yet")
    limits = dict.fromkeys(one.limit for one in queues.values() if one.limit)
    lines += [f"  {visible(limit)}" for limit in limits]
    lines += [f"  ! {visible(reason)}" for reason in obstacles(queues)]
    if status.without_pump:
        lines.append(f"  ! {visible(no_pump_text(status.without_pump))}; {PUMP_THEM}")
    if status.waiting is not None:
        lines.append("  " + _forecast(status, status.waiting))
    return lines


def _forecast(status: SyphonStatus, waiting: int) -> str:
    if not waiting:
        return "nothing waits in the backlog"
    if status.paused:
        return f"{waiting:,} messages wait, paused: `twinbus syphon resume` resumes it"
    left_s = status.empty_in_s
    soon = "not moving" if left_s is None else f"empty in {duration(left_s)}"
    return f"{waiting:,} messages wait, {status.rate_per_s:,.0f}/s, {soon}"
