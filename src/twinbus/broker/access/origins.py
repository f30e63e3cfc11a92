"""Which web pages may talk to a broker whose key everybody knows: those of this machine.

A page of any site can open a WebSocket to localhost, and with a name that leads to 127.0.0.1 (DNS
rebinding) it can send any HTTP request. Browsers say where a page comes from (Origin) and which
name they dialled (Host). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from twinbus.namespace.address import is_loopback

ADVICE = "the broker has the default key; give it a key of your own (--key)"


def foreign_origin(headers: Mapping[str, str]) -> str | None:
    """Why a request with these headers is refused; None: it comes from this machine."""
    host, origin = headers.get("host"), headers.get("origin")
    if host is not None and not is_local(f"//{host}"):
        return f"the host {host[:200]!r} is not a name of this machine's loopback; {ADVICE}"
    if origin is not None and not is_local(origin):
        return f"a page of {origin[:200]!r} may not use this broker; {ADVICE}"
    return None


def is_local(url: str) -> bool:
    """Whether a URL names this machine."""
    try:
        name = urlsplit(url).hostname
    except ValueError:
        return False
    # No one can register a name below localhost (RFC 6761).
    return name is not None and (is_loopback(name) or name.endswith(".localhost"))
