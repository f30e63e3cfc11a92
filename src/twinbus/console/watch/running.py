"""Running pairs and syphons of this machine: `twinbus status`, and commands that steer one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from twinbus.console import ATTENTION, COULD_NOT
from twinbus.console.terminal.output import Output, WrongUse, show
from twinbus.console.terminal.table import visible
from twinbus.console.watch import status_text
from twinbus.console.watch.status_text import PairView
from twinbus.control.sockets import RunningHost, SilentHost, ask, find, socket_directories
from twinbus.errors import ControlError
from twinbus.status.document import (
    EntityStatus,
    HostStatus,
    PairStatus,
    StatusUnreadable,
    read,
    read_status,
)
from twinbus.status.judgement import judgement_of

REFRESH_S: Final = 1.0
NO_ANSWER: Final = "no running pair answers"

HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"

DONE: Final = {
    "freeze": "its routing stays as it is, no timer, no ping, until `twinbus unfreeze {path}`",
    "unfreeze": "its routing may change again",
    "force-failover": "its sends are diverted until `twinbus mark-healthy {path}`",
    "mark-healthy": "its sends go to the primary again",
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


def steer(verb: str, path: str, pair: str | None, output: Output) -> int:
    """Run a verb on an entity of a pair; return the exit status."""
    hosts = choose_hosts(_running()[0], pair, "pair", is_steered=True)
    answers = ask_each(hosts, verb, {"path": path})
    documents, lines = [], []
    for host, document in answers:
        entity = read(EntityStatus, document)
        prefix = f"{host.process}: " if len(hosts) > 1 else ""
        then = DONE[verb].format(path=visible(entity.path))
        lines.append(f"{prefix}{status_text.entity_line(entity)}; {then}")
        documents.append({"name": host.card.name, "pid": host.card.pid, "entity": document})
    if answers or output is Output.JSON:
        show(output, {"pairs": documents}, lines)
    return COULD_NOT if len(answers) < len(hosts) else 0


def _show(pair: str | None, output: Output, *, show_all: bool, is_watched: bool = False) -> int:
    hosts, silent = _running()
    views = _views(choose_hosts(hosts, pair, "pair"))
    views.sort(key=lambda view: not view.judgement.concerns)
    pairs = [_document(view) for view in views]
    document = {"pairs": pairs, "healthy": not any(pair["attention"] for pair in pairs)}
    first, *rest = _lines(views, show_all=show_all)
    show(output, document, [(_clear() if is_watched else "") + first, *rest])
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


def _lines(views: Sequence[PairView], *, show_all: bool) -> list[str]:
    lines = []
    for view in views:
        lines += [*status_text.render(view, show_all=show_all), ""]
    summary = status_text.summary(views)
    return [*lines, f"{datetime.now().astimezone():%H:%M:%S}  {summary}"]


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
