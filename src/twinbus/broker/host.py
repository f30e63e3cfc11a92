"""Several namespaces in one process: a store, a server and a port for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from twinbus.broker.access import expiry_of
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.http import HttpHost, application
from twinbus.broker.ledger_view import open_view_ledger
from twinbus.broker.listener import Listener
from twinbus.broker.port_access import PortAccess
from twinbus.broker.profile import LAPTOP, ServiceProfile
from twinbus.broker.sas import ALL_RIGHTS, AcceptedToken
from twinbus.broker.server import BrokerServer
from twinbus.broker.storage.lmdb_store import LmdbStore
from twinbus.broker.storage.store import MemoryStore, Store
from twinbus.errors import BrokerStartError
from twinbus.ledger import LedgerWriter

NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,48}[A-Za-z0-9]|[A-Za-z]")
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class NamespaceAt:
    """A namespace's name and the port to serve it on; 0 picks a free one."""

    name: str
    port: int = 0

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
    """Who is let in, by which secret, with which rights."""
    parts = text.split(":")
    shape = f"give NAME:{secret}:RIGHTS with rights of Send, Listen, Manage, as in a:secret:Send"
    if len(parts) != 3 or not all(parts):
        raise BrokerStartError(f"{_masked(parts)!r} is no {what}: {shape}")
    name, key, rights = parts
    wanted = frozenset(right.strip().capitalize() for right in rights.split(","))
    if not wanted <= ALL_RIGHTS:
        unknown = ", ".join(sorted(wanted - ALL_RIGHTS))
        raise BrokerStartError(f"{what} {name!r}: {unknown!r} is no right: {shape}")
    return name, key, wanted


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
    ) -> None:
        """`access` says who may connect; None: who has the default key, on loopback."""
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
            for listener in self._listeners.values():
                await listener.close()
            for server in self._servers.values():
                await server.close()
            for http in self._https.values():
                await http.close()
            self._listeners.clear()
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
        await self._listeners[place].suspend()
        for peer in list(self._servers[place].peers):
            peer.drop()
        await self._https[place].close()

    async def serve_again(self, name: str | None = None) -> None:
        """Open the port that `cut_off` closed."""
        await self._listeners[name or self.names[0]].start()

    def server(self, name: str | None = None) -> BrokerServer:
        """The running server of a namespace, the first unless one is named."""
        return self._servers[name or self.names[0]]

    def port(self, name: str | None = None) -> int:
        return self._listeners[name or self.names[0]].port

    def printable_connection_string(self, name: str | None = None) -> str:
        """The connection string for a terminal: a key of one's own is a secret."""
        return self._access.printable_connection_string(self.port(name))

    def connection_string(self, name: str | None = None, *, tls: bool = False) -> str:
        """What to give to a Service Bus client, with the right to manage; see `PortAccess`."""
        return self._access.connection_string(self.port(name), tls=tls)

    async def _start(self, namespace: NamespaceAt) -> None:
        access = self._access
        server = BrokerServer(
            namespace.name,
            self._open_store(namespace.name),
            access.rules,
            tokens=access.accepted_tokens,
            require_token=access.require_token,
            admission=access.admission,
            fault_seed=self._fault_seed,
            ledger=self._ledger,
            on_gone=self.on_gone,
            profile=self._profile,
        )
        self._servers[namespace.name] = server
        http = self._https[namespace.name] = HttpHost(
            application(server, access.metrics), access.admission, local_only=access.is_key_known
        )
        listener = access.listener(namespace.port, server.peer, http)
        await listener.start()
        self._listeners[namespace.name] = listener

    def _open_store(self, name: str) -> Store:
        return MemoryStore() if self._data is None else LmdbStore(self._data / name)
