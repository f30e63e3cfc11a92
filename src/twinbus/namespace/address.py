"""The address of a namespace: host, port, label, connection string, and the route to it. Pure.

`localhost`, `127.0.0.1`, `[::1]:5672` and `contoso.servicebus.windows.net` are parsed only here, so
that a pair, its syphon and the commands agree on the name of a namespace. A `NetworkRoute` is made
from the options of a command or from the SDK's keywords, so that the SDK's clients and the
connections without the SDK take the same way.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import unquote, urlsplit

TLS_PORT: Final = 5671
PLAIN_PORT: Final = 5672
"""Default ports: AMQP over TLS, and AMQP without TLS for a development emulator."""

LABEL_CHARACTERS: Final = frozenset("-._") | frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
)
LABEL_LENGTH_MAX = 200
"""Leaves room for the rest of a backlog queue's path, which has at most 260 characters."""


def host_and_port(endpoint: str, default_port: int) -> tuple[str, int]:
    """Return the host, in lower case and without brackets, and the port of an address or URL."""
    before, slashes, after = endpoint.strip().partition("//")
    bare = (after if slashes else before).partition("/")[0]
    host, port = bare, ""
    if bare.startswith("["):
        host, _, rest = bare[1:].partition("]")
        port = rest.removeprefix(":")
    elif bare.count(":") == 1:
        host, _, port = bare.partition(":")
    if not host or (port and not (port.isdecimal() and 0 < int(port) < 65_536)):
        raise ValueError(f"a namespace is HOST or HOST:PORT; got {endpoint!r}")
    return host.lower(), int(port) if port else default_port


def bracketed(host: str) -> str:
    """Return the host as a URL spells it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Return whether the host is this machine, by its name or by its address."""
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def namespace_label(host: str, port: int, name: str | None = None) -> str:
    """Return the label that starts the paths of the namespace's backlog queues."""
    if name is not None:
        if not 0 < len(name) <= LABEL_LENGTH_MAX or not LABEL_CHARACTERS.issuperset(name):
            raise ValueError(
                f"name must be 1 to {LABEL_LENGTH_MAX} letters, digits, '-', '.' or '_', "
                f"because the paths of backlog queues start with it; got {name!r}"
            )
        return name
    host = host.strip("[]").lower()
    if host == "localhost" or _is_address(host):
        return f"localhost-{port}"
    return host.partition(".")[0]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """A parsed connection string: the address and either a key or a signature."""

    host: str
    port: int
    key_name: str | None
    key: str | None = field(repr=False)
    signature: str | None = field(repr=False)
    emulator: bool
    """`UseDevelopmentEmulator=true`: no TLS, and administration over plain HTTP."""
    entity_path: str | None = None
    """The one entity that the string is for; None: the whole namespace."""
    name: str | None = None
    """The label behind `#` of the Endpoint, which an embedded broker puts there."""

    @property
    def named_key(self) -> tuple[str, str]:
        """The key with its name, as a credential of the SDK has it; not for a signature."""
        assert self.key_name is not None
        assert self.key is not None
        return self.key_name, self.key

    @classmethod
    def parse(cls, text: str) -> ConnectionString:
        """Parse the text; a ValueError says what is missing and never repeats a key."""
        parts = _parts(text)
        endpoint = parts.get("endpoint", "")
        if not endpoint.lower().startswith("sb://"):
            raise ValueError(
                "a connection string needs Endpoint=sb://HOST; "
                + ("its Endpoint starts otherwise" if endpoint else "this one has no Endpoint")
            )
        emulator = parts.get("usedevelopmentemulator", "").lower() == "true"
        endpoint, _, name = endpoint.partition("#")
        host, port = host_and_port(endpoint, PLAIN_PORT if emulator else TLS_PORT)
        parsed = cls(
            host=host,
            port=port,
            key_name=parts.get("sharedaccesskeyname"),
            key=parts.get("sharedaccesskey"),
            signature=parts.get("sharedaccesssignature"),
            emulator=emulator,
            entity_path=parts.get("entitypath") or None,
            name=namespace_label(host, port, name) if name else None,
        )
        if not parsed.signature and not (parsed.key_name and parsed.key):
            raise ValueError(
                f"the connection string of {host} has neither SharedAccessKeyName with"
                " SharedAccessKey nor SharedAccessSignature; copy it whole"
            )
        return parsed


def _parts(text: str) -> dict[str, str]:
    if not text.strip():
        raise ValueError("the connection string is empty")
    if "=" not in text:
        # Never repeated: it may be a token or a key.
        raise ValueError(
            "this is no connection string (NAME=VALUE;NAME=VALUE...); a host name needs a"
            " credential with it: sb://HOST?credential=default, or in Python"
            " Namespace(HOST, credential)"
        )
    parts: dict[str, str] = {}
    for part in text.strip().strip(";").split(";"):
        name, separator, value = part.partition("=")
        if not separator:
            # The part itself may be a key that lost its name: it must not be printed.
            raise ValueError("a connection string is NAME=VALUE;NAME=VALUE...; one part has no '='")
        parts[name.strip().lower()] = value.strip()
    return parts


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
        if not self.user:
            return {}
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Proxy-Authorization": f"Basic {login}"}

    @property
    def sdk_option(self) -> dict[str, Any]:
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
