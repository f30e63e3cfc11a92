"""Credentials that the SDK accepts, checked and made usable from asyncio.

    an `AzureNamedKeyCredential`     a key, which signs tokens
    an `AzureSasCredential`          a shared access signature that its owner signed
    a `TokenCredential`              fetches tokens from Microsoft Entra; sync or asyncio
    the same with a `token_type`     as the SDK's own shared-key credential, which signs

They are recognised by their attributes, not by their class, so that a user's own class works too.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from twinbus.namespace.tokens import SAS_TOKEN, WEB_TOKEN, is_signing


def require_credential(credential: Any) -> None:
    """Raise TypeError unless the object is one of the credentials above."""
    if not any(hasattr(credential, one) for one in ("named_key", "signature", "get_token")):
        raise TypeError(
            "a credential is a TokenCredential (azure.identity has many), an AzureSasCredential or"
            f" an AzureNamedKeyCredential; got {type(credential).__name__}. A connection string"
            " goes into Namespace.from_connection_string"
        )


class AwaitableCredential:
    """A TokenCredential for asyncio; a sync credential runs on a thread.

    Without the thread, a fetch over the network would block every other send.
    """

    def __init__(self, credential: Any) -> None:
        self._credential = credential
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
        answer = await asyncio.to_thread(self._credential.get_token, *scopes, **options)
        return await answer if inspect.isawaitable(answer) else answer
