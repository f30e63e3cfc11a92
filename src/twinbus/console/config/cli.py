"""The commands of `twinbus config`."""

from __future__ import annotations

from typing import Annotated

import typer

from twinbus.console.config.pair_defaults import CONFIG_TEXT
from twinbus.console.options import QueuesOption, SidesOptions
from twinbus.console.terminal.command import command, command_group, option
from twinbus.console.terminal.output import Output, OutputOption

app = command_group("Check the settings file, and say where it is.")

ConfigOption = Annotated[str | None, option("FILE", CONFIG_TEXT)]


@command(
    app,
    "twinbus config check --pair eu",
    exit_status="0 all is well, 1 there is no settings file, 2 the file is wrong (one line names"
    " the key and the line), 3 a value cannot be used here.",
    takes_pair=False,
)
def check(
    context: typer.Context,
    sides: SidesOptions,
    queues: QueuesOption = 10,
    ledger: Annotated[
        str | None, option("DIR", "Ledger of the pair.", envvar="TWINBUS_LEDGER")
    ] = None,
    pair: Annotated[str | None, option("NAME", "This pair only.")] = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show each value of a pair, its meaning and where it is from.

    A value comes from an option, else from its environment variable, else from the settings file.
    Secrets are not shown. Nothing is connected to.
    """
    from twinbus.console.config.commands import GivenValue, check_pairs

    given = {}
    for key, value in {**vars(sides), "queues": queues, "ledger": ledger}.items():
        source = context.get_parameter_source(key)
        if source is not None and source.name in {"COMMANDLINE", "ENVIRONMENT"}:
            is_option = source.name == "COMMANDLINE"
            given[key] = GivenValue(value, f"--{key}" if is_option else f"TWINBUS_{key.upper()}")
    return check_pairs(given, pair, config, output)


@command(app, "twinbus config path", takes_pair=False)
def path(config: ConfigOption = None) -> int:
    """Print where the settings file is, or where it would be."""
    from twinbus.console.config.commands import show_path

    return show_path(config)
