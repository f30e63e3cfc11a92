"""The SDK's administration client for any namespace and any credential that a pair may have.

On its own it has https on port 443 built in and knows a key in a connection string or a token
credential. What is added here is in its transport, the part that users may replace: plain HTTP for
`UseDevelopmentEmulator`, the user's own certificates, a header for shared access signatures, and
the route of the namespace: a proxy, another endpoint.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import aiohttp
from aiohttp.resolver import ThreadedResolver
from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from twinbus.lookups import LOOKUPS
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.address import bracketed
from twinbus.namespace.tokens import is_signing

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult

    from twinbus.ledger.requests import BilledRequests
    from twinbus.namespace.namespace import Namespace

REFUSED: Final = 400
"""The first HTTP status of a request that is not carried out."""

SILENCE_S: Final = 30.0
"""A pair bounds its calls itself, more tightly. The SDK's own bound is 5 minutes, in which a person
at a command line has long given up."""


def administration_client(
    namespace: Namespace, requests: BilledRequests | None = None
) -> ServiceBusAdministrationClient:
    """A client of the namespace's administration, to be entered and left; without retries.

    `requests` records what is billed; None: the caller does.
    """
    options: dict[str, Any] = {"retry_total": 0, "transport": _Transport(namespace, requests)}
    credential: Any = namespace.token_credential
    if namespace.signature is not None or is_signing(credential):
        credential = _InHeader()
    if credential is not None:
        return ServiceBusAdministrationClient(namespace.administration, credential, **options)
    # The client knows a key only from a connection string.
    name, key = (namespace.parts or namespace.credential).named_key
    text = (
        f"Endpoint=sb://{namespace.administration}/;SharedAccessKeyName={name};"
        f"SharedAccessKey={key}"
    )
    return ServiceBusAdministrationClient.from_connection_string(text, **options)


class _Transport(AioHttpTransport):  # type: ignore[misc]  # untyped in azure-core
    """The SDK's transport as the namespace wants it."""

    def __init__(self, namespace: Namespace, requests: BilledRequests | None) -> None:
        super().__init__(connection_timeout=SILENCE_S, read_timeout=SILENCE_S)
        self.session: aiohttp.ClientSession | None
        self._namespace = namespace
        self._requests = requests

    async def open(self) -> None:
        """Open a session that trusts whom the namespace trusts."""
        if self.session is None and not self._has_been_opened:
            self.session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    ssl=self._namespace.certificates(), resolver=_OwnThreads()
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=True,
            )
        await super().open()

    async def send(self, request: Any, **config: Any) -> Any:
        if self._namespace.emulator:
            request.url = request.url.replace("https://", "http://", 1)
        signature = self._namespace.signature
        if signature is None and is_signing(self._namespace.token_credential):
            token = await endpoint_of(self._namespace).token("", time.time())
            signature = token.header
        if signature is not None:
            # As the service wants it; the client would write "Bearer" in front of it.
            request.headers["Authorization"] = signature
        route = self._namespace.route
        if route.endpoint is not None:
            host, port, _ = endpoint_of(self._namespace).administration
            parts = urlsplit(request.url)
            request.headers["Host"] = parts.netloc
            request.url = urlunsplit(parts._replace(netloc=f"{bracketed(host)}:{port}"))
        if route.proxy is not None:
            config |= {"proxy": route.proxy.url, "proxy_headers": route.proxy.headers}
        if self._requests is None:
            return await super().send(request, **config)
        path = unquote(urlsplit(request.url).path).strip("/")
        try:
            answer = await super().send(request, **config)
        except AzureError as error:
            self._requests.made(path, request.method, str(error), is_known=False)
            raise
        status = int(answer.status_code)
        self._requests.made(path, request.method, f"status {status}" if status >= REFUSED else None)
        return answer


class _OwnThreads(ThreadedResolver):
    """Looks up the hosts of a session; one that hangs holds no thread that other hosts need."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        await LOOKUPS.resolved(host)
        return await super().resolve(host, port, family)


class _InHeader:
    """Stands where the client wants a credential, while the transport writes the header."""

    async def get_token(self, *_: str, **__: Any) -> AccessToken:
        """Nothing that is ever sent."""
        return AccessToken("", int(time.time()) + 3_600)
