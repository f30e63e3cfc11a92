"""The addresses in descriptions of entities, between a client of the gateway and the primary.

A client knows the gateway's host only. What it puts into ForwardTo must name the primary, which
forwards within itself, and what the primary answers must name the gateway. Pure.
"""

from __future__ import annotations

import re
from typing import Final

_PLACES: Final = re.compile(
    rb"(<(?:\w+:)?(?:id|ForwardTo|ForwardDeadLetteredMessagesTo)(?:\s[^<>]*)?>|\shref=\")"
    rb"(\s*[A-Za-z]+://)([^/?#<>\"&\s]+)"
)
"""Where a description has an address of its namespace: what is before it, its scheme, its host."""

_HOST: Final = re.compile(r"[A-Za-z0-9.:\[\]-]{1,260}", re.ASCII)


def with_host(body: bytes, old: str, new: str) -> bytes:
    """The body with addresses on the host `old` as addresses on `new`; others stay as they are."""
    if not _HOST.fullmatch(new):
        return body  # It is a header of the client.
    before, after = old.lower().encode(), new.encode()

    def place(found: re.Match[bytes]) -> bytes:
        start, scheme, host = found.groups()
        return start + scheme + (after if host.lower() == before else host)

    return _PLACES.sub(place, body)
