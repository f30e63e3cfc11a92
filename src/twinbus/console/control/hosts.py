"""The pairs and syphons of this machine that a command is about."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from twinbus.console.terminal.output import WrongUse
from twinbus.console.terminal.table import visible
from twinbus.control.client import RunningHost, SilentHost, ask, find
from twinbus.errors import ControlError


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


def _list(hosts: Sequence[RunningHost]) -> str:
    return ", ".join(f"{visible(host.process)} ({visible(host.card.program)})" for host in hosts)
