"""The rows about receiving: receivers, processors and twins, by queue or subscription. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twinbus.page.core.model import LEVELS, ShownReceiver
from twinbus.status.document import HostStatus, PairStatus
from twinbus.status.receiving import (
    NOT_READ,
    RECONNECTING,
    WAITING,
    ProcessorStatus,
    ReceiverStatus,
    ReceivingSideStatus,
)
from twinbus.status.twins import TwinRow, twin_rows
from twinbus.wording import NOT_KNOWN, plain

ROWS_MAX: Final = 200
"""Rows of one pair, worst first; `twinbus status --output json` has them all."""

LostAt = Callable[[str, float], float]
"""Returns when a receiver of a path lost its link, from the seconds since; the same each time."""


def shown_receiving(status: HostStatus, lost_at: LostAt) -> list[ShownReceiver]:
    """Return a row for each queue or subscription that is received from or has a twin."""
    rows: dict[str, dict[str, Any]] = {}
    levels: dict[str, list[str]] = {}
    if isinstance(status, PairStatus):
        for path, receiver in status.receivers.items():
            rows[path] = _receiver(receiver, lost_at)
            levels[path] = [_level(side) for side in receiver.sides.values()]
        for path, processor in status.processors.items():
            rows.setdefault(path, {}).update(_processor(processor))
            levels.setdefault(path, []).append("attention" if processor.error else "healthy")
    for twin in twin_rows(status):
        rows.setdefault(twin.path, {}).update(_twin(twin))
        levels.setdefault(twin.path, []).append(twin.level)
    shown = [
        ShownReceiver(path=path, level=_worst(levels[path]), **row) for path, row in rows.items()
    ]
    order = sorted(shown, key=lambda one: (LEVELS.index(one.level), one.path.lower()))
    return order[:ROWS_MAX]


def _worst(levels: list[str]) -> str:
    """Return the level of a row: green only if every part is; what is not known is not green."""
    for level in ("attention", "none"):
        if level in levels:
            return level
    return "healthy" if levels else "none"


def _level(side: ReceivingSideStatus) -> str:
    if side.states.get(RECONNECTING) or side.states.get(NOT_READ):
        return "attention"
    return "none" if side.states.get(WAITING) or not side.states else "healthy"


def _receiver(one: ReceiverStatus, lost_at: LostAt) -> dict[str, Any]:
    known = list(one.sides.values())
    lost_s = max((side.since_s for side in known if side.since_s is not None), default=None)
    return {
        "receivers": one.receivers,
        **{name: _states(side) for name, side in one.sides.items()},
        "since": None if lost_s is None else lost_at(one.path, lost_s),
        "reason": next((plain(side.error) for side in known if side.error), ""),
        "handed_out": one.handed_out,
        "second_copies": one.second_copies,
        "reopened": sum(side.reopened for side in known),
        "silent": sum(side.silent for side in known),
    }


def _states(side: ReceivingSideStatus) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in side.states.items()) or "closed"


def _processor(one: ProcessorStatus) -> dict[str, Any]:
    running = f"{one.handling:,} of {one.concurrency:,} handlers run" if one.running else "stopped"
    dead = f", {one.dead_lettered:,} dead-lettered" if one.dead_lettered else ""
    text = f"{running}; {one.handled:,} handled, {one.failed:,} failed{dead}"
    return {"processor": text, **({"reason": plain(one.error)} if one.error else {})}


def _twin(row: TwinRow) -> dict[str, Any]:
    kinds = ("active", "scheduled", "deferred")
    contents = ", ".join(
        f"{NOT_KNOWN if count is None else format(count, ',')} {kind}"
        for kind, count in ((kind, getattr(row, kind)) for kind in kinds)
    )
    emptied_by = "its consumers only" if row.consumers_only else "its consumers, the syphon"
    return {
        "twin": row.state if row.verified else f"{row.state}, not verified",
        "twin_reason": plain(row.reason),
        "waiting": row.waiting,
        "contents": contents,
        "emptied_by": "" if row.waiting is None else emptied_by,
    }
