"""Asks running pairs over their control sockets: the end of the command line.

Blocking and without asyncio, so that a command answers at once.
"""

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
    Answer,
    ControlRefused,
    ControlRequest,
    HostCard,
    encode_request,
    parse_answer,
)
from twinbus.control.run_directory import VARIABLE, places, sockets_in
from twinbus.errors import ControlError

__all__ = ["RunningHost", "SilentHost", "ask", "find", "where"]

ANSWER_S: Final = 5.0
"""A host answers within milliseconds unless its event loop stands still."""

ASKED_AT_ONCE: Final = 16
CHUNK_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class RunningHost:
    """A pair or syphon that answers."""

    path: Path
    card: HostCard

    @property
    def process(self) -> str:
        """Its name with the process: enough to tell it from others of the name."""
        return f"{self.card.name}.{self.card.pid}"

    def is_called(self, name: str) -> bool:
        """Whether a person may have meant this one."""
        names = (self.card.name, self.process, self.path.stem)
        return name.lower() in (one.lower() for one in names)


@dataclass(frozen=True, slots=True)
class SilentHost:
    """A socket that is open and gives no answer that can be used."""

    path: Path
    why: str


def find(
    environment: Mapping[str, str] | None = None,
) -> tuple[list[RunningHost], list[SilentHost]]:
    """Who runs on this machine for this user, and who could not be asked.

    Sockets that processes left when they were killed are removed on the way.
    """
    paths = [path for place in _places(environment) for path in sockets_in(place)]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        found = list(pool.map(_look, paths))
    hosts = [one for one in found if isinstance(one, RunningHost)]
    hosts.sort(key=lambda host: (host.card.name, host.card.pid, host.path.name))
    return hosts, [one for one in found if isinstance(one, SilentHost)]


def where(environment: Mapping[str, str] | None = None) -> str:
    """Where `find` looks, in words."""
    looked = [str(directory) for directory in _places(environment)]
    return " and ".join(looked) if looked else f"nowhere, for {VARIABLE} is empty"


def ask(path: Path, verb: str, arguments: Mapping[str, str] | None = None) -> Any:
    """What a host answers to a verb; ControlError if it refuses, or cannot be asked."""
    try:
        answer = _exchange(path, ControlRequest(verb, arguments or {}))
    except FileNotFoundError as error:
        raise ControlError(f"{path.stem} is not there any more") from error
    except (OSError, ControlRefused) as error:
        raise ControlError(f"{path.stem} could not be asked: {_why(error)}") from error
    if answer.error_kind is not None:
        raise ControlError(f"{answer.host.name}.{answer.host.pid}: {answer.error_text}")
    return answer.result


def _places(environment: Mapping[str, str] | None) -> list[Path]:
    given = os.environ if environment is None else environment
    return [place.directory for place in places(given)]


def _look(path: Path) -> RunningHost | SilentHost | None:
    try:
        return RunningHost(path, _exchange(path, ControlRequest(HELLO)).host)
    except ConnectionRefusedError:
        # Nobody has it open: its process is gone, and names are not used twice.
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    except FileNotFoundError:
        return None
    except (OSError, ControlRefused) as error:
        return SilentHost(path, _why(error))


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_S:g} s: its process is stopped, or its event loop stuck"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)


def _exchange(path: Path, request: ControlRequest) -> Answer:
    deadline = time.monotonic() + ANSWER_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(ANSWER_S)
        line.connect(str(path))
        line.sendall(encode_request(request))
        received = bytearray()
        while not received.endswith(b"\n"):
            line.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = line.recv(CHUNK_BYTES)
            if not chunk:
                raise ControlRefused("bad-answer", "it hung up in the middle of its answer")
            received += chunk
            if len(received) > ANSWER_BYTES_MAX:
                text = f"its answer has more than {ANSWER_BYTES_MAX} bytes"
                raise ControlRefused("bad-answer", text)
        return parse_answer(bytes(received))
