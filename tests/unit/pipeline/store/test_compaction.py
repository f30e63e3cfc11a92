"""When an update compacts tables, and tables that are the only copy of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store.compaction import (
    LARGE_BYTES,
    SMALL_FILES_MAX,
    TINY_BYTES,
    note_removal,
    pays,
    require_raw,
)
from twinbus.pipeline.store.lake import DataFile, Snapshot
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.store.stream import open_store, tables_place
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger whose tables are of a version with other columns."""
    (tmp_path / "p-00000.jsonl").touch()
    store = TableStore(None, tables_place(tmp_path))
    store.lake.publish(Snapshot(), Snapshot(gold="of another version"), {}, {"p-00000.jsonl": ""})
    return tmp_path


def test_other_columns_are_to_be_rebuilt_only_where_that_can_be_done(ledger: Path) -> None:
    with pytest.raises(LedgerError, match=r"have other columns: rebuild them \([^\n]+$"):
        open_store(None, ledger)
    TableStore(None, tables_place(ledger)).mark_raw_removed()
    assert "have other columns, and are the only copy" in refusal(ledger)


def refusal(ledger: Path) -> str:
    with pytest.raises(LedgerError) as told:
        open_store(None, ledger)
    assert "rebuild" not in str(told.value)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_tables_whose_files_were_removed_with_other_tables_are_kept(ledger: Path) -> None:
    (ledger / "p-00001.jsonl").touch()
    here, other = (TableStore(None, tables_place(ledger, one)) for one in (None, ledger / "more"))
    other.lake.publish(Snapshot(), Snapshot(), {}, {"p-00000.jsonl": ""})
    require_raw(here, str(ledger))
    note_removal(other, str(ledger), {"p-00000.jsonl": ""})
    # Noted, and not gone yet.
    require_raw(here, str(ledger))
    (ledger / "p-00000.jsonl").unlink()
    with pytest.raises(LedgerError, match="cannot be rebuilt: they are the only copy"):
        require_raw(here, str(ledger))


MANY = SMALL_FILES_MAX + 1


@pytest.mark.parametrize("table", [BRONZE, JOURNEYS])
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1_000] * MANY, True),
        ([1_000] * SMALL_FILES_MAX, False),
        # These would not become much fewer.
        ([TINY_BYTES] * MANY, False),
        # Large files are left alone, however many there are.
        ([LARGE_BYTES] * MANY, False),
        ([*[LARGE_BYTES] * MANY, *[1_000] * MANY], True),
    ],
)
def test_compaction_pays_with_many_tiny_files(table: str, sizes: list[int], expected: bool) -> None:
    files = tuple(DataFile(str(number), size, 1, 0) for number, size in enumerate(sizes))
    store: Any = mock.Mock()
    store.lake.files = lambda asked, snapshot: files if asked == table else ()
    assert pays(store, Snapshot()) is expected
