"""The broker inside a program: start namespaces, get their connection strings, stop them.

    with EmbeddedBroker("contoso", "contoso-dr") as broker:
        broker.create_queue("orders")
        client = ServiceBusClient.from_connection_string(broker.connection_string("contoso"))

It runs on a thread and an event loop of its own, so it serves sync and async programs alike.
`twinbus serve` is this class with a command line. `BrokerHost` has the same namespaces on the event
loop of its caller: a store, a server and a port for each.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from twinbus.broker.access import ConnectionLimits, expiry_of, rights_of
from twinbus.broker.descriptions import (
    AuthorizationRule,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.faults import Fault
from twinbus.broker.http import HttpHost, application
from twinbus.broker.ledger_view import open_view_ledger
from twinbus.broker.listener import Listener
from twinbus.broker.port_access import DEFAULT_KEY, PortAccess
from twinbus.broker.profile import LAPTOP, ServiceProfile
from twinbus.broker.sas import AcceptedToken
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.lmdb_store import LmdbStore
from twinbus.broker.storage.store import MemoryStore
from twinbus.errors import BrokerStartError
from twinbus.ledger import LedgerWriter

NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,48}[A-Za-z0-9]|[A-Za-z]")
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class NamespaceAt:
    """A namespace's name and the port to serve it on; 0 picks a free one."""

    name: str
    port: int = 0
    second_port: int | None = None
    """A second port with the same protocols; None: there is none."""

    @classmethod
    def parse(cls, text: str) -> NamespaceAt:
        """Read "contoso:5672" or "contoso"."""
        name, _, port = text.partition(":")
        if not NAME.fullmatch(name):
            raise BrokerStartError(
                f"{name!r} is no namespace name: 1 to 50 letters, digits and hyphens, starting "
                "with a letter and not ending with a hyphen; for example contoso:5672"
            )
        if port and not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
            raise BrokerStartError(
                f"{port!r} is no port: give 0 (pick a free one) to {PORT_MAX}, as in {name}:5672"
            )
        return cls(name, int(port or 0))


def parse_rule(text: str) -> AuthorizationRule:
    """Read "NAME:KEY:Send,Listen"."""
    name, key, rights = _access(text, "rule", "KEY")
    return AuthorizationRule(key_name=name, primary_key=key, rights=rights)


def parse_token(text: str) -> AcceptedToken:
    """Read "NAME:TOKEN:Send,Listen" or, with an expiry, "NAME:TOKEN:Send,Listen:EXPIRES"."""
    *access, expires = text.split(":", 3) if text.count(":") > 2 else (text, "never")
    expires_at_s = expiry_of(expires, "--token")
    name, token, rights = _access(":".join(access), "token", "TOKEN")
    return AcceptedToken(name=name, text=token, rights=rights, expires_at_s=expires_at_s)


def _access(text: str, what: str, secret: str) -> tuple[str, str, frozenset[str]]:
    parts = text.split(":")
    shape = f"give NAME:{secret}:RIGHTS with rights of Send, Listen, Manage, as in a:secret:Send"
    if len(parts) != 3 or not all(parts):
        raise BrokerStartError(f"{_masked(parts)!r} is no {what}: {shape}")
    name, key, rights = parts
    return name, key, rights_of(rights, f"{what} {name!r}")


def _masked(parts: list[str]) -> str:
    """A rule's text as it may be printed: the key is a secret."""
    return ":".join("***" if place == 1 else part for place, part in enumerate(parts))


class BrokerHost:
    def __init__(
        self,
        namespaces: Sequence[NamespaceAt],
        *,
        data: Path | None,
        access: PortAccess | None = None,
        fault_seed: int = 0,
        ledger: Path | str | None = None,
        profile: ServiceProfile = LAPTOP,
        test_clock: bool = False,
    ) -> None:
        """`access` says who may connect; None: clients with the default key, on loopback.

        `test_clock`: the clock of each namespace can be moved (`BrokerServer.advance`).
        """
        if test_clock and (data is not None or ledger is not None):
            raise BrokerStartError(
                "a test clock needs a namespace in memory and no ledger: what is kept would have"
                " times of the future; use --ephemeral, or leave out --test-clock"
            )
        self._test_clock = test_clock
        names = [namespace.name.lower() for namespace in namespaces]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BrokerStartError(f"the namespace {twice!r} is named twice; name each once")
        self._namespaces = tuple(namespaces)
        self._data = data
        self._access = access or PortAccess()
        self._fault_seed = fault_seed
        self._ledger_directory = ledger
        self._profile = profile
        self._ledger: LedgerWriter | None = None
        self._servers: dict[str, BrokerServer] = {}
        self._https: dict[str, HttpHost] = {}
        self._listeners: dict[str, Listener] = {}
        self._second: dict[str, Listener] = {}
        """Listeners of second ports."""
        self.on_gone: Callable[[], None] = lambda: None
        """Called when the store of a namespace is gone, if set before the start."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(namespace.name for namespace in self._namespaces)

    @property
    def gone(self) -> str | None:
        """Why the store of a namespace is gone; None: all are there."""
        return next((server.gone for server in self._servers.values() if server.gone), None)

    async def start(self) -> None:
        """Open every store and every port; on any failure nothing stays open."""
        try:
            if self._ledger_directory is not None:
                self._ledger = open_view_ledger(self._ledger_directory)
            for namespace in self._namespaces:
                await self._start(namespace)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop listening, commit what is pending, close the connections and the stores."""
        try:
            for listener in (*self._listeners.values(), *self._second.values()):
                await listener.close()
            for server in self._servers.values():
                await server.close()
            for http in self._https.values():
                await http.close()
            self._listeners.clear()
            self._second.clear()
            self._servers.clear()
            self._https.clear()
        finally:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None

    async def cut_off(self, name: str | None = None) -> None:
        """Close the port and drop every connection, as the end of the process would.

        The namespace and its messages stay. `serve_again` opens the same port.
        """
        place = name or self.names[0]
        for listeners in (self._listeners, self._second):
            if place in listeners:
                await listeners[place].suspend()
        for peer in list(self._servers[place].peers):
            peer.drop()
        await self._https[place].close()

    async def serve_again(self, name: str | None = None) -> None:
        for listeners in (self._listeners, self._second):
            if (place := name or self.names[0]) in listeners:
                await listeners[place].start()

    def server(self, name: str | None = None) -> BrokerServer:
        """The running server of a namespace, the first unless one is named."""
        return self._servers[name or self.names[0]]

    def port(self, name: str | None = None) -> int:
        return self._listeners[name or self.names[0]].port

    def second_port(self, name: str | None = None) -> int | None:
        """The second port of a namespace; None: it has one port."""
        second = self._second.get(name or self.names[0])
        return None if second is None else second.port

    def printable_connection_string(self, name: str | None = None) -> str:
        return self._access.printable_connection_string(self.port(name), name or self.names[0])

    def connection_string(self, name: str | None = None, *, tls: bool = False) -> str:
        """What to give to a Service Bus client, with the right to manage; see `PortAccess`."""
        return self._access.connection_string(self.port(name), name or self.names[0], tls=tls)

    async def _start(self, namespace: NamespaceAt) -> None:
        access = self._access
        server = BrokerServer(
            namespace.name,
            MemoryStore() if self._data is None else LmdbStore(self._data / namespace.name),
            access.rules,
            tokens=access.accepted_tokens,
            require_token=access.require_token,
            admission=access.admission,
            fault_seed=self._fault_seed,
            ledger=self._ledger,
            on_gone=self.on_gone,
            profile=self._profile,
            test_clock=self._test_clock,
        )
        self._servers[namespace.name] = server
        http = self._https[namespace.name] = HttpHost(
            application(server, access.metrics),
            access.admission,
            server.turns,
            local_only=access.is_key_known,
        )
        listener = access.listener(namespace.port, server.peer, http)
        await listener.start()
        self._listeners[namespace.name] = listener
        if namespace.second_port is not None:
            second = access.listener(namespace.second_port, server.peer, http)
            await second.start()
            self._second[namespace.name] = second


T = TypeVar("T")

STOP_TIMEOUT_S = 30.0
"""The last commit and the closing of connections take milliseconds; past this something hangs."""


class EmbeddedBroker:
    """One or more namespaces served from this process until the `with` block ends."""

    def __init__(
        self,
        *namespaces: str,
        data: str | Path | None = None,
        host: str = "localhost",
        key: str = DEFAULT_KEY,
        rules: Iterable[AuthorizationRule] = (),
        tokens: Iterable[AcceptedToken] = (),
        token_file: str | Path | None = None,
        require_token: bool = False,
        tls: ssl.SSLContext | None = None,
        require_tls: bool | None = None,
        metrics_token: str | None = None,
        limits: ConnectionLimits | None = None,
        fault_seed: int = 0,
        ledger: str | Path | None = None,
        profile: ServiceProfile = LAPTOP,
        test_clock: bool = False,
    ) -> None:
        """Namespaces are "name" or "name:port"; without `data` all is kept in memory.

        `tls` is a server's context with its certificate: the port then speaks TLS as well, and
        only TLS if `require_tls`, which is the default beyond loopback.
        `metrics_token` is the bearer token for `/metrics`, which is closed beyond loopback.
        `limits` bounds connections and the time before their first token (docs/security.md).
        `tokens` are accepted as they stand, for tests of token credentials; `token_file` holds
        more of them (`broker.access`); `require_token` refuses shared access keys.
        `ledger` is a directory for the broker's own view of what it does (`broker.ledger_view`).
        `profile` has the limits of the namespaces, such as `AZURE_STANDARD` of `broker.profile`.
        `test_clock` lets `advance` move the clock of a namespace in memory.
        """
        self._host = BrokerHost(
            [NamespaceAt.parse(text) for text in namespaces or ("twinbus",)],
            data=None if data is None else Path(data),
            access=PortAccess(
                host=host,
                key=key,
                rules=tuple(rules),
                tokens=tuple(tokens),
                token_file=None if token_file is None else Path(token_file),
                require_token=require_token,
                tls=tls,
                require_tls=require_tls,
                metrics_token=metrics_token,
                limits=limits,
            ),
            fault_seed=fault_seed,
            ledger=ledger,
            profile=profile,
            test_clock=test_clock,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve; returns when every port is open. Raises BrokerStartError with the reason."""
        if self._thread is not None:
            raise BrokerStartError("this broker was started already; make a new EmbeddedBroker")
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="twinbus-broker", daemon=True
        )
        self._thread.start()
        started.result()

    def stop(self) -> None:
        """Stop serving: commit, close the connections, end threads and sockets."""
        if self._loop is None or self._thread is None or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the broker did not stop within {STOP_TIMEOUT_S:.0f} s")

    def connection_string(self, namespace: str | None = None, *, tls: bool = False) -> str:
        """What to give to a Service Bus client; the first namespace unless one is named.

        With `tls` it is for Twinbus, over TLS; the SDK itself would ignore its port.
        """
        return self._host.connection_string(namespace, tls=tls)

    def port(self, namespace: str | None = None) -> int:
        """The port in use."""
        return self._host.port(namespace)

    def create_queue(
        self, path: str, description: QueueDescription | None = None, namespace: str | None = None
    ) -> None:
        """Create a queue; returns when it is on disk."""
        self._change(
            namespace, lambda n, at: n.create_queue(path, description or QueueDescription(), at)
        )

    def create_topic(
        self, path: str, subscriptions: Iterable[str] = (), namespace: str | None = None
    ) -> None:
        """Create a topic and subscriptions that take every message."""

        def create(engine: BrokerNamespace, now_ms: int) -> None:
            engine.create_topic(path, TopicDescription(), now_ms)
            for name in subscriptions:
                engine.create_subscription(path, name, SubscriptionDescription(), now_ms)

        self._change(namespace, create)

    def add_fault(self, fault: Fault, namespace: str | None = None) -> int:
        """Add a fault, active from now on; returns its number, for `remove_fault`."""
        return self._call(lambda: self._host.server(namespace).faults.add(fault))

    def remove_fault(self, fault_id: int, namespace: str | None = None) -> bool:
        """End one fault; false when there is none of that number."""
        return self._call(lambda: self._host.server(namespace).faults.remove(fault_id))

    def clear_faults(self, namespace: str | None = None) -> None:
        """Remove all faults."""
        self._call(self._host.server(namespace).faults.clear)

    def advance(self, by: timedelta, namespace: str | None = None) -> None:
        """Move the clock on; locks, schedules, times to live and tokens end as time would do it."""
        by_ms = round(by / timedelta(milliseconds=1))
        self._call(lambda: self._host.server(namespace).advance(by_ms))

    def cut_off(self, namespace: str | None = None) -> None:
        """Refuse and drop every connection, as a killed broker would; messages stay."""
        self._run_on_loop(self._host.cut_off(namespace))

    def serve_again(self, namespace: str | None = None) -> None:
        """Serve a namespace that was cut off, on the same port."""
        self._run_on_loop(self._host.serve_again(namespace))

    def log_sends(self, engine_log: EngineLog, namespace: str | None = None) -> None:
        """Note every accepted message in `engine_log` from now on; not with a ledger."""
        self._call(lambda: self._host.server(namespace).namespace.log_sends(engine_log))

    def _change(
        self, namespace: str | None, change: Callable[[BrokerNamespace, int], object]
    ) -> None:
        server = self._host.server(namespace)

        async def on_loop() -> None:
            change(server.namespace, server.now_ms())
            await server.commit.durable()

        self._run_on_loop(on_loop())

    def _call(self, action: Callable[[], T]) -> T:
        async def on_loop() -> T:
            return action()

        return self._run_on_loop(on_loop())

    def _run_on_loop(self, work: Coroutine[None, None, T]) -> T:
        if self._loop is None:
            work.close()
            raise BrokerStartError("the broker is not running; use it as a context manager")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _run(self, started: Future[None]) -> None:
        try:
            asyncio.run(self._serve(started))
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            else:
                raise

    async def _serve(self, started: Future[None]) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        await self._host.start()
        started.set_result(None)
        try:
            await self._stopping.wait()
        finally:
            await self._host.close()
