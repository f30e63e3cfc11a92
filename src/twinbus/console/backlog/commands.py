"""`twinbus backlog`: look at the backlog queues of a secondary, create them, remove spare ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from twinbus.console.backlog import text as backlog_words
from twinbus.console.backlog.queue_contents import (
    QueueContents,
    peek,
    remove_if_empty,
    stock_of,
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

__all__ = ["create", "list_queues", "peek_messages", "prune", "queues_meant"]

CALL_S: Final = 20.0
"""For one administration call; a person waits longer than an application does."""

CONFIRMATION: Final = "prune"


def list_queues(secondary: Namespace, label: str | None, *, as_json: bool) -> int:
    """Print every backlog queue with what it holds; the exit status."""

    async def work() -> int:
        async with live_line() as line:
            line.say(f"looking at {secondary.endpoint}")
            async with administration(secondary, "listing queues") as client:
                everyones = await stock_of(client)
            stocks = [stock for stock in everyones if stock.is_of(label)]
            try:
                stocks = await with_ages(secondary, stocks)
            except MissingRightError as error:
                line.clear()
                print(f"twinbus: the oldest ages are left out: {error}", file=sys.stderr)
        if as_json:
            print_json(
                {"secondary": secondary.endpoint, "queues": [_stock_dict(s) for s in stocks]}
            )
        else:
            print("\n".join(backlog_words.stock_lines(stocks, secondary.endpoint)))
            if not stocks and everyones:
                print(backlog_words.other_labels(everyones))
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
    """Print messages of the backlog as they lie there; the exit status."""

    async def work() -> int:
        async with live_line() as line:
            line.say(f"looking at {secondary.endpoint}")
            queues = await queues_meant(secondary, label, queue)
            line.say("peeking")
            found = await peek(
                secondary, queues, entity=entity, count=count,
                looked=lambda seen: line.say(f"looked at {seen:,} messages"),
            )  # fmt: skip
        if as_json:
            messages = [asdict(message) for message in found]
            print_json({"secondary": secondary.endpoint, "messages": messages})
        else:
            where = ", ".join(queues) if len(queues) == 1 else f"{len(queues)} backlog queues"
            print("\n".join(backlog_words.message_lines(found, where, count)))
        return 0

    return run_to_its_end(work)


async def queues_meant(secondary: Namespace, label: str | None, queue: str | None) -> list[str]:
    """The backlog queues of a label, or one of them; a path is taken as it is, without a look."""
    if queue is not None and not queue.isdecimal():
        if parse_backlog_path(queue) is None:
            raise WrongUse(
                f"{queue!r} is no backlog queue: say an index like 3, or"
                " LABEL/x-servicebus-transfer/3"
            )
        return [queue]
    if queue is not None and label is not None:
        return [backlog_paths(label, int(queue) + 1)[-1]]
    async with administration(secondary, "listing queues") as client:
        stocks = [stock for stock in await stock_of(client) if stock.is_of(label)]
    if queue is not None:
        stocks = [stock for stock in stocks if stock.index == int(queue)]
    if not stocks:
        raise UnreachableError(
            f"there is no such backlog queue in {secondary.endpoint}; `twinbus backlog list` shows"
            " what is there"
        )
    return [stock.path for stock in stocks]


def create(
    primary: Namespace, secondary: Namespace, count: int, *, strict: bool = False, as_json: bool
) -> int:
    """Have all backlog queues of a pair; print what was there and what was created.

    `strict` has the queue of the leases too, which `session_order="strict"` needs.
    """
    paths = backlog_paths(primary.label, count)

    async def work() -> int:
        findings = Findings()
        recorder = Recorder(NullLedger(), primary, secondary, is_on=False)
        async with live_line() as line:
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
        rows = [backlog_words.created_row(path, findings) for path in paths]
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
            print("\n".join(backlog_words.created_lines(rows, findings, secondary.endpoint)))
        had = {*findings.usable, *findings.drained}
        if had != set(paths):
            return COULD_NOT
        return ATTENTION if findings.left_out else 0

    return run_to_its_end(work)


def prune(
    secondary: Namespace, label: str, count: int, *, dry_run: bool, yes: bool, as_json: bool
) -> int:
    """Remove empty backlog queues past the count, after showing them; the exit status."""
    if as_json and not (dry_run or yes):
        raise WrongUse("--output json asks no questions: add --dry-run, or --yes to delete")

    async def work() -> int:
        async with administration(secondary, "listing and deleting queues") as client:
            async with live_line() as line:
                line.say(f"looking at {secondary.endpoint}")
                stocks = [stock for stock in await stock_of(client) if stock.is_of(label)]
                extra = [stock for stock in stocks if stock.index >= count]
            empty = [stock for stock in extra if stock.is_empty]
            if not as_json:
                print("\n".join(backlog_words.prune_lines(extra, label, count)))
            outcomes: dict[str, str] = {}
            if not dry_run and empty and (yes or _confirmed(len(empty))):
                async with live_line() as line:
                    for stock in empty:
                        line.say(f"deleting {stock.path}")
                        why = await remove_if_empty(client, secondary, stock.path)
                        outcomes[stock.path] = f"kept: {why}" if why else "deleted"
                        if not as_json:
                            line.print(f"{outcomes[stock.path]:<8}  {visible(stock.path)}")
            elif not dry_run and empty:
                print("nothing was deleted")
        if as_json:
            print_json(_prune_document(secondary, label, count, extra, outcomes))
        return COULD_NOT if any(one != "deleted" for one in outcomes.values()) else 0

    return run_to_its_end(work)


def _confirmed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise WrongUse("nobody is here to confirm: add --yes to delete, or --dry-run to only look")
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
            {**_stock_dict(stock), "outcome": outcomes.get(stock.path, backlog_words.fate(stock))}
            for stock in extra
        ],
    }


def _stock_dict(stock: QueueContents) -> dict[str, Any]:
    document = asdict(stock)
    document["drift"] = [
        {"setting": one.setting, "found": one.found, "wanted": one.wanted, "danger": one.danger}
        for one in stock.drift
    ]
    return document
