"""The files of a ledger as its tables know them: which they took, and which are missing.

`compact --remove-raw` removes files that the tables hold. It leaves a note in the ledger before the
first one goes (`ledger.missing`), so that later readers of the files know that there were more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from twinbus.ledger import missing
from twinbus.pipeline.store.store import TableStore


def taken_files(store: TableStore) -> Iterator[tuple[str, int]]:
    """Every file of the ledger that the stream took, and its batch, as Spark wrote them down."""
    for text in store.read_texts("checkpoint/sources/0"):
        for line in text.splitlines():
            if line.startswith("{"):
                told = json.loads(line)
                yield told["path"], int(told["batchId"])


def note_removal(store: TableStore, addresses: Iterable[str]) -> None:
    """Note which files are about to be removed: in their own directories, and at the tables."""
    names: dict[str, set[str]] = {}
    for address in addresses:
        place, _, name = unquote(address).rpartition("/")
        names.setdefault(place, set()).add(name)
    for place, going in names.items():
        notes = (missing.noted_files(text) for text in _listed(store, place)[1])
        new = going.difference(*(noted for noted in notes if noted is not None))
        if new:
            store.put_text(place, missing.note_name(), missing.new_note(new))
    if names:
        store.mark_raw_removed()


def missing_from_files(tables: TableStore, ledger: Path | str) -> missing.MissingFiles:
    """What a reader of the ledger's files does not see; `tables` are those inside the ledger."""
    names, notes = _listed(tables, str(ledger))
    found = missing.missing_files(names, notes)
    # A version that left no note may have removed some.
    return replace(found, unnoted=1) if tables.is_only_copy and not notes else found


def missing_from_tables(tables: TableStore, ledger: Path | str) -> missing.MissingFiles:
    """What these tables of a ledger do not hold: files that went before they were taken."""
    found = missing.missing_files(*_listed(tables, str(ledger)))
    if not found:
        return found
    return found.but({unquote(path).rpartition("/")[2] for path, _ in taken_files(tables)})


def _listed(store: TableStore, place: str) -> tuple[list[str], list[str]]:
    """The names of a ledger's files, and the texts of the notes among them."""
    names = [name for name, _ in store.files_at(place)]
    return names, [store.text_at(place, name) for name in names if missing.is_note(name)]
