"""The doctor's questions that need no credential: two sides, names, connections, clocks."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import Final

from twinbus.console.doctor.examined_pair import ExaminedPair
from twinbus.console.doctor.findings import Finding, Level
from twinbus.namespace.endpoint import endpoint_of

__all__ = ["check_clock", "check_reach", "check_sides"]

PATH_LENGTH_MAX: Final = 260
"""Of an entity's path in Service Bus."""

CONNECT_S: Final = 10.0

CLOCK_WARN_S: Final = 10.0
"""Ages, scheduled times and what is left of a time to live are off by as much."""
CLOCK_FAIL_S: Final = 240.0
"""Service Bus refuses tokens that are 5 minutes off."""


async def check_sides(patient: ExaminedPair) -> list[Finding]:
    """Whether there are two namespaces, and what the backlog queues are called."""
    primary, secondary = patient.primary, patient.secondary
    if primary.place == secondary.place:
        return [
            Finding("sides", Level.FAIL, f"both sides are {primary.endpoint}",
                    "if it is down, so is the backlog: give two namespaces")
        ]  # fmt: skip
    found = [Finding("sides", Level.OK, f"{primary.endpoint} with {secondary.endpoint}")]
    first, last = patient.backlog_paths[0], patient.backlog_paths[-1]
    longest = max(map(len, (last, patient.entity or "")))
    if longest > PATH_LENGTH_MAX:
        says = f"a path has {longest} characters and Service Bus takes {PATH_LENGTH_MAX}"
        return [*found, Finding("names", Level.FAIL, says, "use a shorter name")]
    says = f"backlog queues are {first} to {last.rpartition('/')[2]}"
    return [*found, Finding("names", Level.OK, says)]


async def check_reach(patient: ExaminedPair) -> list[Finding]:
    """Whether a connection, with TLS where there must be, can be made to each side."""
    return [await _reach(patient, role) for role in patient.roles]


async def _reach(patient: ExaminedPair, role: str) -> Finding:
    check, namespace = f"reach {role}", patient.roles[role]
    began = time.monotonic()
    context = None if namespace.emulator else namespace.certificates()
    patient.reached[role] = False
    where = f"{namespace.host}:{namespace.port}"
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(namespace.host, namespace.port, ssl=context)
    except ssl.SSLError as error:
        says = f"TLS with {where} failed: {error.reason or error}"
        return Finding(check, Level.FAIL, says, "check the certificate, or a proxy in between")
    except TimeoutError:
        says = f"{where} did not answer within {CONNECT_S:g} s"
        return Finding(check, Level.FAIL, says, "check the firewall, or use AMQP over WebSocket")
    except OSError as error:
        says = f"{where}: {error.strerror or error}"
        if context is not None and isinstance(error, ConnectionResetError):
            says = f"{where} does not speak TLS"
        return Finding(check, Level.FAIL, says, "check the address, and that it is up")
    writer.transport.abort()
    patient.reached[role] = True
    took_ms = (time.monotonic() - began) * 1_000
    how = "without TLS, as a development emulator" if namespace.emulator else "with TLS"
    return Finding(check, Level.OK, f"{where} answers {how}, {took_ms:.0f} ms")


async def check_clock(patient: ExaminedPair) -> list[Finding]:
    """How far the clocks of both sides are from this machine's."""
    return [await _clock(role, patient) for role in patient.roles if patient.reached[role]]


async def _clock(role: str, patient: ExaminedPair) -> Finding:
    check = f"clock {role}"
    namespace = patient.roles[role]
    host, port, tls = endpoint_of(namespace).administration
    trust = namespace.certificates() if tls else None
    try:
        behind_s, error_s = await asyncio.to_thread(_ask_time, host, port, trust)
    except (OSError, http.client.HTTPException) as error:
        says = f"administration at {host}:{port} does not answer: {error}"
        return Finding(check, Level.FAIL, says, "creating backlog queues needs it")
    except ValueError:
        return Finding(check, Level.SKIP, f"{host}:{port} does not say what time it is")
    off_s = max(0.0, abs(behind_s) - error_s)
    if off_s < CLOCK_WARN_S:
        return Finding(check, Level.OK, f"within {abs(behind_s) + error_s:.0f} s of this machine's")
    order = "ahead of" if behind_s < 0 else "behind"
    says = f"this machine is {abs(behind_s):.0f} s {order} it"
    if off_s < CLOCK_FAIL_S:
        return Finding(check, Level.WARN, says, "ages and scheduled times are off by as much")
    return Finding(check, Level.FAIL, says, "tokens made here are refused: set the clock")


def _ask_time(host: str, port: int, trust: ssl.SSLContext | None) -> tuple[float, float]:
    """Seconds that this machine is behind, and how exact that is; ValueError: it does not say."""
    connection: http.client.HTTPConnection
    if trust is not None:
        connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=trust)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=CONNECT_S)
    try:
        began = time.time()
        connection.request("GET", "/$Resources/queues?api-version=2021-05")
        told = connection.getresponse().headers.get("Date")
        ended = time.time()
    finally:
        connection.close()
    if not told:
        raise ValueError
    # The header has whole seconds, and was written somewhere between asking and hearing.
    theirs = parsedate_to_datetime(told).timestamp() + 0.5
    return theirs - (began + ended) / 2, 0.5 + (ended - began) / 2
