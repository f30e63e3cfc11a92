"""A pair's status as text: what needs attention, then entities, then backlog queues. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from twinbus.console.control.safety import named, safety
from twinbus.console.terminal.table import aligned, counted, duration, table_lines, visible
from twinbus.pairing.core.status import IN_ROTATION

RANKS: Final = {"unusable": 0, "failed over": 1, "suspect": 2, "healthy": 3}
"""Worst first."""

HEALTHY: Final = "healthy"
HEALTHY_SHOWN_MAX: Final = 20
"""Healthy entities to list; a pair may have thousands."""

QUEUES_SHOWN_MAX: Final = 20
"""Backlog queues out of rotation to list with their reason."""

REASON_LENGTH_MAX: Final = 160
"""An error of the service can be a page; its beginning is enough."""


@dataclass(frozen=True, slots=True)
class PairView:
    """One running pair: its process and its status."""

    name: str
    pid: int
    program: str
    up_s: float | None
    status: Mapping[str, Any]


def attention(status: Mapping[str, Any]) -> list[str]:
    """Return what needs attention, worst first; empty if all is well."""
    found = [
        f"the {name} is {visible(side['state'])}: {_short(side['reason'])}"
        for name, side in status.get("sides", {}).items()
        if side.get("reason")
    ]
    if not status.get("protected", True):
        found.append("UNPROTECTED: there is no backlog queue to divert to")
    by_state = Counter(_state(entity) for entity in _entities(status))
    for state in sorted(by_state.keys() - {HEALTHY}, key=lambda state: RANKS.get(state, -1)):
        paths = [visible(e["path"]) for e in _entities(status) if _state(e) == state]
        found.append(f"{state}: {named(paths)}")
    frozen = [visible(entity["path"]) for entity in _entities(status) if entity.get("frozen")]
    if frozen:
        found.append(f"frozen by hand: {named(frozen)}")
    if any(queue.get("paused") for queue in (status.get("syphon") or {}).values()):
        found.append("the syphon is paused: `twinbus syphon resume` resumes it")
    if status.get("ledger_unrecorded"):
        found.append(f"the ledger could not record {status['ledger_unrecorded']:,} lines")
    return found


def render(view: PairView, *, show_all: bool = False) -> list[str]:
    """Return the lines of one pair."""
    status = view.status
    lines = [_title(view)]
    lines += [f"  ! {what}" for what in attention(status)] or ["  all entities are healthy"]
    is_safe, sends = safety(status)
    lines.append(f"  {sends}" if is_safe else f"  ! {sends}")
    if status.get("searching"):
        lines.append(f"  still searching for backlog queues: {_short(status['searching'])}")
    lines.append("")
    lines += [f"  {line}".rstrip() for line in _entity_table(status, show_all=show_all)]
    lines.append("")
    lines += [f"  {line}" for line in (*_queue_lines(status), *_syphon_lines(status))]
    return lines


def entity_line(entity: Mapping[str, Any]) -> str:
    """Return one line about an entity that was steered."""
    holds = [hold for hold in ("forced", "frozen") if entity.get(hold)]
    return f"{visible(entity['path'])}: {', '.join([_state(entity), *holds])}"


def summary(views: Sequence[PairView]) -> str:
    """Return one line about all pairs."""
    troubled = sum(1 for view in views if attention(view.status))
    pairs = f"{len(views)} pair{'s' if len(views) > 1 else ''}"
    return f"{pairs}, attention needed in {troubled}" if troubled else f"{pairs}, all healthy"


def _title(view: PairView) -> str:
    program = f" ({visible(view.program)})" if view.program else ""
    up = "" if view.up_s is None else f", up {duration(view.up_s)}"
    primary, secondary = visible(view.status["primary"]), visible(view.status["secondary"])
    return f"{visible(view.name)}  {primary} -> {secondary}  pid {view.pid}{program}{up}"


def _entity_table(status: Mapping[str, Any], *, show_all: bool) -> list[str]:
    entities = sorted(
        _entities(status), key=lambda e: (RANKS.get(_state(e), -1), str(e["path"]).lower())
    )
    if not entities:
        return ["no sender was created yet"]
    healthy = [entity for entity in entities if _is_quiet(entity)]
    hidden = 0 if show_all else max(0, len(healthy) - HEALTHY_SHOWN_MAX)
    left_out = {id(entity) for entity in healthy[len(healthy) - hidden :]}
    shown = [entity for entity in entities if id(entity) not in left_out]
    columns = ("ENTITY", "STATE", "SINCE", ">SENT", ">DIVERTED", ">RAISED", "REASON")
    lines = table_lines(columns, map(_row, shown))
    if hidden:
        lines.append(f"and {hidden:,} more healthy entities; --all lists them")
    return [*lines, *_last_errors(shown)]


def _last_errors(shown: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the last errors of unhealthy entities; entities with the same error share a line."""
    by_error: dict[str, list[Mapping[str, Any]]] = {}
    for entity in shown:
        if entity.get("last_error") and not _is_quiet(entity):
            by_error.setdefault(_short(entity["last_error"]), []).append(entity)
    lines = []
    for error, entities in by_error.items():
        paths = named([visible(entity["path"]) for entity in entities])
        lines.append(f"last error of {paths}{_date(entities)}: {error}")
    return ["", *lines] if lines else []


def _date(entities: Sequence[Mapping[str, Any]]) -> str:
    """Return the local time of the latest of their errors."""
    latest = max(entity.get("last_error_at") or 0.0 for entity in entities)
    return f" ({datetime.fromtimestamp(latest).astimezone():%Y-%m-%d %H:%M:%S})" if latest else ""


def _row(entity: Mapping[str, Any]) -> list[object]:
    since_s = entity.get("since_s")
    holds = [hold.upper() for hold in ("forced", "frozen") if entity.get(hold)]
    state, reason = _state(entity), entity.get("reason", "")
    return [
        entity["path"],
        ", ".join([state if state == HEALTHY else state.upper(), *holds]),
        "" if since_s is None else f"{duration(since_s)} ago",
        *(entity.get(count, 0) for count in ("sent", "diverted", "raised")),
        "" if _is_quiet(entity) else ", ".join(filter(None, (_short(reason), _next(entity)))),
    ]


def _next(entity: Mapping[str, Any]) -> str:
    """Return what happens next to an entity by itself, and when; empty: nothing."""
    if (left_s := entity.get("fails_over_in_s")) is not None:
        return f"fails over in {duration(left_s)}"
    if (ping_s := entity.get("next_ping_in_s")) is not None:
        return f"next ping in {duration(ping_s)}" if ping_s else "pinging now"
    return ""


def _queue_lines(status: Mapping[str, Any]) -> list[str]:
    queues = {path: _queue_text(queue) for path, queue in status["backlog_queues"].items()}
    absent = {path: text for path, text in queues.items() if text != IN_ROTATION}
    lines = [f"backlog queues: {len(queues) - len(absent)} of {len(queues)} in rotation"]
    rows = [[f"  {visible(queue)}", _short(why)] for queue, why in absent.items()]
    lines += aligned(rows[:QUEUES_SHOWN_MAX])
    if len(rows) > QUEUES_SHOWN_MAX:
        lines.append(f"  and {len(rows) - QUEUES_SHOWN_MAX} more that are not in rotation")
    waiting = status.get("backlog_waiting")
    lines.append(
        "  depth: not measured here, `twinbus backlog list` asks the secondary"
        if waiting is None
        else f"  depth: {counted(waiting, 'message')}"
    )
    unknown = {
        setting: None
        for queue in status["backlog_queues"].values()
        for setting in queue.get("not_verified", ())
    }
    if unknown:
        lines.append(f"  not verified, for lack of a right: {visible(', '.join(unknown))}")
    return lines


def _queue_text(queue: Mapping[str, Any]) -> str:
    back_s = queue.get("returns_in_s")
    back = "" if back_s is None else f", back in {duration(back_s)}"
    why = f": {queue['reason']}" if queue.get("reason") else ""
    return f"{queue['state']}{back}{why}"


def _syphon_lines(status: Mapping[str, Any]) -> list[str]:
    """Return what the syphon moved, and what blocks it."""
    queues: Mapping[str, Mapping[str, Any]] | None = status.get("syphon")
    if queues is None:
        return ["syphon: not running in this process"]
    done = {
        what: sum(queue.get(what, 0) for queue in queues.values())
        for what in ("completed", "in_flight", "dead_lettered")
    }
    moved = (
        f"syphon: {done['completed']:,} forwarded, {done['in_flight']:,} in flight,"
        f" {done['dead_lettered']:,} dead-lettered"
    )
    obstacles = [
        f"  {visible(what)}: {_short(why)}"
        for queue in queues.values()
        for what, why in (*queue.get("problems", {}).items(), *queue.get("held", {}).items())
    ]
    return [moved, *dict.fromkeys(obstacles)]


def _entities(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(status.get("entities", {}).values())


def _is_quiet(entity: Mapping[str, Any]) -> bool:
    return _state(entity) == HEALTHY and not entity.get("frozen") and not entity.get("forced")


def _state(entity: Mapping[str, Any]) -> str:
    return str(entity.get("state", "unknown")).replace("_", " ").lower()


def _short(text: object) -> str:
    whole = visible(text)
    return whole if len(whole) <= REASON_LENGTH_MAX else whole[: REASON_LENGTH_MAX - 1] + "…"
