"""What must hold of the tables of a set: each expectation breaks when its tables do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from twinbus.pipeline.store.expectations import broken, noted
from twinbus.pipeline.store.lake import Snapshot, TableChange
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.tables.gold import BRONZE, EXPECTATIONS

FIRST, SECOND = date(2026, 11, 5), date(2026, 11, 6)

Rows = Sequence[Mapping[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> TableStore:
    """Tables of three records of two days."""
    store = TableStore(None, tmp_path)
    days = [FIRST, SECOND, SECOND]
    records = [{"day": day, "at_ms": number} for number, day in enumerate(days)]
    sums = [{"day": day, "view": "client", "records": days.count(day)} for day in (FIRST, SECOND)]
    changes = {
        BRONZE: TableChange([store.lake.write_rows(BRONZE, "0-a/0.parquet", records)]),
        "lines": TableChange([store.lake.write_rows("lines", "0-a/0.parquet", sums)]),
    }
    told = Snapshot(batch=0, records=3)
    changes[EXPECTATIONS] = noted(store, Snapshot(), told, changes, "0-a")
    store.lake.publish(Snapshot(), told, changes)
    return store


def changed(store: TableStore, table: str, rows: Rows, part: str) -> Snapshot:
    """Put other rows into a table, as a restored copy of it has them."""
    before = store.latest()
    file = store.lake.write_rows(table, f"{part}/0.parquet", rows)
    old = store.lake.files(table, before)
    return store.lake.publish(before, before, {table: TableChange([file], old)})


def test_whole_tables_break_none_also_after_retention(store: TableStore) -> None:
    assert broken(store, store.latest()) == broken(store, Snapshot()) == []
    rows = store.lake.rows(EXPECTATIONS, store.lake.files(EXPECTATIONS, store.latest())[0])
    assert {row["expectation"]: row["holds"] for row in rows} == dict.fromkeys(
        ("records", "sums", "versions"), True
    )
    # The sums of removed days stay, and a late record of one is in both.
    kept = [{"day": SECOND, "at_ms": number} for number in (1, 2)]
    after = changed(store, BRONZE, kept, "0-b")
    assert broken(store, replace(after, records=2, records_from=str(SECOND))) == []
    assert len(broken(store, replace(after, records=2))) == 1


@pytest.mark.parametrize(
    ("table", "rows", "part", "sentence"),
    [
        (
            BRONZE,
            [{"day": SECOND, "at_ms": 1}],
            "0-b",
            "records of bronze (expectation records): the set counts 3, and 1 were found",
        ),
        (
            "lines",
            [{"day": FIRST, "view": "client", "records": 1}],
            "0-b",
            "records in the sums of all days (expectation sums): bronze has 3, and 1 were found",
        ),
        (
            "views",
            [{"day": FIRST, "operations": 1}],
            "7-b",
            "tables that belong to the set (expectation versions): it has 15, and 14 were found",
        ),
    ],
)
def test_tables_that_do_not_belong_together_are_named(
    store: TableStore, table: str, rows: Rows, part: str, sentence: str
) -> None:
    after = changed(store, table, rows, part)
    found = broken(store, after)
    assert any(sentence in one for one in found), found
    assert all("rebuild them" in one and "\n" not in one for one in found)
    # The next batch notes it, and what it noted stays named when the table is whole again.
    noting = noted(store, after, replace(after, batch=1), {}, "1-a")
    [file] = noting.added
    named = sentence.partition("(expectation ")[2].partition(")")[0]
    written = {row["expectation"]: row for row in store.lake.rows(EXPECTATIONS, file)}
    assert (written[named]["holds"], written[named]["batch"]) == (False, 1)
    store.lake.publish(after, replace(after, batch=7), {EXPECTATIONS: noting})
    assert any(sentence in one for one in broken(store, store.latest()))


def test_a_set_without_a_version_of_a_table_is_named(store: TableStore) -> None:
    latest = store.latest()
    lacking = {name: one for name, one in latest.versions.items() if name != "journeys"}
    [sentence] = broken(store, replace(latest, versions=lacking))
    assert "(expectation versions)" in sentence
