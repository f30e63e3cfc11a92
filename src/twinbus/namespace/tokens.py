"""Token sources: a key that signs tokens, a signature that is given, a credential that fetches.

Pure, except for the credential; the time is an argument. The syphon needs these because it speaks
AMQP without the SDK.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from twinbus.namespace.signatures import expiry_of, sign

SAS_TOKEN: Final = "servicebus.windows.net:sastoken"  # noqa: S105 - a type's name
WEB_TOKEN: Final = "jwt"  # noqa: S105 - a type's name

SCOPE: Final = "https://servicebus.azure.net/.default"
"""The scope of a Microsoft Entra token for Service Bus."""

TOKEN_LIFE_S: Final = 3_600
"""Life of a signed token; it is renewed long before its end."""


@dataclass(frozen=True, slots=True)
class NamespaceToken:
    """A token for `$cbs` or for an Authorization header."""

    text: str = field(repr=False)
    expires_at_s: float
    kind: str = SAS_TOKEN

    @property
    def header(self) -> str:
        """The value of an Authorization header."""
        return f"Bearer {self.text}" if self.kind == WEB_TOKEN else self.text


class TokenSource(Protocol):
    """Returns a token for each audience."""

    @property
    def who(self) -> str:
        """The owner of the rights, for people; no secret."""

    async def token(self, audience: str, now_s: float) -> NamespaceToken:
        """Return a token for the audience that is valid at `now_s` (unix seconds)."""


@dataclass(frozen=True, slots=True)
class KeyTokens:
    """Signs with a named key, which is read for each token because it may be rotated."""

    source: Any = field(repr=False)
    """What has the key as `named_key`: a connection string or a credential of the SDK."""

    @property
    def who(self) -> str:
        return f"the key {self.source.named_key[0]}"

    async def token(self, audience: str, now_s: float) -> NamespaceToken:
        """Return a signature that is valid for an hour."""
        key_name, key = self.source.named_key
        expires_at_s = int(now_s) + TOKEN_LIFE_S
        return NamespaceToken(sign(audience, key_name, key, expires_at_s), float(expires_at_s))


@dataclass(frozen=True, slots=True)
class SignatureTokens:
    """Returns a given signature, which is read for each token because its owner may update it."""

    source: Any = field(repr=False)
    """What has the `signature`: a connection string or a credential of the SDK."""

    @property
    def who(self) -> str:
        return "the shared access signature"

    async def token(self, audience: str, now_s: float) -> NamespaceToken:
        """Return the signature as it is, for any audience."""
        text = self.source.signature
        return NamespaceToken(text, expiry_of(text) or now_s + TOKEN_LIFE_S)


@dataclass(frozen=True, slots=True)
class CredentialTokens:
    """Asks a credential (azure.core's AsyncTokenCredential), which caches and renews by itself."""

    credential: Any

    @property
    def who(self) -> str:
        return f"the credential {self.credential!r}"

    async def token(self, audience: str, now_s: float) -> NamespaceToken:
        """Return a Microsoft Entra token for Service Bus; role assignments limit its rights."""
        found = await self.credential.get_token(SCOPE)
        return NamespaceToken(found.token, float(found.expires_on), WEB_TOKEN)


def tokens_of(source: Any, fetching: Any = None) -> TokenSource | None:
    """Return the tokens of a connection string or of a credential of the SDK.

    `fetching` is the credential's form for asyncio, if it fetches tokens.
    """
    if getattr(source, "signature", None):
        return SignatureTokens(source)
    if hasattr(source, "named_key"):
        return KeyTokens(source)
    return None if fetching is None else CredentialTokens(fetching)
