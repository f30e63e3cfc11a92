"""Where control sockets are: a directory that belongs to one user, and the sockets in it.

`$TWINBUS_RUN_DIR` names it; set to nothing it turns control sockets off. Unset it is
`$XDG_RUNTIME_DIR/twinbus`, or where a program has none (a service, a container) `twinbus-UID` in
the directory for temporary files. A command looks in all of these, because the shell of a person
and a service of the same user differ in their environment.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = [
    "VARIABLE",
    "RunDirectoryUnusable",
    "SocketDirectory",
    "is_listening",
    "open_socket",
    "places",
    "prepare",
    "sockets_in",
    "sweep",
]

VARIABLE: Final = "TWINBUS_RUN_DIR"

SUFFIX: Final = ".sock"

PATH_BYTES_MAX: Final = 103
"""A Unix socket's address holds 108 bytes on Linux and 104 elsewhere, with a zero at the end."""

LABEL_LENGTH_MAX: Final = 40
"""Of the label in a socket's name, which is only for people: the socket itself says the whole."""

BACKLOG: Final = 16
UNBORN_S: Final = 60.0
"""A socket is opened under a hidden name and renamed at once; one that stays hidden is orphaned."""


class RunDirectoryUnusable(Exception):
    """No socket can be opened there; the text says why and what would help."""


@dataclass(frozen=True, slots=True)
class SocketDirectory:
    """A directory for control sockets."""

    directory: Path
    is_named: bool
    """Whether a person named it; else it is a default, and must be nobody else's by design."""


def places(environment: Mapping[str, str]) -> list[SocketDirectory]:
    """Where sockets may be, best first; none if the environment turns them off."""
    named = environment.get(VARIABLE)
    if named is not None:
        return [SocketDirectory(Path(named), is_named=True)] if named.strip() else []
    found = []
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        found.append(SocketDirectory(Path(runtime) / "twinbus", is_named=False))
    name = f"twinbus-{os.getuid()}"
    return [*found, SocketDirectory(Path(tempfile.gettempdir()) / name, is_named=False)]


def prepare(place: SocketDirectory) -> None:
    """Make the directory, for its user alone; RunDirectoryUnusable if others could interfere."""
    directory = place.directory
    try:
        directory.mkdir(mode=0o700, parents=place.is_named, exist_ok=True)
        # A default name is predictable: a link there could be somebody else's doing.
        found = directory.stat() if place.is_named else directory.lstat()
    except OSError as error:
        raise RunDirectoryUnusable(f"{directory}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise RunDirectoryUnusable(f"{directory} is not a directory")
    if found.st_uid != os.getuid():
        raise RunDirectoryUnusable(f"{directory} belongs to another user")
    if found.st_mode & 0o022:
        raise RunDirectoryUnusable(f"{directory} is writable by other users; chmod 700 it")


def open_socket(directory: Path, label: str, pid: int) -> tuple[socket.socket, Path]:
    """A socket that listens, and its path; RunDirectoryUnusable if there is none to be had."""
    tail = f".{pid}.{secrets.token_hex(3)}{SUFFIX}"
    room = PATH_BYTES_MAX - len(os.fsencode(directory)) - len("/.") - len(tail)
    if room < 1:
        raise RunDirectoryUnusable(
            f"the path {directory} is too long: a socket's path has at most {PATH_BYTES_MAX} bytes;"
            f" name a shorter one in {VARIABLE}"
        )
    name = label[: min(room, LABEL_LENGTH_MAX)] + tail
    # Under its own name a socket always listens; so one that does not was left by the dead.
    hidden, path = directory / f".{name}", directory / name
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The umask is the whole process's and other threads use it; Linux takes the mode from here.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(str(hidden))
        hidden.chmod(0o600)
        listening.listen(BACKLOG)
        listening.setblocking(False)
        hidden.rename(path)
    except OSError as error:
        listening.close()
        with contextlib.suppress(OSError):
            hidden.unlink()
        raise RunDirectoryUnusable(f"{directory}: {error.strerror or error}") from error
    return listening, path


def sockets_in(directory: Path) -> list[Path]:
    """The control sockets in a directory, in the order of their names."""
    try:
        return sorted(
            path
            for path in directory.iterdir()
            if path.name.endswith(SUFFIX) and not path.name.startswith(".") and path.is_socket()
        )
    except OSError:
        return []


def sweep(directory: Path) -> None:
    """Remove what processes that are gone have left behind."""
    for path in sockets_in(directory):
        if not is_listening(path):
            with contextlib.suppress(OSError):
                path.unlink()
    for path in directory.glob(f".*{SUFFIX}"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > UNBORN_S and path.is_socket():
                path.unlink()


def is_listening(path: Path) -> bool:
    """Whether somebody has the socket open; also true when that cannot be found out.

    By asking it, not by the process id in its name: ids are used again, and containers have theirs.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A queue of connections that is full says so at once: nobody must wait for that here.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True
