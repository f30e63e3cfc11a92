"""`twinbus syphon pause | resume | status`: what runs on this machine, over its control sockets."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from twinbus.console.syphon import text as syphon_text
from twinbus.console.terminal.output import ATTENTION, COULD_NOT, WrongUse, print_json
from twinbus.console.terminal.table import paint, visible
from twinbus.control.client import RunningHost, SilentHost, ask, find, where
from twinbus.errors import ControlError

__all__ = ["show_status", "steer"]

DONE: Final = {
    "pause": "paused; what is in flight ends ({in_flight:,} messages), nothing more is received"
    " until `twinbus syphon resume`",
    "resume": "goes on",
}


@dataclass(frozen=True, slots=True)
class RunningSyphons:
    """A syphon that answers, with what it says of itself."""

    host: RunningHost
    status: Mapping[str, Any]

    @property
    def title(self) -> str:
        card = self.host.card
        where_it_is = "in a pair" if card.kind == "pair" else "syphon"
        return f"{visible(card.name)}, {where_it_is}, pid {card.pid} ({visible(card.program)})"


def steer(verb: str, name: str | None, *, as_json: bool) -> int:
    """Pause or resume the syphon that a person means; the exit status."""
    syphons, _ = _running()
    if name is None and len(syphons) > 1:
        raise WrongUse(f"{len(syphons)} syphons run here, say which with --pair: {_list(syphons)}")
    failed = False
    answers = []
    for syphon in _named(syphons, name):
        try:
            answer = ask(syphon.host.path, verb)
        except ControlError as error:
            failed = True
            print(f"twinbus: {error}", file=sys.stderr)
            continue
        answers.append({"name": syphon.host.card.name, "pid": syphon.host.card.pid, **answer})
        if not as_json:
            print(f"{visible(syphon.host.process)}: {DONE[verb].format(**answer)}")
    if as_json:
        print_json({"syphons": answers})
    return COULD_NOT if failed else 0


def show_status(name: str | None, *, as_json: bool) -> int:
    """Print how each syphon stands; the exit status."""
    syphons, silent = _running()
    syphons = _named(syphons, name)
    if as_json:
        documents = [
            {
                "name": syphon.host.card.name,
                "pid": syphon.host.card.pid,
                "kind": syphon.host.card.kind,
                "status": syphon.status,
            }
            for syphon in syphons
        ]
        print_json({"syphons": documents})
    else:
        for syphon in syphons:
            title, *rest = syphon_text.status_lines(syphon.title, syphon.status)
            print("\n".join([paint(title, "bold"), *rest]))
    needs = any(syphon_text.needs_attention(syphon.status) for syphon in syphons)
    return ATTENTION if needs or silent else 0


def _running() -> tuple[list[RunningSyphons], list[SilentHost]]:
    """The syphons that answer, in pairs or alone; ControlError if there is none."""
    hosts, silent = find()
    for one in silent:
        print(f"twinbus: {visible(one.path.stem)}: {visible(one.why)}", file=sys.stderr)
    found = []
    for host in hosts:
        try:
            status = ask(host.path, "status")
        except ControlError as error:
            print(f"twinbus: {error}", file=sys.stderr)
            continue
        if host.card.kind == "syphon":
            found.append(RunningSyphons(host, status))
        elif status.get("syphon") is not None:
            queues = status["syphon"]
            is_paused = any(state["paused"] for state in queues.values())
            found.append(RunningSyphons(host, {"queues": queues, "paused": is_paused}))
    if not found:
        raise ControlError(
            f"no syphon runs here for user {os.getuid()} (looked in {where()}); a pair has one with"
            " enable_syphon=True, and `twinbus syphon run` is one"
        )
    return found, silent


def _named(syphons: list[RunningSyphons], name: str | None) -> list[RunningSyphons]:
    if name is None:
        return syphons
    chosen = [syphon for syphon in syphons if syphon.host.is_called(name)]
    if not chosen:
        raise ControlError(f"no syphon {name!r} runs here; there is {_list(syphons)}")
    return chosen


def _list(syphons: list[RunningSyphons]) -> str:
    return ", ".join(
        f"{visible(syphon.host.process)} ({visible(syphon.host.card.program)})"
        for syphon in syphons
    )
