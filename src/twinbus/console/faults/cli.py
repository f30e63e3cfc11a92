"""The commands of `twinbus faults`."""

from __future__ import annotations

from typing import Annotated

from twinbus.console.options import AccessOptions
from twinbus.console.terminal.command import argument, command, command_group, option, setting
from twinbus.console.terminal.output import Output, OutputOption
from twinbus.console.terminal.times import seconds_of

app = command_group("Have a served broker misbehave, for tests and drills.")

NamespaceOption = Annotated[
    str | None,
    setting("primary", help="Connection string of the broker's namespace, as `serve` prints it."),
]


@command(app, "twinbus faults add hang --entity orders --for 60s")
def add(
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
    from twinbus.console.faults import commands

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
    return commands.add(reach.side(namespace, "primary"), fault, output)


@command(app, "twinbus faults list", name="list")
def list_faults(
    reach: AccessOptions, namespace: NamespaceOption = None, output: OutputOption = Output.TEXT
) -> int:
    """List the faults in force."""
    from twinbus.console.faults import commands

    return commands.list_faults(reach.side(namespace, "primary"), output)


@command(app, "twinbus faults remove 3")
def remove(
    number: Annotated[int, argument("NUMBER", "Number of the fault.", min=1)],
    reach: AccessOptions,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """End one fault."""
    from twinbus.console.faults import commands

    return commands.remove(reach.side(namespace, "primary"), number, output)


@command(app, "twinbus faults clear")
def clear(
    reach: AccessOptions, namespace: NamespaceOption = None, output: OutputOption = Output.TEXT
) -> int:
    """End all faults."""
    from twinbus.console.faults import commands

    return commands.clear(reach.side(namespace, "primary"), output)


def _ms(text: str, name: str) -> int:
    return round(seconds_of(text, name, least=0.001) * 1_000)
