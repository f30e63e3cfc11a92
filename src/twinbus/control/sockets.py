"""The control sockets of one user: how one is opened, and how a command asks.

They are in the run directory. A command searches every directory that it may be, because a shell
and a service of the same user differ in their environment. Asking blocks, so that a command starts
quickly.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from twinbus.control.protocol import (
    ANSWER_BYTES_MAX,
    HELLO,
    ControlRefused,
    ControlRequest,
    HostCard,
    encode_request,
    parse_answer,
)
from twinbus.errors import ControlError
from twinbus.run_directory import VARIABLE, RunDirectoryUnusable, require_own, run_directories_of

SUFFIX: Final = ".sock"

PATH_BYTES_MAX: Final = 103
"""A Unix socket's address has 108 bytes on Linux and 104 elsewhere, with a zero at the end."""

LABEL_LENGTH_MAX: Final = 40
"""Limit of the label in a socket's name, which is only for people; `hello` returns all of it."""

BACKLOG: Final = 16
HIDDEN_MAX_S: Final = 60.0
"""A socket is opened under a hidden name and renamed at once; one still hidden is orphaned."""

ANSWER_S: Final = 5.0
"""A host answers within milliseconds unless its event loop is blocked."""

CONCURRENT_REQUESTS: Final = 16
CHUNK_BYTES: Final = 256 * 1024


def open_socket(directory: Path, label: str, pid: int) -> tuple[socket.socket, Path]:
    """Return a listening socket and its path; RunDirectoryUnusable if none can be opened."""
    tail = f".{pid}.{secrets.token_hex(3)}{SUFFIX}"
    room = PATH_BYTES_MAX - len(os.fsencode(directory)) - len("/.") - len(tail)
    if room < 1:
        raise RunDirectoryUnusable(
            f"the path {directory} is too long: a socket's path has at most {PATH_BYTES_MAX} bytes;"
            f" set {VARIABLE} to a shorter one"
        )
    name = label[: min(room, LABEL_LENGTH_MAX)] + tail
    # Under its own name a socket always listens; one that does not belongs to a dead process.
    hidden, path = directory / f".{name}", directory / name
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The umask belongs to the whole process, so it is not changed; Linux takes this mode.
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
    try:
        return sorted(
            path
            for path in directory.iterdir()
            if path.name.endswith(SUFFIX) and not path.name.startswith(".") and path.is_socket()
        )
    except OSError:
        return []


def sweep(directory: Path) -> None:
    """Remove the sockets of processes that are gone."""
    for path in sockets_in(directory):
        if not is_listening(path):
            with contextlib.suppress(OSError):
                path.unlink()
    for path in directory.glob(f".*{SUFFIX}"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > HIDDEN_MAX_S and path.is_socket():
                path.unlink()


def is_listening(path: Path) -> bool:
    """Whether a process listens on the socket; also true if that cannot be found out.

    It connects instead of checking the process id in the name: ids are used again, and containers
    have their own.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A full queue of connections must not block here.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


@dataclass(frozen=True, slots=True)
class RunningHost:
    """A pair or syphon that answers."""

    path: Path
    card: HostCard

    @property
    def process(self) -> str:
        """The name with the process id, which is unique."""
        return f"{self.card.name}.{self.card.pid}"

    def is_called(self, name: str) -> bool:
        """Whether the name is the label, LABEL.PID, or the socket's name."""
        names = (self.card.name, self.process, self.path.stem)
        return name.lower() in (one.lower() for one in names)


@dataclass(frozen=True, slots=True)
class SilentHost:
    """An open socket without a usable answer."""

    path: Path
    why: str


def find() -> tuple[list[RunningHost], list[SilentHost]]:
    """Return the hosts of this user on this machine, and the sockets that do not answer.

    Sockets that killed processes left are removed. A directory in which another user could put a
    socket is not used: a program there could answer for a host of this user.
    """
    paths, unsafe = find_sockets()
    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        found = list(pool.map(_probe, paths))
    hosts = [one for one in found if isinstance(one, RunningHost)]
    hosts.sort(key=lambda host: (host.card.name, host.card.pid, host.path.name))
    return hosts, unsafe + [one for one in found if isinstance(one, SilentHost)]


def find_sockets() -> tuple[list[Path], list[SilentHost]]:
    """Return the control sockets of this user, and the directories that are not safe to use."""
    unsafe: list[SilentHost] = []
    paths: list[Path] = []
    for place in run_directories_of(os.environ):
        try:
            if place.path.exists() or place.path.is_symlink():
                require_own(place)
            paths += sockets_in(place.path)
        except RunDirectoryUnusable as error:
            unsafe.append(SilentHost(place.path, str(error)))
    return paths, unsafe


def socket_directories() -> str:
    searched = [str(place.path) for place in run_directories_of(os.environ)]
    return " and ".join(searched) if searched else f"nowhere: {VARIABLE} is empty"


def ask(path: Path, verb: str, arguments: Mapping[str, str] | None = None) -> Any:
    """Return a host's answer to a verb; ControlError if it refuses or does not answer."""
    try:
        answer = parse_answer(exchange(path, verb, arguments))
    except FileNotFoundError as error:
        raise ControlError(f"{path.stem} no longer exists") from error
    except (OSError, ControlRefused) as error:
        raise ControlError(f"{path.stem} does not answer: {why_silent(error)}") from error
    if answer.error_kind is not None:
        raise ControlError(f"{answer.host.name}.{answer.host.pid}: {answer.error_text}")
    return answer.result


def _probe(path: Path) -> RunningHost | SilentHost | None:
    try:
        return RunningHost(path, parse_answer(exchange(path, HELLO)).host)
    except FileNotFoundError:
        return None
    except (OSError, ControlRefused) as error:
        return SilentHost(path, why_silent(error))


def why_silent(error: Exception) -> str:
    """Return why `exchange` or `parse_answer` failed, for people."""
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_S:g} s: its process or its event loop is blocked"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)


def exchange(path: Path, verb: str, arguments: Mapping[str, str] | None = None) -> bytes:
    """Return the line that a host answers; OSError or ControlRefused if there is none.

    FileNotFoundError: its process is gone. The socket of a killed one is removed.
    """
    deadline = time.monotonic() + ANSWER_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(ANSWER_S)
        try:
            line.connect(str(path))
        except ConnectionRefusedError as error:
            # Its process is gone, and a name is not used twice.
            with contextlib.suppress(OSError):
                path.unlink()
            raise FileNotFoundError(error.errno, error.strerror) from error
        line.sendall(encode_request(ControlRequest(verb, arguments or {})))
        received = bytearray()
        while not received.endswith(b"\n"):
            line.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = line.recv(CHUNK_BYTES)
            if not chunk:
                raise ControlRefused(
                    "bad-answer", "it closed the connection in the middle of its answer"
                )
            received += chunk
            if len(received) > ANSWER_BYTES_MAX:
                text = f"its answer has more than {ANSWER_BYTES_MAX} bytes"
                raise ControlRefused("bad-answer", text)
        return bytes(received)
