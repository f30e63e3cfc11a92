"""Where a namespace is and how to be let in: a connection string, read, and the tokens it signs.

Pure: a token's time is an argument. Twinbus signs its own, because the syphon speaks AMQP without
the SDK.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote, quote_plus, urlsplit

__all__ = ["SAS_TOKEN", "Endpoint", "Token", "endpoint_of"]

PLAIN_PORT: Final = 5672
TLS_PORT: Final = 5671
SAS_TOKEN: Final = "servicebus.windows.net:sastoken"  # noqa: S105 - a type's name

TOKEN_LIFE_S: Final = 3_600
"""How long a token is good for; it is put again long before."""


@dataclass(frozen=True, slots=True)
class Token:
    """What is shown to `$cbs`, or over HTTP."""

    text: str
    expires_at_s: float
    kind: str = SAS_TOKEN


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """One namespace: its address and a shared access key."""

    host: str
    port: int
    tls: bool
    key_name: str
    key: str = field(repr=False)
    name: str = ""
    """What its owner calls it; empty: as its host is called."""

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
        missing = [
            n for n in ("SharedAccessKeyName", "SharedAccessKey") if not parts.get(n.lower())
        ]
        if missing:
            raise ValueError(f"the connection string of {url.hostname} lacks {', '.join(missing)}")
        tls = parts.get("usedevelopmentemulator", "").lower() != "true"
        return cls(
            host=url.hostname,
            port=url.port or (TLS_PORT if tls else PLAIN_PORT),
            tls=tls,
            key_name=parts["sharedaccesskeyname"],
            key=parts["sharedaccesskey"],
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
        return (self.host, 443, True) if self.tls else (self.host, self.port, False)

    def audience(self, path: str) -> str:
        """What a token for the entity at `path` is for."""
        place = self.host if self.tls else f"{self.host}:{self.port}"
        return f"sb://{place}/{quote(path)}"

    def token(self, path: str, now_s: float) -> Token:
        """A token for the entity at `path`, fresh at `now_s` (unix seconds)."""
        expires_at_s = int(now_s) + TOKEN_LIFE_S
        resource = quote_plus(self.audience(path))
        signed = f"{resource}\n{expires_at_s}".encode()
        digest = hmac.new(self.key.encode(), signed, hashlib.sha256).digest()
        signature = quote_plus(base64.b64encode(digest))
        name = quote_plus(self.key_name)
        text = f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_at_s}&skn={name}"
        return Token(text, float(expires_at_s))


def endpoint_of(side: object) -> Endpoint:
    """The endpoint of a side of a pair: an Endpoint, a connection string, or what holds one."""
    if isinstance(side, Endpoint):
        return side
    text = side if isinstance(side, str) else getattr(side, "connection_string", None)
    if not isinstance(text, str):
        raise TypeError(
            "the syphon signs in with a shared access key: give it a connection string, "
            f"or a Namespace made from one; got {type(side).__name__}"
        )
    return replace(Endpoint.parse(text), name=str(getattr(side, "label", "")))
