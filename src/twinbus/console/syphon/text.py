"""Text of `twinbus syphon`: progress, obstacles, result and status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from twinbus.console.terminal.live_line import progress_bar
from twinbus.console.terminal.table import duration, table_lines, visible
from twinbus.syphon.core.health import no_pump_text
from twinbus.syphon.core.pacing import time_to_empty_s
from twinbus.syphon.host import DrainProgress
from twinbus.syphon.relay.lease import WAITING
from twinbus.wording import plain

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
    if aside := done["left_aside"]:
        line += (
            f"; {aside:,} of other destinations were deferred, the next syphon that serves them"
            " finds them"
        )
    return line


COLUMNS: Final = ("BACKLOG QUEUE", ">MOVED", ">IN FLIGHT", ">DEAD", ">DEFERRED", ">RATE")


def status_lines(title: str, document: Mapping[str, Any]) -> list[str]:
    """Return the lines of one syphon: its queues, and what blocks it."""
    queues: Mapping[str, Mapping[str, Any]] = document["queues"]
    is_paused = any(state["paused"] for state in queues.values()) or document.get("paused")
    lines = [title + (", PAUSED" if is_paused else "")]
    counts = ("completed", "in_flight", "dead_lettered", "deferred")
    rows = [
        (queue, *(state[name] for name in counts), f"{state['rate_per_s']:,.0f}/s")
        for queue, state in queues.items()
    ]
    lines += [f"  {line}" for line in table_lines(COLUMNS, rows)]
    if not queues:
        lines.append("  no backlog queue found yet")
    limits = dict.fromkeys(state["limit"] for state in queues.values() if state.get("limit"))
    lines += [f"  {visible(limit)}" for limit in limits]
    lines += [f"  ! {visible(reason)}" for reason in obstacles(queues)]
    if unpumped := document.get("without_pump"):
        lines.append(f"  ! {visible(no_pump_text(unpumped))}; {PUMP_THEM}")
    if document.get("waiting") is not None:
        lines.append("  " + _forecast(document))
    return lines


PUMP_THEM: Final = "start the syphon without --queues, or with a larger number"

STANDING_BY: Final = (WAITING, "the lease is gone")
"""Problems that begin so need no attention: another syphon serves the queue, this one waits."""


def needs_attention(document: Mapping[str, Any]) -> bool:
    """Whether a syphon needs attention; one that waits for its lease does not."""
    states = document["queues"].values()
    is_troubled = any(
        state["held"]
        or state["dead_lettered"]
        or not all(why.startswith(STANDING_BY) for why in state["problems"].values())
        for state in states
    )
    return bool(document.get("paused") or document.get("without_pump")) or is_troubled


def _forecast(document: Mapping[str, Any]) -> str:
    waiting, left_s = document["waiting"], document["empty_in_s"]
    if not waiting:
        return "nothing waits in the backlog"
    if document.get("paused"):
        return f"{waiting:,} messages wait, paused: `twinbus syphon resume` resumes it"
    rate = f"{document['rate_per_s']:,.0f}/s"
    soon = "not moving" if left_s is None else f"empty in {duration(left_s)}"
    return f"{waiting:,} messages wait, {rate}, {soon}"


def obstacles(
    queues: Mapping[str, Mapping[str, Any]], *, is_standing_by_left_out: bool = False
) -> list[str]:
    """Return what blocks the queues, and where: problems and held destinations."""
    found: dict[str, list[str]] = {}
    for queue, state in queues.items():
        for what, why in {**state["problems"], **state["held"]}.items():
            if is_standing_by_left_out and why.startswith(STANDING_BY):
                continue
            left_s = state["gives_up_in_s"].get(what)
            more = "" if left_s is None else f" (dead-lettered in {duration(left_s)})"
            found.setdefault(f"{what}: {plain(why)}{more}", []).append(queue)
    return [
        f"{reason} [{where[0] if len(where) == 1 else f'{len(where)} queues'}]"
        for reason, where in found.items()
    ]
