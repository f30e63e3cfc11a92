"""The endpoint of a namespace: address and tokens, for connections without the SDK. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from twinbus.namespace.address import TLS_PORT, ConnectionString, bracketed, namespace_label
from twinbus.namespace.route import DIRECT, HTTPS_PORT, NetworkRoute
from twinbus.namespace.tokens import NamespaceToken, TokenSource, tokens_of


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
        return cls(host=parts.host, port=parts.port, tls=not parts.emulator, tokens=tokens)

    @property
    def label(self) -> str:
        """The namespace's label, with which the paths of its backlog queues start."""
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
        """Return the audience of a token for the entity at `path`."""
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
    name, certificates = str(getattr(side, "label", "")), getattr(side, "certificates", None)
    trust = certificates() if callable(certificates) else None
    route = getattr(side, "route", DIRECT)
    if isinstance(text, str):
        return replace(Endpoint.parse(text), name=name, certificates=trust, route=route)
    tokens = tokens_of(getattr(side, "credential", None), getattr(side, "token_credential", None))
    if tokens is None:
        raise TypeError(
            "a namespace is given as a connection string or as a Namespace; "
            f"got {type(side).__name__}"
        )
    host, port = str(getattr(side, "host", "")), int(getattr(side, "port", TLS_PORT))
    return Endpoint(
        host=host,
        port=port,
        tls=True,
        tokens=tokens,
        name=name,
        certificates=trust,
        route=route,
    )
