"""A GET request to the administration API of a namespace."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
from typing import Final
from urllib.parse import unquote

from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.address import bracketed
from twinbus.namespace.endpoint import Endpoint
from twinbus.namespace.tokens import NamespaceToken

API_VERSION: Final = "2021-05"

ANSWER_S: Final = 10.0
"""Time limit of a request, and of getting the token for it."""


OK: Final = 200
UNAUTHORIZED: Final = 401


class NotAnswered(Exception):
    """The namespace did not answer completely; the text says why."""


async def token_for(endpoint: Endpoint, path: str) -> NamespaceToken:
    """Return a token for an entity, "" for the namespace; NotAnswered if there is none in time."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await endpoint.token(path, time.time())
    except Exception as error:
        # A credential may raise anything, and azure-identity's texts have many lines.
        text = (str(error).strip() or f"no answer for {ANSWER_S:g} s").splitlines()[0]
        raise NotAnswered(
            f"{endpoint.tokens.who} gives no token for {endpoint.label}: {text}"
        ) from error


def get(
    endpoint: Endpoint,
    path: str,
    token: NamespaceToken,
    *,
    query: str = "",
    bytes_max: int,
    requests: BilledRequests | None = None,
) -> tuple[int, str]:
    """Return status and text of the resource at `path`, a quoted path; blocks.

    `requests` records it, as it is billed; None: as a command's.
    """
    requests = requests or BilledRequests(endpoint.label)
    was_valid = time.time() < token.expires_at_s
    connection = http_connection(endpoint)
    try:
        headers = {"Authorization": token.header, **host_header(endpoint)}
        connection.request("GET", f"/{path}?{query}api-version={API_VERSION}", headers=headers)
        response = connection.getresponse()
        status, text = response.status, response.read(bytes_max).decode("utf-8", "replace")
        if response.length:
            # The answer is shorter than announced; a part of it could be misread.
            raise NotAnswered("the connection was closed in the middle of the answer")
    except (NotAnswered, OSError, UnicodeError, http.client.HTTPException) as error:
        # UnicodeError: an invalid host name, such as contoso..example.
        requests.made(unquote(path), "get", str(error), is_known=False)
        raise NotAnswered(str(error)) from error
    finally:
        connection.close()
    requests.made(unquote(path), "get", None if status == OK else f"status {status}")
    if status == UNAUTHORIZED and was_valid and time.time() >= token.expires_at_s:
        # It says nothing of the rights: the next request has a new token.
        raise NotAnswered("the token expired while the request was under way")
    return status, text


def http_connection(
    endpoint: Endpoint, *, timeout_s: float = ANSWER_S
) -> http.client.HTTPConnection:
    """Return a connection to the administration API, not opened; the route's proxy tunnels it."""
    host, port, tls = endpoint.administration
    proxy = endpoint.route.proxy
    first, first_port = (host, port) if proxy is None else (proxy.host, proxy.port)
    connection: http.client.HTTPConnection
    if tls:
        context = endpoint.certificates or ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            first, first_port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(first, first_port, timeout=timeout_s)
    if proxy is not None:
        connection.set_tunnel(host, port, proxy.headers)
    return connection


def host_header(endpoint: Endpoint) -> dict[str, str]:
    """Return the header that names the namespace to another endpoint."""
    return {} if endpoint.route.endpoint is None else {"Host": bracketed(endpoint.host)}
