"""Running pairs and syphons of this machine: `twinbus status`, and commands that steer one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from twinbus.console import ATTENTION, COULD_NOT
from twinbus.console.output import (
    Output,
    WrongUse,
    aligned,
    dim_headed,
    paint,
    show,
    table_lines,
)
from twinbus.console.watch.receiving import receiving_lines, twin_table
from twinbus.control.protocol import HostCard
from twinbus.control.sockets import RunningHost, SilentHost, ask, find, socket_directories
from twinbus.errors import ControlError
from twinbus.status.document import (
    IN_ROTATION,
    BacklogQueueStatus,
    EntityState,
    EntityStatus,
    HostStatus,
    PairStatus,
    SyphonStatus,
    pinged_by,
    short_queue_list,
)
from twinbus.status.judgement import (
    PUMP_THEM,
    Judgement,
    is_quiet,
    judgement_of,
    no_pump_text,
    obstacles,
    rank,
    states_of,
)
from twinbus.status.reading import StatusUnreadable, read, read_status
from twinbus.status.twins import twins_text
from twinbus.wording import counted, duration, named, plain, short, visible

HEALTHY: Final = "healthy"
HEALTHY_SHOWN_MAX: Final = 20
"""Healthy entities to list; a pair may have thousands."""

ALL_HEALTHY: Final = "  all entities are healthy"
QUEUES_SHOWN_MAX: Final = 20
"""Backlog queues out of rotation to list with their reason."""


@dataclass(frozen=True, slots=True)
class PairView:
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
    if status.fleet is not None and str(status.fleet):
        lines.append(f"  {short(str(status.fleet))}")
    lines += [f"  {line}".rstrip() for line in receiving_lines(status)]
    return lines


def entity_line(entity: EntityStatus) -> str:
    return f"{visible(entity.path)}: {', '.join(states_of(entity))}"


def summary(views: Sequence[PairView]) -> str:
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
    lines = dim_headed(columns, map(_entity_row, shown))
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


def _entity_row(entity: EntityStatus) -> list[object]:
    return [
        entity.path,
        ", ".join(state if state == HEALTHY else state.upper() for state in states_of(entity)),
        "" if entity.since_s is None else duration(entity.since_s),
        *(entity.sent, entity.diverted, entity.raised),
        "" if is_quiet(entity) else ", ".join(filter(None, _remarks(entity))),
    ]


def _remarks(entity: EntityStatus) -> tuple[str, ...]:
    is_diverted = entity.twin is not None and entity.state is EntityState.FAILED_OVER
    twin = short(str(entity.twin)) if is_diverted else ""
    others = f"also: {plain(entity.evidence)}" if entity.evidence else ""
    return _why(entity), others, _next(entity), twin


def _why(entity: EntityStatus) -> str:
    calls = f"{counted(entity.raising, 'call')} raised in the last minute" if entity.raising else ""
    is_known = entity.state != HEALTHY or entity.frozen
    return ", ".join(filter(None, (calls, short(entity.reason) if is_known else "")))


def _next(entity: EntityStatus) -> str:
    """Return what happens next to an entity by itself, and when; empty: nothing."""
    if (left_s := entity.fails_over_in_s) is not None:
        return f"fails over in {duration(left_s)}"
    if (ping_s := entity.next_ping_in_s) is not None:
        if not ping_s:
            return "pinging now"
        by = f", {plain(pinged_by(entity))}" if entity.pinger else ""
        return f"next ping in {duration(ping_s)}{by}"
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
    blocked = [
        f"  {visible(what)}: {short(why)}"
        for queue in syphon.queues.values()
        for what, why in queue.obstacles.items()
    ]
    twins = [f"  {visible(text)}"] if (text := twins_text(status.twins)) else []
    return [line, *dict.fromkeys(blocked), *twins]


REFRESH_S: Final = 1.0
NO_ANSWER: Final = "no running pair answers"

HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"

DONE: Final = {
    "freeze": "its routing stays as it is, no timer, no ping, until `twinbus unfreeze {path}`",
    "unfreeze": "its routing may change again",
    "force-failover": "its sends are diverted until `twinbus mark-healthy {path}`",
    "mark-healthy": "its sends go to the primary again",
    "pause": "paused; {in_flight:,} messages in flight are finished, no more are received until"
    " `twinbus syphon resume`",
    "resume": "resumed",
}
"""What each verb did, for the person who ran it."""


def show_status(pair: str | None, output: Output, *, watch: bool, show_all: bool) -> int:
    """Print the status of the running pairs, once or until Ctrl-C; return the exit status."""
    if not watch:
        return _show(pair, output, show_all=show_all)
    status = 0
    try:
        while True:
            try:
                status = _show(pair, output, show_all=show_all, is_watched=True)
            except ControlError as error:
                # A pair that restarts comes back, and the next refresh shows it.
                status = COULD_NOT
                print(f"{_clear()}twinbus: {error}", file=sys.stderr, flush=True)
            time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return status


def steer(verb: str, path: str | None, name: str | None, output: Output) -> int:
    """Run a verb on an entity of a pair, or without a path on a syphon; return the exit status."""
    kind = "syphon" if path is None else "pair"
    running = _running()[0] if path is not None else [host for host, _ in _running_syphons()[0]]
    hosts = choose_hosts(running, name, kind, is_steered=True)
    documents, lines = [], []
    for host, answer in ask_each(hosts, verb, None if path is None else {"path": path}):
        if path is None:
            facts, line = answer, f"{visible(host.process)}: {DONE[verb].format(**answer)}"
        else:
            entity = read(EntityStatus, answer)
            prefix = f"{host.process}: " if len(hosts) > 1 else ""
            then = DONE[verb].format(path=visible(entity.path))
            facts, line = {"entity": answer}, f"{prefix}{entity_line(entity)}; {then}"
        documents.append({"name": host.card.name, "pid": host.card.pid, **facts})
        lines.append(line)
    if documents or output is Output.JSON:
        show(output, {f"{kind}s": documents}, lines)
    return COULD_NOT if len(documents) < len(hosts) else 0


def _show(pair: str | None, output: Output, *, show_all: bool, is_watched: bool = False) -> int:
    hosts, silent = _running()
    views = _views(choose_hosts(hosts, pair, "pair"))
    views.sort(key=lambda view: not view.judgement.concerns)
    pairs = [_document(view) for view in views]
    document = {"pairs": pairs, "healthy": not any(pair["attention"] for pair in pairs)}
    lines = [line for view in views for line in (*render(view, show_all=show_all), "")]
    lines.append(f"{datetime.now().astimezone():%H:%M:%S}  {summary(views)}")
    lines[0] = (_clear() if is_watched else "") + lines[0]
    show(output, document, lines)
    return ATTENTION if silent or not document["healthy"] else 0


def _document(view: PairView) -> dict[str, Any]:
    judgement = view.judgement
    return {
        **{name: getattr(view.card, name) for name in ("name", "pid", "program")},
        "up_s": view.up_s,
        "status": view.status.as_dict(),
        "attention": judgement.attention,
        "concerns": [
            {"kind": one.kind, "severity": one.severity.name.lower(), "text": one.text}
            for one in judgement.concerns
        ],
        "safe": judgement.is_safe,
        "sends": judgement.sends,
    }


def _clear() -> str:
    return HOME_AND_CLEAR if sys.stdout.isatty() else ""


def _views(hosts: Sequence[RunningHost]) -> list[PairView]:
    views = []
    for host, status in ask_status(hosts):
        card, up_s = host.card, None
        if card.began_at:
            up_s = (datetime.now(UTC) - datetime.fromisoformat(card.began_at)).total_seconds()
        if isinstance(status, PairStatus):
            judgement = judgement_of(status, time.time())
            views.append(PairView(card, up_s, status, judgement))
    if not views:
        raise ControlError(NO_ANSWER)
    return views


def _running() -> tuple[list[RunningHost], list[SilentHost]]:
    """Return the pairs that answer, and the hosts that do not; ControlError if no pair answers."""
    hosts, silent = find_hosts()
    pairs = [host for host in hosts if host.card.kind == "pair"]
    if not pairs and silent:
        raise ControlError(NO_ANSWER)
    if not pairs:
        raise ControlError(
            f"no pair runs here for user {os.getuid()} (searched {socket_directories()}); if yours"
            " does, give this command the TWINBUS_RUN_DIR of its program, and run it as its user"
        )
    return pairs, silent


def find_hosts() -> tuple[list[RunningHost], list[SilentHost]]:
    """Return the hosts that answer, and those that do not; the latter are reported on stderr."""
    hosts, silent = find()
    for one in silent:
        print(f"twinbus: {visible(one.path.stem)}: {visible(one.why)}", file=sys.stderr)
    return hosts, silent


def choose_hosts(
    hosts: Sequence[RunningHost], name: str | None, kind: str, *, is_steered: bool = False
) -> list[RunningHost]:
    """Return the hosts with this name, or all without one; ControlError if there is none.

    WrongUse if they are to be steered and none of several is named.
    """
    if is_steered and name is None and len(hosts) > 1:
        raise WrongUse(f"{len(hosts)} {kind}s run here, give one with --pair: {_list(hosts)}")
    chosen = [host for host in hosts if name is None or host.is_called(name)]
    if not chosen:
        raise ControlError(f"no {kind} {name!r} runs here; there is {_list(hosts)}")
    return chosen


def ask_each(
    hosts: Iterable[RunningHost], verb: str, arguments: Mapping[str, str] | None = None
) -> list[tuple[RunningHost, Any]]:
    """Return the hosts that answer, with their answers; errors of others go to stderr."""
    answers = []
    for host in hosts:
        try:
            answers.append((host, ask(host.path, verb, arguments)))
        except ControlError as error:
            print(f"twinbus: {error}", file=sys.stderr)
    return answers


def ask_status(hosts: Iterable[RunningHost]) -> list[tuple[RunningHost, HostStatus]]:
    """Return the hosts whose status can be read, with it; errors of others go to stderr."""
    found = []
    for host, document in ask_each(hosts, "status"):
        try:
            found.append((host, read_status(document)))
        except StatusUnreadable as error:
            print(f"twinbus: {host.process}: {error}", file=sys.stderr)
    return found


def _list(hosts: Sequence[RunningHost]) -> str:
    return ", ".join(f"{visible(host.process)} ({visible(host.card.program)})" for host in hosts)


def show_syphons(name: str | None, output: Output) -> int:
    syphons, silent = _running_syphons()
    chosen = choose_hosts([host for host, _ in syphons], name, "syphon")
    syphons = [(host, status) for host, status in syphons if host in chosen]
    lines, documents = [], []
    for host, status in syphons:
        card = host.card
        kind = "in a pair" if card.kind == "pair" else "syphon"
        title = f"{visible(card.name)}, {kind}, pid {card.pid} ({visible(card.program)})"
        title, *rest = syphon_lines(title, status)
        lines += [paint(title, "bold"), *rest]
        document = {"name": card.name, "pid": card.pid, "kind": card.kind}
        documents.append({**document, "status": status.as_dict()})
    show(output, {"syphons": documents}, lines)
    needs = any(
        status.total("dead_lettered") or judgement_of(status, time.time()).concerns
        for _, status in syphons
    )
    return ATTENTION if needs or silent else 0


def _running_syphons() -> tuple[list[tuple[RunningHost, SyphonStatus]], list[SilentHost]]:
    """Return the syphons that answer, in pairs or alone; ControlError if there is none."""
    hosts, silent = find_hosts()
    found: list[tuple[RunningHost, SyphonStatus]] = []
    for host, status in ask_status(hosts):
        if status.own_syphon is not None:
            found.append((host, status.own_syphon))
    if not found:
        raise ControlError(
            f"no syphon runs here for user {os.getuid()} (searched {socket_directories()});"
            " start one with enable_syphon=True in a pair, or with `twinbus syphon run`"
        )
    return found, silent


SYPHON_COLUMNS: Final = ("BACKLOG QUEUE", ">MOVED", ">IN FLIGHT", ">DEAD", ">DEFERRED", ">RATE")


def syphon_lines(title: str, status: SyphonStatus) -> list[str]:
    """Return the lines of one syphon: its queues, and what blocks it."""
    queues = status.queues
    lines = [title + (", PAUSED" if status.paused else "")]
    rows = [
        (path, one.completed, one.in_flight, one.dead_lettered, one.deferred,
         f"{one.rate_per_s:,.0f}/s")
        for path, one in queues.items()
    ]  # fmt: skip
    lines += [f"  {line}" for line in table_lines(SYPHON_COLUMNS, rows)]
    if not queues:
        lines.append("  no backlog queue found yet")
    limits = dict.fromkeys(one.limit for one in queues.values() if one.limit)
    lines += [f"  {visible(limit)}" for limit in limits]
    lines += [f"  ! {visible(reason)}" for reason in obstacles(queues)]
    if status.without_pump:
        lines.append(f"  ! {visible(no_pump_text(status.without_pump))}; {PUMP_THEM}")
    if status.waiting is not None:
        lines.append("  " + _forecast(status, status.waiting))
    if twins := twin_table(status):
        lines += ["", *(f"  {line}" for line in twins)]
    return lines


def _forecast(status: SyphonStatus, waiting: int) -> str:
    if not waiting:
        return "nothing waits in the backlog"
    if status.paused:
        return f"{waiting:,} messages wait, paused: `twinbus syphon resume` resumes it"
    left_s = status.empty_in_s
    soon = "not moving" if left_s is None else f"empty in {duration(left_s)}"
    return f"{waiting:,} messages wait, {status.rate_per_s:,.0f}/s, {soon}"
