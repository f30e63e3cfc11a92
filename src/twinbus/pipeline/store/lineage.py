"""From a message to its lines: the records that a verdict was made from, with file and line.

The tables name the file of each record, and this process reads that file for the number of the
line, if it is still there. No Spark.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from twinbus.ledger.facts import GZIP_SUFFIX
from twinbus.pipeline.core.mentions import written_id
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.tables.gold import BRONZE, NOTABLE

_SHOWN: Final = ("at_ms", "operation", "outcome", "process", "entity", "file", "batch", "taken_ms")

Place = tuple[int, str, str]
"""Time, operation and process of a record."""


@dataclass(frozen=True)
class Line:
    """One record of a message, and where it is."""

    at_ms: int
    operation: str
    outcome: str | None
    process: str
    entity: str | None
    file: str | None
    """None: an earlier version of Twinbus took it."""
    batch: int | None
    taken_ms: int | None
    line: int | None
    """From 1; None: the file is gone."""


def show(store: TableStore, ledger: str, message_id: str) -> dict[str, Any]:
    """Return the lines of a message in the order of time, and its fate where it is notable."""
    snapshot = store.latest()
    rows = store.lake.find(BRONZE, snapshot, "message_id", message_id)
    rows.sort(key=lambda row: row["at_ms"])
    files = PlaceFiles(ledger)
    there = files.ledger_files().keys()
    names = {str(row["file"]) for row in rows if row.get("file") is not None}
    numbers = {name: _numbers(files, name, there, message_id) for name in names}
    lines = []
    for row in rows:
        told: dict[str, Any] = {name: row.get(name) for name in _SHOWN}
        of_file = numbers.get(told["file"] or "", {}).get(_place(row), [])
        lines.append(Line(**told, line=of_file.pop(0) if of_file else None))
    counts = Counter[tuple[str, str | None]]()
    for row in store.lake.find(NOTABLE.name, snapshot, "message_id", message_id):
        counts[row["destination"], row["fate"]] += row["messages"]
    fates = [
        {"entity": entity, "fate": fate}
        for (entity, fate), count in counts.items()
        if count and fate
    ]
    return {"message_id": message_id, "lines": [*map(asdict, lines)], "fates": fates}


def _numbers(
    files: PlaceFiles, name: str, there: Collection[str], message_id: str
) -> dict[Place, list[int]]:
    """Return the numbers of a file's lines that are records of a message."""
    found: dict[Place, list[int]] = defaultdict(list)
    # It may have been compressed since.
    stored = next((one for one in (name, name + GZIP_SUFFIX) if one in there), None)
    if stored is None:
        return found
    written = written_id(message_id).encode()
    for number, line in enumerate(files.content(stored).split(b"\n"), 1):
        record = _record(line) if written in line else None
        if record is not None and record.get("message_id") == message_id:
            found[_place(record)].append(number)
    return found


def _record(line: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _place(record: Mapping[str, Any]) -> Place:
    return record.get("at_ms", 0), record.get("operation", ""), record.get("process", "")
