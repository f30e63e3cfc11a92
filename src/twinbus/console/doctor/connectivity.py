"""Checks of the doctor without credentials: sides, names, connections, clocks."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import Final

from twinbus.client.administration import host_header, http_connection
from twinbus.console.doctor.findings import ExaminedPair, Finding, Level
from twinbus.namespace.endpoint import Endpoint, endpoint_of
from twinbus.namespace.namespace import Namespace

PATH_LENGTH_MAX: Final = 260
"""Limit of an entity's path in Service Bus."""

CONNECT_S: Final = 10.0

CLOCK_WARN_S: Final = 10.0
"""Ages, scheduled times and remaining times to live are wrong by as much."""
CLOCK_FAIL_S: Final = 240.0
"""Service Bus refuses tokens that are 5 minutes off."""


async def check_sides(pair: ExaminedPair) -> list[Finding]:
    """Check that there are two namespaces, and that backlog queue names fit."""
    primary, secondary = pair.primary, pair.secondary
    if primary.place == secondary.place:
        return [
            Finding("sides", Level.FAIL, f"both sides are {primary.endpoint}",
                    "if it is down, so is the backlog: give two namespaces")
        ]  # fmt: skip
    found = [Finding("sides", Level.OK, f"{primary.endpoint} with {secondary.endpoint}")]
    first, last = pair.backlog_paths[0], pair.backlog_paths[-1]
    longest = max(map(len, (last, pair.entity or "")))
    if longest > PATH_LENGTH_MAX:
        text = f"a path has {longest} characters and Service Bus takes {PATH_LENGTH_MAX}"
        return [*found, Finding("names", Level.FAIL, text, "use a shorter name")]
    text = f"backlog queues are {first} to {last.rpartition('/')[2]}"
    return [*found, Finding("names", Level.OK, text)]


async def check_reach(pair: ExaminedPair, role: str) -> Finding:
    """Check that a side accepts a connection, with TLS where it must have it."""
    return await reach(f"reach {role}", pair.roles[role])


async def reach(check: str, namespace: Namespace) -> Finding:
    """Connect as AMQP does, and say how long it took or why it failed."""
    began = time.monotonic()
    endpoint = endpoint_of(namespace)
    host, port = endpoint.administration[:2] if endpoint.route.websocket else endpoint.amqp
    where = f"{host}:{port}"
    try:
        async with asyncio.timeout(CONNECT_S):
            await _connect(endpoint)
    except ssl.SSLError as error:
        text = f"TLS with {where} failed: {error.reason or error}"
        return Finding(check, Level.FAIL, text, "check the certificate, or a proxy in between")
    except TimeoutError:
        text = f"{where} did not answer within {CONNECT_S:g} s"
        return Finding(check, Level.FAIL, text, "check the firewall, or use AMQP over WebSocket")
    except OSError as error:
        text = f"{where}: {error.strerror or error}"
        if endpoint.tls and isinstance(error, ConnectionResetError):
            text = f"{where} does not speak TLS"
        do = "check the address, and that it is up"
        if endpoint.route.proxy is not None:
            do = "check the proxy, and that it lets this address pass"
        return Finding(check, Level.FAIL, text, do)
    took_ms = (time.monotonic() - began) * 1_000
    how = "without TLS, as a development emulator" if namespace.emulator else "with TLS"
    route = f" ({endpoint.route.text})" if endpoint.route.text else ""
    return Finding(check, Level.OK, f"{where} answers {how}{route}, {took_ms:.0f} ms")


async def _connect(endpoint: Endpoint) -> None:
    """Open a connection on the way that AMQP takes, and close it."""
    if endpoint.route.websocket:
        connection = http_connection(endpoint, timeout_s=CONNECT_S)
        try:
            await asyncio.to_thread(connection.connect)
        finally:
            connection.close()
        return
    context = endpoint.certificates if endpoint.tls else None
    _, writer = await asyncio.open_connection(*endpoint.amqp, ssl=context)
    writer.transport.abort()


async def check_clock(pair: ExaminedPair, role: str) -> Finding:
    """Compare the clock of a side with this machine's."""
    check = f"clock {role}"
    endpoint = endpoint_of(pair.roles[role])
    host, port, _ = endpoint.administration
    try:
        behind_s, error_s = await asyncio.to_thread(_ask_time, endpoint)
    except (OSError, http.client.HTTPException) as error:
        text = f"administration at {host}:{port} does not answer: {error}"
        return Finding(check, Level.FAIL, text, "creating backlog queues needs it")
    except ValueError:
        return Finding(check, Level.SKIP, f"{host}:{port} does not tell its time")
    off_s = max(0.0, abs(behind_s) - error_s)
    if off_s < CLOCK_WARN_S:
        return Finding(check, Level.OK, f"within {abs(behind_s) + error_s:.0f} s of this machine's")
    order = "ahead of" if behind_s < 0 else "behind"
    text = f"this machine is {abs(behind_s):.0f} s {order} it"
    if off_s < CLOCK_FAIL_S:
        return Finding(check, Level.WARN, text, "ages and scheduled times are off by as much")
    return Finding(check, Level.FAIL, text, "tokens made here are refused: set the clock")


def _ask_time(endpoint: Endpoint) -> tuple[float, float]:
    """Return how many seconds this machine is behind, and the error; ValueError without a date."""
    connection = http_connection(endpoint, timeout_s=CONNECT_S)
    try:
        began = time.time()
        path = "/$Resources/queues?api-version=2021-05"
        connection.request("GET", path, headers=host_header(endpoint))
        date = connection.getresponse().headers.get("Date")
        ended = time.time()
    finally:
        connection.close()
    if not date:
        raise ValueError
    # The header has whole seconds and was written between request and answer.
    theirs = parsedate_to_datetime(date).timestamp() + 0.5
    return theirs - (began + ended) / 2, 0.5 + (ended - began) / 2
