"""Checks of the doctor: sides, names, connections, clocks, and a running gateway.

The checks of a gateway send nothing and open no link to an entity that may not exist: a gateway
whose primary is down would take such an entity for one that failed over.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Any, Final

from twinbus.client.administration import host_header, http_connection
from twinbus.client.connection import NamespaceConnection
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.console.doctor.rights import ExaminedPair, Finding, Level, right_on
from twinbus.errors import CredentialError
from twinbus.namespace.access import Endpoint, endpoint_of
from twinbus.namespace.namespace import Namespace

PATH_LENGTH_MAX: Final = 260
"""Limit of an entity's path in Service Bus."""

CONNECT_S: Final = 10.0

CLOCK_WARN_S: Final = 10.0
"""Ages, scheduled times and remaining times to live are wrong by as much."""
CLOCK_FAIL_S: Final = 240.0
"""Service Bus refuses tokens that are 5 minutes off."""


ANSWER_BYTES_MAX: Final = 64 * 1024

_LINES: Final = {
    "connected": "the gateway is connected to it",
    "unused": "the gateway needed no connection for sends yet",
}


async def check_sides(pair: ExaminedPair) -> list[Finding]:
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


async def reach(role: str, namespace: Namespace) -> Finding:
    """Connect as AMQP does, with TLS where it must be; say how long it took or why it failed."""
    check = f"reach {role}"
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
        with closing(http_connection(endpoint, timeout_s=CONNECT_S)) as connection:
            await asyncio.to_thread(connection.connect)
        return
    context = endpoint.certificates if endpoint.tls else None
    _, writer = await asyncio.open_connection(*endpoint.amqp, ssl=context)
    writer.transport.abort()


async def check_clock(pair: ExaminedPair, role: str) -> Finding:
    check = f"clock {role}"
    endpoint = endpoint_of(pair.roles[role])
    host, port, _ = endpoint.administration
    try:
        behind_s, error_s = await asyncio.to_thread(_ask_time, endpoint)
    except (OSError, http.client.HTTPException) as error:
        text = f"administration at {host}:{port} does not answer: {error}"
        return Finding(check, Level.FAIL, text, "creating backlog queues needs it")
    except ValueError:
        return Finding(check, Level.SKIP, f"{host}:{port} does not send its time")
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
    with closing(http_connection(endpoint, timeout_s=CONNECT_S)) as connection:
        began = time.time()
        path = "/$Resources/queues?api-version=2021-05"
        connection.request("GET", path, headers=host_header(endpoint))
        date = connection.getresponse().headers.get("Date")
        ended = time.time()
    if not date:
        raise ValueError
    # The header has whole seconds and was written between request and answer.
    theirs = parsedate_to_datetime(date).timestamp() + 0.5
    return theirs - (began + ended) / 2, 0.5 + (ended - began) / 2


async def check_gateway(gateway: Namespace, entity: str | None) -> AsyncIterator[Finding]:
    """Yield the findings about a gateway, up to the first that makes the others useless."""
    reached = await reach("gateway", gateway)
    yield reached
    if reached.level is Level.FAIL:
        return
    health = await _health(endpoint_of(gateway))
    if isinstance(health, Finding):
        yield health
        return
    name = health.get("namespace", "?")
    yield Finding("gateway", Level.OK, f"{name} is a gateway and says that it is well")
    for found in upstream_findings(health["gateway"]):
        yield found
    accepted = await _credential(gateway)
    yield accepted
    if accepted.level is Level.OK and entity is not None:
        do = "grant Send to the gateway's rule (--rule), or to its own credential at the primary"
        yield await right_on("gateway right Send", gateway, "Send", entity, Level.FAIL, do)


def upstream_findings(state: Mapping[str, Any]) -> list[Finding]:
    """Return a finding for each connection of a gateway, and one for its backlog."""
    found = []
    for role in ("primary", "secondary"):
        line = _LINES.get(str(state.get(role)))
        if line is not None:
            found.append(Finding(f"gateway to {role}", Level.OK, line))
            continue
        lost = "the gateway has lost its connection and opens another when it is needed"
        do = "its log says why; `twinbus status` beside it shows what that means for sends"
        found.append(Finding(f"gateway to {role}", Level.WARN, lost, do))
    if state.get("protected"):
        found.append(Finding("gateway backlog", Level.OK, "sends can be diverted"))
    else:
        text = "no backlog queue can be used: sends depend on the primary alone"
        do = "check the secondary, and its backlog queues with `twinbus backlog list`"
        found.append(Finding("gateway backlog", Level.FAIL, text, do))
    return found


async def _health(endpoint: Endpoint) -> dict[str, Any] | Finding:
    """Return what the gateway says of itself, or the finding that it does not."""
    host, port = endpoint.amqp
    where = f"{host}:{port}"
    try:
        answer = await asyncio.to_thread(_ask_health, endpoint)
    except (OSError, http.client.HTTPException) as error:
        text = f"http at {where} does not answer: {error}"
        return Finding("gateway", Level.FAIL, text, "check what runs there")
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("gateway"), dict):
        do = "give the connection string that `twinbus gateway` printed"
        return Finding("gateway", Level.FAIL, f"{where} is no gateway of Twinbus", do)
    return answer


def _ask_health(endpoint: Endpoint) -> Any:
    # Not the administration's port: a gateway has one port for all.
    connection: http.client.HTTPConnection
    if endpoint.tls:
        context = endpoint.certificates or ssl.create_default_context()
        connection = http.client.HTTPSConnection(*endpoint.amqp, timeout=CONNECT_S, context=context)
    else:
        connection = http.client.HTTPConnection(*endpoint.amqp, timeout=CONNECT_S)
    with closing(connection):
        connection.request("GET", "/health")
        return json.loads(connection.getresponse().read(ANSWER_BYTES_MAX))


async def _credential(gateway: Namespace) -> Finding:
    """Put a token, which is all that a gateway needs to know a client."""
    check = "gateway credential"
    connection = NamespaceConnection(endpoint_of(gateway), lambda _: None, answer_s=CONNECT_S)
    try:
        await connection.open()
        await connection.authorize("")
    except RequestRefused:
        text = "refused: wrong key, wrong key name, or expired signature"
        return Finding(check, Level.FAIL, text, "copy the connection string of the gateway again")
    except (ConnectionLost, CredentialError) as error:
        return Finding(check, Level.FAIL, str(error))
    finally:
        await connection.close()
    return Finding(check, Level.OK, "accepted")
