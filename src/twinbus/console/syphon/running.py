"""`twinbus syphon pause | resume | status`: running syphons, over their control sockets."""

from __future__ import annotations

import os
import time
from typing import Final

from twinbus.console import ATTENTION, COULD_NOT
from twinbus.console.output import Output, paint, show, table_lines
from twinbus.console.watch.status import ask_each, ask_status, choose_hosts, find_hosts
from twinbus.control.sockets import RunningHost, SilentHost, socket_directories
from twinbus.errors import ControlError
from twinbus.status.document import SyphonStatus
from twinbus.status.judgement import PUMP_THEM, judgement_of, no_pump_text, obstacles
from twinbus.wording import duration, visible

DONE: Final = {
    "pause": "paused; {in_flight:,} messages in flight are finished, no more are received until"
    " `twinbus syphon resume`",
    "resume": "resumed",
}


def steer(verb: str, name: str | None, output: Output) -> int:
    hosts = choose_hosts([host for host, _ in _running()[0]], name, "syphon", is_steered=True)
    answers = ask_each(hosts, verb)
    documents = [
        {"name": host.card.name, "pid": host.card.pid, **answer} for host, answer in answers
    ]
    lines = [f"{visible(host.process)}: {DONE[verb].format(**answer)}" for host, answer in answers]
    if answers or output is Output.JSON:
        show(output, {"syphons": documents}, lines)
    return COULD_NOT if len(answers) < len(hosts) else 0


def show_status(name: str | None, output: Output) -> int:
    syphons, silent = _running()
    chosen = choose_hosts([host for host, _ in syphons], name, "syphon")
    syphons = [(host, status) for host, status in syphons if host in chosen]
    lines, documents = [], []
    for host, status in syphons:
        card = host.card
        kind = "in a pair" if card.kind == "pair" else "syphon"
        title = f"{visible(card.name)}, {kind}, pid {card.pid} ({visible(card.program)})"
        title, *rest = status_lines(title, status)
        lines += [paint(title, "bold"), *rest]
        document = {"name": card.name, "pid": card.pid, "kind": card.kind}
        documents.append({**document, "status": status.as_dict()})
    show(output, {"syphons": documents}, lines)
    needs = any(
        status.total("dead_lettered") or judgement_of(status, time.time()).concerns
        for _, status in syphons
    )
    return ATTENTION if needs or silent else 0


def _running() -> tuple[list[tuple[RunningHost, SyphonStatus]], list[SilentHost]]:
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
