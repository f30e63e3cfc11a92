"""Credentials that the SDK accepts, usable from asyncio, and the sources that `access` names.

    an `AzureNamedKeyCredential`     a key, which signs tokens
    an `AzureSasCredential`          a shared access signature that its owner signed
    a `TokenCredential`              fetches tokens from Microsoft Entra; sync or asyncio
    the same with a `token_type`     as the SDK's own shared-key credential, which signs

They are recognised by their attributes, not by their class, so that a user's own class works too.
A `StoredToken` is a credential of its own, for the SDK and for connections without it. It needs
neither azure-core nor azure-identity, so that a Spark executor can use it with this package alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from twinbus.errors import CredentialError
from twinbus.extras import install_command
from twinbus.namespace.access import ENVIRONMENT, FILE, MANAGED_IDENTITY, NamespaceAccess
from twinbus.namespace.address import NetworkRoute
from twinbus.namespace.tokens import SAS_TOKEN, WEB_TOKEN, NamespaceToken, is_signing, read_token

THREADS_MAX: Final = 4
"""Fetches of one sync credential at a time; more wait for these."""


def require_credential(credential: Any) -> None:
    """Raise TypeError unless the object is one of the credentials above."""
    if not any(hasattr(credential, one) for one in ("named_key", "signature", "get_token")):
        raise TypeError(
            "a credential is a TokenCredential (azure.identity has many), an AzureSasCredential or"
            f" an AzureNamedKeyCredential; got {type(credential).__name__}. A connection string"
            " goes into Namespace.from_connection_string"
        )


class AwaitableCredential:
    """A TokenCredential for asyncio; a sync credential runs on threads of its own.

    Without them, a fetch over the network would block every other send; on the threads that all
    share, a credential of the primary that hangs would block the secondary's.
    """

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        """None: nothing is fetched now, and no thread is left."""
        self._fetches = 0
        self.is_async = inspect.iscoroutinefunction(credential.get_token)

    @property
    def token_type(self) -> bytes:
        """The type of its tokens, by which the SDK puts them; web tokens unless it says so."""
        return SAS_TOKEN.encode() if is_signing(self._credential) else WEB_TOKEN.encode()

    def __repr__(self) -> str:
        return type(self._credential).__name__

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        """Return a token for the scopes, as azure.core's `AccessToken`."""
        if self.is_async:
            return await self._credential.get_token(*scopes, **options)
        answer = await self._on_thread(lambda: self._credential.get_token(*scopes, **options))
        return await answer if inspect.isawaitable(answer) else answer

    async def _on_thread(self, fetch: Callable[[], Any]) -> Any:
        context = contextvars.copy_context()
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS_MAX, "twinbus token")
            self._fetches += 1
            fetched = self._threads.submit(context.run, fetch)
        fetched.add_done_callback(self._fetched)
        return await asyncio.wrap_future(fetched)

    def _fetched(self, _: Future[Any]) -> None:
        """Let the threads end when the last fetch has ended; called on any thread."""
        with self._lock:
            self._fetches -= 1
            if not self._fetches and self._threads is not None:
                self._threads.shutdown(wait=False)
                self._threads = None


TOKEN_BYTES_MAX: Final = 64 * 1024
"""A token has at most a few thousand characters; a larger file is another file."""

_IDENTITY: Final = {
    "default": "DefaultAzureCredential",
    MANAGED_IDENTITY: "ManagedIdentityCredential",
    "workload-identity": "WorkloadIdentityCredential",
}


class FetchedToken(NamedTuple):
    """A token as the SDK takes it from a credential: azure.core's `AccessToken`."""

    token: str
    expires_on: int

    def __repr__(self) -> str:
        return f"FetchedToken(expires_on={self.expires_on})"


class StoredToken:
    """A bearer or SAS token that another program keeps fresh; it is read for each use.

    If it cannot be read (a file that is being replaced), the last one serves until it expires.
    """

    def __init__(self, place: str, read: Callable[[], str]) -> None:
        """`place` is for people. CredentialError if there is no token."""
        self._place = place
        self._read = read
        self._last: NamespaceToken | None = None
        self._current()

    def __repr__(self) -> str:
        return self._place

    @property
    def token_type(self) -> bytes:
        return self._current().kind.encode()

    @property
    def signature(self) -> str | None:
        """The token, if it is a shared access signature."""
        token = self._current()
        return token.text if token.kind == SAS_TOKEN else None

    def get_token(self, *_: str, **__: Any) -> FetchedToken:
        token = self._current()
        return FetchedToken(token.text, int(token.expires_at_s))

    def _current(self) -> NamespaceToken:
        now_s = time.time()
        try:
            self._last = read_token(self._read(), now_s)
        except (OSError, ValueError) as error:
            if self._last is None or now_s >= self._last.expires_at_s:
                why = getattr(error, "strerror", None) or str(error)
                raise CredentialError(f"{self._place} gives no token: {why}") from None
        return self._last


def open_credential(source: str) -> Any:
    """Return the credential of a source other than a connection string.

    CredentialError, in one line, if azure-identity is missing or the source has no token.
    """
    kind, _, rest = source.partition(":")
    if kind == FILE:
        return StoredToken(f"the file {rest}", lambda: _read_file(Path(rest)))
    if kind == ENVIRONMENT:
        return StoredToken(f"the variable {rest}", lambda: _variable(rest))
    try:
        identity = import_module("azure.identity")
    except ImportError:
        raise CredentialError(
            f"the credential {kind} needs azure-identity: {install_command('identity')}"
        ) from None
    options = {"client_id": rest} if kind == MANAGED_IDENTITY and rest else {}
    try:
        return getattr(identity, _IDENTITY[kind])(**options)
    except ValueError as error:
        # A workload identity without its variables.
        text = str(error).strip().splitlines()[0]
        raise CredentialError(f"the credential {kind} cannot be opened: {text}") from None


def connection_string_of(access: NamespaceAccess) -> str | None:
    """Return the connection string of an access, its own or that of its variable; None: a token."""
    if access.connection_string:
        return access.connection_string
    kind, _, name = access.credential.partition(":")
    if kind != ENVIRONMENT:
        return None
    try:
        text = _variable(name)
    except OSError as error:
        raise CredentialError(f"the variable {name} gives no credential: {error}") from None
    return text if "endpoint=" in text.lower() else None


def route_of(access: NamespaceAccess) -> NetworkRoute:
    """Return the route of an access; a proxy that is in a variable is read here."""
    kind, _, name = access.proxy.partition(":")
    if kind != ENVIRONMENT:
        return access.route(access.proxy)
    try:
        return access.route(_variable(name))
    except (OSError, ValueError) as error:
        raise CredentialError(f"the variable {name} gives no proxy: {error}") from None


def _variable(name: str) -> str:
    text = os.environ.get(name, "").strip()
    if not text:
        raise FileNotFoundError("it is not set")
    return text


def _read_file(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(TOKEN_BYTES_MAX + 1)
    if len(content) > TOKEN_BYTES_MAX:
        raise ValueError(f"it has more than {TOKEN_BYTES_MAX} bytes")
    return content.decode("utf-8", "replace")
