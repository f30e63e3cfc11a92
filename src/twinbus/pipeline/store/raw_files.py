"""The files of a ledger as its tables know them: which they took, and which are missing.

`compact --remove-raw` removes files that the tables hold. It leaves a note in the ledger before the
first one goes (`ledger.missing`), so that later readers of the files know that there were more.
"""

from __future__ import annotations

from collections.abc import Iterable

from twinbus.ledger import missing
from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store.store import ONLY_COPY, TableStore


def note_removal(store: TableStore, ledger: str, going: Iterable[str]) -> None:
    """Note which files of a ledger are about to be removed: in the ledger, and at the tables."""
    names = set(going)
    notes = (missing.noted_files(text) for text in _listed(store, ledger)[1])
    new = names.difference(*(noted for noted in notes if noted is not None))
    if new:
        store.put_text(ledger, missing.note_name(), missing.new_note(new))
    if names:
        store.mark_raw_removed()


def require_raw(store: TableStore, ledger: str) -> None:
    """LedgerError where the ledger's files cannot make the tables again."""
    is_only_copy = store.is_only_copy
    if not is_only_copy:
        # With other tables of this ledger: these are a copy that may be the last.
        removed = missing.missing_files(*_listed(store, ledger)).removed
        is_only_copy = bool(removed and store.lake.taken().keys() & set(removed))
    if is_only_copy:
        raise LedgerError(
            f"the tables at {store.place} cannot be rebuilt: they are {ONLY_COPY} (compact"
            " --remove-raw); the version of Twinbus that made them reads them"
        )


def _listed(store: TableStore, place: str) -> tuple[list[str], list[str]]:
    """The names of a ledger's files, and the texts of the notes among them."""
    names = [name for name, _ in store.files_at(place)]
    return names, [store.text_at(place, name) for name in names if missing.is_note(name)]
