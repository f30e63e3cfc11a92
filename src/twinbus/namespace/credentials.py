"""The ways into a namespace that the SDK knows, told apart, and made fit for asyncio.

    an `AzureNamedKeyCredential`     a key, which signs tokens
    an `AzureSasCredential`          a shared access signature: a token that somebody else signed
    a `TokenCredential`              asks Microsoft Entra for tokens; for sync code or for asyncio

They are told by what they have, not by their class, so that one of the user's own is as good.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from datetime import UTC, datetime
from typing import Any, Final

from twinbus.pairing.core.classify import TOKEN_REFUSALS

__all__ = ["AwaitableCredential", "expiry_of", "refused_token", "require_credential", "utc"]

_EXPIRY: Final = re.compile(r"(?:^|[&\s])se=(\d{1,15})(?:&|$)")


def require_credential(credential: Any) -> None:
    """TypeError unless it is one of the above."""
    if not any(hasattr(credential, one) for one in ("named_key", "signature", "get_token")):
        raise TypeError(
            "a credential is a TokenCredential (azure.identity has many), an AzureSasCredential or"
            f" an AzureNamedKeyCredential; got {type(credential).__name__}. A connection string"
            " goes into Namespace.from_connection_string"
        )


def expiry_of(signature: str) -> float | None:
    """When a shared access signature ends, in unix seconds; None: it does not say."""
    found = _EXPIRY.search(signature)
    return float(found[1]) if found else None


def refused_token(error: BaseException) -> str | None:
    """Why a namespace did not take a token, in its own words; None: that is not the error.

    The SDK says "Service Bus has encountered an error" and keeps the reason inside.
    """
    inside = getattr(error, "inner_exception", None)
    if type(inside).__name__ not in TOKEN_REFUSALS:
        return None
    said = getattr(inside, "status_description", None) or getattr(inside, "description", None)
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said or "refused")
    return f"the token was not accepted: {' '.join(text.split())}"


def utc(at_s: float) -> str:
    """A time for people."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class AwaitableCredential:
    """A TokenCredential for asyncio, whichever kind it was; one for sync code gets a thread.

    Without the thread a fetch over the network would stand in the way of every other send.
    """

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        self.is_async = inspect.iscoroutinefunction(credential.get_token)

    def __repr__(self) -> str:
        return type(self._credential).__name__

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        """A token for the scopes, as azure.core's `AccessToken`."""
        if self.is_async:
            return await self._credential.get_token(*scopes, **options)
        answer = await asyncio.to_thread(self._credential.get_token, *scopes, **options)
        return await answer if inspect.isawaitable(answer) else answer
