"""Backlog queues and their messages as tables to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from twinbus.console.terminal.table import aligned, duration, size, visible

if TYPE_CHECKING:
    from twinbus.console.backlog.queue_contents import BacklogRow, QueueContents
    from twinbus.pairing.lifecycle.administration import Findings

__all__ = [
    "created_lines",
    "created_row",
    "fate",
    "message_lines",
    "other_labels",
    "prune_lines",
    "stock_lines",
]

TEXT_LENGTH_MAX: Final = 40
"""Of an id or a session in a table: JSON has the whole."""


def stock_lines(stocks: Sequence[QueueContents], endpoint: str) -> list[str]:
    """Each queue with what it holds, and a line for all."""
    if not stocks:
        return [f"no such backlog queues in {endpoint}"]
    rows = [["BACKLOG QUEUE", "ACTIVE", "SCHEDULED", "DEFERRED", "DEAD", "SIZE", "OLDEST", "DRIFT"]]
    rows += [
        [
            visible(stock.path),
            f"{stock.active:,}",
            f"{stock.scheduled:,}",
            f"{stock.deferred:,}",
            f"{stock.dead_lettered:,}",
            size(stock.size_bytes),
            "" if stock.oldest_age_s is None else duration(stock.oldest_age_s),
            _drift(stock),
        ]
        for stock in stocks
    ]
    lines = aligned(rows, right={1, 2, 3, 4, 5, 6})
    lines += ["", _total(stocks, endpoint)]
    for stock in stocks:
        lines += [f"drift of {visible(stock.path)}: {visible(one)}" for one in stock.drift]
    return lines


def other_labels(stocks: Sequence[QueueContents]) -> str:
    """Whose backlog queues are there instead: an application may have named its primary."""
    labels = sorted({visible(stock.label) for stock in stocks})
    return f"there are some of {', '.join(labels)}: say --label if that is the primary's name"


def _total(stocks: Sequence[QueueContents], endpoint: str) -> str:
    waiting = sum(stock.waiting for stock in stocks)
    dead = sum(stock.dead_lettered for stock in stocks)
    queues = _counted(len(stocks), "backlog queue")
    dead_words = f", {dead:,} dead-lettered (`twinbus backlog dead-letters`)" if dead else ""
    what = _counted(waiting, "message") + " to bring home" if waiting else "drained"
    return f"{endpoint}: {queues}, {what}{dead_words}"


def _drift(stock: QueueContents) -> str:
    if any(one.unsafe for one in stock.drift):
        return "UNSAFE, not in use"
    return _counted(len(stock.drift), "setting") if stock.drift else ""


def message_lines(messages: Sequence[BacklogRow], where: str, count: int) -> list[str]:
    """Each message in a line; the body is not shown, it may be anybody's secret."""
    if not messages:
        return [f"no such messages in {where}"]
    rows = [["QUEUE", "NUMBER", "FOR", "MESSAGE ID", "SESSION", "AGE", "BODY", "STATE"]]
    rows += [
        [
            visible(message.queue),
            str(message.sequence_number),
            "?" if message.path is None else visible(message.path),
            _cut(message.message_id),
            _cut(message.session_id),
            "" if message.age_s is None else duration(message.age_s),
            "" if message.body_bytes is None else size(message.body_bytes),
            _state(message),
        ]
        for message in messages
    ]
    lines = aligned(rows, right={1, 5, 6})
    limit = f"; --max {count} was reached, there may be more" if len(messages) == count else ""
    lines += ["", f"{_counted(len(messages), 'message')} in {where}{limit}"]
    return lines


def _state(message: BacklogRow) -> str:
    words = [] if message.state == "active" else [message.state]
    if message.scheduled_at:
        words.append(f"to be enqueued at {message.scheduled_at}")
    if message.problem:
        words.append(f"cannot go home: {visible(message.problem)}")
    return "; ".join(words)


def created_row(path: str, findings: Findings) -> tuple[str, str, str]:
    """Path, what became of it, and what there is to say."""
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
    """What was there and what was created, and a line for all."""
    lines = aligned([[state, visible(path), visible(detail)] for path, state, detail in rows])
    made, usable = len(findings.created), len(findings.usable)
    wanted = len({*findings.drained, *findings.left_out})
    lines += ["", f"{endpoint}: {usable} of {wanted} can be used, {made} created"]
    if findings.left_out:
        lines.append(
            "a queue is never changed or replaced here: mend or delete the others, then run this"
            " again"
        )
    return lines


def fate(stock: QueueContents) -> str:
    """What prune does with a queue."""
    if stock.is_empty:
        return "would be deleted"
    holds = _counted(stock.waiting + stock.dead_lettered, "message")
    return f"kept: it holds {holds}"


def prune_lines(extra: Sequence[QueueContents], label: str, count: int) -> list[str]:
    """What prune would do."""
    if not extra:
        return [f"nothing to prune: {label} has no backlog queue with an index of {count} or more"]
    lines = aligned([[visible(stock.path), fate(stock)] for stock in extra])
    empty = sum(1 for stock in extra if stock.is_empty)
    said = (
        f"{empty} of {_counted(len(extra), 'backlog queue')} past the count of {count} are empty."
        " Make sure that no application uses a larger backlog_queue_count: it would lose the"
        " queue, though no message."
    )
    return [*lines, "", said]


def _cut(text: str | None) -> str:
    words = visible(text or "")
    return words if len(words) <= TEXT_LENGTH_MAX else words[: TEXT_LENGTH_MAX - 1] + "…"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
