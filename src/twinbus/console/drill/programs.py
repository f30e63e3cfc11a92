"""The programs that a drill starts: commands of Twinbus, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

START_LIMIT_S: Final = 30.0
"""A program is up within a second; a machine that needs more than this cannot run a drill."""
STOP_LIMIT_S: Final = 5.0
"""Time for a program to end before it is killed: its data is not needed any more."""

_ENTRY: Final = "from twinbus.console.entry import main; main()"


def start_program(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a command of `twinbus`; its errors go to the end of `log`."""
    with log.open("ab") as errors:
        return subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-c", _ENTRY, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # Ctrl-C is for the drill, which ends its programs itself.
            start_new_session=True,
        )


@contextmanager
def first_lines(process: subprocess.Popen[str]) -> Iterator[IO[str]]:
    """What the program prints; it is killed if the block takes longer than a start may take."""
    assert process.stdout is not None
    limit = threading.Timer(START_LIMIT_S, process.kill)
    limit.start()
    try:
        yield process.stdout
    finally:
        limit.cancel()
