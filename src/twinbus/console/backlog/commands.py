"""`twinbus backlog`: show, create and prune the backlog queues of a secondary."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from twinbus.console.backlog import text as backlog_text
from twinbus.console.backlog.queue_contents import (
    QueueContents,
    backlog_rows,
    queue_contents,
    remove_if_empty,
    with_ages,
)
from twinbus.console.namespaces import UnreachableError, administration, run_to_its_end
from twinbus.console.terminal.live_line import live_line
from twinbus.console.terminal.output import ATTENTION, COULD_NOT, WrongUse, print_json
from twinbus.console.terminal.table import visible
from twinbus.errors import MissingRightError
from twinbus.ledger import NullLedger
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.backlog import backlog_paths, lease_path, parse_backlog_path
from twinbus.pairing.lifecycle.administration import (
    BacklogAdministration,
    Findings,
    SecondaryUnreachable,
)
from twinbus.pairing.sending.recording import Recorder

CALL_S: Final = 20.0
"""Timeout of one administration call: a person waits longer than an application does."""

CONFIRMATION: Final = "prune"


def list_queues(secondary: Namespace, label: str | None, *, as_json: bool) -> int:
    """Print every backlog queue with its message counts; return the exit status."""

    async def work() -> int:
        with live_line() as line:
            line.say(f"listing the queues of {secondary.endpoint}")
            async with administration(secondary, "listing queues") as client:
                all_queues = await queue_contents(client)
            queues = [queue for queue in all_queues if queue.is_of(label)]
            try:
                queues = await with_ages(secondary, queues)
            except MissingRightError as error:
                line.clear()
                print(f"twinbus: the oldest ages are left out: {error}", file=sys.stderr)
        if as_json:
            print_json(
                {"secondary": secondary.endpoint, "queues": [_document(one) for one in queues]}
            )
        else:
            print("\n".join(backlog_text.queue_lines(queues, secondary.endpoint)))
            if not queues and all_queues:
                print(backlog_text.other_labels(all_queues))
        return 0

    return run_to_its_end(work)


def peek_messages(
    secondary: Namespace,
    label: str | None,
    *,
    queue: str | None,
    entity: str | None,
    count: int,
    as_json: bool,
) -> int:
    """Print messages of the backlog; return the exit status."""

    async def work() -> int:
        with live_line() as line:
            line.say(f"listing the queues of {secondary.endpoint}")
            queues = await selected_queues(secondary, label, queue)
            line.say("peeking")
            found = await backlog_rows(
                secondary, queues, entity=entity, count=count,
                on_peeked=lambda peeked: line.say(f"peeked at {peeked:,} messages"),
            )  # fmt: skip
        if as_json:
            messages = [asdict(message) for message in found]
            print_json({"secondary": secondary.endpoint, "messages": messages})
        else:
            where = ", ".join(queues) if len(queues) == 1 else f"{len(queues)} backlog queues"
            print("\n".join(backlog_text.message_lines(found, where, count)))
        return 0

    return run_to_its_end(work)


async def selected_queues(secondary: Namespace, label: str | None, queue: str | None) -> list[str]:
    """Return the paths of a label's backlog queues, or of one of them; a path is not checked."""
    if queue is not None and not queue.isdecimal():
        if parse_backlog_path(queue) is None:
            raise WrongUse(
                f"{queue!r} is no backlog queue: give an index like 3, or"
                " LABEL/x-servicebus-transfer/3"
            )
        return [queue]
    if queue is not None and label is not None:
        return [backlog_paths(label, int(queue) + 1)[-1]]
    async with administration(secondary, "listing queues") as client:
        found = [one for one in await queue_contents(client) if one.is_of(label)]
    if queue is not None:
        found = [one for one in found if one.index == int(queue)]
    if not found:
        raise UnreachableError(
            f"there is no such backlog queue in {secondary.endpoint}; `twinbus backlog list` shows"
            " all of them"
        )
    return [one.path for one in found]


def create(
    primary: Namespace, secondary: Namespace, count: int, *, strict: bool = False, as_json: bool
) -> int:
    """Create the missing backlog queues of a pair; return the exit status.

    `strict` also creates the lease queue, which `session_order="strict"` needs.
    """
    paths = backlog_paths(primary.label, count)

    async def work() -> int:
        findings = Findings()
        recorder = Recorder(NullLedger(), primary, secondary, is_on=False)
        with live_line() as line:
            line.say(f"creating backlog queues in {secondary.endpoint}")
            try:
                async with BacklogAdministration(
                    secondary, recorder, timeout_s=CALL_S
                ) as backlog_administration:
                    await backlog_administration.find_or_create(paths, findings, accept_drift=False)
                    if strict:
                        await backlog_administration.ensure_lease_queue(lease_path(primary.label))
            except SecondaryUnreachable as error:
                raise UnreachableError(str(error)) from error
            except MissingRightError as error:
                raise MissingRightError(
                    f"creating backlog queues in {secondary.endpoint} needs the Manage right, and"
                    " this credential does not have it; use one that does"
                ) from error
        rows = [backlog_text.created_row(path, findings) for path in paths]
        lease = [(lease_path(primary.label), "there", "for the leases of strict order")]
        rows += lease if strict else []
        if as_json:
            print_json(
                {
                    "secondary": secondary.endpoint,
                    "queues": [
                        dict(zip(("path", "state", "detail"), row, strict=True)) for row in rows
                    ],
                }
            )
        else:
            print("\n".join(backlog_text.created_lines(rows, findings, secondary.endpoint)))
        existing = {*findings.usable, *findings.drained}
        if existing != set(paths):
            return COULD_NOT
        return ATTENTION if findings.left_out else 0

    return run_to_its_end(work)


def prune(
    secondary: Namespace, label: str, count: int, *, dry_run: bool, yes: bool, as_json: bool
) -> int:
    """Delete empty backlog queues past the count, after showing them; return the exit status."""
    if as_json and not (dry_run or yes):
        raise WrongUse("--output json does not ask: add --dry-run, or --yes to delete")

    async def work() -> int:
        async with administration(secondary, "listing and deleting queues") as client:
            with live_line() as line:
                line.say(f"listing the queues of {secondary.endpoint}")
                queues = [queue for queue in await queue_contents(client) if queue.is_of(label)]
                extra = [queue for queue in queues if queue.index >= count]
            empty = [queue for queue in extra if queue.is_empty]
            if not as_json:
                print("\n".join(backlog_text.prune_lines(extra, label, count)))
            outcomes: dict[str, str] = {}
            if not dry_run and empty and (yes or _confirmed(len(empty))):
                with live_line() as line:
                    for queue in empty:
                        line.say(f"deleting {queue.path}")
                        why = await remove_if_empty(client, secondary, queue.path)
                        outcomes[queue.path] = f"kept: {why}" if why else "deleted"
                        if not as_json:
                            line.print(f"{outcomes[queue.path]:<8}  {visible(queue.path)}")
            elif not dry_run and empty:
                print("nothing was deleted")
        if as_json:
            print_json(_prune_document(secondary, label, count, extra, outcomes))
        return COULD_NOT if any(one != "deleted" for one in outcomes.values()) else 0

    return run_to_its_end(work)


def _confirmed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise WrongUse("no terminal to confirm on: add --yes to delete, or --dry-run to only show")
    typed = input(f"type {CONFIRMATION!r} to delete {count} empty queues: ")
    return typed.strip() == CONFIRMATION


def _prune_document(
    secondary: Namespace,
    label: str,
    count: int,
    extra: Sequence[QueueContents],
    outcomes: dict[str, str],
) -> dict[str, Any]:
    return {
        "secondary": secondary.endpoint,
        "label": label,
        "count": count,
        "queues": [
            {**_document(queue), "outcome": outcomes.get(queue.path, backlog_text.fate(queue))}
            for queue in extra
        ],
    }


def _document(queue: QueueContents) -> dict[str, Any]:
    document = asdict(queue)
    document["drift"] = [
        {"setting": one.setting, "found": one.found, "wanted": one.wanted, "danger": one.danger}
        for one in queue.drift
    ]
    return document
