"""The run directory of one user: where the processes of a machine find each other.

It holds the control sockets, and the files in which the processes of a pair share evidence.
`$TWINBUS_RUN_DIR` names it; set but empty, there is none. Unset it is `$XDG_RUNTIME_DIR/twinbus`,
or `twinbus-UID` in the directory for temporary files where a program has no such variable (a
service, a container).
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "TWINBUS_RUN_DIR"


class RunDirectoryUnusable(Exception):
    """Nothing can be shared there; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A directory in which the processes of one user meet."""

    path: Path
    is_configured: bool
    """Whether TWINBUS_RUN_DIR names it. A default has a predictable name and is checked more."""


def run_directories_of(environment: Mapping[str, str]) -> list[RunDirectory]:
    """Return the directories to try, best first; none if the environment turns them off."""
    named = environment.get(VARIABLE)
    if named is not None:
        return [RunDirectory(Path(named), is_configured=True)] if named.strip() else []
    found = []
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        found.append(RunDirectory(Path(runtime) / "twinbus", is_configured=False))
    name = f"twinbus-{os.getuid()}"
    return [*found, RunDirectory(Path(tempfile.gettempdir()) / name, is_configured=False)]


def prepare(place: RunDirectory) -> None:
    """Create the directory, private to its user; RunDirectoryUnusable if others could interfere."""
    directory = place.path
    try:
        directory.mkdir(mode=0o700, parents=place.is_configured, exist_ok=True)
    except OSError as error:
        raise RunDirectoryUnusable(f"{directory}: {error.strerror}") from error
    require_own(place)


def require_own(place: RunDirectory) -> None:
    """RunDirectoryUnusable unless the directory is this user's and nobody else can write to it."""
    directory = place.path
    try:
        # A default name is predictable: another user may have put a link there.
        found = directory.stat() if place.is_configured else directory.lstat()
    except OSError as error:
        raise RunDirectoryUnusable(f"{directory}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise RunDirectoryUnusable(f"{directory} is not a directory")
    if found.st_uid != os.getuid():
        raise RunDirectoryUnusable(f"{directory} belongs to another user")
    if found.st_mode & 0o022:
        raise RunDirectoryUnusable(f"{directory} is writable by other users; chmod 700 it")
