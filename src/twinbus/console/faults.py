"""`twinbus faults`: faults and clock of a served broker, over its HTTP endpoints; and a proxy."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from twinbus.console.declaration import argument, command, command_group, flag, option, setting
from twinbus.console.options import AccessOptions
from twinbus.console.output import Output, OutputOption, WrongUse, show, table_lines
from twinbus.console.times import seconds_of
from twinbus.wording import counted, duration, visible

app = command_group("Have a served broker misbehave, for tests and drills.")

FAULTS: Final = "$faults"
CLOCK: Final = "$clock"
BAD_REQUEST: Final = 400
ANSWER_BYTES_MAX: Final = 2_000_000
"""A thousand faults, the broker's limit, have a quarter of it."""

COLUMNS: Final = (">NUMBER", "KIND", "ENTITY", ">TIMES LEFT", ">TIME LEFT", "DETAILS")


@dataclass(frozen=True, kw_only=True)
class BrokerOptions(AccessOptions):
    namespace: Annotated[
        str | None,
        setting(
            "primary", help="Connection string of the broker's namespace, as `serve` prints it."
        ),
    ] = None

    async def ask(
        self, method: str, path: str = FAULTS, body: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the answer of the broker; a TwinbusError of one line if it refuses."""
        import asyncio
        import http.client

        from twinbus.client import administration
        from twinbus.console.namespaces import FORBIDDEN, UnreachableError
        from twinbus.namespace.access import endpoint_of
        from twinbus.namespace.tokens import refusal_error

        endpoint = endpoint_of(self.side(self.namespace, "primary"))

        def exchange(token: str) -> tuple[int, str]:
            content = None if body is None else json.dumps(body)
            headers = {"Authorization": token, **administration.host_header(endpoint)}
            with closing(administration.http_connection(endpoint)) as connection:
                connection.request(method, f"/{path}", content, headers)
                answer = connection.getresponse()
                return answer.status, answer.read(ANSWER_BYTES_MAX).decode("utf-8", "replace")

        try:
            token = await administration.token_for(endpoint, "")
            status, text = await asyncio.to_thread(exchange, token.header)
        except (administration.NotAnswered, OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"{endpoint.label} cannot be reached: {error}") from error
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise UnreachableError(
                f"{endpoint.label} takes no faults (status {status}); only an embedded broker does"
            ) from error
        if status // 100 == 2:
            return answer
        detail = visible(answer["error"])
        if status in FORBIDDEN:
            otherwise = f"faults of {endpoint.label} need the Manage right: {detail}"
            raise refusal_error(endpoint.label, detail, otherwise)
        if status == BAD_REQUEST:
            raise WrongUse(detail)
        raise UnreachableError(f"{endpoint.label}: {detail}")


@command(app, "twinbus faults add hang --entity orders --for 60s")
async def add(
    kind: Annotated[
        str,
        argument(
            "KIND",
            "refuse_attach, refuse_send, throttle, drop_before_commit, drop_after_commit, delay"
            " or hang; of a proxy also detach or half_open.",
        ),
    ],
    broker: BrokerOptions,
    entity: Annotated[
        str | None, option("PATH", "Only this entity, or PATH/* for all below it.")
    ] = None,
    lasts: Annotated[str | None, option("TIME", "End after this long.", "--for")] = None,
    times: Annotated[int | None, option("N", "Apply this many times.", min=1)] = None,
    delay: Annotated[str | None, option("TIME", "Length of a delay.")] = None,
    rate: Annotated[float | None, option("N", "Sends a second that a throttle passes.")] = None,
    probability: Annotated[float | None, option("P", "Apply at random, above 0, to 1.")] = None,
    condition: Annotated[
        str | None, option("TEXT", "AMQP condition of a refusal or detach.")
    ] = None,
    link: Annotated[str | None, option("NAME", "Of a proxy: only this link, or NAME*.")] = None,
    direction: Annotated[
        str | None, option("WAY", "Of a proxy: only frames to-service or to-client.")
    ] = None,
    frame: Annotated[
        str | None,
        option("FRAME", "Of a proxy: attach, flow, transfer, disposition or detach."),
    ] = None,
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
        "link": link,
        "direction": None if direction is None else direction.replace("-", "_"),
        "frame": frame,
    }
    given = {name: value for name, value in fault.items() if value is not None}
    added = await broker.ask("POST", body=given)
    text = f"fault {added['id']}: {_text(added)}; `twinbus faults remove {added['id']}` ends it"
    return show(output, added, [text])


@command(app, "twinbus faults list", name="list")
async def list_faults(broker: BrokerOptions, output: OutputOption = Output.TEXT) -> int:
    """List the faults in force."""
    document = await broker.ask("GET")
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
    broker: BrokerOptions,
    output: OutputOption = Output.TEXT,
) -> int:
    """End one fault."""
    document = await broker.ask("DELETE", f"{FAULTS}/{number}")
    return show(output, document, [f"fault {number} ended"])


@command(app, "twinbus faults clear")
async def clear(broker: BrokerOptions, output: OutputOption = Output.TEXT) -> int:
    """End all faults."""
    before = (await broker.ask("GET"))["faults"]
    document = await broker.ask("DELETE")
    return show(output, document, [f"{counted(len(before), 'fault')} ended"])


@command(app, "twinbus faults advance 2h")
async def advance(
    span: Annotated[str, argument("TIME", "How far to move the clock, such as 90s or 2h.")],
    broker: BrokerOptions,
    output: OutputOption = Output.TEXT,
) -> int:
    """Move the clock of a broker with --test-clock."""
    document = await broker.ask("POST", CLOCK, {"advance_ms": _ms(span, "TIME")})
    ahead = duration(document["ahead_ms"] / 1_000)
    return show(output, document, [f"the clock of the broker is {ahead} ahead"])


@command(
    app,
    "twinbus faults proxy 5673 --upstream contoso.servicebus.windows.net",
    takes_pair=False,
)
def proxy(
    port: Annotated[int, argument("PORT", "Port on localhost; 0 picks a free one.", min=0)],
    upstream: Annotated[str, typer.Option(metavar="sb://HOST", help="The namespace behind it.")],
    fault_seed: Annotated[int, option("N", "Seed of random faults.")] = 0,
    quiet: Annotated[bool, flag("--quiet", "Log errors only, not each fault.")] = False,
) -> int:
    """Put faults in front of a real namespace.

    It relays AMQP in the foreground, and `twinbus faults add` has it misbehave. It listens on
    localhost only. Clients keep their own keys and tokens, which pass through. It prints how each
    SDK connects and trusts it, and how to steer it.
    """
    from twinbus.console.fault_proxy import serve_proxy

    return serve_proxy(port, upstream, fault_seed, quiet=quiet)


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
    if kind.startswith("refuse") or kind == "detach":
        parts.append(visible(fault["condition"]))
    if fault["per_s"] is not None:
        parts.append(f"above {fault['per_s']:g}/s")
    if fault["probability"] < 1:
        parts.append(f"probability {fault['probability']:g}")
    selectors = ((name, fault.get(name)) for name in ("link", "direction", "frame"))
    parts += [f"{name} {visible(value)}" for name, value in selectors if value]
    return ", ".join(parts)
