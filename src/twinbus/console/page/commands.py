"""`twinbus page`: checks the options, serves the page until a signal.

The page asks the secondary with the code of `twinbus backlog`.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import signal
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final

from twinbus import __version__
from twinbus.client.peeked_message import PeekedMessage
from twinbus.console.backlog.dead_letters import text_of_body
from twinbus.console.backlog.queue_contents import (
    prunable,
    queue_contents,
    remove_if_empty,
    with_ages,
)
from twinbus.console.namespaces import administration
from twinbus.console.options import PageOptions, secret_in, tls_of
from twinbus.console.output import WrongUse
from twinbus.console.page.connections import PageServer, page_config
from twinbus.console.page.cost import PageCost
from twinbus.console.prices import book_of
from twinbus.errors import MissingRightError, TwinbusError
from twinbus.ledger import LedgerWriter, process_name
from twinbus.ledger.requests import recording_to
from twinbus.loops import run_alone
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.address import bracketed, is_loopback
from twinbus.namespace.namespace import Namespace
from twinbus.page.actions import Actions
from twinbus.page.app import PageAccess, Role, application
from twinbus.page.core.view import Board
from twinbus.page.documents import PageDocuments
from twinbus.page.jobs import Drains, JobRunner, Proof
from twinbus.page.live import PEERS_MAX, HostPoller, LiveView, PeerAddress, PeerPoller
from twinbus.syphon.replaying import REPLAYS_MAX, DeadLetterFilter, dead_letters, replay
from twinbus.wording import counted, plain

TOKEN_BYTES: Final = 32
TOKEN_LENGTH_MIN: Final = 20
"""A token from a file must not be guessed."""

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


class PageError(TwinbusError):
    """The page cannot be served; the text says why."""


def run(given: PageOptions) -> int:
    """Serve the page until SIGTERM or Ctrl-C; return the exit status."""
    is_local = is_loopback(given.host)
    tls = tls_of(given.tls_cert, given.tls_key)
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
    actions = Actions(live, secondary, ledger, drains, proof, given.read_only)
    cost = None if directory is None else PageCost(directory, book_of(given.prices)).document
    documents = PageDocuments(actions, directory, cost)
    server = PageServer(page_config(application(access, live, documents, __version__), tls))
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
    keys = ("primary", "secondary", "credential", "transport", "proxy", "endpoint", "ledger")
    values = {f"TWINBUS_{key.upper()}": getattr(given, key) for key in keys}
    return {name: value for name, value in values.items() if value}


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


LETTERS_MAX: Final = 200
"""Dead letters in one answer."""

PEEKED_MAX: Final = 5_000
"""Dead letters that one search peeks at: each peek is billed."""

PREVIEW_LENGTH: Final = 200

COUNT_AGAIN_S: Final = 30.0
"""Azure bills counts."""

COUNT_EMULATOR_AGAIN_S: Final = 2.0
"""Nobody bills those of an embedded broker, and a drill lasts a minute."""


class PageSecondary:
    """The secondary that `twinbus page` was started with."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    @property
    def count_again_s(self) -> float:
        return COUNT_EMULATOR_AGAIN_S if self._namespace.emulator else COUNT_AGAIN_S

    def holds(self, secondary: str) -> bool:
        return secondary == self._namespace.endpoint

    async def queues(self, label: str) -> list[dict[str, Any]]:
        """Return what each backlog queue of a label holds, as `twinbus backlog list` does."""
        async with administration(self._namespace, "listing queues") as client:
            found = [queue for queue in await queue_contents(client) if queue.is_of(label)]
        # Without the Listen right the ages stay unknown.
        with suppress(MissingRightError):
            found = await with_ages(self._namespace, found)
        return [
            {
                "path": queue.path,
                "waiting": queue.waiting,
                "oldest_age_s": queue.oldest_age_s,
                "dead_letters": queue.dead_lettered,
            }
            for queue in found
        ]

    async def prunable(self, label: str, keep: int) -> list[str]:
        """Return the empty backlog queues of a label with an index from `keep` on."""
        async with administration(self._namespace, "listing queues") as client:
            return [queue.path for queue in await prunable(client, label, keep) if queue.is_empty]

    async def prune(self, label: str, keep: int, queues: list[str]) -> str:
        """Delete those of the queues that are prunable; return what was done."""
        kept, deleted = [], 0
        async with administration(self._namespace, "deleting queues") as client:
            for queue in await prunable(client, label, keep):
                if queue.path not in queues or not queue.is_empty:
                    continue
                if why := await remove_if_empty(client, self._namespace, queue.path):
                    kept.append(f"{queue.path} is kept: {why}")
                else:
                    deleted += 1
        return "; ".join([f"deleted {counted(deleted, 'empty backlog queue')}", *kept])

    async def letters(
        self, label: str, search: Mapping[str, str], *, with_bodies: bool
    ) -> dict[str, Any]:
        """Return the dead letters that match, and whether there are more."""
        paths = [queue["path"] for queue in await self.queues(label) if queue["dead_letters"]]
        found: list[dict[str, Any]] = []
        peeked, is_cut = 0, False
        letters = dead_letters(endpoint_of(self._namespace), paths, DeadLetterFilter())
        async with aclosing(letters):
            async for letter in letters:
                if len(found) >= LETTERS_MAX or peeked >= PEEKED_MAX:
                    is_cut = True
                    break
                peeked += 1
                if matches(letter, search):
                    found.append(_summary(letter, with_body=with_bodies))
        return {"truncated": is_cut, "letters": found}

    async def letter(self, queue: str, number: int) -> dict[str, Any] | None:
        """Return one dead letter with its body; None: it is not there."""
        wanted = DeadLetterFilter(sequence_numbers=frozenset({number}))
        letters = dead_letters(endpoint_of(self._namespace), [queue], wanted)
        async with aclosing(letters):
            letter = await anext(letters, None)
        if letter is None:
            return None
        document = letter.document()
        text = text_of_body(letter.body)
        body = {"body_text": text} if text is not None else {"body_base64": document["body_base64"]}
        names = ("properties", "application_properties", "body_value")
        more = {name: document[name] for name in names}
        return {**_summary(letter, with_body=False), **body, **more}

    async def replay(self, queue: str, numbers: list[int]) -> str:
        """Replay dead letters of a backlog queue; return what was done."""
        wanted = DeadLetterFilter(sequence_numbers=frozenset(numbers))
        result = await replay(endpoint_of(self._namespace), [queue], wanted, force=False)
        done, refused = len(result.replayed), len(result.refused)
        parts = [f"replayed {counted(done, 'dead letter')}: the syphon will try them again"]
        if refused:
            parts.append(f"refused {refused:,} that came back after {REPLAYS_MAX} replays")
        if left := len(set(numbers)) - done - refused:
            parts.append(f"{left:,} are not there or could not be replayed")
        return "; ".join(parts)


def matches(letter: PeekedMessage, search: Mapping[str, str]) -> bool:
    """Return whether a dead letter has each text that is searched for; case is ignored."""
    values = {
        "reason": f"{letter.reason or ''} {letter.description or ''}",
        "entity": letter.path or "",
        "id": letter.message_id or "",
    }
    if search.get("body"):
        values["body"] = text_of_body(letter.body) or letter.body_json or ""
    return all(
        wanted.lower() in values.get(name, "").lower() for name, wanted in search.items() if wanted
    )


def _summary(letter: PeekedMessage, *, with_body: bool) -> dict[str, Any]:
    preview = {}
    if with_body:
        text = text_of_body(letter.body) or letter.body_json
        if text is None and letter.body is not None:
            text = base64.b64encode(letter.body[:PREVIEW_LENGTH]).decode()
        preview = {"preview": (text or "")[:PREVIEW_LENGTH]}
    return {
        "queue": letter.queue,
        "sequence": letter.sequence_number,
        "id": letter.message_id,
        "entity": letter.path,
        "reason": letter.reason,
        "description": plain(letter.description or ""),
        "enqueued_at": None if letter.enqueued_ms is None else letter.enqueued_ms / 1000,
        "size": len(letter.wire),
        **preview,
    }
