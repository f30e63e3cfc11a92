"""One port for all protocols: the first bytes of a connection select its protocol.

    AMQP          -> amqp_factory
    an HTTP verb  -> http_factory (administration, health, AMQP over WebSocket)
    0x16, TLS     -> a handshake, then the same again by the first bytes inside; without a
                     certificate closed, with a line in the log that says to use plain text
    anything else -> answered with the AMQP header, as AMQP 1.0 (2.2) asks, and closed

The bytes are only peeked at, so the chosen protocol reads its connection from the first byte on.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import cast

from twinbus.broker.access import Admission, Newcomers
from twinbus.errors import ListenError

_log = logging.getLogger(__name__)

SNIFF_LIMIT_S = 10.0
"""A connection without a byte for this long is closed."""

SNIFFING_MAX = 512
"""Silent connections kept at a time; past it the oldest of the address that has most is closed. As
many again may be in a TLS handshake, or silent after it, under the same rule."""

HANDSHAKE_PAUSE_S = 0.002
"""Between the beginnings of two TLS handshakes. Each takes about 1 ms of the loop, so however many
clients come at once, those that are there keep half of it."""

HANDSHAKE_STEPS = 8
"""Steps of the loop between them: a process that gets little processor time sees the pause end
without having done anything else."""

BACKLOG = 1024
ACCEPTED_AT_ONCE = 4
"""Connections in one step of the loop; the others wait in the backlog for the next. Each takes
some tenths of a millisecond until its protocol is known."""

ACCEPT_RETRY_S = 1.0
"""Pause after the process ran out of file descriptors: accepting at once would only spin."""

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
TLS_HEADER = b"AMQP\x02\x01\x00\x00"
"""AMQP 1.0 part 5.2: the answer of a server that takes TLS only."""

TLS_ONLY = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: 23\r\n"
    b"Connection: close\r\n\r\nThis port is for https\n"
)
HTTP_VERBS = (b"GET ", b"PUT ", b"POST ", b"DELETE ", b"HEAD ", b"OPTIONS ", b"PATCH ")
TLS_HANDSHAKE = 0x16
PEEK_BYTES = 8

_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class WireProtocol(Enum):
    AMQP = "AMQP"
    HTTP = "HTTP"
    TLS = "TLS"
    UNKNOWN = "unknown"


def recognise(first: bytes) -> WireProtocol:
    """The protocol that `first` begins, or could still become: one byte is enough to choose.

    Should the rest not follow, the chosen protocol refuses it in its own way.
    """
    if first[:1] == bytes((TLS_HANDSHAKE,)):
        return WireProtocol.TLS
    if AMQP_HEADER.startswith(first[:4]):
        return WireProtocol.AMQP
    if any(verb.startswith(first[: len(verb)]) for verb in HTTP_VERBS):
        return WireProtocol.HTTP
    return WireProtocol.UNKNOWN


class Listener:
    def __init__(
        self,
        host: str,
        port: int,
        amqp_factory: Callable[[], asyncio.Protocol],
        http_factory: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
        admission: Admission | None = None,
        *,
        require_tls: bool = False,
        silent_s: float = SNIFF_LIMIT_S,
        silent_max: int = SNIFFING_MAX,
    ) -> None:
        """`tls` is the broker's certificate; None: plain text only. `require_tls`: TLS only.

        A connection counts with `admission` here until its protocol counts it.
        """
        self.host = host
        self.port = port
        """The requested port (0: any free one); once started, the port in use."""
        self._factories = {WireProtocol.AMQP: amqp_factory, WireProtocol.HTTP: http_factory}
        self._sockets: list[socket.socket] = []
        self._sniffing: dict[socket.socket, asyncio.TimerHandle] = {}
        self._handovers: set[asyncio.Task[None]] = set()
        self._handshakes: dict[Sniffer, asyncio.Task[None]] = {}
        self._next_handshakes: dict[Sniffer, socket.socket] = {}
        """Those that have not begun, in their order."""
        self._handshake_pause: asyncio.Handle | None = None
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tls = tls
        self._require_tls = require_tls
        self._silent_s, self._silent_max = silent_s, silent_max
        self._silent: Newcomers[socket.socket] = Newcomers(silent_max)
        self._admission = admission or Admission()
        self._hosts: dict[socket.socket, str] = {}
        """Where the connections come from that count here."""
        self._securing: Newcomers[Sniffer] = Newcomers(silent_max)
        """Connections in a TLS handshake, or silent after it."""

    async def start(self) -> None:
        """Listen on every address of the host; ListenError if none can be bound."""
        self._loop = asyncio.get_running_loop()
        if not self._sockets:
            self._sockets = _bind(self.host, self.port, await self._addresses())
            self.port = self._sockets[0].getsockname()[1]
        for listening in self._sockets:
            listening.listen(BACKLOG)
            self._loop.add_reader(listening, self._accept, listening)

    async def suspend(self) -> None:
        """Refuse connections until the next start, and keep the port from other programs."""
        addresses = [(each.family, each.getsockname()[:2]) for each in self._sockets]
        await self.close()
        self._sockets = _bind(self.host, self.port, addresses, listen=False)

    async def close(self) -> None:
        """Stop listening. Accepted connections continue; silent ones are closed."""
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses.clear()
        for waiting in list(self._sniffing):
            self._forget(waiting)
            self._close(waiting)
        for silent in self._securing:
            self._give_up(silent)
        if self._handshake_pause is not None:
            self._handshake_pause.cancel()
            self._handshake_pause = None
        under_way = self._handovers.union(self._handshakes.values())
        if under_way:
            await asyncio.wait(under_way)

    async def _addresses(self) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
        try:
            found = await self._loop.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except socket.gaierror as error:
            raise ListenError(
                f"cannot listen on {self.host}:{self.port}: the host is unknown "
                f"({error.strerror}); use localhost or an address of this machine"
            ) from error
        unique = {(family, address[:2]): None for family, _, _, _, address in found}
        return [(family, (str(address[0]), int(address[1]))) for family, address in unique]

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_failed(listening, error)
                return
            why_not = self._admission.why_not(str(address[0]))
            if why_not is not None:
                self._say(logging.WARNING, f"refused a connection from {address[0]}: {why_not}")
                connection.close()
                continue
            self._admission.enter(str(address[0]))
            self._hosts[connection] = str(address[0])
            self._sniff(connection)

    def _accept_failed(self, listening: socket.socket, error: OSError) -> None:
        if error.errno not in _OUT_OF_DESCRIPTORS:
            self._say(logging.ERROR, f"accepting a connection failed: {error}")
            return
        self._say(
            logging.ERROR,
            f"no more connections can be opened ({error.strerror}), trying again in "
            f"{ACCEPT_RETRY_S:g} s; raise the limit of open files (ulimit -n)",
        )
        self._loop.remove_reader(listening)
        self._pauses[listening] = self._loop.call_later(ACCEPT_RETRY_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        del self._pauses[listening]
        self._loop.add_reader(listening, self._accept, listening)

    def _sniff(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        # Frames are written whole; waiting to fill a packet would only add latency to each answer.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        given_up = self._silent.add(connection, self._hosts[connection])
        if given_up is not None:
            self._drop(given_up, f"{self._silent_max} connections are silent at once")
        limit = self._loop.call_later(
            self._silent_s, self._drop, connection, f"it sent nothing for {self._silent_s:g} s"
        )
        self._sniffing[connection] = limit
        self._loop.add_reader(connection, self._peek, connection)

    def _peek(self, connection: socket.socket) -> None:
        try:
            first = connection.recv(PEEK_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._forget(connection)
        if not first:
            # Opened and closed again, as a port check does: nothing to log.
            self._close(connection)
            return
        protocol = recognise(first)
        factory = self._factories.get(protocol)
        if protocol is WireProtocol.TLS and self._tls is not None:
            self._secure(connection)
        elif factory is None or self._require_tls:
            self._refuse(connection, protocol, first)
        else:
            task = self._loop.create_task(self._hand_over(connection, factory))
            self._handovers.add(task)
            task.add_done_callback(self._handovers.discard)

    async def _hand_over(
        self, connection: socket.socket, factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        try:
            await self._loop.connect_accepted_socket(factory, connection)
        except OSError as error:
            self._say(logging.INFO, f"a connection broke off at once: {error}")
            connection.close()
        finally:
            self._uncount(connection)

    def _secure(self, connection: socket.socket) -> None:
        peer = _peer(connection)
        sniffer = Sniffer(
            partial(self._inside, peer), self._silent_s, partial(self._secured, connection)
        )
        given_up = self._securing.add(sniffer, self._hosts[connection])
        if given_up is not None:
            text = f"closed a connection: {self._silent_max} TLS handshakes are under way"
            self._say(logging.INFO, text)
            self._give_up(given_up)
        self._next_handshakes[sniffer] = connection
        if self._handshake_pause is None:
            self._begin_handshake()

    def _begin_handshake(self, steps: int = 0) -> None:
        """Begin the next handshake, and another one after a pause and some steps of the loop."""
        self._handshake_pause = None
        if not self._next_handshakes:
            return
        if steps:
            # The answer to a send takes about so many: each meets one handshake, or two.
            self._handshake_pause = self._loop.call_soon(self._begin_handshake, steps - 1)
            return
        sniffer = next(iter(self._next_handshakes))
        connection = self._next_handshakes.pop(sniffer)
        task = self._loop.create_task(self._shake_hands(connection, sniffer))
        self._handshakes[sniffer] = task
        task.add_done_callback(lambda _: self._handshakes.pop(sniffer, None))
        self._handshake_pause = self._loop.call_later(
            HANDSHAKE_PAUSE_S, self._begin_handshake, HANDSHAKE_STEPS
        )

    def _give_up(self, sniffer: Sniffer) -> None:
        """Hang up, before, during or after the handshake."""
        if (connection := self._next_handshakes.pop(sniffer, None)) is not None:
            self._securing.discard(sniffer)
            self._close(connection)
            return
        sniffer.close()
        if (handshake := self._handshakes.get(sniffer)) is not None:
            # Not before it has begun: it would not close its connection.
            self._loop.call_soon(handshake.cancel)

    async def _shake_hands(self, connection: socket.socket, sniffer: Sniffer) -> None:
        peer = _peer(connection)
        try:
            await self._loop.connect_accepted_socket(
                lambda: sniffer, connection, ssl=self._tls, ssl_handshake_timeout=self._silent_s
            )
        except OSError as error:
            # Also a client that does not trust the certificate: it sends an alert and closes.
            reason = str(error) or type(error).__name__
            text = f"no TLS with {peer}: {reason}; a client must trust the broker's certificate"
            self._say(logging.INFO, text)
            self._secured(connection, sniffer)
            connection.close()
        except asyncio.CancelledError:
            self._secured(connection, sniffer)
            raise

    def _secured(self, connection: socket.socket, sniffer: Sniffer) -> None:
        """Forget a connection whose protocol inside TLS is known, or that ended before."""
        self._securing.discard(sniffer)
        self._uncount(connection)

    def _inside(self, peer: str, first: bytes) -> asyncio.Protocol | None:
        factory = self._factories.get(recognise(first[:PEEK_BYTES]))
        if factory is None:
            text = f"closed a TLS connection from {peer} that speaks neither AMQP nor HTTP inside"
            self._say(logging.WARNING, text)
            return None
        return factory()

    def _refuse(self, connection: socket.socket, protocol: WireProtocol, first: bytes) -> None:
        if protocol is WireProtocol.TLS:
            self._say(
                logging.WARNING,
                f"closed a TLS connection from {_peer(connection)}: this port has no certificate "
                "and speaks plain text; put UseDevelopmentEmulator=true into the connection string",
            )
        elif protocol in self._factories:
            text = f"closed a connection from {_peer(connection)} without TLS; --no-require-tls"
            self._say(logging.WARNING, f"{text} lets plain text in")
            _answer(connection, TLS_HEADER if protocol is WireProtocol.AMQP else TLS_ONLY)
        else:
            self._say(
                logging.WARNING,
                f"closed a connection from {_peer(connection)} that speaks neither AMQP nor HTTP: "
                f"it began with {first!r}",
            )
            _answer(connection, AMQP_HEADER)
        self._close(connection)

    def _say(self, level: int, text: str) -> None:
        _log.log(level, "%s:%s: %s", self.host, self.port, text)

    def _drop(self, connection: socket.socket, why: str) -> None:
        self._say(logging.INFO, f"closed a connection from {_peer(connection)}: {why}")
        self._forget(connection)
        self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        self._uncount(connection)
        connection.close()

    def _uncount(self, connection: socket.socket) -> None:
        host = self._hosts.pop(connection, None)
        if host is not None:
            self._admission.leave(host)

    def _forget(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        self._silent.discard(connection)
        self._sniffing.pop(connection).cancel()


class Sniffer(asyncio.Protocol):
    """The first protocol inside TLS: waits for the first bytes, then gives the connection away."""

    def __init__(
        self,
        choose: Callable[[bytes], asyncio.Protocol | None],
        limit_s: float,
        done: Callable[[Sniffer], None],
    ) -> None:
        """`choose` names who speaks what begins so; `done` is called once, whatever happens."""
        self._choose = choose
        self._limit_s = limit_s
        self._done = done
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Hang up: the client has said nothing that would choose a protocol."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done; the client speaks first."""
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self.close)

    def data_received(self, data: bytes) -> None:
        """Hand the connection over, first bytes included."""
        assert self._transport is not None
        transport = self._transport
        protocol = self._choose(data)
        self._end()
        if protocol is None:
            transport.abort()
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Opened and closed again, or silent for too long."""
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._done(self)


def _answer(connection: socket.socket, data: bytes) -> None:
    try:
        connection.send(data)
        # Reading what was sent keeps close from resetting the connection before the answer.
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1 << 16)
    except OSError:
        pass


def _bind(
    host: str,
    port: int,
    addresses: Iterable[tuple[int, tuple[str, int]]],
    *,
    listen: bool = True,
) -> list[socket.socket]:
    """Listening sockets on all the addresses that can be bound, every one with the same port.

    Connections to a socket that is bound and does not listen are refused.
    """
    bound: list[socket.socket] = []
    failure: OSError | None = None
    for family, (address, _) in addresses:
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((address, port))
            if listen:
                listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            failure = error
            if error.errno == errno.EADDRNOTAVAIL:
                # localhost often has an IPv6 address on machines that have no IPv6.
                continue
            break
        listening.setblocking(False)
        bound.append(listening)
        port = listening.getsockname()[1]
    if bound and (failure is None or failure.errno == errno.EADDRNOTAVAIL):
        return bound
    for listening in bound:
        listening.close()
    number, text = (failure.errno, failure.strerror) if failure else (None, None)
    why_not = _WHY_NOT.get(number) or text
    raise ListenError(f"cannot listen on {host}:{port}: {why_not}") from failure


_WHY_NOT = {
    None: "the host has no address; use localhost or 127.0.0.1",
    errno.EADDRINUSE: "another program has the port; stop it or choose another port",
    errno.EACCES: "this user may not open the port; choose one above 1023",
    errno.EADDRNOTAVAIL: "the address is not one of this machine; use localhost or 0.0.0.0",
}
"""By the number of the error; None: no address was tried."""


def _peer(connection: socket.socket) -> str:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:
        return "a client that is gone"
    return f"{host}:{port}"
