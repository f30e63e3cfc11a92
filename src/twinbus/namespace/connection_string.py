"""The parts of a Service Bus connection string. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from twinbus.namespace.address import host_and_port

TLS_PORT: Final = 5671
PLAIN_PORT: Final = 5672
"""Default ports: AMQP over TLS, and AMQP without TLS for a development emulator."""


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """A parsed connection string: the address and either a key or a signature."""

    host: str
    port: int
    key_name: str | None
    key: str | None = field(repr=False)
    signature: str | None = field(repr=False)
    entity_path: str | None
    emulator: bool
    """`UseDevelopmentEmulator=true`: no TLS, and administration over plain HTTP."""

    @classmethod
    def parse(cls, text: str) -> ConnectionString:
        """Parse the text; a ValueError says what is missing and never repeats a key."""
        parts = _parts(text)
        endpoint = parts.get("endpoint", "")
        if not endpoint.lower().startswith("sb://"):
            raise ValueError(
                "a connection string needs Endpoint=sb://HOST; "
                + ("its Endpoint starts otherwise" if endpoint else "this one has no Endpoint")
            )
        emulator = parts.get("usedevelopmentemulator", "").lower() == "true"
        host, port = host_and_port(endpoint, PLAIN_PORT if emulator else TLS_PORT)
        parsed = cls(
            host=host,
            port=port,
            key_name=parts.get("sharedaccesskeyname"),
            key=parts.get("sharedaccesskey"),
            signature=parts.get("sharedaccesssignature"),
            entity_path=parts.get("entitypath"),
            emulator=emulator,
        )
        if not parsed.signature and not (parsed.key_name and parsed.key):
            raise ValueError(
                f"the connection string of {host} has neither SharedAccessKeyName with"
                " SharedAccessKey nor SharedAccessSignature; copy it whole"
            )
        return parsed


def _parts(text: str) -> dict[str, str]:
    if not text.strip():
        raise ValueError("the connection string is empty")
    parts: dict[str, str] = {}
    for part in text.strip().strip(";").split(";"):
        name, separator, value = part.partition("=")
        if not separator:
            # The part itself may be a key that lost its name: it must not be printed.
            raise ValueError("a connection string is NAME=VALUE;NAME=VALUE...; one part has no '='")
        parts[name.strip().lower()] = value.strip()
    return parts
