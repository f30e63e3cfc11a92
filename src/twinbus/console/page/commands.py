"""`twinbus page`: checks the options, serves the page until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.server import ServerState

from twinbus import __version__
from twinbus.broker.access import Admission, ConnectionLimits
from twinbus.broker.http_connection import HttpConnection
from twinbus.broker.tls import server_context
from twinbus.console.cost.price_books import book_of
from twinbus.console.options import PageOptions, secret_in
from twinbus.console.page.cost import PageCost
from twinbus.console.page.secondary import PageSecondary
from twinbus.console.terminal.output import WrongUse
from twinbus.errors import TwinbusError
from twinbus.ledger import LedgerWriter, process_name
from twinbus.ledger.requests import recording_to
from twinbus.loops import run_alone
from twinbus.namespace.address import bracketed, is_loopback
from twinbus.page.actions import Actions
from twinbus.page.app import PageAccess, Role, application
from twinbus.page.core.view import Board
from twinbus.page.documents import PageDocuments
from twinbus.page.jobs import Drains, JobRunner, Proof
from twinbus.page.live import LiveView
from twinbus.page.pollers import PEERS_MAX, HostPoller, PeerAddress, PeerPoller

TOKEN_BYTES: Final = 32
TOKEN_LENGTH_MIN: Final = 20
"""A token from a file must not be guessed."""

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
CONNECTIONS_MAX: Final = 200
REQUEST_S: Final = 10.0
"""Time for one request to arrive."""
STOP_S: Final = 2


class PageError(TwinbusError):
    """The page cannot be served; the text says why."""


def run(given: PageOptions) -> int:
    """Serve the page until SIGTERM or Ctrl-C; return the exit status."""
    is_local = is_loopback(given.host)
    tls = _tls(given.tls_cert, given.tls_key)
    if not is_local and (tls is None or given.operator_token_file is None):
        raise WrongUse(
            f"--host {given.host} is beyond loopback: give --tls-cert, --tls-key and"
            " --operator-token-file"
        )
    tokens = {
        Role.OPERATOR: _token(given.operator_token_file) or secrets.token_urlsafe(TOKEN_BYTES)
    }
    if viewer := _token(given.viewer_token_file):
        tokens[Role.VIEWER] = viewer
    if len(set(tokens.values())) < len(tokens):
        raise WrongUse("the tokens of operator and viewer are the same: give two")
    peers = _peers(given.peer or [])
    secondary = PageSecondary(given.secondary_side) if given.secondary else None
    listening = _listen(given.host, given.port)
    port = listening.getsockname()[1]
    names = [given.host, *(given.name or []), *(LOOPBACK_NAMES if is_local else ())]
    access = PageAccess(
        tokens=tokens,
        hosts=frozenset(_host_headers(names, port, is_tls=tls is not None)),
        port=port,
        is_tls=tls is not None,
    )
    ledger = None if given.ledger is None else _ledger(given.ledger)
    try:
        with recording_to(ledger):
            run_alone(_serve(given, access, listening, tls, peers, secondary, ledger))
    finally:
        listening.close()
        if ledger is not None:
            ledger.close()
    return 0


async def _serve(
    given: PageOptions,
    access: PageAccess,
    listening: socket.socket,
    tls: ssl.SSLContext | None,
    addresses: list[PeerAddress],
    secondary: PageSecondary | None,
    ledger: LedgerWriter | None,
) -> None:
    board, hosts = Board(socket.gethostname()), HostPoller()
    peers = PeerPoller(addresses, board.table)
    live = LiveView(board, hosts, peers)
    jobs = JobRunner(_command_environment(given))
    directory = None if given.ledger is None else Path(given.ledger)
    proof = None if directory is None else Proof(directory, jobs)
    if proof is not None:
        live.proof = proof.document
    drains = None
    if given.primary and given.secondary:
        primary, second = given.both
        drains = Drains(primary.endpoint, second.endpoint, jobs)
    actions = Actions(live, hosts, secondary, ledger, drains, proof, is_read_only=given.read_only)
    cost = None if directory is None else PageCost(directory, book_of(given.prices)).document
    documents = PageDocuments(live, actions, secondary, directory, proof, cost)
    server = _Server(_config(application(access, live, documents, __version__), tls))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True
        live.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    scheme, host = "https" if tls else "http", bracketed(given.host)
    token = f"?token={access.tokens[Role.OPERATOR]}" if given.operator_token_file is None else ""
    print(f"{scheme}://{host}:{access.port}/{token}", flush=True)
    print("ready; stop with Ctrl-C", flush=True)
    try:
        await server.serve(sockets=[listening])
    finally:
        await live.close()
        await jobs.close()
        hosts.close()
        peers.close()
    print("stopped", flush=True)


def _command_environment(given: PageOptions) -> dict[str, str]:
    """Return the variables of a command about the same namespaces; secrets are not on its line."""
    values = {
        "TWINBUS_PRIMARY": given.primary,
        "TWINBUS_SECONDARY": given.secondary,
        "TWINBUS_CREDENTIAL": given.credential,
        "TWINBUS_TRANSPORT": given.transport,
        "TWINBUS_PROXY": given.proxy,
        "TWINBUS_ENDPOINT": given.endpoint,
        "TWINBUS_LEDGER": given.ledger,
    }
    return {name: value for name, value in values.items() if value}


class _PageConnection(HttpConnection):
    """A connection whose requests have a deadline, so that idle strangers do not use them up."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, **given: Any) -> None:
        super().__init__(
            Admission(ConnectionLimits(open_s=REQUEST_S)), config, server_state, given["app_state"]
        )

    def _cut_off(self, limit_s: float) -> None:
        self.transport.abort()


class _Server(uvicorn.Server):
    """A server that leaves the signals to this command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: object, tls: ssl.SSLContext | None) -> uvicorn.Config:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=_PageConnection,
        ws="none",
        lifespan="off",
        # The log would have the token in it.
        access_log=False,
        log_level="error",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=STOP_S,
    )
    config.load()
    config.ssl = tls
    return config


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PageError(f"cannot listen on {host}: {error.strerror or error}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise PageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; give another --port"
        ) from error
    return listening


def _host_headers(names: list[str], port: int, *, is_tls: bool) -> Iterator[str]:
    for name in names:
        host = name.lower() if name.startswith("[") else bracketed(name.lower())
        yield f"{host}:{port}"
        if port == (443 if is_tls else 80):
            yield host


def _token(file: Path | None) -> str | None:
    token = secret_in(file)
    if token is None:
        return None
    if len(token) < TOKEN_LENGTH_MIN or not token.isascii() or not token.isprintable():
        raise WrongUse(
            f"the token in {file} must be one line of {TOKEN_LENGTH_MIN} characters or more"
        )
    return token


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise WrongUse("TLS needs both --tls-cert FILE and --tls-key FILE; give the other one too")
    return server_context(certificate, key)


def _peers(urls: list[str]) -> list[PeerAddress]:
    if len(urls) > PEERS_MAX:
        raise WrongUse(f"--peer: at most {PEERS_MAX} peers; got {len(urls)}")
    try:
        return [PeerAddress.parse(url) for url in urls]
    except ValueError as error:
        raise WrongUse(f"--peer: {error}") from None


def _ledger(directory: str) -> LedgerWriter:
    if "://" in directory or not Path(directory).is_dir():
        raise WrongUse(f"--ledger must be a directory of this machine; {directory} is none")
    return LedgerWriter(directory, process=process_name("page"))
