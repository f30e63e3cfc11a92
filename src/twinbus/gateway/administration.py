"""Administration of the primary through a gateway.

A request needs the right to manage by the gateway's own rules. It then goes to the primary with the
gateway's credential; the client's tokens never leave the gateway. So nothing of it goes on in the
client's own form: the path, the query and the body are written anew from what was checked, and the
tokens are good for the entity of the path and for the checked destinations only.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote, urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from twinbus.amqp.budgets import BudgetExceeded
from twinbus.broker.admin.api import AdminRequest, require_manage, require_send, verified
from twinbus.broker.admin.atom import CONTENT_TYPE, ERROR_CONTENT_TYPE, render_error
from twinbus.broker.http import BODY_BYTES_MAX, admin_request, read_body, room_for_body
from twinbus.broker.refusals import Refusal
from twinbus.client.administration import NotAnswered, host_header, http_connection, token_for
from twinbus.gateway.descriptions import CheckedDescription, checked_description, with_host
from twinbus.gateway.relay import require_plain
from twinbus.namespace.address import bracketed

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.gateway.server import GatewayServer
    from twinbus.namespace.access import Endpoint

ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
ANSWER_S: Final = 60.0
"""Time of one request to the primary."""

AT_ONCE_MAX: Final = 8
"""Requests that the primary has at once; others wait. They have threads of their own: while the
primary hangs, the shared ones must be free for the tokens and certificates of the secondary."""

PASSED_HEADERS: Final = ("if-match", "accept")
"""Headers of the client's request that the primary gets, besides path, query and body."""

BAD_GATEWAY: Final = 502
BUSY: Final = 503


async def administer(
    server: GatewayServer, primary: Endpoint, threads: RequestThreads, request: Request
) -> Response:
    """Check a request by the gateway's rules, and answer it with what the primary answers."""
    with ExitStack() as stack:
        return await _administer(server, primary, threads, request, stack)


async def _administer(
    server: GatewayServer,
    primary: Endpoint,
    threads: RequestThreads,
    request: Request,
    stack: ExitStack,
) -> Response:
    now_s = server.now_ms() / 1000
    try:
        asked = admin_request(request)
        # First, so that a stranger's body is not read.
        path = unquote(asked.raw_path).strip("/")
        asked = replace(asked, raw_path="/" + quote(path, safe="/$"))
        token = verified(server.policy, asked, now_s)
        grant = require_manage(token, f"{server.name}/{path}", asked)
        require_plain(path)
        room = stack.enter_context(room_for_body(server.admission, server.name, grant))
        body = await read_body(request, room)
        description = checked_description(body or b"")
        for _, destination in description.destinations:
            require_send(server.policy, server.name, asked, grant, destination, now_s)
        headers = await _headers(primary, asked, path, description)
    except ClientDisconnect:
        return Response(status_code=400)
    except Refusal as refusal:
        server.track(refusal)
        return _error(refusal.status, refusal.description)
    except NotAnswered as error:
        return _error(BAD_GATEWAY, str(error))
    except BudgetExceeded as error:
        return _error(BUSY, str(error))
    if body is None:
        return _error(413, f"the request body is longer than {BODY_BYTES_MAX} bytes")
    try:
        return await threads.run(_forward, primary, asked, headers, description.body)
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        return _error(BAD_GATEWAY, f"{primary.label} did not answer: {error}")


async def _headers(
    primary: Endpoint, request: AdminRequest, path: str, description: CheckedDescription
) -> dict[str, str]:
    """The headers for the primary: its own tokens in place of the client's.

    Each is signed for one entity, so that a path that the primary reads as another one is refused.
    """
    # Lists and the namespace itself have the names of the whole namespace in them.
    resource = "" if path.startswith("$") else path
    headers = {"Authorization": (await token_for(primary, resource)).header, **host_header(primary)}
    headers |= {name: value for name, value in request.headers.items() if name in PASSED_HEADERS}
    if description.body:
        headers["Content-Type"] = CONTENT_TYPE
    for name, destination in description.destinations:
        headers[name] = (await token_for(primary, destination)).header
    return headers


def _forward(
    primary: Endpoint, request: AdminRequest, headers: dict[str, str], body: bytes
) -> Response:
    """Send the request to the primary and return its answer; blocks."""
    connection = http_connection(primary, timeout_s=ANSWER_S)
    try:
        query = f"?{urlencode(request.query)}" if request.query else ""
        here, there = request.headers.get("host", ""), headers.get("Host") or _authority(connection)
        body = with_host(body, here, there)
        connection.request(request.method, request.raw_path + query, body or None, headers)
        answer = connection.getresponse()
        content = answer.read(ANSWER_BYTES_MAX + 1)
        if len(content) > ANSWER_BYTES_MAX:
            return _error(
                BAD_GATEWAY,
                f"{primary.label} answered with more than {ANSWER_BYTES_MAX} bytes; ask for fewer"
                " entities at once ($top)",
            )
        passed = {"Content-Type": answer.headers.get("Content-Type", "application/xml")}
        return Response(with_host(content, there, here), answer.status, passed)
    finally:
        connection.close()


def _authority(connection: http.client.HTTPConnection) -> str:
    """The Host header of a request that has none of its own."""
    is_default = connection.port == connection.default_port
    return bracketed(connection.host) + ("" if is_default else f":{connection.port}")


def _error(status: int, text: str) -> Response:
    return Response(render_error(status, text), status, media_type=ERROR_CONTENT_TYPE)


T = TypeVar("T")


class RequestThreads:
    """Runs blocking work on daemon threads of its own.

    Python waits at its end for the threads of an ordinary pool: a primary that hangs would delay
    the exit of the gateway by the time limit of a request.
    """

    def __init__(self, at_once: int, name: str) -> None:
        self._name = name
        self._free = asyncio.Semaphore(at_once)

    async def run(self, work: Callable[..., T], *given: Any) -> T:
        """What the work returns or raises; it waits while too many others are under way."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()

        def tell(result: T | None, error: BaseException | None) -> None:
            # Not before the thread is free, even if the client has gone long ago.
            self._free.release()
            if ended.cancelled():
                return
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(result)  # type: ignore[arg-type]

        def perform() -> None:
            result, failure = None, None
            try:
                result = work(*given)
            except BaseException as error:  # noqa: BLE001  # it belongs to the one who waits
                failure = error
            with contextlib.suppress(RuntimeError):  # The loop has ended meanwhile.
                loop.call_soon_threadsafe(tell, result, failure)

        threading.Thread(target=perform, name=self._name, daemon=True).start()
        return await ended
