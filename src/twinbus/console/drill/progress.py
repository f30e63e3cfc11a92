"""The progress of a drill: lines on stderr, and with --page a page in the browser.

A terminal shows the phases that run in a live line. Without one (a CI log, a pipe) each phase
prints a line when it begins and one when it ends. The page is `twinbus page` over the drill's
world, in a process of its own: the drill writes its phases to it as notes, and its proof into the
ledger that the page reads.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, Final, Self
from urllib.parse import parse_qs, urlsplit

from twinbus.console.drill.result import DrillResult
from twinbus.console.drill.world import PRIMARY, DrillError, Program, World
from twinbus.console.output import LiveLine, progress_bar
from twinbus.control.sockets import VARIABLE as RUN_DIRECTORY
from twinbus.page.jobs import keep_proof

NOTE_S: Final = 5.0
"""Timeout of one note. A page that does not take it never delays the drill."""


class Phase:
    def __init__(self, name: str, note: str, total: float | None) -> None:
        self.name = f"{name:<8}"
        self.note = note
        self.total = total
        """The value at the end of the phase; None: not known."""
        self._done = 0.0
        self._began = time.monotonic()

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._began

    def reach(self, done: float, note: str | None = None) -> None:
        """Set the progress, in the unit of the total."""
        self._done, self.note = done, note or self.note

    def __str__(self) -> str:
        bar = f"  {progress_bar(min(1.0, self._done / self.total))}" if self.total else ""
        return f"{self.name}{bar} {self.took_s:5.1f} s  {self.note}"


class DrillScreen(LiveLine):
    """Shows the phases of a drill; a context manager."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        super().__init__(stream)
        self.took_s: dict[str, float] = {}
        self.on_line: Callable[[str], None] = lambda _: None
        """Also gets a line for each phase that begins or ends."""
        self._running: list[Phase] = []

    def text(self) -> str:
        return "  |  ".join(map(str, self._running.copy()))

    @contextmanager
    def phase(self, name: str, note: str, total: float | None = None) -> Iterator[Phase]:
        """Show a phase for the `with` block; `total` is the value of a full bar."""
        phase = Phase(name, note, total)
        self._running.append(phase)
        self.on_line(f"{name}: {note}")
        if not self.is_live:
            self.print(f"{phase.name} {note} ...", self._stream)
        try:
            yield phase
        except BaseException:
            phase.note = "stopped"
            raise
        else:
            self.took_s[name] = phase.took_s
        finally:
            self._running.remove(phase)
            self.on_line(f"{name} ended after {phase.took_s:.1f} s: {phase.note}")
            self.print(f"{phase.name} {phase.took_s:5.1f} s  {phase.note}", self._stream)


class DrillPage(Program):
    """The page of one drill; a context manager."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.address = ""
        """With its token; empty until `start`."""
        self._world = world
        self._notes = ThreadPoolExecutor(1, "twinbus-drill-notes")
        self._run_directory = os.environ.get(RUN_DIRECTORY)

    def __enter__(self) -> Self:
        # The drill's pair has its socket where the page finds it, and no other pair.
        place = self._world.directory / "run"
        place.mkdir(mode=0o700)
        os.environ[RUN_DIRECTORY] = str(place)
        return self

    def __exit__(self, *exc: object) -> None:
        os.environ.pop(RUN_DIRECTORY)
        if self._run_directory is not None:
            os.environ[RUN_DIRECTORY] = self._run_directory
        self._notes.shutdown(cancel_futures=True)
        self.stop()

    def start(self) -> None:
        """Serve the page; returns when it answers. Both namespaces run already."""
        world = self._world
        world.ledger.mkdir(exist_ok=True)
        places = {
            "TWINBUS_PRIMARY": world.primary.connection_string,
            "TWINBUS_SECONDARY": world.secondary.connection_string,
        }
        command = ["page", "--label", PRIMARY, "--ledger", str(world.ledger)]
        log = world.directory / "page.log"
        with self.started(command, log, {**os.environ, **places}) as lines:
            self.address = lines.readline().strip()
            if not lines.readline().startswith("ready"):
                raise DrillError("the page did not start; run `twinbus page` to see why")

    def open_browser(self) -> None:
        """Open the page where there is a screen; a browser's command line never has the token."""
        if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
            return
        place = self._world.directory / "page.html"
        place.write_text(f'<meta http-equiv="refresh" content="0; url={self.address}">')
        with suppress(webbrowser.Error, OSError):
            webbrowser.open(place.as_uri())

    def say(self, text: str) -> None:
        """Show a line among the events of the page, soon; before `start` it is dropped."""
        if self.address:
            self._notes.submit(self._post, text)

    def prove(self, result: DrillResult, text: str) -> None:
        unknown = result.report.conservation.unknown
        keep_proof(self._world.ledger, "good" if result.passed else "bad", text, unknown)

    def _post(self, text: str) -> None:
        parts = urlsplit(self.address)
        headers = {
            "Authorization": f"Bearer {parse_qs(parts.query)['token'][0]}",
            "X-Twinbus-Page": "1",
            "Content-Type": "application/json",
        }
        connection = http.client.HTTPConnection(parts.netloc, timeout=NOTE_S)
        with suppress(OSError, http.client.HTTPException):
            note = json.dumps({"action": "note", "text": text})
            connection.request("POST", "/api/actions", note, headers)
            connection.getresponse().read()
        connection.close()
