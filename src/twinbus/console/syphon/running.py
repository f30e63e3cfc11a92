"""`twinbus syphon pause | resume | status`: running syphons, over their control sockets."""

from __future__ import annotations

import os
import time
from typing import Final

from twinbus.console import ATTENTION, COULD_NOT
from twinbus.console.output import Output, paint, show
from twinbus.console.syphon import text as syphon_text
from twinbus.console.watch.status import ask_each, ask_status, choose_hosts, find_hosts
from twinbus.control.sockets import RunningHost, SilentHost, socket_directories
from twinbus.errors import ControlError
from twinbus.status.document import SyphonStatus
from twinbus.status.judgement import judgement_of
from twinbus.wording import visible

DONE: Final = {
    "pause": "paused; {in_flight:,} messages in flight are finished, no more are received until"
    " `twinbus syphon resume`",
    "resume": "resumed",
}


def steer(verb: str, name: str | None, output: Output) -> int:
    """Pause or resume a syphon; return the exit status."""
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
    """Print the status of each syphon; return the exit status."""
    syphons, silent = _running()
    chosen = choose_hosts([host for host, _ in syphons], name, "syphon")
    syphons = [(host, status) for host, status in syphons if host in chosen]
    lines, documents = [], []
    for host, status in syphons:
        card = host.card
        kind = "in a pair" if card.kind == "pair" else "syphon"
        title = f"{visible(card.name)}, {kind}, pid {card.pid} ({visible(card.program)})"
        title, *rest = syphon_text.status_lines(title, status)
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
