"""`twinbus doctor` and `verify`: examine namespaces before they are paired."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from twinbus.console.declaration import command, command_group, flag, option, setting
from twinbus.console.options import AccessOptions, LabelOption, QueuesOption, SidesOptions
from twinbus.console.output import Output, OutputOption, WrongUse
from twinbus.settings.keys import EMBEDDED

app = command_group("")


def _side(key: str, text: str) -> Any:
    return setting(key, of=typer.Argument, metavar=key.upper(), help=text)


@command(
    app,
    "twinbus doctor --entity orders",
    exit_status="0 fit to be paired, also with warnings; 1 a check failed.",
    note="Put the connection strings into TWINBUS_PRIMARY and TWINBUS_SECONDARY: other users can"
    " see a command line.",
)
def doctor(
    reach: AccessOptions,
    primary: Annotated[
        str | None, _side("primary", "Connection string of the primary, or sb://HOST.")
    ] = None,
    secondary: Annotated[str | None, _side("secondary", "The same of the secondary.")] = None,
    entity: Annotated[
        str | None,
        option(
            "PATH",
            "An entity that the application sends to. The doctor checks the Send right there.",
        ),
    ] = None,
    gateway: Annotated[
        str | None,
        option(
            "STRING",
            "Connection string of a gateway to examine: with the namespaces, or alone.",
            envvar="TWINBUS_GATEWAY",
        ),
    ] = None,
    label: LabelOption = None,
    queues: QueuesOption = 10,
    twin: Annotated[
        list[str] | None,
        setting("twins", "--twin", help="An entity that has a twin, or a pattern. Repeatable."),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Check whether two namespaces are fit to be paired.

    Each check prints one line, with what to do about a problem. Your messages are not touched.
    With the Manage right the doctor creates scratch entities called twinbus-doctor-... and deletes
    them again; the service deletes them after 5 idle minutes if it is killed.

    It checks that the two namespaces differ and can be reached, the clocks (a difference of 10 s
    warns, 4 min fails), the credential, the rights Manage, Send and Listen, existing backlog queues
    and their drift, the notice board, twins, and the size of messages. It sends a ping that no
    receiver may see, and moves a message with session, time to live and schedule through a backlog
    queue and back. Of a gateway it asks /health, puts a token and attaches a sender. It says what
    it could not check.
    """
    from twinbus.console.doctor.commands import run
    from twinbus.console.doctor.rights import ExaminedPair

    sides = SidesOptions(primary=primary, secondary=secondary, label=label, **asdict(reach))
    # Not by the route of the namespaces, which may lead through a proxy.
    examined = None if gateway is None else AccessOptions().side(gateway, "gateway")
    # A secondary inside a gateway is examined by the gateway's own word.
    is_alone = (primary is None and secondary is None) or (secondary or "").startswith(EMBEDDED)
    pair = None
    if examined is None or not is_alone:
        pair = ExaminedPair(*sides.both, queues, entity, tuple(twin or ()))
    return run(pair, examined, entity, output)


@command(
    app,
    "twinbus verify --like azure-standard --facts facts.json",
    exit_status="0 no difference; 1 it could not run, or left entities behind; 3 differences.",
    note="It needs the Manage right and the extra broker. It prints what it costs at most.",
)
def verify(
    reach: AccessOptions,
    primary: Annotated[
        str | None, _side("primary", "Connection string of a namespace, or sb://HOST.")
    ] = None,
    secondary: Annotated[str | None, _side("secondary", "The same of another, if any.")] = None,
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
    from twinbus.console.verify import run
    from twinbus.verify.run import VerifyPlan

    if like not in PROFILES:
        raise WrongUse(f"--like is one of {', '.join(PROFILES)}; got {like!r}")
    plan = VerifyPlan(profile=PROFILES[like], budget=budget, is_intrusive=intrusive, label=label)
    sides = SidesOptions(primary=primary, secondary=secondary, label=None, **asdict(reach))
    namespaces = {"primary": sides.side(primary, "primary")}
    if secondary is not None:
        namespaces["secondary"] = sides.secondary_side
    return run(namespaces, plan, facts, output, is_clean=clean)
