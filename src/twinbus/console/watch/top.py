"""`twinbus top`: the pairs of this machine in a terminal, once a second until q or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console
from rich.live import Live

from twinbus.console.page.judging import judged
from twinbus.console.terminal.output import STOPPED, Output, print_json
from twinbus.console.watch.screen import screen
from twinbus.page.core.headline import headline_of
from twinbus.page.core.pair_table import Pair
from twinbus.page.core.view import Board
from twinbus.page.sources.hosts import HostPoller

EVERY_S: Final = 1.0
HINT: Final = "q ends"
KEYS_MAX: Final = 64
"""Bytes of one read from the keyboard."""


def run_top(name: str | None, output: Output, *, once: bool) -> int:
    """Show the pairs until the person ends it; without a terminal, once. Return the exit status."""
    poller = HostPoller()
    top = _Top(poller, name)
    console = Console(highlight=False)
    try:
        if output is Output.JSON:
            print_json(top.document())
        elif once or not console.is_terminal:
            pairs, now = top.look()
            console.print(screen(pairs, now, width=console.width, height=None))
        else:
            _follow(top, console)
    finally:
        poller.close()
    return 0


class _Top:
    """The page's model of this machine, for one terminal."""

    def __init__(self, poller: HostPoller, name: str | None) -> None:
        self._poller = poller
        self._name = None if name is None else name.lower()
        self._board = Board(judged, host=socket.gethostname())

    def look(self) -> tuple[list[Pair], float]:
        """Ask every pair; return the documents of the chosen ones, and when that was."""
        now = time.time()
        self._board.observe(self._poller.poll(), now)
        return [pair for pair in self._board.table.pairs.values() if self._is_chosen(pair)], now

    def document(self) -> dict[str, Any]:
        """Return the view of now as JSON."""
        pairs, now = self.look()
        return {"now": now, "headline": headline_of(pairs, now), "pairs": pairs}

    def _is_chosen(self, pair: Pair) -> bool:
        names = (pair["name"], f"{pair['name']}.{pair['pid']}", pair["id"])
        return self._name is None or self._name in (one.lower() for one in names)


def _follow(top: _Top, console: Console) -> None:
    def ended(*_: object) -> None:
        sys.exit(STOPPED)

    # The terminal must be put back in order before the process ends.
    before = signal.signal(signal.SIGTERM, ended)
    try:
        with (
            contextlib.suppress(KeyboardInterrupt),
            _keys() as is_ended,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                began = time.monotonic()
                pairs, now = top.look()
                size = console.size
                shown = screen(pairs, now, width=size.width, height=size.height, hint=HINT)
                live.update(shown, refresh=True)
                if is_ended(max(0.0, EVERY_S - (time.monotonic() - began))):
                    return
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits some seconds and returns whether q was pressed meanwhile."""
    if not sys.stdin.isatty():
        yield time.sleep
        return
    descriptor = sys.stdin.fileno()
    settings = termios.tcgetattr(descriptor)

    def is_ended(wait_s: float) -> bool:
        ends = time.monotonic() + wait_s
        while (left_s := ends - time.monotonic()) > 0:
            if select.select([descriptor], [], [], left_s)[0]:
                pressed = os.read(descriptor, KEYS_MAX)
                if not pressed or b"q" in pressed.lower():
                    return True
        return False

    try:
        tty.setcbreak(descriptor)
        yield is_ended
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
