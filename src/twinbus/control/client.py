"""The command line's end of the control socket. Blocking, so that a command starts quickly."""

from __future__ import annotations

import contextlib
import os
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
from twinbus.control.run_directory import (
    VARIABLE,
    RunDirectoryUnusable,
    require_own,
    socket_directories_of,
    sockets_in,
)
from twinbus.errors import ControlError

ANSWER_S: Final = 5.0
"""A host answers within milliseconds unless its event loop is blocked."""

CONCURRENT_REQUESTS: Final = 16
CHUNK_BYTES: Final = 256 * 1024


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
    for place in socket_directories_of(os.environ):
        try:
            if place.path.exists() or place.path.is_symlink():
                require_own(place)
            paths += sockets_in(place.path)
        except RunDirectoryUnusable as error:
            unsafe.append(SilentHost(place.path, str(error)))
    return paths, unsafe


def socket_directories() -> str:
    """Return the directories that `find` searches, as text."""
    searched = [str(directory) for directory in _directories()]
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


def _directories() -> list[Path]:
    return [place.path for place in socket_directories_of(os.environ)]


def _probe(path: Path) -> RunningHost | SilentHost | None:
    try:
        return RunningHost(path, parse_answer(exchange(path, HELLO)).host)
    except ConnectionRefusedError:
        # Its process is gone, and a name is not used twice.
        with contextlib.suppress(OSError):
            path.unlink()
        return None
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
    """Return the line that a host answers; OSError or ControlRefused if there is none."""
    deadline = time.monotonic() + ANSWER_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(ANSWER_S)
        line.connect(str(path))
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
