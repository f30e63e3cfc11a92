"""The SASL exchange before AMQP: what a server offers, and whether it lets a client in.

ANONYMOUS, and MSSBCBS, which the .NET SDK asks for, let everyone in: rights come later, from the
tokens that a client puts. PLAIN carries a name and a key, as JMS and most AMQP clients send them.
EXTERNAL is not offered: there are no client certificates, and a client that prefers it to its key
would connect without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twinbus.amqp.performatives import SaslInit

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
MSSBCBS: Final = "MSSBCBS"

SASL_OK, SASL_AUTH_FAILED = 0, 1

Login = Callable[[str, str], str | None]
"""Takes the name and the key of a client; returns why they are refused, None: it is let in."""


def offered(login: Login | None) -> tuple[str, ...]:
    """The mechanisms of a server; PLAIN is among them if it can check a key."""
    return (MSSBCBS, ANONYMOUS) if login is None else (MSSBCBS, PLAIN, ANONYMOUS)


def why_refused(init: SaslInit, login: Login | None) -> str | None:
    """Why a client is not let in; None: it is."""
    mechanism = str(init.mechanism)
    if mechanism not in offered(login):
        return f"the mechanism {mechanism[:80]!r} is not offered"
    if login is None or mechanism != PLAIN:
        return None
    try:
        identity, name, key = (
            each.decode() for each in (init.initial_response or b"").split(b"\0")
        )
    except ValueError:
        return "the response of PLAIN must be an empty text or the name, then the name and the key"
    if identity not in ("", name):
        return f"{name[:80]!r} cannot act as {identity[:80]!r}"
    return login(name, key)
