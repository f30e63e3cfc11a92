"""How to reach a namespace, as one value that pairs, syphons, commands and Spark tasks share. Pure.

    Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=...
    sb://contoso.servicebus.windows.net?credential=default&transport=websocket

The second form names a source of credentials and holds no secret. It can be pickled, logged and
shipped to another machine, which opens the source there:

    default                          azure-identity's DefaultAzureCredential
    managed-identity[:CLIENT_ID]     the identity of this machine, or a user-assigned one
    workload-identity                a Kubernetes service account
    file:PATH                        a bearer or SAS token that another program keeps fresh
    env:NAME                         a variable with a connection string, or with a token

An `Endpoint` has the address and the tokens, for connections without the SDK.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from twinbus.namespace.address import (
    DIRECT,
    HTTPS_PORT,
    TLS_PORT,
    ConnectionString,
    NetworkRoute,
    bracketed,
    host_and_port,
    namespace_label,
)
from twinbus.namespace.tokens import NamespaceToken, TokenSource, tokens_of

SCHEME: Final = "sb://"
ENVIRONMENT: Final = "env"
FILE: Final = "file"
MANAGED_IDENTITY: Final = "managed-identity"
PLAIN_SOURCES: Final = ("default", MANAGED_IDENTITY, "workload-identity")
SOURCES: Final = (
    "default, managed-identity, managed-identity:CLIENT_ID, workload-identity, file:PATH or"
    " env:NAME"
)

_QUERY: Final = ("credential", "transport", "proxy", "endpoint")
_WORD: Final = re.compile(r"[a-zA-Z-]{1,20}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class NamespaceAccess:
    """The address of a namespace, the source of its credential, and the route to it."""

    host: str
    port: int
    credential: str = ""
    """Where the credential comes from; empty: the connection string has it."""
    connection_string: str = ""
    transport: str = ""
    proxy: str = ""
    """http://HOST:PORT, or env:NAME if its password must not be shipped."""
    endpoint: str = ""
    name: str | None = None
    """The label that its owner gave it; None: the label of its host."""

    def __repr__(self) -> str:
        return f"NamespaceAccess({self.text})"

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        name: str | None = None,
        credential: str = "",
        transport: str = "",
        proxy: str = "",
        endpoint: str = "",
    ) -> NamespaceAccess:
        """Parse a connection string or a `sb://HOST` text; a ValueError never repeats a secret.

        The keywords apply where the text says nothing. `credential` is not for connection strings.
        """
        given = {"transport": transport, "proxy": proxy, "endpoint": endpoint}
        if not is_access_text(text):
            parts = ConnectionString.parse(text)
            _require_route(**given)
            host, port, name = parts.host, parts.port, name or parts.name
            return cls(host=host, port=port, connection_string=text, name=name, **given)
        address, query = _split(text)
        said = {**given, "credential": credential, **query}
        host, port = host_and_port(address, TLS_PORT)
        if not said["credential"]:
            raise ValueError(f"{SCHEME}{bracketed(host)} needs a credential: {SOURCES}")
        require_source(said["credential"])
        _require_route(said["transport"], said["proxy"], said["endpoint"])
        # Azure's portal and resource manager write 443 after a host name.
        return cls(host=host, port=TLS_PORT if port == HTTPS_PORT else port, name=name, **said)

    @property
    def label(self) -> str:
        """The namespace's label, with which the paths of its backlog queues start."""
        return namespace_label(self.host, self.port, self.name)

    @property
    def address(self) -> str:
        """The host with its port, unless that is the default."""
        host = bracketed(self.host)
        return host if self.port == TLS_PORT else f"{host}:{self.port}"

    @property
    def text(self) -> str:
        """The access for people; no secret."""
        credential = "key or signature" if self.connection_string else self.credential
        parts = [f"{SCHEME}{self.address}", f"credential {credential}"]
        # A part of the route that comes from a variable is not known here.
        if not self.proxy.startswith(f"{ENVIRONMENT}:"):
            parts += filter(None, [self.route(self.proxy).text])
        return ", ".join(parts)

    def route(self, proxy: str) -> NetworkRoute:
        """Return the route; `proxy` is the text of the proxy, read from its variable."""
        return NetworkRoute.parse(self.transport, proxy, self.endpoint)


def is_access_text(text: str) -> bool:
    """Return whether a text names a namespace as sb://HOST, not by a connection string."""
    return text.strip().lower().startswith(SCHEME)


def require_source(source: str) -> None:
    """Raise ValueError unless the text names a source of credentials; it may be a lost secret."""
    kind, colon, rest = source.partition(":")
    if not colon and kind in PLAIN_SOURCES:
        return
    if rest and (kind in {MANAGED_IDENTITY, FILE}):
        return
    if kind == ENVIRONMENT and _VARIABLE.fullmatch(rest):
        return
    got = f"; got {source!r}" if _WORD.fullmatch(source) else ""
    raise ValueError(f"a credential is {SOURCES}{got}")


def _split(text: str) -> tuple[str, dict[str, str]]:
    address, mark, rest = text.strip().partition("?")
    if "@" in address:
        raise ValueError(f"{SCHEME}HOST has no user: give a credential")
    try:
        query = dict(parse_qsl(rest, strict_parsing=True)) if mark else {}
    except ValueError:
        raise ValueError(f"after {SCHEME}HOST? come NAME=VALUE parts, with & between") from None
    unknown = [name for name in query if name not in _QUERY]
    if unknown:
        raise ValueError(f"{SCHEME}HOST? takes {', '.join(_QUERY)}; got {unknown[0]!r:.40}")
    return address, query


def _require_route(transport: str, proxy: str, endpoint: str) -> None:
    """Raise ValueError unless the three texts make a route; a variable is read later."""
    if proxy.startswith(f"{ENVIRONMENT}:"):
        if not _VARIABLE.fullmatch(proxy.partition(":")[2]):
            raise ValueError("a proxy from a variable is env:NAME")
        proxy = "http://proxy:1"
    NetworkRoute.parse(transport, proxy, endpoint)


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where one namespace listens, and the tokens that it accepts."""

    host: str
    port: int
    tls: bool
    tokens: TokenSource
    name: str = ""
    """The label that its owner gave it; empty: the label of its host."""
    certificates: Any = field(default=None, repr=False, compare=False)
    """The trusted certificates as an `ssl.SSLContext`; None: those of the machine."""
    route: NetworkRoute = DIRECT

    @classmethod
    def parse(cls, connection_string: str) -> Endpoint:
        """Return the endpoint of a connection string; ValueError says what it lacks."""
        parts = ConnectionString.parse(connection_string)
        tokens = tokens_of(parts)
        assert tokens is not None
        tls, name = not parts.emulator, parts.name or ""
        return cls(host=parts.host, port=parts.port, tls=tls, tokens=tokens, name=name)

    @property
    def label(self) -> str:
        return self.name or namespace_label(self.host, self.port)

    @property
    def amqp(self) -> tuple[str, int]:
        """Host and port to connect to for AMQP without WebSocket."""
        return self.route.endpoint or (self.host, self.port)

    @property
    def administration(self) -> tuple[str, int, bool]:
        """Host, port and TLS of the administration API and of WebSocket.

        Port 443 in Azure, else the one port.
        """
        host, port = self.amqp
        return host, HTTPS_PORT if self.tls and port == TLS_PORT else port, self.tls

    def audience(self, path: str) -> str:
        host = bracketed(self.host)
        return f"sb://{host if self.tls else f'{host}:{self.port}'}/{quote(path)}"

    async def token(self, path: str, now_s: float) -> NamespaceToken:
        """Return a token for the entity at `path` that is valid at `now_s` (unix seconds)."""
        return await self.tokens.token(self.audience(path), now_s)


def endpoint_of(side: object) -> Endpoint:
    """Return the endpoint of an Endpoint, a connection string or a Namespace."""
    if isinstance(side, Endpoint):
        return side
    if isinstance(side, str):
        return Endpoint.parse(side)
    text = getattr(side, "connection_string", None)
    certificates = getattr(side, "certificates", None)
    more: dict[str, Any] = {
        "name": str(getattr(side, "label", "")),
        "certificates": certificates() if callable(certificates) else None,
        "route": getattr(side, "route", DIRECT),
    }
    if isinstance(text, str):
        return replace(Endpoint.parse(text), **more)
    tokens = tokens_of(getattr(side, "credential", None), getattr(side, "token_credential", None))
    if tokens is None:
        raise TypeError(
            "a namespace is given as a connection string or as a Namespace; "
            f"got {type(side).__name__}"
        )
    host, port = str(getattr(side, "host", "")), int(getattr(side, "port", TLS_PORT))
    tls = not getattr(side, "emulator", False)
    return Endpoint(host=host, port=port, tls=tls, tokens=tokens, **more)
