"""One namespace as users give it to a pair: its address, its credential, and its SDK clients.

    Namespace.from_connection_string(text)
    Namespace("contoso.servicebus.windows.net", DefaultAzureCredential())
    Namespace.of("sb://contoso.servicebus.windows.net?credential=default")

Nothing connects here. Keywords that Twinbus does not know are passed to every SDK client.

A port other than the default (`localhost:5700`, a broker with a certificate) serves everything. The
SDK drops the port of an address with TLS, so its clients get it as `custom_endpoint_address`.
"""

from __future__ import annotations

import os
import ssl
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from twinbus.errors import CredentialError, NamespaceInUseError
from twinbus.lookups import LOOKUPS
from twinbus.namespace.access import NamespaceAccess, is_access_text
from twinbus.namespace.address import (
    HTTPS_PORT,
    TLS_PORT,
    ConnectionString,
    NetworkRoute,
    bracketed,
    host_and_port,
    is_loopback,
    namespace_label,
)
from twinbus.namespace.credentials import (
    AwaitableCredential,
    connection_string_of,
    open_credential,
    require_credential,
    route_of,
)

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient as SyncClient
    from azure.servicebus.aio import ServiceBusClient

ROOTS_VARIABLE: Final = "SSL_CERT_FILE"
"""The variable that names a private certificate authority to other programs too."""

BACKSTOP_S: Final = 2.0
"""The SDK's own bound of an attempt ends this much after ours. Ours must end first: only a call
that is still alive can tell which socket to close."""

RETRY_OPTIONS: Final = (
    *("retry_total", "retry_backoff_factor", "retry_backoff_max", "retry_mode", "try_timeout"),
)
"""Keywords of the SDK's client that a pair's senders do not use."""

RETRIES_OFF: Final = {"retry_total": 0, "retry_backoff_factor": 0.0}
"""Twinbus owns the retries (docs/failures.md)."""

KEEP_ALIVE_OFF: Final[Mapping[str, Any]] = {"keep_alive": 0}
"""Passed to every SDK sender. The SDK's keep-alive task sleeps one second at a time and reports an
error only after its last sleep, so a killed primary would be noticed up to a second late. A
thousand idle senders would also wake a thousand times a second. The pool reopens idle senders."""


class Namespace:
    """A Service Bus namespace and its credential; part of at most one pair."""

    def __init__(
        self,
        fully_qualified_namespace: str,
        credential: Any,
        name: str | None = None,
        **sdk_options: Any,
    ) -> None:
        """Take any credential of the SDK; `name` replaces the label of the host."""
        require_credential(credential)
        host, port = host_and_port(fully_qualified_namespace, TLS_PORT)
        # Azure's resource manager writes 443 after a host name; it does not serve AMQP.
        self._set(host, TLS_PORT if port == HTTPS_PORT else port, name, sdk_options, credential)

    @classmethod
    def from_connection_string(cls, text: str, name: str | None = None, **sdk_options: Any) -> Self:
        """Return the namespace of a connection string."""
        parts = ConnectionString.parse(text)
        namespace = cls.__new__(cls)
        label = parts.name if name is None else name
        namespace._set(parts.host, parts.port, label, sdk_options)
        namespace.connection_string = text
        namespace.parts = parts
        namespace.emulator = parts.emulator
        return namespace

    @classmethod
    def from_access(cls, access: NamespaceAccess) -> Self:
        """Return the namespace that an access describes, and open its credential source.

        CredentialError, in one line, if the source cannot be opened.
        """
        roots = os.environ.get(ROOTS_VARIABLE)
        trust = {"connection_verify": roots} if roots else {}
        text = connection_string_of(access)
        if text is None:
            credential = open_credential(access.credential)
            namespace = cls(access.address, credential, access.name, **trust)
        else:
            namespace = cls.from_connection_string(text, access.name, **trust)
            if namespace.host != access.host:
                raise CredentialError(
                    f"the connection string in {access.credential} is of {namespace.host}, not of"
                    f" {access.host}"
                )
        namespace.access = access
        namespace.route = route_of(access)
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
        self.label = namespace_label(host, port, name)
        ignored = [option for option in RETRY_OPTIONS if option in sdk_options]
        if ignored:
            warnings.warn(
                f"{', '.join(ignored)} of a Namespace applies to receivers only; the senders of a"
                " pair retry by SendAvailabilityOptions",
                stacklevel=3,
            )
        self.sdk_options = sdk_options
        self.route = NetworkRoute.of_sdk_options(sdk_options)
        self.access: NamespaceAccess | None = None
        """The description it was made from; None: it was made from other objects."""
        self._is_paired = False
        self._certificates: ssl.SSLContext | None = None

    @classmethod
    def of(cls, side: str | Namespace | NamespaceAccess) -> Namespace:
        """Return the namespace of a side as users give it.

        A connection string, sb://HOST?credential=SOURCE, a Namespace, or a NamespaceAccess.
        """
        if isinstance(side, Namespace):
            return side
        if isinstance(side, NamespaceAccess):
            return cls.from_access(side)
        if isinstance(side, str):
            if is_access_text(side):
                return cls.from_access(NamespaceAccess.parse(side))
            return cls.from_connection_string(side)
        raise TypeError(
            "a side of a pair is a connection string, sb://HOST?credential=SOURCE or a Namespace;"
            f" got {type(side).__name__}"
        )

    def __repr__(self) -> str:
        return f"Namespace({self.label}, {self.endpoint})"

    @property
    def endpoint(self) -> str:
        """The address for people; it holds no key."""
        return f"sb://{bracketed(self.host)}:{self.port}"

    @property
    def fully_qualified_namespace(self) -> str:
        """The host as the SDK writes it, with the port of an emulator."""
        host = bracketed(self.host)
        return f"{host}:{self.port}" if self.emulator else host

    @property
    def administration(self) -> str:
        """The host of the administration API, with its port if that is not the default."""
        host = bracketed(self.host)
        return f"{host}:{self.port}" if self.emulator or self._has_own_port else host

    @property
    def signature(self) -> str | None:
        """The shared access signature, if the credential is one."""
        signature: str | None = getattr(self.parts or self.credential, "signature", None)
        return signature

    @property
    def token_credential(self) -> AwaitableCredential | None:
        """The credential in its form for asyncio, if it fetches tokens."""
        has_tokens = hasattr(self.credential, "get_token")
        return AwaitableCredential(self.credential) if has_tokens else None

    @property
    def place(self) -> tuple[str, int]:
        """A value that is equal for two objects of the same namespace."""
        return ("localhost" if is_loopback(self.host) else self.host), self.port

    @property
    def entity_path(self) -> str | None:
        """The one entity that its connection string is for; None: the whole namespace."""
        return None if self.parts is None else self.parts.entity_path

    def claim(self) -> None:
        """Make it part of a pair; NamespaceInUseError if it is part of one already."""
        if self._is_paired:
            raise NamespaceInUseError(
                f"this Namespace object of {self.endpoint} is part of a pair already; make another"
                " one from the same connection string or credential"
            )
        self._is_paired = True

    def release(self) -> None:
        """Undo `claim`: the pair was not made, or was closed."""
        self._is_paired = False

    async def resolve(self) -> None:
        """Return when the host that the SDK's clients connect to has an address.

        It is awaited before a client connects: the SDK itself looks names up on the threads that
        all connections of the event loop share. OSError: the host has none.
        """
        route = self.route
        host = self.host if route.endpoint is None else route.endpoint[0]
        if route.proxy is not None:
            host = route.proxy.host
        try:
            await LOOKUPS.resolved(host)
        except OSError as error:
            raise OSError(f"the address of {host} was not found: {error}") from error

    def bounded_client(self, attempt_timeout_s: float) -> ServiceBusClient:
        """Return a client without retries whose calls end soon after the attempt timeout."""
        return self.client(**bounds(attempt_timeout_s))

    def client(self, **options: Any) -> ServiceBusClient:
        """Return an SDK client; `options` override the user's own."""
        from azure.servicebus.aio import ServiceBusClient

        credential = self.token_credential or self.credential
        made: ServiceBusClient = self._client(ServiceBusClient, credential, options)
        return made

    def sync_client(self, credential: Any = None, **options: Any) -> SyncClient:
        """Return a sync SDK client; `credential` replaces one that works only with asyncio."""
        from azure.servicebus import ServiceBusClient as SyncClient

        made: SyncClient = self._client(SyncClient, credential or self.credential, options)
        return made

    def _client(self, kind: Any, credential: Any, options: Mapping[str, Any]) -> Any:
        merged = {**self._defaults(), **self.sdk_options, **options}
        if merged.get("http_proxy"):
            merged["http_proxy"] = _proxy_option(merged["http_proxy"], kind)
        if self.connection_string is not None:
            return kind.from_connection_string(self.connection_string, **merged)
        return kind(self.fully_qualified_namespace, credential, **merged)

    def certificates(self) -> ssl.SSLContext:
        """Return the trusted certificates, loaded once: the user's own, else the usual roots."""
        given: ssl.SSLContext | None = self.sdk_options.get("ssl_context")
        if given is not None:
            return given
        if self._certificates is None:
            self._certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            roots = self.sdk_options.get("connection_verify") or _usual_roots()
            if roots and not self.emulator:
                self._certificates.load_verify_locations(roots)
            elif not self.emulator:
                self._certificates.load_default_certs()
        return self._certificates

    @property
    def _has_own_port(self) -> bool:
        return not self.emulator and self.port != TLS_PORT

    def _defaults(self) -> dict[str, Any]:
        """Return the SDK options that apply unless the user gave others.

        The certificates: otherwise the SDK loads them for every connection, even one without TLS.
        That blocks the event loop for 40 ms, just when an outage makes every sender reconnect.
        And the route, with the port, which the SDK would drop.
        """
        defaults: dict[str, Any] = {}
        if "uamqp_transport" not in self.sdk_options:
            defaults["ssl_context"] = self.certificates()
        route, place = self.route, self.route.endpoint
        if place is None and self._has_own_port:
            place = self.host, self.port
        if route.proxy is not None:
            defaults["http_proxy"] = route.proxy.sdk_option
        if place is not None:
            defaults["custom_endpoint_address"] = f"sb://{bracketed(place[0])}:{place[1]}"
        if route.websocket or place is not None:
            from azure.servicebus import TransportType

            kinds = TransportType
            defaults["transport_type"] = kinds.AmqpOverWebsocket if route.websocket else kinds.Amqp
        return defaults


def both_sides(
    primary: str | Namespace | NamespaceAccess, secondary: str | Namespace | NamespaceAccess
) -> tuple[Namespace, Namespace]:
    """Return the namespaces of a pair's sides; an error says which side it is about."""
    return _side("primary", primary), _side("secondary", secondary)


def _side(role: str, given: str | Namespace | NamespaceAccess) -> Namespace:
    try:
        return Namespace.of(given)
    except (TypeError, ValueError, CredentialError) as error:
        # Not its own class: that may be one whose constructor wants more than a text.
        [kind] = (one for one in (TypeError, ValueError, CredentialError) if isinstance(error, one))
        raise kind(f"the {role}: {error}") from error.__cause__


def bounds(attempt_timeout_s: float) -> dict[str, Any]:
    """Return the options of a client without retries whose calls end soon after this time."""
    return {**RETRIES_OFF, "try_timeout": attempt_timeout_s + BACKSTOP_S}


def _proxy_option(option: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Return `http_proxy` as this client reads it: asyncio wants a URL, sync code a host."""
    host = str(option["proxy_hostname"]).rpartition("//")[2]
    is_async = ".aio" in kind.__module__
    return {**option, "proxy_hostname": f"http://{bracketed(host)}" if is_async else host}


def _usual_roots() -> str | None:
    """Return certifi's file; None: a machine (a Spark executor) without certifi has its own."""
    try:
        import certifi
    except ImportError:
        return None
    return certifi.where()
