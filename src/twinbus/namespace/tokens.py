"""Tokens: shared access signatures, and sources of tokens for connections without the SDK.

A source is a key that signs, a signature that is given, or a credential that fetches. The syphon
signs with the same code by which the broker verifies. Pure, except for the credential; the time is
an argument.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from urllib.parse import quote_plus

from twinbus.errors import MissingRightError, WrongKeyError

SCHEME: Final = "SharedAccessSignature "

WRONG_SIGNATURE: Final = ("InvalidSignature", "SubCode=40103")
"""How Service Bus marks the refusal of a signature, over AMQP and over HTTP."""

_EXPIRY: Final = re.compile(r"(?:^|[&\s])se=(\d{1,15})(?:&|$)")


def sign(audience: str, rule_name: str, key: str, expires_at_s: int) -> str:
    """Return a token for `audience`, a URI such as sb://localhost/orders."""
    resource = quote_plus(audience)
    digest = signature_digest(key, resource, str(expires_at_s))
    signature = quote_plus(base64.b64encode(digest))
    return f"{SCHEME}sr={resource}&sig={signature}&se={expires_at_s}&skn={quote_plus(rule_name)}"


def signature_digest(key: str, resource: str, expiry: str) -> bytes:
    return hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()


def wrong_key_text(endpoint: str, refusal: str) -> str | None:
    """Return the text for a signature that was refused as such, which no right mends; else None."""
    if not any(sign in refusal for sign in WRONG_SIGNATURE):
        return None
    return (
        f"{endpoint} refused the credential: wrong key or wrong key name; copy the connection"
        " string again"
    )


def refusal_error(endpoint: str, refusal: str, otherwise: str) -> MissingRightError:
    """Return the error for a credential that was refused: WrongKeyError, or `otherwise` as text."""
    wrong = wrong_key_text(endpoint, refusal)
    return MissingRightError(otherwise) if wrong is None else WrongKeyError(wrong)


def expiry_of(signature: str) -> float | None:
    """Return when a signature expires, in unix seconds; None if it does not say."""
    found = _EXPIRY.search(signature)
    return float(found[1]) if found else None


def utc_text(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


SAS_TOKEN: Final = "servicebus.windows.net:sastoken"  # noqa: S105 - a type's name
WEB_TOKEN: Final = "jwt"  # noqa: S105 - a type's name

SCOPE: Final = "https://servicebus.azure.net/.default"
"""The scope of a Microsoft Entra token for Service Bus."""

TOKEN_LIFE_S: Final = 3_600
"""Life of a signed token; it is renewed long before its end."""

UNKNOWN_LIFE_S: Final = 300
"""Assumed life of a web token that does not tell its expiry: it is read again after that."""


@dataclass(frozen=True, slots=True)
class NamespaceToken:
    """A token for `$cbs` or for an Authorization header."""

    text: str = field(repr=False)
    expires_at_s: float
    kind: str = SAS_TOKEN

    @property
    def header(self) -> str:
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
        """Return a Microsoft Entra token for Service Bus, or a signature for the audience."""
        if is_signing(self.credential):
            found = await self.credential.get_token(audience)
            return NamespaceToken(found.token, float(found.expires_on))
        found = await self.credential.get_token(SCOPE)
        return NamespaceToken(found.token, float(found.expires_on), WEB_TOKEN)


def is_signing(credential: Any) -> bool:
    """Whether a credential with `get_token` returns shared access signatures, by `token_type`."""
    kind = getattr(credential, "token_type", WEB_TOKEN)
    return (kind.decode() if isinstance(kind, bytes) else str(kind)) == SAS_TOKEN


def tokens_of(source: Any, fetching: Any = None) -> TokenSource | None:
    """Return the tokens of a connection string or of a credential of the SDK.

    `fetching` is the credential's form for asyncio, if it fetches tokens.
    """
    if getattr(source, "signature", None):
        return SignatureTokens(source)
    if hasattr(source, "named_key"):
        return KeyTokens(source)
    return None if fetching is None else CredentialTokens(fetching)


def read_token(text: str, now_s: float) -> NamespaceToken:
    """Return the token in a text: a signature, a web token, or JSON with one and its expiry.

    The JSON is what `az account get-access-token` and the endpoints of managed identities answer.
    ValueError, which repeats nothing of the text, if there is none.
    """
    text = text.strip()
    if text.startswith(SCHEME.strip()):
        return NamespaceToken(text, expiry_of(text) or now_s + TOKEN_LIFE_S)
    expires_at_s: float | None = None
    if text.startswith("{"):
        answer = _json_object(text)
        text = str(answer.get("access_token") or answer.get("accessToken") or "")
        expires_at_s = _number(answer.get("expires_on"))
    if not text or not text.isascii() or any(map(str.isspace, text)):
        raise ValueError("it holds no token")
    if expires_at_s is None:
        expires_at_s = _expiry_of_web_token(text) or now_s + UNKNOWN_LIFE_S
    return NamespaceToken(text, expires_at_s, WEB_TOKEN)


def _expiry_of_web_token(text: str) -> float | None:
    """Return the claim `exp`; None if the token is no JSON web token, or has none."""
    claims = text.split(".")[1] if text.count(".") == 2 else ""
    try:
        decoded = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)).decode()
        return _number(_json_object(decoded).get("exp"))
    except ValueError:
        return None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError("it holds no token: its JSON cannot be read") from None
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
