"""Servers in processes of their own: started, waited for, and stopped with their children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

TWINBUS = (sys.executable, "-c", "from twinbus.console.cli import main; main()")
"""What the `twinbus` script does, whether or not it is installed."""
STOP_TIMEOUT_S = 20.0
POLL_S = 0.05
LOG_LINES_SHOWN = 8


def exit_on_sigterm() -> None:
    """Let SIGTERM unwind this program as Ctrl-C does: the servers it started are stopped."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serve(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    own_session: bool = True,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server for the length of the block, output to `log`; then stop its process group.

    Linux gives each session the same share of the processors, whatever runs in it (`autogroup`).
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group of its own, so that what the server starts is stopped with it.
            start_new_session=own_session,
            process_group=None if own_session else 0,
        )
    try:
        yield process
    finally:
        _stop_group(process)


def wait_until(
    ready: Callable[[], bool], *, process: subprocess.Popen[bytes], log: Path, timeout_s: float
) -> None:
    """Return once `ready`; raise with the end of the log if the process dies or takes too long."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if process.poll() is not None:
            raise RuntimeError(f"{_name(process)} ended at start:\n{_tail(log)}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{_name(process)} not ready in {timeout_s:g} s:\n{_tail(log)}")
        time.sleep(POLL_S)


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _name(process: subprocess.Popen[bytes]) -> str:
    command = process.args
    return str(command[0]) if isinstance(command, (list, tuple)) else str(command)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
