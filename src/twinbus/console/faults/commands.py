"""`twinbus faults`: the faults of a served broker, over its HTTP endpoint `/$faults`."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from twinbus.client.administration import NotAnswered, host_header, http_connection, token_for
from twinbus.console.namespaces import FORBIDDEN, UnreachableError, runs_to_its_end
from twinbus.console.terminal.output import Output, WrongUse, show
from twinbus.console.terminal.table import counted, duration, table_lines, visible
from twinbus.errors import TwinbusError
from twinbus.namespace.endpoint import Endpoint, endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.namespace.signatures import refusal_error

FAULTS: Final = "$faults"
ANSWER_BYTES_MAX: Final = 2_000_000
"""A thousand faults, the broker's limit, have a quarter of it."""

COLUMNS: Final = (">NUMBER", "KIND", "ENTITY", ">TIMES LEFT", ">TIME LEFT", "DETAILS")


@runs_to_its_end
async def add(namespace: Namespace, fault: Mapping[str, Any], output: Output) -> int:
    """Add a fault and print it; return the exit status."""
    given = {name: value for name, value in fault.items() if value is not None}
    added = await _ask(namespace, "POST", FAULTS, given)
    text = f"fault {added['id']}: {_text(added)}; `twinbus faults remove {added['id']}` ends it"
    show(output, added, [text])
    return 0


@runs_to_its_end
async def list_faults(namespace: Namespace, output: Output) -> int:
    """Print the faults in force; return the exit status."""
    document = await _ask(namespace, "GET", FAULTS)
    faults = document["faults"]
    rows = [
        (
            fault["id"],
            fault["kind"],
            fault["entity"] or "all",
            "no limit" if fault["count"] is None else fault["count"],
            _time_left(fault) or "no limit",
            _details(fault),
        )
        for fault in faults
    ]
    show(output, document, table_lines(COLUMNS, rows) if rows else ["no fault is in force"])
    return 0


@runs_to_its_end
async def remove(namespace: Namespace, number: int, output: Output) -> int:
    """End one fault; return the exit status."""
    document = await _ask(namespace, "DELETE", f"{FAULTS}/{number}")
    show(output, document, [f"fault {number} ended"])
    return 0


@runs_to_its_end
async def clear(namespace: Namespace, output: Output) -> int:
    """End all faults; return the exit status."""
    before = (await _ask(namespace, "GET", FAULTS))["faults"]
    document = await _ask(namespace, "DELETE", FAULTS)
    show(output, document, [f"{counted(len(before), 'fault')} ended"])
    return 0


def _text(fault: Mapping[str, Any]) -> str:
    where = f"on {visible(fault['entity'])}" if fault["entity"] else "on the whole namespace"
    times = None if fault["count"] is None else f"{counted(fault['count'], 'time')}"
    left = _time_left(fault)
    parts = [f"{fault['kind']} {where}", times, left and f"for {left}", _details(fault)]
    return ", ".join(filter(None, parts))


def _time_left(fault: Mapping[str, Any]) -> str | None:
    until_ms = fault["until_ms"]
    return None if until_ms is None else duration(max(0.0, until_ms / 1_000 - time.time() + 0.5))


def _details(fault: Mapping[str, Any]) -> str:
    """Return what its kind does not say."""
    kind, parts = fault["kind"], []
    if kind == "delay":
        parts.append(f"{fault['delay_ms']:,} ms")
    if kind.startswith("refuse"):
        parts.append(visible(fault["condition"]))
    if fault["per_s"] is not None:
        parts.append(f"above {fault['per_s']:g}/s")
    if fault["probability"] < 1:
        parts.append(f"probability {fault['probability']:g}")
    return ", ".join(parts)


async def _ask(
    namespace: Namespace, method: str, path: str, document: Mapping[str, Any] | None = None
) -> Any:
    """Return the answer of the broker; a TwinbusError of one line if it refuses."""
    endpoint = endpoint_of(namespace)
    try:
        token = await token_for(endpoint, "")
        status, text = await asyncio.to_thread(
            _request, endpoint, method, path, token.header, document
        )
    except (NotAnswered, OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"{endpoint.label} cannot be reached: {error}") from error
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise UnreachableError(
            f"{endpoint.label} takes no faults (status {status}); only an embedded broker does"
        ) from error
    if status // 100 != 2:
        raise _refusal(endpoint, status, visible(answer["error"]))
    return answer


def _request(
    endpoint: Endpoint, method: str, path: str, token: str, document: Mapping[str, Any] | None
) -> tuple[int, str]:
    connection = http_connection(endpoint)
    try:
        body = None if document is None else json.dumps(document)
        headers = {"Authorization": token, **host_header(endpoint)}
        connection.request(method, f"/{path}", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_BYTES_MAX).decode("utf-8", "replace")
    finally:
        connection.close()


def _refusal(endpoint: Endpoint, status: int, detail: str) -> TwinbusError:
    if status in FORBIDDEN:
        otherwise = f"faults of {endpoint.label} need the Manage right: {detail}"
        return refusal_error(endpoint.label, detail, otherwise)
    if status == http.client.BAD_REQUEST:
        return WrongUse(detail)
    return UnreachableError(f"{endpoint.label}: {detail}")
