"""One namespace as a side of a pair: where it is, how to get in, and its clients of the SDK.

    Namespace.from_connection_string(text)
    Namespace("contoso.servicebus.windows.net", DefaultAzureCredential())

Nothing is connected here. Keywords of the SDK's client that are none of ours are kept and passed
to every client that is made.

A port of its own (`localhost:5700`, a broker with a certificate) is one port for everything. The
SDK drops the port of an address with TLS, so its clients are given it as `custom_endpoint_address`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Self

import certifi

from twinbus.errors import NamespaceInUseError
from twinbus.namespace.credentials import AwaitableCredential, require_credential
from twinbus.pairing.core.backlog import backlog_label

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient as SyncClient
    from azure.servicebus.aio import ServiceBusClient

__all__ = ["ConnectionString", "Namespace"]

PORT: Final = 5671
EMULATOR_PORT: Final = 5672
"""Where a namespace listens that names no port: with TLS, and the development emulator without."""

HTTPS_PORT: Final = 443
"""What Azure's resource manager writes behind a namespace's name; AMQP is not spoken there."""

BACKSTOP_S: Final = 2.0
"""The SDK's own bound of an attempt lies this far past ours, which is the one that is meant: only a
call that is still alive can be asked which socket to close."""

RETRIES_OFF: Final = {"retry_total": 0, "retry_backoff_factor": 0.0}
"""Twinbus owns the retries (SPEC 3)."""

KEEP_ALIVE_OFF: Final[Mapping[str, Any]] = {"keep_alive": 0}
"""Given to every sender of the SDK: its keep-alive task sleeps a second at a time, and an error is
raised only after its last sleep, so that a killed primary would be known up to a second late. And a
thousand idle senders would wake a thousand times a second. A pool opens anew what was idle."""


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """The parts of a connection string that matter here."""

    host: str
    port: int
    key_name: str | None
    key: str | None
    signature: str | None
    entity_path: str | None
    emulator: bool
    """`UseDevelopmentEmulator=true`: no TLS, and administration over plain HTTP."""

    @classmethod
    def parse(cls, text: str) -> ConnectionString:
        """The parts; ValueError, which never repeats a key, says what is missing."""
        parts = _parts(text)
        endpoint = parts.get("endpoint")
        if not endpoint:
            raise ValueError(
                "a connection string begins with Endpoint=sb://HOST; this one has no Endpoint"
            )
        emulator = parts.get("usedevelopmentemulator", "").lower() == "true"
        host, port = _host_and_port(endpoint, EMULATOR_PORT if emulator else PORT)
        parsed = cls(
            host=host,
            port=port,
            key_name=parts.get("sharedaccesskeyname"),
            key=parts.get("sharedaccesskey"),
            signature=parts.get("sharedaccesssignature"),
            entity_path=parts.get("entitypath"),
            emulator=emulator,
        )
        if not parsed.signature and not (parsed.key_name and parsed.key):
            raise ValueError(
                f"the connection string of {host} has neither SharedAccessKeyName with"
                " SharedAccessKey nor SharedAccessSignature; copy it whole"
            )
        return parsed


class Namespace:
    """A Service Bus namespace and the way into it; part of one pair at most."""

    def __init__(
        self,
        fully_qualified_namespace: str,
        credential: Any,
        name: str | None = None,
        **sdk_options: Any,
    ) -> None:
        """`credential` is any that the SDK takes; backlog queues are called after `name`."""
        require_credential(credential)
        host, port = _host_and_port(fully_qualified_namespace, PORT)
        self._set(host, PORT if port == HTTPS_PORT else port, name, sdk_options, credential)

    @classmethod
    def from_connection_string(cls, text: str, name: str | None = None, **sdk_options: Any) -> Self:
        """The namespace that a connection string leads to."""
        parts = ConnectionString.parse(text)
        namespace = cls.__new__(cls)
        namespace._set(parts.host, parts.port, name, sdk_options)
        namespace.connection_string = text
        namespace.parts = parts
        namespace.emulator = parts.emulator
        return namespace

    def _set(
        self,
        host: str,
        port: int,
        name: str | None,
        sdk_options: Mapping[str, Any],
        credential: Any = None,
    ) -> None:
        self.host, self.port = host, port
        self.credential = credential
        self.connection_string: str | None = None
        self.parts: ConnectionString | None = None
        self.emulator = False
        self.label = backlog_label(host, port, name)
        self.sdk_options = sdk_options
        self._is_paired = False
        self._certificates: ssl.SSLContext | None = None

    @classmethod
    def of(cls, side: str | Namespace) -> Namespace:
        """A side of a pair as users give it: a connection string, or a Namespace."""
        if isinstance(side, Namespace):
            return side
        if isinstance(side, str):
            return cls.from_connection_string(side)
        raise TypeError(
            f"a side of a pair is a connection string or a Namespace; got {type(side).__name__}"
        )

    def __repr__(self) -> str:
        return f"Namespace({self.label}, {self.endpoint})"

    @property
    def endpoint(self) -> str:
        """Where it is, for people: no key is part of it."""
        return f"sb://{_bracketed(self.host)}:{self.port}"

    @property
    def fully_qualified_namespace(self) -> str:
        """The host, with its port where that is not the usual one, as the SDK writes it."""
        host = _bracketed(self.host)
        return f"{host}:{self.port}" if self.emulator else host

    @property
    def administration(self) -> str:
        """The host, and port where it has one of its own, of the administration API."""
        host = _bracketed(self.host)
        return f"{host}:{self.port}" if self.emulator or self._has_own_port else host

    @property
    def signature(self) -> str | None:
        """The shared access signature that it is entered with, if it is one."""
        if self.parts is not None:
            return self.parts.signature
        signature: str | None = getattr(self.credential, "signature", None)
        return signature

    @property
    def token_credential(self) -> AwaitableCredential | None:
        """What fetches tokens for it, if something does."""
        has_tokens = hasattr(self.credential, "get_token")
        return AwaitableCredential(self.credential) if has_tokens else None

    @property
    def place(self) -> tuple[str, int]:
        """Equal for two namespaces that are the same one."""
        loopback = self.host == "localhost" or _is_loopback(self.host)
        return ("localhost" if loopback else self.host), self.port

    def claim(self) -> None:
        """Make it part of a pair; NamespaceInUseError if it is part of one already (SPEC 2.1)."""
        if self._is_paired:
            raise NamespaceInUseError(
                f"this Namespace object of {self.endpoint} is part of a pair already; make another"
                " one from the same connection string or credential"
            )
        self._is_paired = True

    def release(self) -> None:
        """Undo `claim`: the pair did not come about, or was closed."""
        self._is_paired = False

    def bounded_client(self, attempt_timeout_s: float) -> ServiceBusClient:
        """A client whose calls are single attempts: no retries, none much longer than the time."""
        return self.client(**RETRIES_OFF, try_timeout=attempt_timeout_s + BACKSTOP_S)

    def client(self, **options: Any) -> ServiceBusClient:
        """A client of the SDK as the user would have made it, `options` over the user's own."""
        from azure.servicebus.aio import ServiceBusClient

        merged = {**self._defaults(), **self.sdk_options, **options}
        if self.connection_string is not None:
            return ServiceBusClient.from_connection_string(self.connection_string, **merged)
        credential: Any = self.token_credential or self.credential
        return ServiceBusClient(self.fully_qualified_namespace, credential, **merged)

    def sync_client(self, credential: Any = None) -> SyncClient:
        """The same for sync code; `credential` instead of one that is made for asyncio."""
        from azure.servicebus import ServiceBusClient as SyncClient

        merged = {**self._defaults(), **self.sdk_options}
        if self.connection_string is not None:
            return SyncClient.from_connection_string(self.connection_string, **merged)
        credential = credential or self.credential
        return SyncClient(self.fully_qualified_namespace, credential, **merged)

    def certificates(self) -> ssl.SSLContext:
        """The certificates that are trusted, loaded once: the user's own, else the usual roots."""
        given: ssl.SSLContext | None = self.sdk_options.get("ssl_context")
        if given is not None:
            return given
        if self._certificates is None:
            self._certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if not self.emulator:
                roots = self.sdk_options.get("connection_verify") or certifi.where()
                self._certificates.load_verify_locations(roots)
        return self._certificates

    @property
    def _has_own_port(self) -> bool:
        return not self.emulator and self.port != PORT

    def _defaults(self) -> dict[str, Any]:
        """What the SDK is given unless the user gave something else.

        The certificates, because left alone it loads them for every connection, even one without
        TLS: 40 ms in which the event loop stands still, just when an outage makes everyone connect
        anew. And the port, which it would drop.
        """
        defaults: dict[str, Any] = {}
        if "uamqp_transport" not in self.sdk_options:
            defaults["ssl_context"] = self.certificates()
        if self._has_own_port and "custom_endpoint_address" not in self.sdk_options:
            from azure.servicebus import TransportType

            defaults["custom_endpoint_address"] = self.endpoint
            defaults["transport_type"] = TransportType.Amqp
        return defaults


def _parts(text: str) -> dict[str, str]:
    if not text.strip():
        raise ValueError("the connection string is empty")
    parts: dict[str, str] = {}
    for part in text.strip().strip(";").split(";"):
        name, separator, value = part.partition("=")
        if not separator:
            # The part itself may be a key that lost its name: it must not be printed.
            raise ValueError("a connection string is NAME=VALUE;NAME=VALUE...; one part has no '='")
        parts[name.strip().lower()] = value.strip()
    return parts


def _host_and_port(endpoint: str, default_port: int) -> tuple[str, int]:
    bare = endpoint.strip().partition("//")[2] or endpoint.strip()
    bare = bare.partition("/")[0]
    host, port = bare, ""
    if bare.startswith("["):
        host, _, rest = bare[1:].partition("]")
        port = rest.removeprefix(":")
    elif bare.count(":") == 1:
        host, _, port = bare.partition(":")
    if not host or (port and not (port.isdecimal() and 0 < int(port) < 65_536)):
        raise ValueError(f"a namespace is HOST or HOST:PORT; got {endpoint!r}")
    return host.lower(), int(port) if port else default_port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
