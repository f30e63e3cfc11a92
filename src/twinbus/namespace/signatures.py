"""Shared access signatures: how one is made, and when one ends. Pure.

The syphon signs with the same code by which the broker verifies.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from datetime import UTC, datetime
from typing import Final
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
    """Return the HMAC of an encoded audience and an expiry in unix seconds."""
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
    """Return a unix time as text for people."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
