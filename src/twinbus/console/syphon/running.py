"""`twinbus syphon pause | resume | status`: running syphons, over their control sockets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from twinbus.console.control.hosts import ask_each, choose_hosts, find_hosts
from twinbus.console.syphon import text as syphon_text
from twinbus.console.terminal.output import ATTENTION, COULD_NOT, Output, show
from twinbus.console.terminal.table import paint, visible
from twinbus.control.client import RunningHost, SilentHost, socket_directories
from twinbus.errors import ControlError

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
        documents.append({"name": card.name, "pid": card.pid, "kind": card.kind, "status": status})
    show(output, {"syphons": documents}, lines)
    needs = any(syphon_text.needs_attention(status) for _, status in syphons)
    return ATTENTION if needs or silent else 0


def _running() -> tuple[list[tuple[RunningHost, Mapping[str, Any]]], list[SilentHost]]:
    """Return the syphons that answer, in pairs or alone; ControlError if there is none."""
    hosts, silent = find_hosts()
    found: list[tuple[RunningHost, Mapping[str, Any]]] = []
    for host, status in ask_each(hosts, "status"):
        if host.card.kind == "syphon":
            found.append((host, status))
        elif status.get("syphon") is not None:
            queues = status["syphon"]
            is_paused = any(state["paused"] for state in queues.values())
            found.append((host, {"queues": queues, "paused": is_paused}))
    if not found:
        raise ControlError(
            f"no syphon runs here for user {os.getuid()} (searched {socket_directories()});"
            " start one with enable_syphon=True in a pair, or with `twinbus syphon run`"
        )
    return found, silent
