"""Host, port and label of a namespace. Pure.

`localhost`, `127.0.0.1`, `[::1]:5672` and `contoso.servicebus.windows.net` are parsed only here, so
that a pair, its syphon and the commands agree on the name of a namespace.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

LABEL_CHARACTERS: Final = frozenset("-._") | frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
)
LABEL_LENGTH_MAX = 200
"""Leaves room for the rest of a backlog queue's path, which has at most 260 characters."""


def host_and_port(endpoint: str, default_port: int) -> tuple[str, int]:
    """Return the host, in lower case and without brackets, and the port of an address or URL."""
    before, slashes, after = endpoint.strip().partition("//")
    bare = (after if slashes else before).partition("/")[0]
    host, port = bare, ""
    if bare.startswith("["):
        host, _, rest = bare[1:].partition("]")
        port = rest.removeprefix(":")
    elif bare.count(":") == 1:
        host, _, port = bare.partition(":")
    if not host or (port and not (port.isdecimal() and 0 < int(port) < 65_536)):
        raise ValueError(f"a namespace is HOST or HOST:PORT; got {endpoint!r}")
    return host.lower(), int(port) if port else default_port


def bracketed(host: str) -> str:
    """Return the host as a URL spells it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Return whether the host is this machine, by its name or by its address."""
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def namespace_label(host: str, port: int, name: str | None = None) -> str:
    """Return the label that starts the paths of the namespace's backlog queues (SPEC 2.2)."""
    if name is not None:
        if not 0 < len(name) <= LABEL_LENGTH_MAX or not LABEL_CHARACTERS.issuperset(name):
            raise ValueError(
                f"name must be 1 to {LABEL_LENGTH_MAX} letters, digits, '-', '.' or '_', "
                f"because the paths of backlog queues start with it; got {name!r}"
            )
        return name
    host = host.strip("[]").lower()
    if host == "localhost" or _is_address(host):
        return f"localhost-{port}"
    return host.partition(".")[0]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
