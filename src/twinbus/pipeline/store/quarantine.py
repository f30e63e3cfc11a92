"""The table of rejected lines: what a batch adds, and what erasure and retention remove from it.

Its rows are few, so this process writes and rewrites its files, without Spark. Only a batch with
rejected lines costs something: its files are read a second time, as text, and the files that have
such lines a third time, by this process, for the numbers of the lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from twinbus.pipeline.store.lake import DataFile, Snapshot, TableChange
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.store import TableStore, ledger_paths
from twinbus.pipeline.tables.quarantine import QUARANTINE, TEXT_MAX, rejected_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

_START_BYTES: Final = 4 * TEXT_MAX
"""As many bytes of UTF-8 have at least the characters that are kept of a line."""

Row = Mapping[str, Any]


def quarantined(
    store: TableStore, ledger: str, names: Iterable[str], told: Row, part: str
) -> tuple[DataFile, ...]:
    """Write the rejected lines of files of the ledger; `told` are the columns that all share."""
    reader = store.for_few().session.read.option("lineSep", "\n")
    found = rejected_lines(reader.text(ledger_paths(ledger, names))).collect()
    of_file: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        of_file[unquote(row["file"])].append(row.asDict())
    files = PlaceFiles(ledger)
    rows = [
        {**row, "file": name, "line": number, **told}
        for name, lines in of_file.items()
        for row, number in zip(lines, _numbers(files, name, lines), strict=True)
    ]
    return written(store, rows, part)


def written(store: TableStore, rows: Sequence[Row], part: str) -> tuple[DataFile, ...]:
    return (store.lake.write_rows(QUARANTINE, f"{part}/0.parquet", rows),) if rows else ()


def rows_of_lines(store: TableStore, snapshot: Snapshot) -> list[Row]:
    """Return all rows of the table."""
    return [
        row
        for file in store.lake.files(QUARANTINE, snapshot)
        for row in store.lake.rows(QUARANTINE, file)
    ]


def changed_lines(
    store: TableStore, snapshot: Snapshot, change: Callable[[Row], Row | None]
) -> TableChange | None:
    """Rewrite the files with rows that `change` alters or removes; None if there are none."""
    old, new = list[DataFile](), list[DataFile]()
    for file in store.lake.files(QUARANTINE, snapshot):
        rows = store.lake.rows(QUARANTINE, file)
        after = [row for row in map(change, rows) if row is not None]
        if after != rows:
            old.append(file)
            new += written(store, after, store.new_part(snapshot.batch))
    return TableChange(new, old) if old else None


def _numbers(files: PlaceFiles, name: str, lines: Sequence[Row]) -> list[int | None]:
    """Return the numbers of lines in their file, from 1; None for one that is not found again."""
    wanted: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(lines):
        wanted[row["text"]].insert(0, index)
    numbers: list[int | None] = [None] * len(lines)
    for number, start in enumerate(_line_starts(files.pieces(name)), 1):
        text = start.decode("utf-8", "replace")[:TEXT_MAX]
        if text in wanted:
            numbers[wanted[text].pop()] = number
            if not wanted[text]:
                del wanted[text]
                if not wanted:
                    break
    return numbers


def _line_starts(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the first bytes of every line: a line may be larger than the memory."""
    start = b""
    for piece in pieces:
        first, *others = piece.split(b"\n")
        start = (start + first)[:_START_BYTES]
        for other in others:
            yield start
            start = other[:_START_BYTES]
    yield start
