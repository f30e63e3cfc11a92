"""`twinbus fleet`: which hosts say that which entity failed over, from the notice board alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from twinbus.console import ATTENTION
from twinbus.console.namespaces import UnreachableError
from twinbus.console.output import Output, show, table_lines
from twinbus.fleet.board import BoardError, FreshNotice, NoticeBoard
from twinbus.fleet.core.notices import Notice
from twinbus.namespace.namespace import Namespace
from twinbus.wording import counted, visible

PAGE: Final = 100
MESSAGES_MAX: Final = 5_000
"""Messages to read: far more than a fleet posts within their time to live."""

FAILED_OVER: Final = "FAILED_OVER"
ANSWERED: Final = "answered"


async def run_fleet(secondary: Namespace, label: str, output: Output) -> int:
    board = NoticeBoard(secondary, label)
    try:
        found = await _read(board)
    except BoardError as error:
        raise UnreachableError(str(error)) from error
    finally:
        await board.rest()
    rows = newest(found)
    document = {
        "secondary": secondary.endpoint,
        "board": board.path,
        "hosts": len({row.notice.host for row in rows}),
        "entities": [_document(row) for row in rows],
    }
    show(output, document, fleet_lines(rows, board.path))
    return ATTENTION if any(not row.notice.recovered for row in rows) else 0


async def _read(board: NoticeBoard) -> list[FreshNotice]:
    found: list[FreshNotice] = []
    messages = 0
    while messages < MESSAGES_MAX:
        look = await board.look(PAGE)
        if not look.messages:
            break
        messages += look.messages
        found += look.notices
    return found


def newest(found: Iterable[FreshNotice]) -> list[FreshNotice]:
    """Return the last notice of each host about each entity, in their order of posting."""
    last = {(one.notice.entity_key, one.notice.host): one for one in found}
    return [last[key] for key in sorted(last)]


def fleet_lines(rows: Sequence[FreshNotice], board: str) -> list[str]:
    failed = {row.notice.entity_key for row in rows if not row.notice.recovered}
    if not rows:
        return [f"{visible(board)} has no notice: no host says that an entity failed over"]
    columns = ("ENTITY", "HOST", "STATE", "SINCE", "FAILURES")
    cells = [
        [
            row.notice.entity,
            row.notice.host,
            _state(row.notice),
            _time(row.notice.since),
            ", ".join(row.notice.kinds),
        ]
        for row in rows
    ]
    hosts = len({row.notice.host for row in rows})
    counts = f"{counted(len(failed), 'entity', 'entities')} failed over"
    summary = f"{visible(board)}: {counts}, by the word of {counted(hosts, 'host')}"
    return [*table_lines(columns, cells), "", f"{summary}; others may be silent"]


def _document(row: FreshNotice) -> dict[str, Any]:
    notice = row.notice
    return {
        "entity": notice.entity,
        "host": notice.host,
        "state": _state(notice),
        "since": _time(notice.since),
        "failures": list(notice.kinds),
        "valid_s": round(row.valid_s, 3),
    }


def _state(notice: Notice) -> str:
    return ANSWERED if notice.recovered else FAILED_OVER


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
