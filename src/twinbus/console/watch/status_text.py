"""A pair's status as text: what needs attention, then entities, then backlog queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from twinbus.console.terminal.table import aligned, counted, duration, paint, table_lines, visible
from twinbus.control.protocol import HostCard
from twinbus.status.document import (
    IN_ROTATION,
    BacklogQueueStatus,
    EntityStatus,
    PairStatus,
    short_queue_list,
)
from twinbus.status.judgement import Judgement, is_quiet, rank, states_of
from twinbus.wording import named, short

HEALTHY: Final = "healthy"
HEALTHY_SHOWN_MAX: Final = 20
"""Healthy entities to list; a pair may have thousands."""

ALL_HEALTHY: Final = "  all entities are healthy"
QUEUES_SHOWN_MAX: Final = 20
"""Backlog queues out of rotation to list with their reason."""


@dataclass(frozen=True, slots=True)
class PairView:
    """One running pair: its process and its status."""

    card: HostCard
    up_s: float | None
    status: PairStatus
    judgement: Judgement


def render(view: PairView, *, show_all: bool = False) -> list[str]:
    """Return the lines of one pair, in colour on a terminal."""
    status, judgement = view.status, view.judgement
    lines = [paint(_title(view), "bold")]
    lines += map(_alarm, judgement.attention) if judgement.concerns else [ALL_HEALTHY]
    lines.append(f"  {judgement.sends}" if judgement.is_safe else _alarm(judgement.sends))
    if status.searching:
        lines.append(f"  still searching for backlog queues: {short(status.searching)}")
    lines.append("")
    entities = list(status.entities.values())
    lines += [f"  {line}".rstrip() for line in _entity_table(entities, show_all=show_all)]
    lines.append("")
    lines += [f"  {line}" for line in (*_queue_lines(status), *_syphon_lines(status))]
    return lines


def entity_line(entity: EntityStatus) -> str:
    """Return one line about an entity that was steered."""
    return f"{visible(entity.path)}: {', '.join(states_of(entity))}"


def summary(views: Sequence[PairView]) -> str:
    """Return one line about all pairs."""
    troubled = sum(1 for view in views if view.judgement.concerns)
    pairs = f"{len(views)} pair{'s' if len(views) > 1 else ''}"
    return f"{pairs}, attention needed in {troubled}" if troubled else f"{pairs}, all healthy"


def _alarm(text: str) -> str:
    return paint(f"  ! {text}", "bold", "red")


def _title(view: PairView) -> str:
    card = view.card
    program = f" ({visible(card.program)})" if card.program else ""
    up = "" if view.up_s is None else f", up {duration(view.up_s)}"
    primary, secondary = visible(view.status.primary), visible(view.status.secondary)
    return f"{visible(card.name)}  {primary} -> {secondary}  pid {card.pid}{program}{up}"


def _entity_table(entities: Sequence[EntityStatus], *, show_all: bool) -> list[str]:
    if not entities:
        return ["no sender was created yet"]
    entities = sorted(entities, key=lambda one: (rank(states_of(one)), one.path.lower()))
    healthy = [entity for entity in entities if is_quiet(entity)]
    hidden = 0 if show_all else max(0, len(healthy) - HEALTHY_SHOWN_MAX)
    left_out = {id(entity) for entity in healthy[len(healthy) - hidden :]}
    shown = [entity for entity in entities if id(entity) not in left_out]
    columns = ("ENTITY", "STATE", "FOR", ">SENT", ">DIVERTED", ">RAISED", "REASON")
    heading, *rows = table_lines(columns, map(_row, shown))
    lines = [paint(heading, "dim"), *rows]
    if hidden:
        lines.append(f"and {hidden:,} more healthy entities; --all lists them")
    return [*lines, *_last_errors(shown)]


def _last_errors(shown: Sequence[EntityStatus]) -> list[str]:
    """Return the last errors of unhealthy entities; entities with the same error share a line."""
    by_error: dict[str, list[EntityStatus]] = {}
    for entity in shown:
        if not is_quiet(entity) and (error := entity.raising_reason or entity.last_error):
            by_error.setdefault(short(error), []).append(entity)
    lines = []
    for error, entities in by_error.items():
        paths = named([entity.path for entity in entities])
        lines.append(f"last error of {paths}{_date(entities)}: {error}")
    return ["", *lines] if lines else []


def _date(entities: Sequence[EntityStatus]) -> str:
    """Return the local time of the latest of their errors."""
    if any(entity.raising_reason for entity in entities):
        return ""
    latest = max(entity.last_error_at or 0.0 for entity in entities)
    return f" ({datetime.fromtimestamp(latest).astimezone():%Y-%m-%d %H:%M:%S})" if latest else ""


def _row(entity: EntityStatus) -> list[object]:
    return [
        entity.path,
        ", ".join(state if state == HEALTHY else state.upper() for state in states_of(entity)),
        "" if entity.since_s is None else duration(entity.since_s),
        *(entity.sent, entity.diverted, entity.raised),
        "" if is_quiet(entity) else ", ".join(filter(None, (_why(entity), _next(entity)))),
    ]


def _why(entity: EntityStatus) -> str:
    calls = f"{counted(entity.raising, 'call')} raised in the last minute" if entity.raising else ""
    is_known = entity.state != HEALTHY or entity.frozen
    return ", ".join(filter(None, (calls, short(entity.reason) if is_known else "")))


def _next(entity: EntityStatus) -> str:
    """Return what happens next to an entity by itself, and when; empty: nothing."""
    if (left_s := entity.fails_over_in_s) is not None:
        return f"fails over in {duration(left_s)}"
    if (ping_s := entity.next_ping_in_s) is not None:
        return f"next ping in {duration(ping_s)}" if ping_s else "pinging now"
    return ""


def _queue_lines(status: PairStatus) -> list[str]:
    queues = {path: _queue_text(queue) for path, queue in status.backlog_queues.items()}
    absent = {path: text for path, text in queues.items() if text != IN_ROTATION}
    lines = [f"backlog queues: {len(queues) - len(absent)} of {len(queues)} in rotation"]
    by_text: dict[str, list[str]] = {}
    for path, text in absent.items():
        by_text.setdefault(short(text), []).append(path)
    rows = [[f"  {visible(short_queue_list(paths))}", text] for text, paths in by_text.items()]
    lines += aligned(rows[:QUEUES_SHOWN_MAX])
    if len(rows) > QUEUES_SHOWN_MAX:
        lines.append(f"  and {len(rows) - QUEUES_SHOWN_MAX} more lines of queues not in rotation")
    waiting = status.backlog_waiting
    lines.append(
        "  depth: not measured here, `twinbus backlog list` asks the secondary"
        if waiting is None
        else f"  depth: {counted(waiting, 'message')}"
    )
    unknown = {
        setting: None for queue in status.backlog_queues.values() for setting in queue.not_verified
    }
    if unknown:
        lines.append(f"  not verified, for lack of a right: {visible(', '.join(unknown))}")
    return lines


def _queue_text(queue: BacklogQueueStatus) -> str:
    if queue.state == IN_ROTATION and queue.reason:
        return queue.reason  # The namespace is lost, and the queue with it.
    back = "" if queue.returns_in_s is None else f", back in {duration(queue.returns_in_s)}"
    return f"{queue.state}{back}" + (f": {queue.reason}" if queue.reason else "")


def _syphon_lines(status: PairStatus) -> list[str]:
    """Return what the syphon moved, and what blocks it."""
    syphon = status.own_syphon
    if syphon is None:
        return ["syphon: not running in this process"]
    moved, flying, dead = map(syphon.total, ("completed", "in_flight", "dead_lettered"))
    line = f"syphon: {moved:,} forwarded, {flying:,} in flight, {dead:,} dead-lettered"
    obstacles = [
        f"  {visible(what)}: {short(why)}"
        for queue in syphon.queues.values()
        for what, why in queue.obstacles.items()
    ]
    return [line, *dict.fromkeys(obstacles)]
