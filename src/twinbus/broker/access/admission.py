"""Who is let in: how many connections there may be, and how long a client may stay a stranger.

A stranger is a client that has put no valid token yet, and every HTTP connection: its requests
carry their tokens one by one. The listener, the AMQP connections and the HTTP connections of all
namespaces of one process count here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from ipaddress import ip_network

from twinbus.errors import BrokerStartError

CONNECTIONS_MAX = 10_000
STRANGERS_MAX = 500
OPEN_LIMIT_S = 20.0
TOKEN_LIMIT_S = 60.0

CUT_OFF_S = 30.0
"""A connection that the broker closed is cut off after this, read or not."""

IPV6_SITE_BITS = 64
"""One customer of a network has this prefix for itself, and 2^64 addresses in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionLimits:
    """What clients may take of the broker before it knows them; no honest one needs as much."""

    connections: int = CONNECTIONS_MAX
    """Connections in all, of any protocol."""
    strangers_per_address: int = STRANGERS_MAX
    """Connections of one address (IPv6: of one /64) whose client has put no token."""
    open_s: float = OPEN_LIMIT_S
    """Time from the first byte to the end of the AMQP handshake, and of one HTTP request."""
    token_s: float = TOKEN_LIMIT_S
    """Time from there to the first valid token."""

    def __post_init__(self) -> None:
        for option, value in (
            ("--connections-max", self.connections),
            ("--strangers-max", self.strangers_per_address),
            ("--open-limit", self.open_s),
            ("--token-limit", self.token_s),
        ):
            if not value > 0:
                raise BrokerStartError(f"{option} is above 0, not {value}")


class Admission:
    """Counts the connections of one process."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self._connections = 0
        self._strangers: Counter[str] = Counter()

    def why_not(self, host: str) -> str | None:
        """Why no further connection from `host` is taken; None: it may come in."""
        limits = self.limits
        if self._connections >= limits.connections:
            return f"{limits.connections} connections are open (--connections-max)"
        if self._strangers[_site(host)] >= limits.strangers_per_address:
            most = limits.strangers_per_address
            return f"{most} connections of its address have put no token (--strangers-max)"
        return None

    def enter(self, host: str) -> None:
        """Count one more connection, of a stranger."""
        self._connections += 1
        self._strangers[_site(host)] += 1

    def trust(self, host: str) -> None:
        """Count one stranger less: it has put a token."""
        site = _site(host)
        self._strangers[site] -= 1
        if not self._strangers[site]:
            del self._strangers[site]

    def leave(self, host: str, *, trusted: bool = False) -> None:
        """Count one connection less."""
        self._connections -= 1
        if not trusted:
            self.trust(host)


def _site(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 of an IPv6 address."""
    if ":" not in host:
        return host
    address = host.partition("%")[0]
    return str(ip_network((address, IPV6_SITE_BITS), strict=False))
