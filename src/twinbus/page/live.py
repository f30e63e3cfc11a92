"""The view as it is now: polls hosts and peers while a browser watches, and tells all browsers.

The hosts are the pairs and syphons of this host, asked over their control sockets; the peers are
the pages of other hosts. `HostPoller.poll` blocks: the server calls it on a thread. Every socket
and every peer is asked on a thread of its own: one that hangs delays no other, and its answer stays
what it was until the request times out.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from twinbus.control.protocol import HELLO, Answer, ControlRefused, parse_answer
from twinbus.control.sockets import exchange, find_sockets, why_silent
from twinbus.namespace.address import is_loopback
from twinbus.page.core.model import PairTable, ShownPair, ShownProof, as_json, foreign_pairs
from twinbus.page.core.view import Board, HostAnswer, headline_of
from twinbus.status.reading import StatusUnreadable, read_status

log = logging.getLogger("twinbus.page")

POLL_EVERY_S: Final = 1.0
WATCHERS_MAX: Final = 50
"""Open streams at once: a person has one or two tabs."""


class LiveView:
    """Keeps the board current for as long as anybody watches."""

    def __init__(self, board: Board, hosts: HostPoller, peers: PeerPoller) -> None:
        self.board = board
        self.watchers = 0
        self.is_stopping = False
        self.proof: Callable[[], ShownProof | None] = lambda: None
        """The last conservation report of the page's ledger; None: it has no ledger."""
        self.hosts = hosts
        self._peers = peers
        self._polled_at = float("-inf")
        self._polling = asyncio.Lock()
        self._ticked = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._frames: dict[str, tuple[int, bytes]] = {}
        """The encoded documents, shared by all watchers."""

    async def refresh(self) -> None:
        """Poll, unless the last poll is less than a second old."""
        async with self._polling:
            if time.monotonic() - self._polled_at < POLL_EVERY_S / 2:
                return
            answers = await asyncio.to_thread(self.hosts.poll)
            now = time.time()
            self.board.observe(answers, now)
            self._peers.poll(now)
            self._polled_at = time.monotonic()

    def head(self) -> dict[str, Any]:
        now = time.time()
        headline = headline_of(self.board.table.pairs.values(), now, self.proof())
        return {"now": now, "headline": headline, "peers": self._peers.states}

    def view(self) -> dict[str, Any]:
        return {**self.head(), "pairs": list(self.board.table.pairs.values())}

    async def stream(self, fixed: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        """Yield the view, with `fixed` fields, and then what changes, as server-sent events."""
        with self._watching():
            await self.refresh()
            table = self.board.table
            version, removals, events = -1, table.removals, self.board.event_count
            while not self.is_stopping:
                if version < 0 or removals != table.removals:
                    self._frames = {
                        id_: frame for id_, frame in self._frames.items() if id_ in table.pairs
                    }
                    frames = [event_frame("view", {**self.view(), **fixed})]
                else:
                    changed = [id_ for id_, at in table.versions.items() if at > version]
                    frames = [self._pair_frame(id_) for id_ in changed]
                    frames.append(event_frame("head", self.head()))
                news = [one for one in self.board.events if one.number > events]
                frames += [event_frame("event", one) for one in news]
                version, removals, events = table.version, table.removals, self.board.event_count
                yield b"".join(frames)
                async with self._ticked:
                    await self._ticked.wait()

    def stop(self) -> None:
        """End the streams within a second."""
        self.is_stopping = True

    async def close(self) -> None:
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        async with self._ticked:
            self._ticked.notify_all()

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        self.watchers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="twinbus-page-poll")
        try:
            yield
        finally:
            self.watchers -= 1

    async def _run(self) -> None:
        """Poll once a second until no browser watches."""
        while self.watchers:
            began = time.monotonic()
            try:
                await self.refresh()
            except Exception:
                # The page goes on showing what it knows; a mistake of ours is in the log.
                log.exception("the hosts could not be polled")
            async with self._ticked:
                self._ticked.notify_all()
            await asyncio.sleep(max(0.05, POLL_EVERY_S - (time.monotonic() - began)))
        self._frames.clear()

    def _pair_frame(self, id_: str) -> bytes:
        version, table = self.board.table.versions[id_], self.board.table
        known = self._frames.get(id_)
        if known is None or known[0] != version:
            known = self._frames[id_] = version, event_frame("pair", table.pairs[id_])
        return known[1]


def event_frame(kind: str, document: Any) -> bytes:
    """Return one server-sent event. JSON has no bare line feed, so its data is one line."""
    data = json.dumps(document, separators=(",", ":"), default=as_json)
    return f"event: {kind}\ndata: {data}\n\n".encode()


POLL_S: Final = 0.8
"""How long one poll waits for answers."""

THREADS_MAX: Final = 32
SILENT_AGAIN_S: Final = 10.0
"""Pause before a host or a peer that did not answer is asked again: it occupies a thread."""

COUNT_AGAIN_S: Final = 30.0
"""The status of a syphon counts messages in the secondary, which is billed."""

PEERS_MAX: Final = 50
ASK_AGAIN_S: Final = 2.0
READ_S: Final = 3.0
"""Timeout of one step: connecting, or one piece of the answer."""
ANSWER_S: Final = 6.0
LATE: Final = f"no answer for more than {ANSWER_S:g} s"
"""Timeout of the whole answer, however slowly it comes."""
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""The view of 50 pairs with 40 entities each has about 2 MB."""
PIECE_BYTES: Final = 64 * 1024


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
        return next((path for path in list(self._hosts) if path.stem == id_), None)

    def close(self) -> None:
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


class PeerRefused(Exception):
    """A peer gives no view; the text says why, without the token."""


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a peer's page is, and the token for it."""

    host: str
    port: int
    is_tls: bool
    token: str = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> PeerAddress:
        """Return the address in a URL like the one a page prints; ValueError if it is none."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise ValueError("a peer is a URL like https://HOST:PORT/?token=TOKEN") from None
        token = parse_qs(parts.query).get("token", [""])[0]
        if parts.scheme not in ("http", "https") or not host or not token:
            raise ValueError("a peer is a URL like https://HOST:PORT/?token=TOKEN")
        is_tls = parts.scheme == "https"
        if not is_tls and not is_loopback(host):
            raise ValueError(f"the peer {host} needs https: its token would be sent in plain text")
        return cls(host, port or (443 if is_tls else 80), is_tls, token)

    @property
    def place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.place}/"


class PeerPoller:
    """Puts the pairs of all peers into a table."""

    def __init__(
        self, addresses: list[PeerAddress], table: PairTable, read_s: float = READ_S
    ) -> None:
        self._peers = [_Peer(address) for address in addresses]
        self._read_s = read_s
        self._table = table
        self._pool = ThreadPoolExecutor(max(1, len(addresses)), "twinbus-page-peer")

    def poll(self, now: float) -> None:
        """Take the answers that came, and ask again where it is time; returns at once."""
        for peer in self._peers:
            if peer.request is not None and peer.request.done():
                self._take(peer, peer.request, now)
            elif peer.request is not None and now - peer.asked_at > ANSWER_S:
                # Whatever keeps the request, such as a name that is not resolved.
                self._show(peer, peer.silent(LATE), "unreachable", LATE, now)
            if peer.request is None and now >= peer.ask_at:
                peer.request = self._pool.submit(read_peer, peer.address, self._read_s)
                peer.asked_at = now

    @property
    def states(self) -> list[dict[str, Any]]:
        """For each peer its address, whether it answers, and why not or what is left out."""
        return [
            {"url": peer.address.url, "state": peer.state, "why": peer.why, "since": peer.since}
            for peer in self._peers
        ]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _take(self, peer: _Peer, request: Future[tuple[list[ShownPair], str]], now: float) -> None:
        peer.request = None
        try:
            (pairs, why), state = request.result(), "ok"
            peer.ask_at = now + ASK_AGAIN_S
        except PeerRefused as error:
            pairs, state, why = peer.silent(str(error)), "unreachable", str(error)
            peer.ask_at = now + SILENT_AGAIN_S
        self._show(peer, pairs, state, why, now)

    def _show(self, peer: _Peer, pairs: list[ShownPair], state: str, why: str, now: float) -> None:
        if state != peer.state:
            peer.state, peer.since = state, now
        peer.why = why
        for gone in {pair.id for pair in peer.pairs} - {pair.id for pair in pairs}:
            self._table.remove(gone)
        peer.pairs = pairs
        for pair in pairs:
            self._table.put(pair)


@dataclass(slots=True)
class _Peer:
    address: PeerAddress
    state: str = "unreachable"
    why: str = "not asked yet"
    since: float | None = None
    ask_at: float = 0.0
    asked_at: float = 0.0
    request: Future[tuple[list[ShownPair], str]] | None = None
    pairs: list[ShownPair] = field(default_factory=list)

    def silent(self, why: str) -> list[ShownPair]:
        """Return what was known of the peer's pairs, which may not be so any more."""
        text = f"the peer {self.address.place} cannot be read: {why}"
        return [replace(pair, state="silent", why=text) for pair in self.pairs]


def read_peer(
    address: PeerAddress, read_s: float = READ_S, answer_s: float = ANSWER_S
) -> tuple[list[ShownPair], str]:
    """Return the pairs of a peer's page, and what is left out; PeerRefused if it gives none."""
    try:
        return foreign_pairs(json.loads(_read(address, read_s, answer_s)), address.place)
    except (OSError, http.client.HTTPException) as error:
        raise PeerRefused(str(error) or type(error).__name__) from error
    except (ValueError, RecursionError) as error:
        why = str(error) if type(error) is ValueError else "its answer is not JSON"
        raise PeerRefused(why) from error


def _read(address: PeerAddress, read_s: float, answer_s: float) -> bytes:
    kind = http.client.HTTPSConnection if address.is_tls else http.client.HTTPConnection
    more: dict[str, Any] = {"context": ssl.create_default_context()} if address.is_tls else {}
    connection = kind(address.host, address.port, timeout=read_s, **more)
    began = time.monotonic()
    try:
        connection.connect()
        body = b""
        with _ended_at(connection.sock, began + answer_s) as is_late:
            try:
                body = _answer(connection, address.token)
            except (OSError, ValueError, http.client.HTTPException):
                if not is_late.is_set():
                    raise
            # An answer without a length seems whole when its connection is ended.
            if is_late.is_set():
                raise PeerRefused(f"its answer takes longer than {answer_s:g} s")
        return body
    finally:
        connection.close()


@contextmanager
def _ended_at(line: socket.socket, at: float) -> Iterator[threading.Event]:
    """End a connection at a time of the monotonic clock, whatever is read of it then.

    A limit for each read is none for the whole: one byte a second would go on for ever.
    """
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        with suppress(OSError):
            # Not `close`: another thread reads from it.
            socket.socket.shutdown(line, socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, at - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


def _answer(connection: http.client.HTTPConnection, token: str) -> bytes:
    connection.request("GET", "/api/view", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        raise PeerRefused(f"it answers {answer.status}")
    body = bytearray()
    while piece := answer.read1(PIECE_BYTES):
        body += piece
        if len(body) > ANSWER_BYTES_MAX:
            raise PeerRefused(f"its answer has more than {ANSWER_BYTES_MAX:,} bytes")
    return bytes(body)
