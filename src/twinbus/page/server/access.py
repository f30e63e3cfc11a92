"""Who may use the page, decided from the headers of a request. Pure but for comparing secrets.

Host      must be a name of this page: a site whose name leads here (DNS rebinding) has another
token     in the cookie or as a bearer token; it makes a client a viewer or an operator
Origin    of a request that changes something: this page itself, never another site's
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from http.cookies import CookieError, SimpleCookie
from typing import Final

SAME_SITE: Final = frozenset({"same-origin", "none"})
"""Sec-Fetch-Site of requests that the page itself makes, or a person who typed its address."""

ACTION_HEADER: Final = "x-twinbus-page"
"""A form of another site cannot send it, and a script of another site has to ask first."""

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # The first address has the token in it.
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Role(StrEnum):
    """What a client may do; bodies of messages and actions need the operator."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to a request that may not pass."""

    status: int
    text: str


@dataclass(frozen=True, kw_only=True)
class PageAccess:
    """The names and the tokens of one page."""

    tokens: Mapping[Role, str]
    hosts: frozenset[str]
    """Accepted values of the Host header, in lower case, with the port."""
    port: int
    is_tls: bool = False

    def __repr__(self) -> str:
        return f"PageAccess({sorted(self.tokens)}, {sorted(self.hosts)})"

    @property
    def cookie(self) -> str:
        """The name of the cookie: browsers send one host's cookies to all of its ports."""
        return f"twinbus-page-{self.port}"

    def role_of(self, token: str) -> Role | None:
        """Return the role that a token gives; None: none."""
        given = hashlib.sha256(token.encode(errors="replace")).digest()
        found = None
        # Every token is compared, so that the time says nothing about them.
        for role, text in self.tokens.items():
            if hmac.compare_digest(given, hashlib.sha256(text.encode()).digest()):
                found = role
        return found

    def admit(self, headers: Mapping[str, str]) -> Role | Refused:
        """Return the role of a request, or why it is refused; header names are in lower case."""
        if headers.get("host", "").lower() not in self.hosts:
            return Refused(421, "this page does not have that name; use the address it printed")
        if headers.get("sec-fetch-site", "none") not in SAME_SITE:
            return Refused(403, "a page of another site may not use this page")
        role = self.role_of(_bearer(headers) or self._from_cookie(headers))
        if role is None:
            return Refused(401, "open the address that `twinbus page` printed: it has the token")
        return role

    def may_act(self, headers: Mapping[str, str], role: Role) -> Refused | None:
        """Return why a request may not change anything; None: it may. It was admitted before."""
        if role is not Role.OPERATOR:
            return Refused(403, "a viewer may not do this: use the operator's token")
        scheme, origin = "https" if self.is_tls else "http", headers.get("origin")
        is_script = origin is None and _bearer(headers)
        if not is_script and origin != f"{scheme}://{headers['host']}":
            return Refused(403, "the request does not come from this page")
        if headers.get(ACTION_HEADER) != "1":
            return Refused(403, "the request lacks the header X-Twinbus-Page: 1")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return Refused(415, "an action is JSON: Content-Type application/json")
        return None

    def _from_cookie(self, headers: Mapping[str, str]) -> str:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return "" if morsel is None else morsel.value


def _bearer(headers: Mapping[str, str]) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
