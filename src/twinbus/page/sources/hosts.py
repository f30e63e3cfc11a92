"""Asks the pairs and syphons of this host over their control sockets, all at once.

Blocking: the server calls `poll` on a thread. A host that hangs delays no other one: its answer
stays what it was until the request times out.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from twinbus.control.client import exchange, find_sockets, why_silent
from twinbus.control.protocol import HELLO, Answer, ControlRefused, parse_answer
from twinbus.page.core.view import HostAnswer
from twinbus.status.reading import StatusUnreadable, read_status

POLL_S: Final = 0.8
"""How long one poll waits for answers."""

THREADS_MAX: Final = 32
SILENT_AGAIN_S: Final = 10.0
"""Pause before a host that did not answer is asked again: it occupies a thread for seconds."""

COUNT_AGAIN_S: Final = 30.0
"""The status of a syphon counts messages in the secondary, which is billed."""


class HostPoller:
    """Polls every control socket of this user."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="twinbus-page-poll")
        self._hosts: dict[Path, _PolledHost] = {}

    def poll(self) -> list[HostAnswer]:
        """Ask every host; return the latest answer of each socket that is there."""
        paths, unsafe = find_sockets()
        for path in self._hosts.keys() - set(paths):
            del self._hosts[path]
        for path in paths:
            self._hosts.setdefault(path, _PolledHost(path))
        now = time.monotonic()
        for host in self._hosts.values():
            if host.request is None and now >= host.ask_at:
                host.request = self._pool.submit(host.ask, now)
        wait([one.request for one in self._hosts.values() if one.request], timeout=POLL_S)
        answers = [host.take() for host in list(self._hosts.values())]
        found = [answer for answer in answers if answer is not None]
        # An unsafe directory is shown like a host that does not answer.
        return found + [HostAnswer(str(one.path), None, None, one.why) for one in unsafe]

    def path_of(self, id_: str) -> Path | None:
        """Return the socket of a host that was polled; None: there is none."""
        return next((path for path in list(self._hosts) if path.stem == id_), None)

    def close(self) -> None:
        """End the threads once their requests have ended."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class _PolledHost:
    """One socket, the request that is under way, and its last answer."""

    path: Path
    request: Future[HostAnswer | None] | None = None
    answer: HostAnswer | None = None
    ask_at: float = 0.0
    _line: bytes = b""
    _kind: str = ""
    _counted: Mapping[str, Any] | None = None
    _count_at: float = 0.0

    def take(self) -> HostAnswer | None:
        """Return the latest answer; None: there is none yet, or the process is gone."""
        if self.request is not None and self.request.done():
            self.answer, self.request = self.request.result(), None
        return self.answer

    def ask(self, now: float) -> HostAnswer | None:
        """Return the answer to a new request; None: the process is gone."""
        try:
            return self._asked(now)
        except ConnectionRefusedError:
            # Its process is gone, and a name is not used twice.
            with contextlib.suppress(OSError):
                self.path.unlink()
            return None
        except FileNotFoundError:
            return None
        except (OSError, ControlRefused) as error:
            self.ask_at = now + SILENT_AGAIN_S
            self._line = b""
            card = None if self.answer is None else self.answer.card
            return HostAnswer(self.path.stem, card, None, why_silent(error))

    def _asked(self, now: float) -> HostAnswer:
        if not self._kind:
            self._kind = parse_answer(exchange(self.path, HELLO)).host.kind
        is_syphon = self._kind == "syphon"
        if is_syphon and now >= self._count_at:
            self._count_at = now + COUNT_AGAIN_S
            self._counted = _result(parse_answer(exchange(self.path, "status")))
        line = exchange(self.path, "progress" if is_syphon else "status")
        last = self.answer
        if line == self._line and last is not None and last.status is not None:
            return last
        answer = parse_answer(line)
        self._line = line
        number = 0 if last is None else last.number + 1
        made = HostAnswer(self.path.stem, answer.host, None, number=number)
        try:
            status = read_status({**(self._counted or {}), **_result(answer)})
        except StatusUnreadable as error:
            return replace(made, why=str(error))
        return replace(made, status=status)


def _result(answer: Answer) -> Mapping[str, Any]:
    if answer.error_kind is not None:
        raise ControlRefused(answer.error_kind, answer.error_text)
    if not isinstance(answer.result, dict):
        raise ControlRefused("bad-answer", "its answer is no status")
    return answer.result
