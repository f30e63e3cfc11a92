"""One request to a namespace's administration API, over HTTP."""

from __future__ import annotations

import http.client
import ssl
from typing import Final

from twinbus.namespace.endpoint import Endpoint
from twinbus.namespace.tokens import NamespaceToken

__all__ = ["ANSWER_S", "NotAnswered", "get"]

API_VERSION: Final = "2021-05"

ANSWER_S: Final = 10.0
"""Bound of a request, and of getting the token for it."""


class NotAnswered(Exception):
    """Nobody answered to the end; the text says how."""


def get(
    endpoint: Endpoint, path: str, token: NamespaceToken, *, query: str = "", bytes_max: int
) -> tuple[int, str]:
    """Status and text of what is at `path`, which is quoted already; blocks."""
    host, port, tls = endpoint.administration
    connection: http.client.HTTPConnection
    if tls:
        context = endpoint.certificates or ssl.create_default_context()
        connection = http.client.HTTPSConnection(host, port, timeout=ANSWER_S, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    try:
        headers = {"Authorization": token.header}
        connection.request("GET", f"/{path}?{query}api-version={API_VERSION}", headers=headers)
        response = connection.getresponse()
        status, text = response.status, response.read(bytes_max).decode("utf-8", "replace")
        if response.length:
            # Less came than was announced: half an answer would say something else.
            raise NotAnswered("it hung up in the middle of its answer")
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        # UnicodeError: no name of a host, such as contoso..example.
        raise NotAnswered(str(error)) from error
    finally:
        connection.close()
    return status, text
