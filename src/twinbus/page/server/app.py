"""The page's HTTP application: documents for the browser, the live stream, actions.

Every request passes `Guard`, which checks names, tokens and origins (`access`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twinbus.errors import TwinbusError
from twinbus.page.core.model import as_json
from twinbus.page.server.access import SECURITY_HEADERS, PageAccess, Refused, Role
from twinbus.page.server.actions import Unanswerable
from twinbus.page.server.documents import PageDocuments
from twinbus.page.server.live import WATCHERS_MAX, LiveView

log = logging.getLogger("twinbus.page")

BODY_BYTES_MAX: Final = 256 * 1024
"""An action with the sequence numbers of 10,000 dead letters."""

ENTERED: Final = (
    '<!doctype html><html lang="en"><title>Twinbus</title><link rel="icon" href="data:,">'
    '<meta http-equiv="refresh" content="0; url=/"><a href="/">Open the page</a></html>'
)
"""Leads the browser to the page, once it has the cookie; the icon keeps it from asking for one."""

STATIC_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


class Guard:
    """Refuses what `PageAccess` refuses, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, access: PageAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
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
            scope.setdefault("state", {})["role"] = role
            if scope["method"] in ("GET", "HEAD"):
                return None
            role = self._access.may_act(headers, role)
        return None if role is None else refusal(role)


def application(
    access: PageAccess, live: LiveView, documents: PageDocuments, version: str
) -> Starlette:
    """Return the application of one page; `version` is that of Twinbus."""

    async def index(_: Request) -> Response:
        return _static("index.html")

    async def static(request: Request) -> Response:
        return _static(request.path_params["name"])

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
            "read_only": documents.is_read_only,
            "offers": documents.offers,
            "version": version,
        }

    def document(make: Callable[[Request], Awaitable[Any]], *, operator: bool = False) -> Any:
        async def answer(request: Request) -> Response:
            if operator and request.state.role is not Role.OPERATOR:
                return refusal(Refused(403, "bodies of messages need the operator's token"))
            return await _answered(make, request)

        return answer

    async def act(request: Request) -> Any:
        given = await _body(request)
        client = request.client.host if request.client else "?"
        return await documents.act(given, who=f"{request.state.role} at {client}")

    return Starlette(
        routes=[
            Route("/", index),
            Route("/static/{name}", static),
            Route("/api/view", view),
            Route("/api/stream", stream),
            Route("/api/timeline", document(documents.timeline)),
            Route("/api/backlog", document(documents.backlog)),
            Route("/api/dead-letters", document(documents.dead_letters)),
            Route("/api/dead-letters/one", document(documents.dead_letter, operator=True)),
            Route("/api/cost", document(documents.cost)),
            Route("/api/proof", document(documents.proof)),
            Route("/api/events", document(documents.events)),
            Route("/api/actions", document(act), methods=["POST"]),
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


def _static(name: str) -> Response:
    """Return a file of the page; names with a path in them are not found."""
    suffix = name[name.rfind(".") :]
    place = files("twinbus.page") / "static" / name
    if "/" in name or "\\" in name or suffix not in STATIC_TYPES or not place.is_file():
        return refusal(Refused(404, "there is no such file"))
    return Response(place.read_bytes(), media_type=STATIC_TYPES[suffix])


def refusal(refused: Refused) -> Response:
    """Return a refusal as one line."""
    headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else None
    return PlainTextResponse(f"{refused.text}\n", refused.status, headers)


def json_answer(document: Any, status: int = 200) -> Response:
    """Return a document as JSON; only ASCII, so that nothing in it can be taken for markup."""
    text = json.dumps(document, separators=(",", ":"), default=as_json)
    return Response(text.encode(), status, media_type="application/json")
