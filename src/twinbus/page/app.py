"""The page's HTTP application: documents for the browser, the live stream, actions.

Every request passes `Guard`, and `PageAccess` decides from its headers who may use the page:

Host      must be a name of this page: a site whose name leads here (DNS rebinding) has another
token     in the cookie or as a bearer token; it makes a client a viewer or an operator
Origin    of a request that changes something: this page itself, never another site's
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twinbus.errors import TwinbusError
from twinbus.page.actions import Unanswerable
from twinbus.page.core.model import as_json
from twinbus.page.documents import PageDocuments
from twinbus.page.live import WATCHERS_MAX, LiveView

log = logging.getLogger("twinbus.page")

BODY_BYTES_MAX: Final = 256 * 1024
"""An action with the sequence numbers of 10,000 dead letters."""

ENTERED: Final = (
    '<!doctype html><html lang="en"><title>Twinbus</title><link rel="icon" href="data:,">'
    '<meta http-equiv="refresh" content="0; url=/"><a href="/">Open the page</a></html>'
)
"""Leads the browser to the page, once it has the cookie; the icon keeps it from asking for one."""

STATIC: Final = StaticFiles(packages=[("twinbus.page", "static")])

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


class Guard:
    """Refuses what `PageAccess` refuses, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, access: PageAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._entering(scope) or self._refusal(scope)
        await (answer or self._app)(scope, receive, send_guarded)

    def _entering(self, scope: Scope) -> Response | None:
        """Return the answer to the printed address: it puts the token into a cookie."""
        request = Request(scope)
        token = request.query_params.get("token")
        access = self._access
        if scope["path"] != "/" or token is None or request.method != "GET":
            return None
        if request.headers.get("host", "").lower() not in access.hosts:
            return None
        if access.role_of(token) is None:
            return None
        _trust(scope)
        # Not a redirect: after a link on another site, the browser would follow it as that site's
        # request, without the cookie.
        answer = HTMLResponse(ENTERED)
        answer.set_cookie(
            access.cookie, token, httponly=True, samesite="strict", secure=access.is_tls, path="/"
        )
        return answer

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        role: Role | Refused | None = self._access.admit(headers)
        if isinstance(role, Role):
            _trust(scope)
            scope.setdefault("state", {}).update(role=role, is_operator=role is Role.OPERATOR)
            if scope["method"] in ("GET", "HEAD"):
                return None
            role = self._access.may_act(headers, role)
        return None if role is None else refusal(role)


def _trust(scope: Scope) -> None:
    """Tell the connection of a request that its client has a token, if it wants to know."""
    trust = scope.get("state", {}).get("trust")
    if trust is not None:
        trust()


def application(
    access: PageAccess, live: LiveView, documents: PageDocuments, version: str
) -> Starlette:
    """Return the application of one page; `version` is that of Twinbus."""

    async def index(request: Request) -> Response:
        return await STATIC.get_response("index.html", request.scope)

    async def view(request: Request) -> Response:
        await live.refresh()
        return json_answer({**live.view(), **fixed(request)})

    async def stream(request: Request) -> Response:
        if live.watchers >= WATCHERS_MAX:
            return refusal(Refused(503, f"{WATCHERS_MAX} pages are open already; close one"))
        return StreamingResponse(live.stream(fixed(request)), media_type="text/event-stream")

    def fixed(request: Request) -> dict[str, Any]:
        role = request.state.role.value
        return {
            "role": role,
            "read_only": documents.actions.is_read_only,
            "offers": documents.offers,
            "version": version,
        }

    async def act(request: Request) -> Any:
        given = await _body(request)
        client = request.client.host if request.client else "?"
        return await documents.actions.act(given, who=f"{request.state.role} at {client}")

    return Starlette(
        routes=[
            Route("/", index),
            Mount("/static", STATIC),
            Route("/api/view", view),
            Route("/api/stream", stream),
            Route("/api/timeline", partial(_answered, documents.timeline)),
            Route("/api/backlog", partial(_answered, documents.backlog)),
            Route("/api/dead-letters", partial(_answered, documents.dead_letters)),
            Route("/api/dead-letters/one", partial(_answered, documents.dead_letter)),
            Route("/api/cost", partial(_answered, documents.cost)),
            Route("/api/proof", partial(_answered, documents.proof)),
            Route("/api/events", partial(_answered, documents.events)),
            Route("/api/actions", partial(_answered, act), methods=["POST"]),
        ],
        middleware=[Middleware(Guard, access=access)],
    )


async def _answered(make: Callable[[Request], Awaitable[Any]], request: Request) -> Response:
    """Return the document, or why there is none; an error of ours is in the log alone."""
    try:
        return json_answer(await make(request))
    except Unanswerable as error:
        return json_answer({"ok": False, "text": str(error)}, error.status)
    except TwinbusError as error:
        return json_answer({"ok": False, "text": str(error)}, 502)
    except ClientDisconnect:
        return Response(status_code=400)
    except TimeoutError:
        return json_answer({"ok": False, "text": "no answer in time"}, 504)
    except Exception:
        log.exception("%s failed", request.url.path)
        text = "internal error of Twinbus; the log of `twinbus page` has it"
        return json_answer({"ok": False, "text": text}, 500)


async def _body(request: Request) -> dict[str, Any]:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise Unanswerable(f"an action has at most {BODY_BYTES_MAX:,} bytes", 413)
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise Unanswerable("an action is one JSON object") from None
    if not isinstance(given, dict):
        raise Unanswerable("an action is one JSON object")
    return given


def refusal(refused: Refused) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else None
    return PlainTextResponse(f"{refused.text}\n", refused.status, headers)


def json_answer(document: Any, status: int = 200) -> Response:
    """Return a document as JSON; only ASCII, so that nothing in it can be taken for markup."""
    text = json.dumps(document, separators=(",", ":"), default=as_json)
    return Response(text.encode(), status, media_type="application/json")
