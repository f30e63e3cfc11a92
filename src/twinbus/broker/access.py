"""Who is let in: limits of connections, origins of web pages, and bearer tokens from a file.

A stranger is a client that has put no valid token yet, and every HTTP connection: its requests
carry their tokens one by one. The listener, the AMQP connections and the HTTP connections of all
namespaces of one process are counted in one `Admission`.

A page of any site can open a WebSocket to localhost, and with a name that leads to 127.0.0.1 (DNS
rebinding) it can send any HTTP request. Browsers say where a page comes from (Origin) and which
name they dialled (Host). A broker with the default key serves only pages of this machine.

A token file is read again whenever it changes. It has one token a line, four fields with blanks
between them; `#` begins a comment:

    NAME TOKEN RIGHTS EXPIRES
    app  eyJ0eXAi.abc.def  Send,Listen  2026-11-17T00:25:00Z

RIGHTS are of Send, Listen, Manage, joined by commas. EXPIRES is a time in UTC (ISO 8601), unix
seconds, or `never`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from twinbus.broker.budgets import CONNECTIONS_MAX, ProcessBudgets, share_of_connections
from twinbus.broker.sas import ALL_RIGHTS, NEVER_S, AcceptedToken
from twinbus.errors import BrokerStartError
from twinbus.namespace.address import is_loopback

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
        self.budgets = ProcessBudgets(self.limits.connections)
        self._connections = 0
        self._strangers: Counter[str] = Counter()

    def why_not(self, host: str) -> str | None:
        """Why no further connection from `host` is taken; None: it may come in."""
        limits = self.limits
        if self._connections >= limits.connections:
            return f"{limits.connections} connections are open (--connections-max)"
        most = min(limits.strangers_per_address, share_of_connections(limits.connections))
        if self._strangers[_site(host)] >= most:
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
        self._connections -= 1
        if not trusted:
            self.trust(host)


T = TypeVar("T")


class Newcomers(Generic[T]):
    """A bounded number of connections that have not said yet what they want.

    One more of them is always taken: honest ones are through in milliseconds, so the one that
    goes is the oldest of the address that has most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._hosts: dict[T, str] = {}
        """The site of each, oldest first."""
        self._of_site: dict[str, dict[T, None]] = {}

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._hosts))

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, one: T, host: str) -> T | None:
        """Count one more; return the one that is closed for it, if there is no room."""
        given_up = self._one_too_many() if len(self._hosts) >= self._most else None
        if given_up is not None:
            self.discard(given_up)
        site = self._hosts[one] = _site(host)
        self._of_site.setdefault(site, {})[one] = None
        return given_up

    def discard(self, one: T) -> None:
        """Count one less, if it is still counted."""
        site = self._hosts.pop(one, None)
        if site is not None:
            del self._of_site[site][one]
            if not self._of_site[site]:
                del self._of_site[site]

    def _one_too_many(self) -> T:
        fullest = max(self._of_site, key=lambda site: len(self._of_site[site]))
        return next(iter(self._of_site[fullest]))


def _site(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 of an IPv6 address."""
    if ":" not in host:
        return host
    address = host.partition("%")[0]
    return str(ip_network((address, IPV6_SITE_BITS), strict=False))


ADVICE = "the broker has the default key; give it a key of your own (--key)"


def foreign_origin(headers: Mapping[str, str], advice: str = ADVICE) -> str | None:
    """Why a request with these headers is refused; None: it comes from this machine."""
    host, origin = headers.get("host"), headers.get("origin")
    if host is not None and not is_local(f"//{host}"):
        return f"the host {host[:200]!r} is not a name of this machine's loopback; {advice}"
    if origin is not None and not is_local(origin):
        return f"a page of {origin[:200]!r} may not use this broker; {advice}"
    return None


def is_local(url: str) -> bool:
    try:
        name = urlsplit(url).hostname
    except ValueError:
        return False
    # No one can register a name below localhost (RFC 6761).
    return name is not None and (is_loopback(name) or name.endswith(".localhost"))


log = logging.getLogger("twinbus.broker")


class TokenFile:
    def __init__(self, path: Path) -> None:
        """Read the file; `BrokerStartError` if that is not possible."""
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._tokens: tuple[AcceptedToken, ...] = ()
        try:
            self._read()
        except OSError as error:
            raise BrokerStartError(f"cannot read the tokens of {path}: {error.strerror}") from error

    def __call__(self) -> tuple[AcceptedToken, ...]:
        """The tokens of the file as it is now; the last good ones while it cannot be read."""
        try:
            self._read()
        except (OSError, BrokerStartError) as error:
            log.warning("%s: %s; the tokens read before stay in force", self._path, error)
        return self._tokens

    def _read(self) -> None:
        found = self._path.stat()
        seen = (found.st_mtime_ns, found.st_size, found.st_ino)
        if seen == self._seen:
            return
        self._tokens = parse_tokens(self._path.read_text(), str(self._path))
        self._seen = seen
        log.info("%s: %d tokens", self._path, len(self._tokens))


def parse_tokens(text: str, where: str) -> tuple[AcceptedToken, ...]:
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if fields:
            tokens.append(_token(fields, f"{where}, line {number}"))
    return tuple(tokens)


def _token(fields: list[str], where: str) -> AcceptedToken:
    if len(fields) != 4:
        raise BrokerStartError(
            f"{where}: a token has 4 fields (NAME TOKEN RIGHTS EXPIRES), not {len(fields)}"
        )
    name, text, rights, expires = fields
    granted, expires_at_s = rights_of(rights, where), expiry_of(expires, where)
    return AcceptedToken(name=name, text=text, rights=granted, expires_at_s=expires_at_s)


def rights_of(text: str, where: str) -> frozenset[str]:
    """The rights in "Send,Listen"; `where` names them in an error."""
    rights = frozenset(right.strip().capitalize() for right in text.split(","))
    if not rights <= ALL_RIGHTS:
        unknown = ", ".join(sorted(rights - ALL_RIGHTS))
        raise BrokerStartError(f"{where}: {unknown!r} is no right; give Send, Listen or Manage")
    return rights


def expiry_of(text: str, where: str) -> float:
    """Unix seconds of an expiry that a person gave; `where` names it in an error."""
    if text == "never":
        return NEVER_S
    try:
        if text.isascii() and text.isdigit():
            return min(float(text), NEVER_S)
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BrokerStartError(
            f"{where}: {text!r} is no expiry; give 2026-11-17T00:25:00Z, unix seconds or never"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
