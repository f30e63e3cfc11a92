"""`twinbus backlog`: show, create and prune the backlog queues of a secondary."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from twinbus.console import ATTENTION, COULD_NOT
from twinbus.console.backlog.dead_letters import app as letters_app
from twinbus.console.declaration import command, command_group, flag, option, setting
from twinbus.console.options import SECRETS, EntityOption, QueueOption, QueuesOption, SidesOptions
from twinbus.console.output import (
    LiveLine,
    Output,
    OutputOption,
    WrongUse,
    aligned,
    print_json,
    show,
    table_lines,
)
from twinbus.errors import MissingRightError
from twinbus.namespace.access import endpoint_of
from twinbus.pairing.core.backlog import lease_path
from twinbus.servicebus.names import backlog_paths, board_path
from twinbus.wording import NOT_KNOWN, counted, duration, size, visible

if TYPE_CHECKING:
    from twinbus.console.backlog.queue_contents import QueueContents
    from twinbus.pairing.sdk.administration import Findings
    from twinbus.servicebus.twins import FoundTwin

app = command_group("Inspect, create and prune backlog queues.")
app.add_typer(letters_app, name="dead-letters")

CONFIRMATION: Final = "prune"

TEXT_LENGTH_MAX: Final = 40
"""Limit of an id or a session in a table; JSON has the whole text."""


@command(app, "twinbus backlog list --output json", name="list", note=SECRETS)
async def list_queues(sides: SidesOptions, output: OutputOption = Output.TEXT) -> int:
    """Show each backlog queue: message counts, oldest age, drift.

    It also shows what twins hold. Without a primary or a label it shows the backlog queues of every
    pair in the secondary, and no twins. The count of deferred messages is the total minus all other
    counts: Service Bus reports none.
    """
    from twinbus.client.twins import found_twins
    from twinbus.console.backlog.queue_contents import queue_contents, with_ages
    from twinbus.console.namespaces import administration

    secondary, label = sides.secondary_side, sides.given_label
    with LiveLine() as line:
        line.say(f"listing the queues of {secondary.endpoint}")
        async with administration(secondary, "listing queues") as client:
            all_queues = await queue_contents(client)
        queues = [queue for queue in all_queues if queue.is_of(label)]
        try:
            queues = await with_ages(secondary, queues)
        except MissingRightError as error:
            line.clear()
            print(f"twinbus: the oldest ages are left out: {error}", file=sys.stderr)
        twins = [] if label is None else await found_twins(endpoint_of(secondary), label)
    lines = queue_lines(queues, secondary.endpoint)
    if not queues and all_queues:
        lines.append(other_labels(all_queues))
    lines += twin_lines(twins)
    document = {
        "secondary": secondary.endpoint,
        "queues": [asdict(queue) for queue in queues],
        "twins": [asdict(twin) for twin in twins],
    }
    return show(output, document, lines)


@command(app, "twinbus backlog peek --queue 3 --entity orders --max 5")
async def peek(
    sides: SidesOptions,
    queue: QueueOption = None,
    entity: EntityOption = None,
    count: Annotated[int, option("N", "Messages to show.", "--max", min=1, max=10_000)] = 20,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show backlog messages; nothing is locked or settled."""
    from twinbus.console.backlog.queue_contents import backlog_rows

    selection = sides.selection(queue)
    secondary = selection.secondary
    with LiveLine() as line:
        line.say(f"listing the queues of {secondary.endpoint}")
        queues = await selection.paths()
        line.say("peeking")
        found = await backlog_rows(
            secondary, queues, entity=entity, count=count,
            on_peeked=lambda peeked: line.say(f"peeked at {peeked:,} messages"),
        )  # fmt: skip
    where = ", ".join(queues) if len(queues) == 1 else f"{len(queues)} backlog queues"
    lines = message_lines(found, where, count)
    return show(output, {"secondary": secondary.endpoint, "messages": found}, lines)


@command(
    app,
    "twinbus backlog create --queues 10",
    exit_status="0 all queues exist, 1 some could not be created, 3 some exist but are unsafe to"
    " use.",
)
async def create(
    sides: SidesOptions,
    queues: QueuesOption = 10,
    strict: Annotated[
        bool,
        setting(
            "strict", "--strict/--no-strict", help="Also create the lease queue of strict order."
        ),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Create missing backlog queues and the notice board.

    Applications with create_backlog_queues=False need this once. It never changes a queue that
    exists.
    """
    from twinbus.console.namespaces import creating
    from twinbus.pairing.sdk.administration import Findings

    primary, secondary = sides.both
    paths, lease = backlog_paths(primary.label, queues), lease_path(primary.label)
    board, findings = board_path(primary.label), Findings()
    with LiveLine() as line:
        line.say(f"creating backlog queues in {secondary.endpoint}")
        doing = "creating backlog queues"
        async with creating(primary, secondary, doing) as calls:
            await calls.find_or_create(paths, findings, accept_drift=False)
            if strict:
                await calls.ensure_lease_queue(lease)
            flaws = await calls.ensure_board(board)
    rows = [created_row(path, findings) for path in paths]
    rows += [(lease, "there", "for the leases of strict order")] if strict else []
    rows.append((board, "UNUSABLE" if flaws else "there", "; ".join(flaws) or "the notice board"))
    made = [dict(zip(("path", "state", "detail"), row, strict=True)) for row in rows]
    lines = created_lines(rows, findings, secondary.endpoint)
    show(output, {"secondary": secondary.endpoint, "queues": made}, lines)
    if {*findings.usable, *findings.drained} != set(paths):
        return COULD_NOT
    return ATTENTION if findings.left_out or flaws else 0


@command(app, "twinbus backlog prune --queues 4 --dry-run")
async def prune(
    sides: SidesOptions,
    queues: QueuesOption = 10,
    dry_run: Annotated[bool, flag("--dry-run", "Only show what would be deleted.")] = False,
    yes: Annotated[bool, flag("--yes", "Delete without asking.")] = False,
    output: OutputOption = Output.TEXT,
) -> int:
    """Delete empty backlog queues past the count, after asking.

    A queue that holds any message or dead letter is kept. Sends to a queue are disabled before its
    last check, so no message can arrive between the check and the deletion. If the command is
    killed in between, the queue accepts no sends and `list` shows unsafe drift: set it to Active.
    """
    from twinbus.console.backlog.queue_contents import prunable, remove_if_empty
    from twinbus.console.namespaces import administration

    label = sides.given_label
    if label is None:
        raise WrongUse("whose backlog queues? Give --primary, TWINBUS_PRIMARY or --label")
    if dry_run and yes:
        raise WrongUse("--dry-run and --yes exclude each other: give one of them")
    secondary = sides.secondary_side
    as_json = output is Output.JSON
    if as_json and not (dry_run or yes):
        raise WrongUse("--output json does not ask: add --dry-run, or --yes to delete")
    async with administration(secondary, "listing and deleting queues") as client:
        with LiveLine() as line:
            line.say(f"listing the queues of {secondary.endpoint}")
            extra = await prunable(client, label, queues)
        empty = [queue for queue in extra if queue.is_empty]
        if not as_json:
            print("\n".join(prune_lines(extra, label, queues)))
        outcomes: dict[str, str] = {}
        if not dry_run and empty and (yes or _confirmed(len(empty))):
            with LiveLine() as line:
                for queue in empty:
                    line.say(f"deleting {queue.path}")
                    why = await remove_if_empty(client, secondary, queue.path)
                    outcomes[queue.path] = f"kept: {why}" if why else "deleted"
                    if not as_json:
                        line.print(f"{outcomes[queue.path]:<8}  {visible(queue.path)}")
        elif not dry_run and empty:
            print("nothing was deleted")
    if as_json:
        documents = [
            {**asdict(queue), "outcome": outcomes.get(queue.path, fate(queue))} for queue in extra
        ]
        place = {"secondary": secondary.endpoint, "label": label, "count": queues}
        print_json({**place, "queues": documents})
    return COULD_NOT if any(one != "deleted" for one in outcomes.values()) else 0


def _confirmed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise WrongUse("no terminal to confirm on: add --yes to delete, or --dry-run to only show")
    typed = input(f"type {CONFIRMATION!r} to delete {count} empty queues: ")
    return typed.strip() == CONFIRMATION


def queue_lines(queues: Sequence[QueueContents], endpoint: str) -> list[str]:
    if not queues:
        return [f"no backlog queues in {endpoint}"]
    rows = [
        [
            queue.path,
            queue.active,
            queue.scheduled,
            queue.deferred,
            queue.dead_lettered,
            size(queue.size_bytes),
            "" if queue.oldest_age_s is None else duration(queue.oldest_age_s),
            _drift(queue),
        ]
        for queue in queues
    ]
    columns = "BACKLOG QUEUE|>ACTIVE|>SCHEDULED|>DEFERRED|>DEAD|>SIZE|>OLDEST|DRIFT".split("|")
    lines = table_lines(columns, rows)
    lines += ["", _total(queues, endpoint)]
    for queue in queues:
        lines += [f"drift of {visible(queue.path)}: {visible(one)}" for one in queue.drift]
    return lines


def twin_lines(twins: Sequence[FoundTwin]) -> list[str]:
    if not twins:
        return []
    rows = [
        [twin.path, *(NOT_KNOWN if n is None else n for n in _counts(twin)), _emptied_by(twin)]
        for twin in twins
    ]
    columns = ("TWIN", ">ACTIVE", ">SCHEDULED", ">DEFERRED", "EMPTIED BY")
    waiting = counted(sum(twin.waiting or 0 for twin in twins), "message")
    uncounted = sum(twin.waiting is None for twin in twins)
    more = f", {uncounted:,} not counted" if uncounted else ""
    total = f"{waiting} in {counted(len(twins), 'twin')}{more}"
    return ["", *table_lines(columns, rows), "", total]


def _counts(twin: FoundTwin) -> tuple[int | None, ...]:
    if twin.waiting is None:
        return None, None, None
    return twin.active, twin.scheduled, twin.deferred


def _emptied_by(twin: FoundTwin) -> str:
    if twin.topic or twin.requires_session:
        return "its consumers"
    return "its consumers and the syphon"


def other_labels(queues: Sequence[QueueContents]) -> str:
    """Return the labels that do have backlog queues: an application may have named its primary."""
    labels = sorted({visible(queue.label) for queue in queues})
    return f"other labels have some: {', '.join(labels)}; give --label if one is the primary's name"


def _total(queues: Sequence[QueueContents], endpoint: str) -> str:
    waiting = sum(queue.waiting for queue in queues)
    dead = sum(queue.dead_lettered for queue in queues)
    dead_text = f", {dead:,} dead-lettered (`twinbus backlog dead-letters`)" if dead else ""
    what = counted(waiting, "message") + " to forward" if waiting else "drained"
    return f"{endpoint}: {counted(len(queues), 'backlog queue')}, {what}{dead_text}"


def _drift(queue: QueueContents) -> str:
    if any(one.unsafe for one in queue.drift):
        return "UNSAFE, not in use"
    return counted(len(queue.drift), "setting") if queue.drift else ""


def message_lines(messages: Sequence[Mapping[str, Any]], where: str, count: int) -> list[str]:
    """Return a row for each message. The body is not shown: it may hold a secret."""
    if not messages:
        return [f"no such messages in {where}"]
    rows = [
        [
            message["queue"],
            str(message["sequence_number"]),
            "?" if message["path"] is None else message["path"],
            _cut(message["message_id"]),
            _cut(message["session_id"]),
            "" if message["age_s"] is None else duration(message["age_s"]),
            "" if message["body_bytes"] is None else size(message["body_bytes"]),
            _state(message),
        ]
        for message in messages
    ]
    columns = ("QUEUE", ">NUMBER", "FOR", "MESSAGE ID", "SESSION", ">AGE", ">BODY", "STATE")
    lines = table_lines(columns, rows)
    limit = f"; --max {count} was reached, there may be more" if len(messages) == count else ""
    lines += ["", f"{counted(len(messages), 'message')} in {where}{limit}"]
    return lines


def _state(message: Mapping[str, Any]) -> str:
    parts = [] if message["state"] == "active" else [message["state"]]
    if message["scheduled_at"]:
        parts.append(f"to be enqueued at {message['scheduled_at']}")
    if message["problem"]:
        parts.append(f"cannot be delivered: {visible(message['problem'])}")
    return "; ".join(parts)


def created_row(path: str, findings: Findings) -> tuple[str, str, str]:
    drift = "; ".join(map(str, findings.drift.get(path, ())))
    if path in findings.created:
        return path, "created", ""
    if path in findings.drained:
        unsafe = path in findings.left_out
        return path, "UNSAFE" if unsafe else "there", drift
    return path, "FAILED", findings.left_out.get(path, "no answer")


def created_lines(
    rows: Sequence[tuple[str, str, str]], findings: Findings, endpoint: str
) -> list[str]:
    lines = aligned([[state, visible(path), visible(detail)] for path, state, detail in rows])
    made, usable = len(findings.created), len(findings.usable)
    wanted = len({*findings.drained, *findings.left_out})
    lines += ["", f"{endpoint}: {usable} of {wanted} can be used, {made} created"]
    if findings.left_out:
        lines.append(
            "this command never changes an existing queue: repair or delete the others, then run it"
            " again"
        )
    return lines


def fate(queue: QueueContents) -> str:
    if queue.is_empty:
        return "would be deleted"
    holds = counted(queue.waiting + queue.dead_lettered, "message")
    return f"kept: it holds {holds}"


def prune_lines(extra: Sequence[QueueContents], label: str, count: int) -> list[str]:
    if not extra:
        return [f"nothing to prune: {label} has no backlog queue with an index of {count} or more"]
    lines = aligned([[visible(queue.path), fate(queue)] for queue in extra])
    empty = sum(1 for queue in extra if queue.is_empty)
    summary = (
        f"{empty} of {counted(len(extra), 'backlog queue')} past the count of {count} are empty."
        " Make sure that no application uses a larger backlog_queue_count: it would lose the"
        " queue, though no message."
    )
    return [*lines, "", summary]


def _cut(text: str | None) -> str:
    whole = visible(text or "")
    return whole if len(whole) <= TEXT_LENGTH_MAX else whole[: TEXT_LENGTH_MAX - 1] + "…"
