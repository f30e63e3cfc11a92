"""The command `twinbus verify`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from twinbus.console.options import AccessOptions, SidesOptions
from twinbus.console.terminal.command import command, command_group, flag, option, setting
from twinbus.console.terminal.output import Output, OutputOption, WrongUse

app = command_group("")


@command(
    app,
    "twinbus verify --like azure-standard --facts facts.json",
    exit_status="0 no difference; 1 it could not run, or left entities behind; 3 differences.",
    note="It needs the Manage right and the extra broker. It prints what it costs at most.",
)
def verify(
    reach: AccessOptions,
    primary: Annotated[
        str | None,
        setting(
            "primary",
            of=typer.Argument,
            metavar="PRIMARY",
            help="Connection string of a namespace, or sb://HOST.",
        ),
    ] = None,
    secondary: Annotated[
        str | None,
        setting(
            "secondary",
            of=typer.Argument,
            metavar="SECONDARY",
            help="The same of another, if any.",
        ),
    ] = None,
    like: Annotated[
        str, option("TIER", "Compare with this tier, as of serve: azure-standard, azure-premium.")
    ] = "azure-standard",
    budget: Annotated[
        int, option("N", "Billed operations that the run may make at most.", min=1)
    ] = 500,
    intrusive: Annotated[
        bool,
        flag(
            "--intrusive",
            "Also exceed limits of links, throttle the namespaces and leave links idle for minutes;"
            " refused if there are entities of others.",
        ),
    ] = False,
    clean: Annotated[
        bool, flag("--clean", "Only delete what a killed run left, and run no check.")
    ] = False,
    facts: Annotated[
        Path, option("FILE", "File for all facts, with the frames of surprising answers.")
    ] = Path("facts.json"),
    label: Annotated[str, option("LABEL", "Part of the names of the scratch entities.")] = "",
    output: OutputOption = Output.TEXT,
) -> int:
    """Compare one or two real namespaces with the embedded broker.

    Each check asks a namespace and a broker of the same tier in this process the same, on scratch
    entities called twinbus-verify-..., which are deleted again, and prints `same`, `different` with
    the first difference, or `not checked` with the reason: errors of a missing or disabled entity,
    a wrong key and a message that is too large, rights of keys, settings of a backlog queue,
    creations at the same time, pings, deferral, peek, sessions, duplicates, locks, schedules and
    limits of links. Ids, times and host names are not compared. A check that could exceed
    --budget is not run. --facts has every answer, without keys and tokens, and for each difference
    the last 400 frames.
    """
    from twinbus.broker.profile import PROFILES
    from twinbus.console.verify.commands import run
    from twinbus.verify import VerifyPlan

    if like not in PROFILES:
        raise WrongUse(f"--like is one of {', '.join(PROFILES)}; got {like!r}")
    plan = VerifyPlan(profile=PROFILES[like], budget=budget, is_intrusive=intrusive, label=label)
    sides = SidesOptions(primary=primary, secondary=secondary, label=None, **asdict(reach))
    namespaces = {"primary": sides.side(primary, "primary")}
    if secondary is not None:
        namespaces["secondary"] = sides.secondary_side
    return run(namespaces, plan, facts, output, is_clean=clean)
