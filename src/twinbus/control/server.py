"""The control socket of one host (a pair, a syphon), on the host's own event loop.

It never stands in the host's way: no directory to be had is one line in the log, a client gets a
bounded time and a bounded request, and there is a bound to how many are served at once.
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
from twinbus.control.run_directory import (
    VARIABLE,
    RunDirectoryUnusable,
    open_socket,
    places,
    prepare,
    sweep,
)
from twinbus.errors import TwinbusError

__all__ = ["ControlServer"]

log = logging.getLogger("twinbus.control")

CLIENTS_MAX: Final = 16
"""Served at once. A person has one terminal and a few dashboards; more is a mistake or malice."""

REQUEST_S: Final = 5.0
"""For a client to say what it wants: it has it ready when it connects."""

ANSWER_S: Final = 10.0
"""For a verb to be carried out, and again for the client to take the answer."""

CLOSE_S: Final = 1.0


class ControlServer:
    """Answers requests about one host from `start` to `close`."""

    def __init__(self, kind: str, name: str, verbs: Mapping[str, Verb]) -> None:
        """`verbs` is all that the host can be asked for."""
        self.path: Path | None = None
        """The socket, while there is one."""
        self._kind, self._name = kind, name
        self._verbs = {HELLO: Verb(lambda: None), **verbs}
        self._card = HostCard(kind, name, os.getpid())
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the socket where the environment says; without a place for it, warn and go on."""
        assert self._server is None
        self._card = HostCard(
            self._kind,
            self._name,
            os.getpid(),
            os.path.basename(sys.argv[0] if sys.argv else ""),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        reasons = []
        for place in places(os.environ):
            try:
                prepare(place)
                sweep(place.directory)
                self._socket, self.path = open_socket(place.directory, self._name, self._card.pid)
            except RunDirectoryUnusable as error:
                reasons.append(str(error))
                continue
            _opened.add(self)
            # In two steps: cancelled in the one that waits, `close` must know what to close.
            self._server = await asyncio.start_unix_server(
                self._accept, sock=self._socket, limit=REQUEST_BYTES_MAX, start_serving=False
            )
            await self._server.start_serving()
            return
        if reasons:
            log.warning(
                "%s: no control socket, so commands like `twinbus status` do not see this %s (%s);"
                " set %s to a directory of this user's",
                self._name, self._kind, "; ".join(reasons), VARIABLE,
            )  # fmt: skip

    async def close(self) -> None:
        """Let go of the socket and of every client. Idempotent."""
        server, self._server = self._server, None
        # A child of a fork has this object too, but the socket and the loop are its parent's.
        if server is None or self._card.pid != os.getpid():
            return
        _opened.discard(self)
        server.close()
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.path = None
        for client in self._clients:
            client.cancel()
        if self._clients:
            await asyncio.wait(set(self._clients))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await server.wait_closed()

    def leave_in_child(self) -> None:
        """After a fork: let go of the listening socket, which is the parent's.

        Else it would seem to be served for as long as the child lives, and nobody would answer.
        """
        if self._socket is not None:
            # Only this process's file descriptor: the loop and its selector are shared.
            with contextlib.suppress(OSError):
                os.close(self._socket.detach())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            answer = await self._answer(reader)
            if answer:
                writer.write(answer)
                async with asyncio.timeout(ANSWER_S):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # A client that has gone, or does not take its answer, is its own business.
        except asyncio.CancelledError:
            # Only `close` cancels, and it waits for this to end.
            pass
        finally:
            writer.transport.abort()
            self._clients.discard(task)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            if len(self._clients) > CLIENTS_MAX:
                raise ControlRefused(
                    "busy", f"{CLIENTS_MAX} clients are served already; ask again later"
                )
            request = await _read(reader)
            if request is None:
                return b""
            result = await self._carry_out(request)
            return encode_result(self._card, result)
        except ControlRefused as refusal:
            return encode_refusal(self._card, refusal.kind, str(refusal))
        except (TwinbusError, ValueError) as error:
            return encode_refusal(self._card, "refused", str(error))
        except TimeoutError:
            return encode_refusal(self._card, "timeout", f"not done within {ANSWER_S:g} s")
        except Exception as error:
            log.exception("%s: a request on the control socket failed", self._name)
            text = f"a mistake in Twinbus: {type(error).__name__}: {error}; its log has more"
            return encode_refusal(self._card, "internal", text)

    async def _carry_out(self, request: ControlRequest) -> Any:
        arguments = arguments_for(self._verbs, request)
        if self._verbs[request.verb].takes:
            said = " ".join(arguments.values())
            log.info("%s: asked on the control socket to %s %s", self._name, request.verb, said)
        result = self._verbs[request.verb].run(**arguments)
        if inspect.isawaitable(result):
            async with asyncio.timeout(ANSWER_S):
                result = await result
        return result


async def _read(reader: asyncio.StreamReader) -> ControlRequest | None:
    """The request; None if the client left without one."""
    try:
        async with asyncio.timeout(REQUEST_S):
            line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as cut:
        if not cut.partial:
            return None
        raise ControlRefused(
            "bad-request", "a request ends with a new line, this one did not"
        ) from None
    except asyncio.LimitOverrunError:
        text = f"a request has at most {REQUEST_BYTES_MAX} bytes"
        raise ControlRefused("bad-request", text) from None
    except TimeoutError:
        text = f"no request came within {REQUEST_S:g} s"
        raise ControlRefused("timeout", text) from None
    return parse_request(line)


_opened: weakref.WeakSet[ControlServer] = weakref.WeakSet()


def _leave_in_child() -> None:
    for server in list(_opened):
        server.leave_in_child()
    _opened.clear()


os.register_at_fork(after_in_child=_leave_in_child)
