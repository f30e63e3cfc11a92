"""Clients of the official SDK for a broker without TLS, and the broker's HTTP API for faults.

Data-plane clients need nothing: `UseDevelopmentEmulator=true` turns TLS off. The administration
client has `https` built in, so its transport is told to speak plain HTTP.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Self, TypeVar
from urllib.parse import quote_plus
from uuid import uuid4

from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiver,
    ServiceBusSender,
)
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.management import ServiceBusAdministrationClient

Handler = TypeVar("Handler", ServiceBusSender, ServiceBusReceiver)

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
TOKEN_LIFE_S = 600


class _PlainRequests(RequestsTransport):  # type: ignore[misc]  # untyped there
    def send(self, request: Any, **kwargs: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **kwargs)


class _PlainAioHttp(AioHttpTransport):  # type: ignore[misc]
    async def send(self, request: Any, **kwargs: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **kwargs)


def administration(connection_string: str) -> ServiceBusAdministrationClient:
    """An administration client over plain HTTP that does not try again."""
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string, transport=_PlainRequests(), retry_total=0
    )


def async_administration(connection_string: str) -> AsyncAdministrationClient:
    """The same for asyncio."""
    return AsyncAdministrationClient.from_connection_string(
        connection_string, transport=_PlainAioHttp(), retry_total=0
    )


def client(connection_string: str, **options: Any) -> ServiceBusClient:
    """A client that reports the first failure instead of trying again."""
    options.setdefault("retry_total", 0)
    return ServiceBusClient.from_connection_string(connection_string, **options)


def async_client(connection_string: str, **options: Any) -> AsyncServiceBusClient:
    """The same for asyncio."""
    options.setdefault("retry_total", 0)
    return AsyncServiceBusClient.from_connection_string(connection_string, **options)


class ClosedTogether:
    """Senders and receivers that are closed side by side: closing one takes the SDK a second."""

    def __init__(self) -> None:
        self._opened: list[ServiceBusSender | ServiceBusReceiver] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor(max(1, len(self._opened))) as pool:
            list(pool.map(lambda opened: opened.close(), self._opened))

    def add(self, opened: Handler) -> Handler:
        """Have it closed with the others."""
        self._opened.append(opened)
        return opened


def ping() -> ServiceBusMessage:
    """A ping as SPEC 5 describes it."""
    return ServiceBusMessage(
        b"",
        content_type=PING_CONTENT_TYPE,
        time_to_live=timedelta(seconds=1),
        session_id=uuid4().hex,
    )


def sas_token(connection_string: str, path: str = "", life_s: float = TOKEN_LIFE_S) -> str:
    """A shared access signature by the published recipe, not by the code under test."""
    parts = dict(part.split("=", 1) for part in connection_string.rstrip(";").split(";"))
    audience = quote_plus(parts["Endpoint"].rstrip("/") + "/" + path)
    expiry = int(time.time() + life_s)
    signed = f"{audience}\n{expiry}".encode()
    digest = hmac.new(parts["SharedAccessKey"].encode(), signed, hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    name = parts["SharedAccessKeyName"]
    return f"SharedAccessSignature sr={audience}&sig={signature}&se={expiry}&skn={name}"


class Faults:
    """The broker's faults, asked for over HTTP."""

    def __init__(self, connection_string: str) -> None:
        endpoint = connection_string.partition(";")[0].removeprefix("Endpoint=sb://").rstrip("/")
        self._url = f"http://{endpoint}/$faults"
        self._token = sas_token(connection_string)

    def add(self, kind: str, **details: object) -> int:
        """Put a fault in force; its id."""
        answer = self._ask("POST", self._url, {"kind": kind, **details})
        number: int = answer["id"]
        return number

    def list(self) -> Any:
        return self._ask("GET", self._url)

    def remove(self, fault_id: int) -> None:
        self._ask("DELETE", f"{self._url}/{fault_id}")

    def clear(self) -> None:
        self._ask("DELETE", self._url)

    def _ask(self, method: str, url: str, document: object = None) -> Any:
        body = None if document is None else json.dumps(document).encode()
        headers = {"Authorization": self._token, "Content-Type": "application/json"}
        request = urllib.request.Request(url, data=body, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as response:
            text = response.read()
        return json.loads(text) if text else None
