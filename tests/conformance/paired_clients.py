"""Clients of the SDK that have a pair, for plugins that replace senders or receivers.

The primary is the namespace under test. The pair belongs to the client that the test made, takes
the same arguments, and is closed with it. What a plugin does not replace stays the SDK's own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Final, Self

import azure.servicebus as sdk
import azure.servicebus.aio as sdk_aio
import pytest

from twinbus import Namespace, SendAvailabilityOptions, blocking, pair_namespaces

SECONDARY: Final = os.environ["TWINBUS_CONFORMANCE_SECONDARY"]
"""Connection string of the namespace with the backlog queues."""

PRIMARY: Final = os.environ["SBCONF_AMQP"]

OPTIONS: Final = SendAvailabilityOptions(
    backlog_queue_count=1,
    ledger="",
    links="own" if os.environ.get("TWINBUS_CONFORMANCE_LINKS") == "own" else "sdk",
)

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments that a client was made with."""


def primary_of(given: tuple[Any, ...], options: dict[str, Any]) -> Namespace:
    """The namespace of a client's arguments: a connection string, or address and credential."""
    if len(given) == 1:
        return Namespace.from_connection_string(*given, **options)
    namespace = Namespace(*given, **options)
    # The suite switches its clients to plain text in the same way.
    namespace.emulator = given[0] == PRIMARY
    return namespace


class PairedClient(sdk.ServiceBusClient):
    """The SDK's client, with a pair."""

    given: Given
    _pair: blocking.Pair | None = None

    def __init__(self, fully_qualified_namespace: str, credential: Any, **options: Any) -> None:
        super().__init__(fully_qualified_namespace, credential, **options)
        self.given = (fully_qualified_namespace, credential), options
        self._starting = threading.Lock()

    @classmethod
    def from_connection_string(cls, conn_str: str, **options: Any) -> Self:
        client = super().from_connection_string(conn_str, **options)
        assert isinstance(client, cls)
        client.given = (conn_str,), options
        return client

    def started(self) -> blocking.Pair:
        """The pair, started."""
        # A test gets receivers in several threads at the same time.
        with self._starting:
            if self._pair is None:
                pair = blocking.pair_namespaces(primary_of(*self.given), SECONDARY, OPTIONS)
                pair.start()
                self._pair = pair
        return self._pair

    def close(self) -> None:
        super().close()
        if self._pair is not None:
            self._pair.close()
            self._pair = None


class PairedAsyncClient(sdk_aio.ServiceBusClient):
    """The same with asyncio. A pair is started in a coroutine, which the SDK's client needs not."""

    given: Given

    def __init__(self, fully_qualified_namespace: str, credential: Any, **options: Any) -> None:
        super().__init__(fully_qualified_namespace, credential, **options)
        self.given = (fully_qualified_namespace, credential), options
        self._pair: Any = None
        self._starting = asyncio.Lock()

    @classmethod
    def from_connection_string(cls, conn_str: str, **options: Any) -> Self:
        client = super().from_connection_string(conn_str, **options)
        assert isinstance(client, cls)
        client.given = (conn_str,), options
        return client

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.started()
        return self

    async def started(self) -> Any:
        """The pair, started."""
        async with self._starting:
            if self._pair is None:
                pair = pair_namespaces(primary_of(*self.given), SECONDARY, OPTIONS)
                await pair.start()
                self._pair = pair
        return self._pair

    def made(self, method: str, *names: str, **options: Any) -> Any:
        """What a method of the pair makes, at once or with its first call."""
        if self._pair is None:
            return Later(self, method, *names, **options)
        return getattr(self._pair, method)(*names, **options)

    async def close(self) -> None:
        await super().close()
        if self._pair is not None:
            await self._pair.close()
            self._pair = None


class Later:
    """A sender or receiver of a client that was not entered: its first call starts the pair."""

    def __init__(self, client: PairedAsyncClient, method: str, *names: str, **options: Any) -> None:
        self._client = client
        self._wanted = method, names, options
        self._made: Any = None

    async def _now(self) -> Any:
        if self._made is None:
            method, names, options = self._wanted
            self._made = getattr(await self._client.started(), method)(*names, **options)
        return self._made

    async def __aenter__(self) -> Any:
        return await (await self._now()).__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        await self._made.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await (await self._now()).__anext__()

    def __getattr__(self, name: str) -> Any:
        if self._made is not None:
            return getattr(self._made, name)

        async def call(*given: Any, **options: Any) -> Any:
            return await getattr(await self._now(), name)(*given, **options)

        return call


def replace_clients(
    items: list[pytest.Item], client: type[PairedClient], async_client: type[PairedAsyncClient]
) -> None:
    """Let the test modules use these clients; the SDK itself stays as it is."""
    for module in {item.getparent(pytest.Module) for item in items}:
        assert module is not None
        found = getattr(module.obj, "ServiceBusClient", None)
        if found is sdk.ServiceBusClient:
            module.obj.ServiceBusClient = client
        elif found is sdk_aio.ServiceBusClient:
            module.obj.ServiceBusClient = async_client
