"""The drill's world: two namespaces, each in its own process with its data on disk.

`twinbus serve` starts them, as a user would, so that SIGKILL acts like a power cut. Their data is
removed when the drill ends, however it ends.

The progress is a live line on stderr; without a terminal (a CI log, a pipe) each phase prints a
line when it begins and one when it ends. With --page it is also `twinbus page` over this world, in
a process of its own: the drill writes its phases to it as notes, and its proof into the ledger that
the page reads.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self
from urllib.parse import parse_qs, urlsplit

from azure.servicebus.aio.management import ServiceBusAdministrationClient

from twinbus.console.drill.result import DrillResult
from twinbus.console.output import LiveLine, progress_bar
from twinbus.console.twins.reports import TwinState
from twinbus.console.twins.survey import TwinSurvey
from twinbus.errors import TwinbusError
from twinbus.namespace.address import ConnectionString
from twinbus.namespace.administration_client import administration_client
from twinbus.namespace.namespace import Namespace
from twinbus.page.jobs import keep_proof
from twinbus.run_directory import VARIABLE as RUN_DIRECTORY

PRIMARY: Final = "contoso"
SECONDARY: Final = "contoso-dr"

SESSIONS: Final = tuple(f"customer-{number}" for number in range(8))
SUBSCRIPTION: Final = "audit"

START_LIMIT_S: Final = 120.0
"""A program is up within a second, on a crowded machine after half a minute."""
STOP_LIMIT_S: Final = 5.0
"""Time for a program to end before it is killed: its data is not needed any more."""

_ENTRY: Final = "from twinbus.console.entry import main; main()"


class DrillError(TwinbusError):
    """The drill cannot go on, which says nothing about any message; the text says why."""


@dataclass(frozen=True)
class Entity:
    path: str
    is_topic: bool = False
    sessions: tuple[str, ...] = ()
    has_twin: bool = False
    """Whether its messages are received in the outage; else they wait in the backlog."""

    @property
    def received_at(self) -> str:
        """Where its messages are received, on both sides."""
        return f"{self.path}/Subscriptions/{SUBSCRIPTION}" if self.is_topic else self.path


ENTITIES: Final = (
    Entity("orders", has_twin=True),
    Entity("payments", sessions=SESSIONS),
    Entity("events", is_topic=True, has_twin=True),
)
TWINS: Final = tuple(entity.path for entity in ENTITIES if entity.has_twin)
WITHOUT_TWIN: Final = tuple(entity.path for entity in ENTITIES if not entity.has_twin)
"""Shows the backlog. An entity with sessions has a twin only if one asks for it."""


class Program:
    """A command of `twinbus` as a process of its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @contextmanager
    def started(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> Iterator[IO[str]]:
        """Start it and yield what it prints; its errors go to the end of `log`.

        It is killed if the block takes longer than a start may take.
        """
        assert self._process is None, f"{command} runs already"
        with log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-c", _ENTRY, *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # Ctrl-C is for the drill, which ends its programs itself.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        limit = threading.Timer(START_LIMIT_S, self._process.kill)
        limit.start()
        try:
            yield self._process.stdout
        finally:
            limit.cancel()

    def kill(self) -> None:
        """SIGKILL: no goodbye to clients, nothing more to disk."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def stop(self) -> None:
        """End it in any case: SIGTERM first, SIGKILL if it does not end."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_LIMIT_S)
            self.kill()


class NamespaceProcess(Program):
    """`twinbus serve` for one namespace; started again it has the same port and the same data."""

    def __init__(self, name: str, directory: Path, views: Path, like: str | None = None) -> None:
        super().__init__()
        self.name = name
        self.connection_string = ""
        self.port = 0
        self._directory = directory
        self._log = directory / "stderr.log"
        self._options = ["--ledger", str(views), *(["--like", like] if like else [])]

    def start(self) -> None:
        """Run it; returns when it takes connections. Blocks for about a second."""
        self._directory.mkdir(parents=True, exist_ok=True)
        place = f"{self.name}:{self.port}"
        command = ["serve", place, "--data", str(self._directory / "data"), "--quiet"]
        with self.started([*command, *self._options], self._log) as lines:
            self._read_until_ready(lines)

    def _read_until_ready(self, output: IO[str]) -> None:
        for line in output:
            name, _, rest = line.strip().partition("  ")
            if name == self.name:
                self.connection_string = rest
                self.port = ConnectionString.parse(rest).port
            if line.startswith("ready"):
                return
        self.kill()
        said = self._log.read_text(errors="replace").strip().splitlines()
        raise DrillError(
            f"the namespace {self.name} did not start: {said[-1] if said else 'it said nothing'}"
        )


class World:
    """Both namespaces and the directory in which everything of the drill is; a context manager."""

    def __init__(self, like: str | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="twinbus-drill-"))
        self.ledger = self.directory / "ledger"
        self.views = self.directory / "views"
        """What the brokers themselves recorded. The drill does not need it: it proves that nothing
        is lost from what its clients know, as a user of Azure has to."""
        self.primary, self.secondary = (
            NamespaceProcess(name, self.directory / side, self.views, like)
            for side, name in (("primary", PRIMARY), ("secondary", SECONDARY))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def stop(self) -> None:
        """End both namespaces; their views are whole then."""
        self.primary.stop()
        self.secondary.stop()

    def keep_ledger(self, place: Path) -> None:
        """Copy the ledger for reports to come, with the brokers' views in it."""
        self.stop()
        shutil.rmtree(place, ignore_errors=True)
        for part in (self.ledger, self.views):
            shutil.copytree(part, place, dirs_exist_ok=True)


async def create_entities(connection_string: str) -> None:
    """Create what the drill sends to, as one should have it: with duplicate detection."""
    async with administration(connection_string) as admin:
        for entity in ENTITIES:
            if entity.is_topic:
                await admin.create_topic(entity.path, requires_duplicate_detection=True)
                await admin.create_subscription(entity.path, SUBSCRIPTION)
            else:
                await admin.create_queue(
                    entity.path,
                    requires_duplicate_detection=True,
                    requires_session=bool(entity.sessions),
                )


async def create_twins(primary: Namespace, secondary: Namespace) -> None:
    """Create the twins, and mark them, as `twinbus twins create` does."""
    async with TwinSurvey(primary, secondary) as survey:
        await survey.read(TWINS)
        for twin in await survey.create(TWINS, with_sessions=False):
            if twin.state is not TwinState.CREATED:
                raise DrillError(f"the twin of {twin.path} was not created: {twin.says}")


def administration(connection_string: str) -> ServiceBusAdministrationClient:
    return administration_client(Namespace.from_connection_string(connection_string))


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

    SILENT_S = 5.0

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
