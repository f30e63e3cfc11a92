"""Clients of the official SDK for a broker without TLS, and the broker's HTTP API for faults."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Self, TypeVar
from urllib.parse import quote_plus
from uuid import uuid4

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSender,
)
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.aio import ServiceBusReceiver as AsyncReceiver
from azure.servicebus.exceptions import ServiceBusAuthenticationError

from twinbus import testing

NOBODY = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=s3cret;"
    "UseDevelopmentEmulator=true;"
)
"""A namespace where nothing listens."""

administration, async_administration = testing.administration, testing.async_administration
"""The public ones; the tests take them from here with the other clients."""


def is_missing(error: BaseException) -> bool:
    """Whether the SDK raised an error because the entity does not exist.

    `$cbs` refuses the token for it with status 404. The SDK calls that an authentication error, as
    it does against Azure.
    """
    return (
        isinstance(error, ServiceBusAuthenticationError)
        and getattr(error.inner_exception, "status_code", 0) == 404
    )


Handler = TypeVar("Handler", ServiceBusSender, ServiceBusReceiver)

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
TOKEN_LIFE_S = 600
PATIENCE_S = 60.0
"""How long messages that wait in a queue may take to come, and an answer, on a busy machine."""

SILENCE_S = 0.5
"""Before a queue is asked whether it has more."""

LAST_LOOK_S = 0.1
"""After it said that it has not."""

PAGE = 250
OPENED_BY = (
    "get_queue_sender",
    "get_topic_sender",
    "get_queue_receiver",
    "get_subscription_receiver",
)


def client(connection_string: str, **options: Any) -> ServiceBusClient:
    """A client that reports the first failure instead of trying again, and closes at once."""
    options.setdefault("retry_total", 0)
    made = ServiceBusClient.from_connection_string(connection_string, **options)
    for name in OPENED_BY:
        setattr(made, name, _quickly_closed(getattr(made, name)))
    return made


def async_client(connection_string: str, **options: Any) -> AsyncServiceBusClient:
    """The same for asyncio."""
    options.setdefault("retry_total", 0)
    made = AsyncServiceBusClient.from_connection_string(connection_string, **options)
    for name in OPENED_BY:
        setattr(made, name, _quickly_closed_async(getattr(made, name)))
    return made


def _quickly_closed(get: Callable[..., Any]) -> Callable[..., Any]:
    """Senders and receivers that, when closed, do not wait for their keep-alive to wake up.

    It naps for a second at a time, and ends by itself.
    """

    def opened(*arguments: Any, **options: Any) -> Any:
        made = get(*arguments, **options)
        close = made.close

        def close_quickly() -> None:
            if made._handler is not None:
                made._handler._keep_alive_thread = None
            close()

        made.close = close_quickly
        return made

    return opened


def _quickly_closed_async(get: Callable[..., Any]) -> Callable[..., Any]:
    def opened(*arguments: Any, **options: Any) -> Any:
        made = get(*arguments, **options)
        close = made.close

        async def close_quickly() -> None:
            handler = made._handler
            keep_alive = None if handler is None else handler._keep_alive_thread
            if keep_alive is not None:
                handler._keep_alive_thread = None
                keep_alive.cancel()
                await asyncio.wait({keep_alive})
            await close()

        made.close = close_quickly
        return made

    return opened


class ClosedTogether:
    """Senders and receivers that are closed side by side: each waits for an answer or two."""

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


def receive_count(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """The next `count` messages: one call of the SDK may return with fewer, however many wait."""
    received: list[ServiceBusReceivedMessage] = []
    while len(received) < count:
        more = receiver.receive_messages(count - len(received), max_wait_time=PATIENCE_S)
        assert more, f"{len(received)} of {count} messages came within {PATIENCE_S:g} s"
        received += more
    return received


def receive_all(receiver: ServiceBusReceiver) -> list[ServiceBusReceivedMessage]:
    """What there is until the queue says that it has no more: a silence may be a busy machine.

    The receiver takes and deletes, or its messages stay locked until it is closed.
    """
    received: list[ServiceBusReceivedMessage] = []
    wait_s, ends = SILENCE_S, time.monotonic() + PATIENCE_S
    while True:
        more = receiver.receive_messages(PAGE, max_wait_time=wait_s)
        received += more
        if more:
            wait_s, ends = SILENCE_S, time.monotonic() + PATIENCE_S
        elif wait_s == LAST_LOOK_S or time.monotonic() > ends:
            return received
        elif not _are_missed(receiver.peek_messages(PAGE), received):
            # What was on its way when the queue was asked is here by now.
            wait_s = LAST_LOOK_S


async def receive_all_async(
    receiver: AsyncReceiver,
    *,
    count: int | None = None,
    wait_s: float = SILENCE_S,
    page: int = PAGE,
    settle: Callable[[ServiceBusReceivedMessage], Awaitable[None]] | None = None,
) -> list[ServiceBusReceivedMessage]:
    """The same for asyncio; not more than `count`, each settled as it comes.

    `wait_s` is for messages that are yet to be sent. `page` is how many may come at once: the SDK
    gives back what comes while one is settled, and such a message is delivered twice.
    """
    received: list[ServiceBusReceivedMessage] = []
    silence_s, ends = wait_s, time.monotonic() + PATIENCE_S
    while count is None or len(received) < count:
        wanted = page if count is None else min(page, count - len(received))
        more = await receiver.receive_messages(wanted, max_wait_time=silence_s)
        received += more
        if settle is not None:
            for message in more:
                await settle(message)
        if more:
            silence_s, ends = wait_s, time.monotonic() + PATIENCE_S
        elif silence_s == LAST_LOOK_S or time.monotonic() > ends:
            return received
        elif not _are_missed(await receiver.peek_messages(PAGE), received):
            silence_s = LAST_LOOK_S
    return received


def _are_missed(
    peeked: Sequence[ServiceBusReceivedMessage], received: Sequence[ServiceBusReceivedMessage]
) -> bool:
    """Whether messages wait that can be received and were not."""
    known = {message.sequence_number for message in received}
    return any(
        message.state is ServiceBusMessageState.ACTIVE and message.sequence_number not in known
        for message in peeked
    )


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
        endpoint = connection_string.removeprefix("Endpoint=sb://").replace(";", "/")
        self._url = f"http://{endpoint.partition('/')[0]}/$faults"
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
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            text = response.read()
        return json.loads(text) if text else None
