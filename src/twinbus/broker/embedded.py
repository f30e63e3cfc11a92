"""The broker inside a program: start namespaces, get their connection strings, stop them.

    with EmbeddedBroker("contoso", "contoso-dr") as broker:
        broker.create_queue("orders")
        client = ServiceBusClient.from_connection_string(broker.connection_string("contoso"))

It runs on a thread and an event loop of its own, so it serves sync and async programs alike.
`twinbus serve` is this class with a command line.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from twinbus.broker.access import ConnectionLimits
from twinbus.broker.descriptions import (
    AuthorizationRule,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.faults import Fault
from twinbus.broker.host import BrokerHost, NamespaceAt
from twinbus.broker.port_access import DEFAULT_KEY, PortAccess
from twinbus.broker.profile import LAPTOP, ServiceProfile
from twinbus.broker.sas import AcceptedToken
from twinbus.errors import BrokerStartError

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
    ) -> None:
        """Namespaces are "name" or "name:port"; without `data` all is kept in memory.

        `tls` is a server's context with its certificate: the port then speaks TLS as well, and
        only TLS if `require_tls`, which is the default beyond loopback.
        `metrics_token` is the bearer token for `/metrics`, which is closed beyond loopback.
        `limits` bounds connections and the time before their first token (docs/security.md).
        `tokens` are accepted as they stand, for tests of token credentials; `token_file` holds
        more of them (`broker.access.token_file`); `require_token` refuses shared access keys.
        `ledger` is a directory for the broker's own view of what it does (`broker.ledger_view`).
        `profile` has the limits of the namespaces, such as `AZURE_STANDARD` of `broker.profile`.
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
        """Misbehave from now on; returns the number to remove the fault by."""
        return self._call(lambda: self._host.server(namespace).faults.add(fault))

    def remove_fault(self, fault_id: int, namespace: str | None = None) -> bool:
        """End one fault; false when there is none of that number."""
        return self._call(lambda: self._host.server(namespace).faults.remove(fault_id))

    def clear_faults(self, namespace: str | None = None) -> None:
        """Behave again."""
        self._call(self._host.server(namespace).faults.clear)

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
