"""The control socket of one host (a pair, a syphon), on the host's own event loop.

It never blocks the host: a missing directory is one line in the log; the time and the request of a
client and the number of clients are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import socket
import sys
import weakref
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from twinbus.control.protocol import (
    HELLO,
    REQUEST_BYTES_MAX,
    ControlRefused,
    ControlRequest,
    HostCard,
    Verb,
    arguments_for,
    encode_refusal,
    encode_result,
    parse_request,
)
from twinbus.control.sockets import open_socket, sweep
from twinbus.errors import TwinbusError
from twinbus.run_directory import VARIABLE, RunDirectoryUnusable, prepare, run_directories_of

log = logging.getLogger("twinbus.control")

CLIENTS_MAX: Final = 16
"""Clients served at once: a person has one terminal and a few dashboards."""

REQUEST_S: Final = 5.0
"""Timeout of a client's request, which is ready when it connects."""

ANSWER_S: Final = 10.0
"""Timeout of a verb, and again of the client taking the answer."""

CLOSE_S: Final = 1.0


class ControlServer:
    """Answers requests about one host from `start` to `close`."""

    def __init__(
        self,
        kind: str,
        name: str,
        verbs: Mapping[str, Verb],
        *,
        request_s: float = REQUEST_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.path: Path | None = None
        """The socket, while there is one."""
        self.program = os.path.basename(sys.argv[0] if sys.argv else "")
        """What people see as the program of this host; to be set before `start`."""
        self._verbs = {HELLO: Verb(lambda: None), **verbs}
        self._card = HostCard(kind, name, os.getpid())
        self._request_s, self._answer_s = request_s, answer_s
        self.listening: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self.clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the socket in the first usable directory; without one, warn and continue."""
        assert self._server is None
        self._card = replace(
            self._card,
            pid=os.getpid(),
            program=self.program,
            began_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        reasons = []
        for directory in run_directories_of(os.environ):
            try:
                prepare(directory)
                sweep(directory.path)
                self.listening, self.path = open_socket(
                    directory.path, self._card.name, self._card.pid
                )
            except RunDirectoryUnusable as error:
                reasons.append(str(error))
                continue
            _opened.add(self)
            # In two steps, so that `close` knows the server if this is cancelled while it waits.
            self._server = await asyncio.start_unix_server(
                self._accept, sock=self.listening, limit=REQUEST_BYTES_MAX, start_serving=False
            )
            await self._server.start_serving()
            return
        if reasons:
            log.warning(
                "%s: no control socket, so `twinbus status` does not see this %s (%s);"
                " set %s to a directory of this user",
                self._card.name, self._card.kind, "; ".join(reasons), VARIABLE,
            )  # fmt: skip

    async def close(self) -> None:
        """Close the socket and every client connection. Idempotent."""
        server, self._server = self._server, None
        # A forked child has this object too, but the socket and the loop belong to its parent.
        if server is None or self._card.pid != os.getpid():
            return
        _opened.discard(self)
        server.close()
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.path = None
        for client in self.clients:
            client.cancel()
        if self.clients:
            await asyncio.wait(set(self.clients))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.clients.add(task)
        try:
            answer = await self._answer(reader)
            if answer:
                writer.write(answer)
                async with asyncio.timeout(self._answer_s):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (OSError, asyncio.CancelledError):
            # The client is gone, or does not take its answer; only `close` cancels, and waits.
            pass
        finally:
            writer.transport.abort()
            self.clients.discard(task)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            if len(self.clients) > CLIENTS_MAX:
                raise ControlRefused(
                    "busy", f"{CLIENTS_MAX} clients are served already; try again later"
                )
            request = await _read(reader, self._request_s)
            if request is None:
                return b""
            result = await self._carry_out(request)
            return encode_result(self._card, result)
        except ControlRefused as refusal:
            return encode_refusal(self._card, refusal.kind, str(refusal))
        except (TwinbusError, ValueError) as error:
            return encode_refusal(self._card, "refused", str(error))
        except TimeoutError:
            return encode_refusal(self._card, "timeout", f"not done within {self._answer_s:g} s")
        except Exception as error:
            log.exception("%s: a request on the control socket failed", self._card.name)
            text = f"internal error of Twinbus: {type(error).__name__}: {error}; see its log"
            return encode_refusal(self._card, "internal", text)

    async def _carry_out(self, request: ControlRequest) -> Any:
        arguments = arguments_for(self._verbs, request)
        if self._verbs[request.verb].takes:
            values = " ".join(arguments.values())
            log.info("%s: control socket: %s %s", self._card.name, request.verb, values)
        result = self._verbs[request.verb].run(**arguments)
        if inspect.isawaitable(result):
            async with asyncio.timeout(self._answer_s):
                result = await result
        return result


async def _read(reader: asyncio.StreamReader, limit_s: float) -> ControlRequest | None:
    """Return the request; None if the client left without one."""
    try:
        async with asyncio.timeout(limit_s):
            line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as cut:
        if not cut.partial:
            return None
        raise ControlRefused(
            "bad-request", "a request ends with a newline, this one does not"
        ) from None
    except asyncio.LimitOverrunError:
        text = f"a request has at most {REQUEST_BYTES_MAX} bytes"
        raise ControlRefused("bad-request", text) from None
    except TimeoutError:
        text = f"no request came within {limit_s:g} s"
        raise ControlRefused("timeout", text) from None
    return parse_request(line)


_opened: weakref.WeakSet[ControlServer] = weakref.WeakSet()


def _leave_in_child() -> None:
    """After a fork: close the child's copies of the listening sockets.

    Otherwise a socket would stay open without an answer for as long as the child lives.
    """
    for server in list(_opened):
        if server.listening is not None:
            # Only the file descriptor: the loop and its selector are shared with the parent.
            with contextlib.suppress(OSError):
                os.close(server.listening.detach())
    _opened.clear()


os.register_at_fork(after_in_child=_leave_in_child)
