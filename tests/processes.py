"""The broker as its users run it: `twinbus serve` in a process, to be killed and restarted."""

from __future__ import annotations

import json
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

# The entry point of the `twinbus` script, so that tests need no script on the path.
ENTRY = "from twinbus.console.cli import main; main()"
FILE_LIMIT = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({bytes}, {bytes}));"
START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
"""No promise, only an end of patience: with ten times the work it takes ten times as long."""

HEALTH_POLL_S = 0.01
ANSWER_LIMIT_S = 60.0
"""For one answer of /health; an end of patience, too."""


def until(condition: Callable[[], Any], patience_s: float = 120.0) -> Any:
    """What the condition returns as soon as that is true; fail when the patience ends first."""
    ends = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < ends, f"not within {patience_s:g} s"
        time.sleep(0.05)
    return found


@contextmanager
def room_for(size_bytes: int) -> Iterator[None]:
    """Let this process write no file longer than that, which the broker sees as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def run_twinbus(
    *arguments: str,
    timeout_s: float = 60.0,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to end by itself; its output and exit status.

    `environment` is added to that of the test; the standard input is empty.
    """
    return subprocess.run(
        [sys.executable, "-c", ENTRY, *arguments],
        env={**os.environ, **(environment or {})},
        input="",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@contextmanager
def started(
    *arguments: str, environment: Mapping[str, str] | None = None, stderr: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Python with these arguments in a process, killed at the end of the block.

    It finds the modules that the test finds; `environment` is added to that of the test.
    """
    with subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline()


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory for control sockets: pytest's own are too long for the address of a socket."""
    directory = Path(tempfile.mkdtemp(prefix="tb-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def with_key(connection_string: str, rule: str | None = None, key: str | None = None) -> str:
    """The same namespace, by another rule or key."""
    parts = dict(part.split("=", 1) for part in connection_string.rstrip(";").split(";"))
    if rule is not None:
        parts["SharedAccessKeyName"] = rule
    if key is not None:
        parts["SharedAccessKey"] = key
    return "".join(f"{word}={value};" for word, value in parts.items())


class ServedBroker:
    """`twinbus serve` with one directory for all it writes; as a context manager, gone after it.

    A namespace is "name"; the first start picks a free port for each, later starts keep it.
    """

    def __init__(
        self,
        directory: Path,
        *namespaces: str,
        options: tuple[str, ...] = (),
        ephemeral: bool = False,
        file_size_max: int | None = None,
        before: str = "",
    ) -> None:
        """`before` is Python that runs in the process before the broker's own code."""
        directory.mkdir(exist_ok=True)
        self.data = directory / "data"
        self.log_path = directory / "stderr.log"
        self.options = options
        self.file_size_max = file_size_max
        """No file may grow beyond this many bytes: what a full disk looks like from inside."""
        self.start_took_s = 0.0
        """From the command to the first answer of /health, of the latest start."""
        self._before = before
        self._namespaces = namespaces or ("contoso",)
        self._ephemeral = ephemeral
        self._ports: dict[str, int] = {}
        self._strings: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill9()

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the broker is not running"
        return self._process

    @property
    def is_running(self) -> bool:
        """Whether it was started and not ended by its own methods since."""
        return self._process is not None

    def start(self) -> None:
        """Run the command; returns when every namespace answers /health."""
        assert self._process is None, "the broker runs already"
        places = [f"{name}:{self._ports.get(name, 0)}" for name in self._namespaces]
        limit = FILE_LIMIT.format(bytes=self.file_size_max) if self.file_size_max else ""
        began = time.monotonic()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    limit + self._before + ENTRY,
                    *self.command(places),
                    *self.options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._lines = queue.Queue()
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=_read_lines, args=(self._process.stdout, self._lines), daemon=True
        )
        self._reader.start()
        try:
            self._read_places(began + START_LIMIT_S)
            for name in self._namespaces:
                self._await_health(name, began + START_LIMIT_S)
        except BaseException:
            self.kill9()
            raise
        self.start_took_s = time.monotonic() - began

    def command(self, places: list[str]) -> list[str]:
        """The arguments of `twinbus`, without the options that are given."""
        storage = ["--ephemeral"] if self._ephemeral else ["--data", str(self.data)]
        return ["serve", *places, *storage]

    def restart(self) -> None:
        """Start again on the same ports and the same data."""
        self.start()

    def kill9(self) -> None:
        """End the process as a power cut would."""
        self.process.kill()
        self._reap()

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask the process to stop; its exit status."""
        self.process.send_signal(number)
        return self._reap()

    def port(self, name: str | None = None) -> int:
        return self._ports[name or self._namespaces[0]]

    def connection_string(
        self, name: str | None = None, *, rule: str | None = None, key: str | None = None
    ) -> str:
        """The printed connection string, or one of another rule and key."""
        return with_key(self._strings[name or self._namespaces[0]], rule, key)

    def environment(self, run_directory: Path) -> dict[str, str]:
        """What commands about a pair of its first two namespaces read."""
        primary, secondary = (self.connection_string(name) for name in self._namespaces[:2])
        return {
            "TWINBUS_PRIMARY": primary,
            "TWINBUS_SECONDARY": secondary,
            "TWINBUS_RUN_DIR": str(run_directory),
        }

    def health(self, name: str | None = None) -> dict[str, Any]:
        """What /health answers."""
        url = f"http://localhost:{self.port(name)}/health"
        with urllib.request.urlopen(url, timeout=ANSWER_LIMIT_S) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def log(self) -> str:
        """Everything written to stderr so far, by every start."""
        return self.log_path.read_text(errors="replace")

    def _read_places(self, deadline: float) -> None:
        while True:
            line = self._next_line(deadline)
            if line.startswith("ready;"):
                return
            name, _, text = line.partition("  ")
            assert text.startswith("Endpoint=sb://"), f"not a connection string: {line!r}"
            self._strings[name] = text
            self._ports[name] = int(text.split(";")[0].rsplit(":", 1)[1].partition("/")[0])

    def _next_line(self, deadline: float) -> str:
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"twinbus serve is not ready in time:\n{self.log()}") from None
        if line is None:
            raise RuntimeError(f"twinbus serve ended at start:\n{self.log()}")
        return line

    def _await_health(self, name: str, deadline: float) -> None:
        while True:
            try:
                self.health(name)
                return
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(HEALTH_POLL_S)

    def _reap(self) -> int:
        process, self._process = self.process, None
        try:
            return process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            self._reader.join()


def _read_lines(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line.rstrip("\n"))
    lines.put(None)
