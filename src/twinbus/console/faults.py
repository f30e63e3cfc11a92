"""`twinbus faults`: the faults of a served broker, over its HTTP endpoint `/$faults`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

from twinbus.console.declaration import argument, command, command_group, option, setting
from twinbus.console.options import AccessOptions
from twinbus.console.output import Output, OutputOption, WrongUse, show, table_lines
from twinbus.console.times import seconds_of
from twinbus.wording import counted, duration, visible

if TYPE_CHECKING:
    from twinbus.errors import TwinbusError
    from twinbus.namespace.access import Endpoint
    from twinbus.namespace.namespace import Namespace

app = command_group("Have a served broker misbehave, for tests and drills.")

FAULTS: Final = "$faults"
BAD_REQUEST: Final = 400
ANSWER_BYTES_MAX: Final = 2_000_000
"""A thousand faults, the broker's limit, have a quarter of it."""

COLUMNS: Final = (">NUMBER", "KIND", "ENTITY", ">TIMES LEFT", ">TIME LEFT", "DETAILS")

NamespaceOption = Annotated[
    str | None,
    setting("primary", help="Connection string of the broker's namespace, as `serve` prints it."),
]


@command(app, "twinbus faults add hang --entity orders --for 60s")
async def add(
    kind: Annotated[
        str,
        argument(
            "KIND",
            "refuse_attach, refuse_send, throttle, drop_before_commit, drop_after_commit, delay"
            " or hang.",
        ),
    ],
    reach: AccessOptions,
    namespace: NamespaceOption = None,
    entity: Annotated[
        str | None, option("PATH", "Only this entity, or PATH/* for all below it.")
    ] = None,
    lasts: Annotated[str | None, option("TIME", "End after this long.", "--for")] = None,
    times: Annotated[int | None, option("N", "Apply this many times.", min=1)] = None,
    delay: Annotated[str | None, option("TIME", "Length of a delay.")] = None,
    rate: Annotated[float | None, option("N", "Sends a second that a throttle passes.")] = None,
    probability: Annotated[float | None, option("P", "Apply at random, above 0, to 1.")] = None,
    condition: Annotated[str | None, option("TEXT", "AMQP condition of a refusal.")] = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Add a fault; it lasts until it is removed, or as long as given."""
    fault = {
        "kind": kind.replace("-", "_"),
        "entity": entity,
        "for_ms": None if lasts is None else _ms(lasts, "--for"),
        "count": times,
        "delay_ms": None if delay is None else _ms(delay, "--delay"),
        "per_s": rate,
        "probability": probability,
        "condition": condition,
    }
    given = {name: value for name, value in fault.items() if value is not None}
    added = await _ask(reach.side(namespace, "primary"), "POST", FAULTS, given)
    text = f"fault {added['id']}: {_text(added)}; `twinbus faults remove {added['id']}` ends it"
    return show(output, added, [text])


@command(app, "twinbus faults list", name="list")
async def list_faults(
    reach: AccessOptions, namespace: NamespaceOption = None, output: OutputOption = Output.TEXT
) -> int:
    """List the faults in force."""
    document = await _ask(reach.side(namespace, "primary"), "GET", FAULTS)
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
    return show(output, document, table_lines(COLUMNS, rows) if rows else ["no fault is in force"])


@command(app, "twinbus faults remove 3")
async def remove(
    number: Annotated[int, argument("NUMBER", "Number of the fault.", min=1)],
    reach: AccessOptions,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """End one fault."""
    document = await _ask(reach.side(namespace, "primary"), "DELETE", f"{FAULTS}/{number}")
    return show(output, document, [f"fault {number} ended"])


@command(app, "twinbus faults clear")
async def clear(
    reach: AccessOptions, namespace: NamespaceOption = None, output: OutputOption = Output.TEXT
) -> int:
    """End all faults."""
    side = reach.side(namespace, "primary")
    before = (await _ask(side, "GET", FAULTS))["faults"]
    document = await _ask(side, "DELETE", FAULTS)
    return show(output, document, [f"{counted(len(before), 'fault')} ended"])


def _ms(text: str, name: str) -> int:
    return round(seconds_of(text, name, least=0.001) * 1_000)


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
    import asyncio
    import http.client

    from twinbus.client.administration import NotAnswered, token_for
    from twinbus.console.namespaces import UnreachableError
    from twinbus.namespace.access import endpoint_of

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
    from twinbus.client.administration import host_header, http_connection

    body = None if document is None else json.dumps(document)
    headers = {"Authorization": token, **host_header(endpoint)}
    with closing(http_connection(endpoint)) as connection:
        connection.request(method, f"/{path}", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_BYTES_MAX).decode("utf-8", "replace")


def _refusal(endpoint: Endpoint, status: int, detail: str) -> TwinbusError:
    from twinbus.console.namespaces import FORBIDDEN, UnreachableError
    from twinbus.namespace.tokens import refusal_error

    if status in FORBIDDEN:
        otherwise = f"faults of {endpoint.label} need the Manage right: {detail}"
        return refusal_error(endpoint.label, detail, otherwise)
    if status == BAD_REQUEST:
        return WrongUse(detail)
    return UnreachableError(f"{endpoint.label}: {detail}")
