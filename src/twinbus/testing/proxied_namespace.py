"""A real namespace behind a fault proxy in the test's process: its outages on request.

with ProxiedNamespace(connection_string) as namespace:
    client = ServiceBusClient.from_connection_string(
        namespace.connection_string, **namespace.client_options
    )
    with namespace.outage("hang", "orders"):
        ...
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

from twinbus.broker.faults import Fault
from twinbus.namespace.address import ConnectionString, bracketed
from twinbus.proxy.certificate import RunCertificate, make_certificate
from twinbus.proxy.host import FaultProxy, through, upstream_of
from twinbus.testing.outages import OutageKind, misbehaving

T = TypeVar("T")

CALL_S: Final = 30.0
"""Limit of a call of the proxy, which takes milliseconds."""


class ProxiedNamespace:
    """The namespace of a connection string, reached through a proxy for a `with` block."""

    def __init__(self, connection_string: str, *, fault_seed: int = 0) -> None:
        parts = ConnectionString.parse(connection_string)
        self._given = connection_string
        self._upstream = upstream_of(f"sb://{bracketed(parts.host)}:{parts.port}")
        self._seed = fault_seed
        self._certificate: RunCertificate | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="twinbus-proxy", daemon=True
        )

    def __enter__(self) -> Self:
        if self._upstream.tls is not None:
            self._certificate = make_certificate(self._upstream.host)
        context = None if self._certificate is None else self._certificate.context
        self._proxy = FaultProxy(self._upstream, tls=context, seed=self._seed)
        self._thread.start()
        try:
            self._run(self._proxy.start())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._run(self._proxy.close())
        finally:
            self._end()

    def __repr__(self) -> str:
        return f"ProxiedNamespace({self._upstream.host!r})"

    @property
    def connection_string(self) -> str:
        """What to give to a client, together with `client_options`."""
        if self._upstream.tls is not None:
            return self._given
        return through(self._given, self._proxy.port)

    @property
    def client_options(self) -> dict[str, Any]:
        """Keywords of `ServiceBusClient` and `Namespace` that lead a client through the proxy."""
        if self._certificate is None:
            return {}
        from azure.servicebus import TransportType

        return {
            "custom_endpoint_address": f"sb://localhost:{self._proxy.port}",
            "connection_verify": str(self._certificate.authority),
            "transport_type": TransportType.Amqp,
        }

    @contextmanager
    def outage(self, kind: OutageKind | Fault, entity: str | None = None) -> Iterator[None]:
        """Misbehave for the block, as `LocalNamespace.outage`; a `Fault` may be one of a proxy."""
        with misbehaving(self, kind, entity):
            yield

    def add_fault(self, fault: Fault) -> int:
        """Add a fault, active from now on; returns its number, for `remove_fault`."""
        return self._call(lambda: self._proxy.add_fault(fault))

    def remove_fault(self, fault_id: int) -> bool:
        """End one fault; false when there is none of that number."""
        return self._call(lambda: self._proxy.faults.remove(fault_id))

    def cut_off(self) -> None:
        """Refuse and drop every connection; the namespace itself goes on."""
        self._run(self._proxy.cut_off())

    def serve_again(self) -> None:
        """Relay again after `cut_off`, on the same port."""
        self._run(self._proxy.serve_again())

    def _call(self, action: Callable[[], T]) -> T:
        async def on_loop() -> T:
            return action()

        return self._run(on_loop())

    def _run(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._certificate is not None:
            self._certificate.remove()
