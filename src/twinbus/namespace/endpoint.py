"""Where a namespace is and how to be let in, read from a connection string or a side of a pair.

Tokens come from a *token source*: a key that signs them, a signature that somebody else made, or a
credential that fetches them. Pure, but for that credential: a token's time is an argument. Twinbus
signs its own, because the syphon speaks AMQP without the SDK.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import quote, quote_plus, urlsplit

__all__ = [
    "CredentialTokens",
    "Endpoint",
    "KeyTokens",
    "NamespaceToken",
    "SignatureTokens",
    "TokenSource",
    "endpoint_of",
]

T = TypeVar("T")

PLAIN_PORT: Final = 5672
TLS_PORT: Final = 5671
HTTPS_PORT: Final = 443
SAS_TOKEN: Final = "servicebus.windows.net:sastoken"  # noqa: S105 - a type's name
WEB_TOKEN: Final = "jwt"  # noqa: S105 - a type's name

SCOPE: Final = "https://servicebus.azure.net/.default"
"""What a credential is asked a token for."""

TOKEN_LIFE_S: Final = 3_600
"""How long a token is good for; it is put again long before."""

_EXPIRY: Final = re.compile(r"(?:^|[&\s])se=(\d{1,15})(?:&|$)")


@dataclass(frozen=True, slots=True)
class NamespaceToken:
    """What is shown to `$cbs`, or over HTTP."""

    text: str = field(repr=False)
    expires_at_s: float
    kind: str = SAS_TOKEN

    @property
    def header(self) -> str:
        """The value of an Authorization header."""
        return f"Bearer {self.text}" if self.kind == WEB_TOKEN else self.text


class TokenSource(Protocol):
    """Where tokens come from."""

    @property
    def who(self) -> str:
        """Whose rights they carry, for people; nothing secret."""

    async def token(self, audience: str, now_s: float) -> NamespaceToken:
        """A token for the audience, good at `now_s` (unix seconds)."""


@dataclass(frozen=True, slots=True)
class KeyTokens:
    """Signs with a named key, which is read anew each time: it may be rotated."""

    named_key: Callable[[], tuple[str, str]] = field(repr=False)

    @property
    def who(self) -> str:
        return f"the key {self.named_key()[0]}"

    async def token(self, audience: str, now_s: float) -> NamespaceToken:
        """A signature of an hour."""
        key_name, key = self.named_key()
        expires_at_s = int(now_s) + TOKEN_LIFE_S
        resource = quote_plus(audience)
        signed = f"{resource}\n{expires_at_s}".encode()
        digest = hmac.new(key.encode(), signed, hashlib.sha256).digest()
        signature = quote_plus(base64.b64encode(digest))
        name = quote_plus(key_name)
        text = f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_at_s}&skn={name}"
        return NamespaceToken(text, float(expires_at_s))


@dataclass(frozen=True, slots=True)
class SignatureTokens:
    """A signature that somebody else made, read anew each time: its owner may update it."""

    signature: Callable[[], str] = field(repr=False)

    @property
    def who(self) -> str:
        return "the shared access signature"

    async def token(self, audience: str, now_s: float) -> NamespaceToken:
        """The signature as it is, whatever the audience."""
        text = self.signature()
        found = _EXPIRY.search(text)
        return NamespaceToken(text, float(found[1]) if found else now_s + TOKEN_LIFE_S)


@dataclass(frozen=True, slots=True)
class CredentialTokens:
    """Asks a credential (azure.core's AsyncTokenCredential), which keeps and renews by itself."""

    credential: Any

    @property
    def who(self) -> str:
        return f"the credential {self.credential!r}"

    async def token(self, audience: str, now_s: float) -> NamespaceToken:
        """A web token for all of Service Bus; rights decide what it opens."""
        found = await self.credential.get_token(SCOPE)
        return NamespaceToken(found.token, float(found.expires_on), WEB_TOKEN)


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """One namespace: its address and the way in."""

    host: str
    port: int
    tls: bool
    tokens: TokenSource
    name: str = ""
    """What its owner calls it; empty: as its host is called."""
    certificates: Any = field(default=None, repr=False, compare=False)
    """The `ssl.SSLContext` that says whom to trust; None: the machine's own."""

    @classmethod
    def parse(cls, connection_string: str) -> Endpoint:
        """The endpoint of a Service Bus connection string; ValueError says what it lacks."""
        parts = {}
        for part in connection_string.strip().strip(";").split(";"):
            name, _, value = part.partition("=")
            parts[name.strip().lower()] = value.strip()
        url = urlsplit(parts.get("endpoint", ""))
        if url.scheme.lower() != "sb" or not url.hostname:
            raise ValueError("a connection string needs Endpoint=sb://HOST/; this one has none")
        tls = parts.get("usedevelopmentemulator", "").lower() != "true"
        return cls(
            host=url.hostname,
            port=url.port or (TLS_PORT if tls else PLAIN_PORT),
            tls=tls,
            tokens=_tokens_of(url.hostname, parts),
        )

    @property
    def label(self) -> str:
        """The namespace in a person's words, as backlog queues are called after it (SPEC 2.2)."""
        if self.name:
            return self.name
        is_named = self.host != "localhost" and not self.host.replace(".", "").isdigit()
        return self.host.partition(".")[0] if is_named else f"localhost-{self.port}"

    @property
    def administration(self) -> tuple[str, int, bool]:
        """Host, port and TLS of the administration API: Azure's own port, or the broker's one."""
        if self.tls and self.port == TLS_PORT:
            return self.host, HTTPS_PORT, True
        return self.host, self.port, self.tls

    def audience(self, path: str) -> str:
        """What a token for the entity at `path` is for."""
        place = self.host if self.tls else f"{self.host}:{self.port}"
        return f"sb://{place}/{quote(path)}"

    async def token(self, path: str, now_s: float) -> NamespaceToken:
        """A token for the entity at `path`, good at `now_s` (unix seconds)."""
        return await self.tokens.token(self.audience(path), now_s)


def endpoint_of(side: object) -> Endpoint:
    """The endpoint of a side of a pair: an Endpoint, a connection string, or a Namespace."""
    if isinstance(side, Endpoint):
        return side
    if isinstance(side, str):
        return Endpoint.parse(side)
    text = getattr(side, "connection_string", None)
    name, certificates = str(getattr(side, "label", "")), getattr(side, "certificates", None)
    trust = certificates() if callable(certificates) else None
    if isinstance(text, str):
        return replace(Endpoint.parse(text), name=name, certificates=trust)
    tokens = _tokens_of_credential(side)
    if tokens is None:
        raise TypeError(
            "the syphon signs in as a pair does: give it a connection string, or a Namespace; "
            f"got {type(side).__name__}"
        )
    host, port = str(getattr(side, "host", "")), int(getattr(side, "port", TLS_PORT))
    return Endpoint(host=host, port=port, tls=True, tokens=tokens, name=name, certificates=trust)


def _tokens_of(host: str, parts: dict[str, str]) -> TokenSource:
    signature = parts.get("sharedaccesssignature")
    if signature:
        return SignatureTokens(_Always(signature))
    missing = [n for n in ("SharedAccessKeyName", "SharedAccessKey") if not parts.get(n.lower())]
    if missing:
        raise ValueError(f"the connection string of {host} lacks {', '.join(missing)}")
    return KeyTokens(_Always((parts["sharedaccesskeyname"], parts["sharedaccesskey"])))


def _tokens_of_credential(side: object) -> TokenSource | None:
    credential: Any = getattr(side, "credential", None)
    if hasattr(credential, "named_key"):
        return KeyTokens(lambda: credential.named_key)
    if hasattr(credential, "signature"):
        return SignatureTokens(lambda: credential.signature)
    fetching = getattr(side, "token_credential", None)
    return None if fetching is None else CredentialTokens(fetching)


@dataclass(frozen=True, slots=True)
class _Always(Generic[T]):
    """A secret that does not change; unlike a lambda it compares, and crosses process borders."""

    secret: T = field(repr=False)

    def __call__(self) -> T:
        return self.secret
