"""What the tokens of one connection allow."""

from __future__ import annotations

from twinbus.broker.refusals import Unauthorized
from twinbus.broker.sas import Grant

GRANTS_MAX = 5_000
"""Tokens kept for one connection; a client needs one for each entity it uses."""


class ConnectionGrants:
    """The grants of the tokens that a client put on `$cbs`."""

    __slots__ = ("_by_audience",)

    def __init__(self) -> None:
        self._by_audience: dict[str, Grant] = {}

    def put(self, audience: str, grant: Grant) -> None:
        """Add a grant; it replaces an older one for the same audience."""
        grants = self._by_audience
        grants.pop(audience, None)
        if len(grants) >= GRANTS_MAX:
            grants.pop(next(iter(grants)))
        grants[audience] = grant

    def require(self, address: str, right: str, now_ms: int) -> int:
        """The time (ms) until which `right` is granted; raises `Unauthorized` if it is not."""
        now_s = now_ms / 1000
        lapsed = ""
        for grant in self._by_audience.values():
            if grant.allows(address, right):
                if not grant.is_expired(now_s):
                    return int(grant.expires_at_s * 1000)
                lapsed = f" (the token of rule {grant.rule_name!r} for it has expired)"
        raise Unauthorized(f"{right} on {address!r} is not granted to this connection{lapsed}")
