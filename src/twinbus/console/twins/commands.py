"""`twinbus twins`: create, check and adopt the twins of a primary's entities."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from twinbus.console import ATTENTION, COULD_NOT
from twinbus.console.declaration import argument, command, command_group, flag, setting
from twinbus.console.options import SECRETS, SidesOptions
from twinbus.console.output import LiveLine, Output, OutputOption, WrongUse, show
from twinbus.wording import counted, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.console.twins.reports import TwinReport
    from twinbus.console.twins.survey import TwinSurvey

app = command_group("Create, check and adopt twins of entities in the secondary.")

CONFIRMATION: Final = "adopt"

EntitiesArgument = Annotated[
    list[str] | None,
    setting(
        "twins",
        of=typer.Argument,
        metavar="ENTITY",
        help="Queues and topics of the primary: names, or patterns like 'orders-*'.",
    ),
]
AllOption = Annotated[bool, flag("--all", "All queues and topics of the primary.")]


@command(
    app,
    "twinbus twins create orders 'billing-*'",
    exit_status="0 every twin is there, 1 one could not be created or was refused, 3 one differs"
    " so that messages could be lost or refused.",
    note=SECRETS,
)
async def create(
    sides: SidesOptions,
    entities: EntitiesArgument = None,
    all_entities: AllOption = False,
    with_sessions: Annotated[
        bool,
        setting(
            "twins-with-sessions",
            "--with-sessions",
            help="Also entities with sessions, which may be open on both sides.",
        ),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Create the twins of entities and mark them.

    It copies queues, topics, subscriptions and rules from the primary into the secondary. A twin
    that exists is compared, and only missing subscriptions and rules are added. An entity that
    exists without the mark is refused: its messages may be someone else's (see adopt). A twin never
    deletes itself when idle, and shared access rules are not copied. After a kill, run it again. It
    needs the Manage right on both namespaces.
    """
    from twinbus.console.twins.reports import TwinState, state_lines
    from twinbus.console.twins.survey import TwinSurvey

    listed = _listed(entities, all_entities)
    if not listed:
        raise WrongUse("which entities? Name some, or give --all, or set twins of the pair")
    with LiveLine() as line:
        async with TwinSurvey(*sides.both, line.say) as survey:
            await survey.read(listed)
            found = await survey.create(listed, with_sessions=with_sessions)
    document = _document(survey, found)
    made = sum(one.state is TwinState.CREATED for one in found)
    last = f"{survey.secondary.endpoint}: {counted(made, 'twin')} created"
    show(output, document, [*state_lines(found), "", last])
    if any(one.state in {TwinState.REFUSED, TwinState.FAILED} for one in found):
        return COULD_NOT
    return _attention(found)


@command(
    app,
    "twinbus twins check",
    exit_status="0 all is well, 1 it could not check, 3 a twin is missing, without its mark, or"
    " differs so that messages could be lost or refused.",
)
async def check(
    sides: SidesOptions,
    entities: EntitiesArgument = None,
    all_entities: AllOption = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Compare entities with their twins; nothing is changed.

    Without an entity it checks every twin that is marked. Each difference is a line: `error` if
    messages could be lost, refused or hidden, else `remark`. It also shows how many messages a twin
    holds. It needs the Manage right on both namespaces.
    """
    from twinbus.console.twins.reports import TwinState, state_lines
    from twinbus.console.twins.survey import TwinSurvey

    listed = _listed(entities, all_entities)
    with LiveLine() as line:
        async with TwinSurvey(*sides.both, line.say) as survey:
            await survey.read(listed)
            found = await survey.check(listed)
    well = sum(one.state is TwinState.OK for one in found)
    wanted = sum(one.state is not TwinState.LEFT_OUT for one in found)
    last = f"{survey.secondary.endpoint}: {well} of {counted(wanted, 'twin')} are well"
    if not found:
        last = f"{survey.secondary.endpoint}: no twin of {visible(survey.label)} is marked"
    show(output, _document(survey, found), [*state_lines(found), "", last] if found else [last])
    return _attention(found)


@command(
    app,
    "twinbus twins adopt orders",
    exit_status="0 it is a twin now, or was before; 1 it may not be one, or you did not confirm;"
    " 3 it is one and differs so that messages could be lost or refused.",
)
async def adopt(
    sides: SidesOptions,
    entity: Annotated[str, argument("ENTITY", "The queue or topic.")],
    yes: Annotated[bool, flag("--yes", "Mark it without asking.")] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Mark an entity of the secondary as a twin, after asking.

    It shows settings, differences and the number of messages. From then on pairs divert messages to
    it, and a syphon moves the messages of a queue to the primary, those that are there now too. Its
    metadata stays, after the mark. To undo it, remove the mark from its user metadata.
    """
    from twinbus.console.twins.reports import adoption_lines
    from twinbus.console.twins.survey import TwinSurvey

    as_json = output is Output.JSON
    if as_json and not yes:
        raise WrongUse("--output json does not ask: add --yes")
    with LiveLine() as line:
        async with TwinSurvey(*sides.both, line.say) as survey:
            await survey.read([entity])
            candidate = await survey.adoptable(entity)
            if survey.is_twin(candidate.path):
                document = {"adopted": False, **candidate.report.document()}
                line.clear()
                show(output, document, [f"{visible(candidate.path)} is a twin already"])
                return _attention([candidate.report])
            if not as_json:
                ends = survey.primary.endpoint, survey.secondary.endpoint
                line.print("\n".join(adoption_lines(candidate, *ends)))
            line.say("")
            if not yes and not _confirmed(candidate.path):
                print("nothing was changed")
                return COULD_NOT
            line.say(f"marking {candidate.path}")
            await survey.adopt(candidate)
    says = f"{visible(candidate.path)} in {survey.secondary.endpoint} is a twin now"
    show(output, {"adopted": True, **candidate.report.document()}, [says])
    return _attention([candidate.report])


def _listed(entities: list[str] | None, all_entities: bool) -> list[str]:
    if all_entities:
        return ["*"]
    wrong = [one for one in entities or () if not one.strip("/ ")]
    if wrong:
        raise WrongUse("an ENTITY is empty: name a queue or a topic")
    return list(entities or ())


def _confirmed(path: str) -> bool:
    if not sys.stdin.isatty():
        raise WrongUse("no terminal to confirm on: add --yes to mark it")
    return input(f"type {CONFIRMATION!r} to mark {visible(path)}: ").strip() == CONFIRMATION


def _attention(found: Sequence[TwinReport]) -> int:
    return ATTENTION if any(one.needs_attention for one in found) else 0


def _document(survey: TwinSurvey, found: Sequence[TwinReport]) -> dict[str, Any]:
    return {
        "primary": survey.primary.endpoint,
        "secondary": survey.secondary.endpoint,
        "label": survey.label,
        "twins": [one.document() for one in found],
    }
