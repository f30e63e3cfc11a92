"""A directory on a disk whose power can be cut."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

REPOSITORY = Path(__file__).parents[2]


class CannotMount(Exception):
    """This machine does not let this user mount a FUSE file system."""


class ForgetfulDisk:
    """Mounts a `Disk` on a directory, served by a process of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            raise CannotMount("there is no /dev/fuse that this user may open")
        self.path.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.power_cut.fuse", str(self.path)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._answer() != "ready":
            _, errors = self._process.communicate()
            raise CannotMount(errors.strip().splitlines()[-1] if errors else "it did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def cut(self, seed: int, kept_share: float, kept_names: float | None = None) -> None:
        """Cut the power and switch it on again; no process may use the disk at that time.

        Of the bytes that were not synced this share is left, and of the names the other, by default
        the same.
        """
        kept_names = kept_share if kept_names is None else kept_names
        self._command(f"cut {seed} {kept_share} {kept_names}")

    def flush(self) -> None:
        """Make everything durable, as an operating system does by itself after some seconds."""
        self._command("flush")

    def _command(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._answer() == "done"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
