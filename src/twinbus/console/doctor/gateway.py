"""Checks of the doctor: a running gateway, its connections to the namespaces, and its key.

They send nothing and open no link to an entity that may not exist: a gateway whose primary is down
would take such an entity for one that failed over.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from twinbus.client.connection import NamespaceConnection
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.console.doctor.connectivity import CONNECT_S, reach
from twinbus.console.doctor.findings import Finding, Level
from twinbus.console.doctor.rights import right_on
from twinbus.errors import CredentialError
from twinbus.namespace.endpoint import Endpoint, endpoint_of
from twinbus.namespace.namespace import Namespace

ANSWER_BYTES_MAX: Final = 64 * 1024

_LINES: Final = {
    "connected": "the gateway is connected to it",
    "unused": "the gateway needed no connection for sends yet",
}


async def check_gateway(gateway: Namespace, entity: str | None) -> AsyncIterator[Finding]:
    """Yield the findings about a gateway, up to the first that makes the others useless."""
    reached = await reach("reach gateway", gateway)
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
        yield await _send(gateway, entity)


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
    try:
        connection.request("GET", "/health")
        return json.loads(connection.getresponse().read(ANSWER_BYTES_MAX))
    finally:
        connection.close()


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


async def _send(gateway: Namespace, entity: str) -> Finding:
    """Check that a client may send to an entity through the gateway."""

    async def ask(client: Any) -> None:
        async with client.get_queue_sender(entity) as sender:
            await sender.create_message_batch()

    do = "grant Send to the gateway's rule (--rule), or to its own credential at the primary"
    return await right_on("gateway right Send", gateway, "Send", entity, ask, Level.FAIL, do)
