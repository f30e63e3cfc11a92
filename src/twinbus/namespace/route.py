"""How bytes get to a namespace: AMQP or WebSocket, directly, through a proxy, to an endpoint. Pure.

A `NetworkRoute` is made from the options of a command or from the SDK's keywords, so that the SDK's
clients and the connections without the SDK take the same way.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from twinbus.namespace.address import bracketed, host_and_port

AMQP: Final = "amqp"
WEBSOCKET: Final = "websocket"
TRANSPORTS: Final = (AMQP, WEBSOCKET)

HTTPS_PORT: Final = 443
"""Port of AMQP over WebSocket and of the administration API in Azure."""

SDK_WEBSOCKET: Final = "AmqpOverWebsocket"
"""The SDK's name of the transport, a member of its `TransportType`."""


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """An HTTP proxy that opens tunnels with CONNECT."""

    host: str
    port: int
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> HttpProxy:
        """Parse http://[USER:PASSWORD@]HOST:PORT; a ValueError never repeats the text."""
        scheme, found, rest = text.strip().partition("://")
        login, _, place = (rest if found else scheme).rpartition("@")
        host, port = "", 0
        if not found or scheme.lower() == "http":
            try:
                host, port = host_and_port(place, 0)
            except ValueError:
                host = ""
        if not host or not port:
            raise ValueError("a proxy is http://HOST:PORT, or http://USER:PASSWORD@HOST:PORT")
        user, _, password = login.partition(":")
        return cls(host, port, unquote(user), unquote(password))

    @property
    def url(self) -> str:
        """The proxy as a URL; its login goes into `headers`, which no error text repeats."""
        return f"http://{bracketed(self.host)}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a CONNECT request."""
        if not self.user:
            return {}
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Proxy-Authorization": f"Basic {login}"}

    @property
    def sdk_option(self) -> dict[str, Any]:
        """The value of the SDK's `http_proxy`."""
        login = {"username": self.user, "password": self.password} if self.user else {}
        return {"proxy_hostname": self.host, "proxy_port": self.port, **login}


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkRoute:
    """The way to a namespace; by default a direct AMQP connection to its own host."""

    websocket: bool = False
    proxy: HttpProxy | None = None
    endpoint: tuple[str, int] | None = None
    """Host and port to connect to in place of the namespace's own (a gateway, a private link)."""

    @classmethod
    def parse(cls, transport: str, proxy: str, endpoint: str) -> NetworkRoute:
        """Return the route of three texts, each of which may be empty; ValueError if one is bad."""
        word = transport.strip().lower()
        if word and word not in TRANSPORTS:
            raise ValueError(f"the transport is {' or '.join(TRANSPORTS)}; got {transport!r:.40}")
        if proxy and word == AMQP:
            raise ValueError("a proxy carries AMQP over WebSocket only: use transport websocket")
        return cls(
            websocket=word == WEBSOCKET or bool(proxy),
            proxy=HttpProxy.parse(proxy) if proxy else None,
            endpoint=host_and_port(endpoint, HTTPS_PORT) if endpoint else None,
        )

    @classmethod
    def of_sdk_options(cls, options: Mapping[str, Any]) -> NetworkRoute:
        """Return the route that the SDK takes with these keywords."""
        given, proxy = options.get("transport_type"), options.get("http_proxy")
        custom = str(options.get("custom_endpoint_address") or "")
        # As in the SDK: a custom endpoint is reached over WebSocket unless a transport is given.
        websocket = getattr(given, "name", None) == SDK_WEBSOCKET or (bool(custom) and not given)
        return cls(
            websocket=websocket or bool(proxy),
            proxy=_proxy_of_sdk(proxy) if proxy else None,
            endpoint=host_and_port(custom, HTTPS_PORT) if custom else None,
        )

    @property
    def text(self) -> str:
        """The route for people; no password. Empty for a direct AMQP connection."""
        parts = [WEBSOCKET] if self.websocket else []
        if self.proxy is not None:
            parts.append(f"proxy {bracketed(self.proxy.host)}:{self.proxy.port}")
        if self.endpoint is not None:
            parts.append(f"endpoint {bracketed(self.endpoint[0])}:{self.endpoint[1]}")
        return ", ".join(parts)


DIRECT: Final = NetworkRoute()


def _proxy_of_sdk(option: Mapping[str, Any]) -> HttpProxy:
    host = str(option.get("proxy_hostname") or "")
    # The SDK's asyncio client wants a URL here, its sync client a host.
    host = urlsplit(host).hostname or "" if "//" in host else host
    port = int(option.get("proxy_port") or 0)
    login = (str(option.get(name) or "") for name in ("username", "password"))
    if not host or not port:
        raise ValueError("http_proxy needs proxy_hostname and proxy_port")
    return HttpProxy(host.strip("[]").lower(), port, *login)
