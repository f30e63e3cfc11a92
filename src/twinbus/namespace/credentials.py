"""Credentials that the SDK accepts, checked and made usable from asyncio.

    an `AzureNamedKeyCredential`     a key, which signs tokens
    an `AzureSasCredential`          a shared access signature that its owner signed
    a `TokenCredential`              fetches tokens from Microsoft Entra; sync or asyncio
    the same with a `token_type`     as the SDK's own shared-key credential, which signs

They are recognised by their attributes, not by their class, so that a user's own class works too.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from twinbus.namespace.tokens import SAS_TOKEN, WEB_TOKEN, is_signing

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
