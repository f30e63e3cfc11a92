"""Backlog queues and their messages as tables to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from twinbus.console.backlog.queue_contents import QueueContents
from twinbus.console.terminal.table import aligned, counted, duration, size, table_lines, visible
from twinbus.pairing.lifecycle.administration import Findings

TEXT_LENGTH_MAX: Final = 40
"""Limit of an id or a session in a table; JSON has the whole text."""


def queue_lines(queues: Sequence[QueueContents], endpoint: str) -> list[str]:
    """Return a row for each queue, and a line with the totals."""
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
    """Return the path, the outcome and the details of one queue."""
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
    """Return a row for each queue, and a line with the totals."""
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
    """Return what prune does with a queue."""
    if queue.is_empty:
        return "would be deleted"
    holds = counted(queue.waiting + queue.dead_lettered, "message")
    return f"kept: it holds {holds}"


def prune_lines(extra: Sequence[QueueContents], label: str, count: int) -> list[str]:
    """Return what prune would do with each queue past the count."""
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
