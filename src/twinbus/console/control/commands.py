"""`twinbus status` and the commands that steer a running pair, over its control socket."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from twinbus.console.control import status_text as status_words
from twinbus.console.control.status_text import PairView
from twinbus.console.terminal.output import ATTENTION, COULD_NOT, WrongUse, print_json
from twinbus.console.terminal.table import paint, visible
from twinbus.control.client import RunningHost, SilentHost, ask, find, where
from twinbus.errors import ControlError

__all__ = ["show_status", "steer"]

REFRESH_S: Final = 1.0

HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"

DONE: Final = {
    "freeze": "its routing stays as it is, no timer, no ping, until `twinbus unfreeze {path}`",
    "unfreeze": "its routing may change again",
    "force-failover": "its sends are diverted until `twinbus mark-healthy {path}`",
    "mark-healthy": "its sends go to the primary again",
}
"""What a verb brought about, for the person who asked for it."""


def show_status(pair: str | None, *, as_json: bool, watch: bool, show_all: bool) -> int:
    """Print the status of the running pairs, once or until Ctrl-C; the exit status."""
    if not watch:
        return _show(pair, as_json=as_json, show_all=show_all)
    status = 0
    try:
        while True:
            try:
                status = _show(pair, as_json=as_json, show_all=show_all, is_watched=True)
            except ControlError as error:
                # A pair that is being restarted comes back: whoever watches wants to see that.
                status = COULD_NOT
                print(f"{_clear()}twinbus: {error}", file=sys.stderr, flush=True)
            time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return status


def steer(verb: str, path: str, pair: str | None) -> int:
    """Have the pair do something about an entity; the exit status."""
    hosts = _one_pair(_running()[0], pair)
    failed = False
    for host in hosts:
        prefix = f"{host.process}: " if len(hosts) > 1 else ""
        try:
            entity = ask(host.path, verb, {"path": path})
        except ControlError as error:
            failed = True
            print(f"twinbus: {error}", file=sys.stderr)
        else:
            then = DONE[verb].format(path=visible(entity["path"]))
            print(f"{prefix}{status_words.entity_line(entity)}; {then}")
    return COULD_NOT if failed else 0


def _show(pair: str | None, *, as_json: bool, show_all: bool, is_watched: bool = False) -> int:
    hosts, silent = _running()
    views = _views(_named(hosts, pair))
    views.sort(key=lambda view: not status_words.attention(view.status))
    troubled = any(status_words.attention(view.status) for view in views)
    if as_json:
        print_json(_document(views))
    else:
        clear = _clear() if is_watched else ""
        print(clear + "\n".join(_lines(views, show_all=show_all)), flush=True)
    return ATTENTION if troubled or silent else 0


def _clear() -> str:
    return HOME_AND_CLEAR if sys.stdout.isatty() else ""


def _lines(views: Sequence[PairView], *, show_all: bool) -> list[str]:
    lines = []
    for view in views:
        title, *rest = status_words.render(view, show_all=show_all)
        lines += [paint(title, "bold"), *map(_painted, rest), ""]
    summary = status_words.summary(views)
    return [*lines, f"{datetime.now().astimezone():%H:%M:%S}  {summary}"]


def _painted(line: str) -> str:
    if line.startswith("  ! "):
        return paint(line, "bold", "red")
    return paint(line, "dim") if line.startswith("  ENTITY") else line


def _document(views: Sequence[PairView]) -> dict[str, Any]:
    pairs = [{**asdict(view), "attention": status_words.attention(view.status)} for view in views]
    return {"pairs": pairs, "healthy": not any(pair["attention"] for pair in pairs)}


def _views(hosts: Sequence[RunningHost]) -> list[PairView]:
    views: list[PairView] = []
    gone: list[ControlError] = []
    for host in hosts:
        try:
            views.append(_view(host))
        except ControlError as error:
            # It was closed since it was found; the others still want to be seen.
            gone.append(error)
    if not views:
        raise gone[0]
    for one in gone:
        print(f"twinbus: {one}", file=sys.stderr)
    return views


def _view(host: RunningHost) -> PairView:
    card = host.card
    up_s = None
    if card.began_at:
        up_s = (datetime.now(UTC) - datetime.fromisoformat(card.began_at)).total_seconds()
    return PairView(card.name, card.pid, card.program, up_s, ask(host.path, "status"))


def _running() -> tuple[list[RunningHost], list[SilentHost]]:
    """The pairs that answer, and who does not; ControlError if nobody answers."""
    hosts, silent = find()
    pairs = [host for host in hosts if host.card.kind == "pair"]
    for one in silent:
        print(f"twinbus: {visible(one.path.stem)}: {visible(one.why)}", file=sys.stderr)
    if not pairs:
        raise ControlError(_none(silent))
    return pairs, silent


def _none(silent: Sequence[SilentHost]) -> str:
    if silent:
        return "no running pair answers"
    user = f"user {os.getuid()}"
    return (
        f"no pair runs here for {user} (looked in {where()}); if yours does, give this command the"
        " TWINBUS_RUN_DIR of its program, and run it as its user"
    )


def _named(hosts: list[RunningHost], name: str | None) -> list[RunningHost]:
    if name is None:
        return hosts
    chosen = [host for host in hosts if host.is_called(name)]
    if not chosen:
        raise ControlError(f"no pair {name!r} runs here; there is {_list(hosts)}")
    return chosen


def _one_pair(hosts: list[RunningHost], name: str | None) -> list[RunningHost]:
    """The processes that a person means; a name that several share means all of them."""
    if name is None and len(hosts) > 1:
        raise WrongUse(f"{len(hosts)} pairs run here, say which with --pair: {_list(hosts)}")
    return _named(hosts, name)


def _list(hosts: Sequence[RunningHost]) -> str:
    return ", ".join(f"{visible(host.process)} ({visible(host.card.program)})" for host in hosts)
