"""Registering tables in a catalog: what is asked of it, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store.catalog import registered
from twinbus.pipeline.store.lake import Snapshot

SNAPSHOT = Snapshot(versions={"fates": 3, "bronze": 4})
NO_DELTA = "o1.sql: java.lang.ClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find delta"


@dataclass
class Catalog:
    """A session whose tables are all at these addresses."""

    location: str = "{}"
    error: str = ""
    asked: list[str] = field(default_factory=list)

    def sql(self, text: str) -> Any:
        if self.error:
            raise RuntimeError(self.error)
        self.asked.append(text)
        table = text.rsplit(maxsplit=1)[-1].rpartition(".")[2]
        rows = [{"col_name": "a", "data_type": "int"}]
        if self.location:
            found = {"col_name": "Location", "data_type": self.location.format(table)}
            rows.append(found)
        return mock.Mock(collect=lambda: rows)


def publish(catalog: Catalog, place: str) -> list[str]:
    return registered(mock.Mock(session=catalog, place=place), SNAPSHOT, "main.lake")


def test_each_table_is_registered_where_it_is() -> None:
    catalog = Catalog("file:///it%27s here/{}")
    names = publish(catalog, "file:/it's here")
    assert names == ["main.lake.sets", "main.lake.bronze", "main.lake.fates"]
    assert catalog.asked[0] == (
        "CREATE TABLE IF NOT EXISTS main.lake.sets USING delta LOCATION"
        r" 'file:/it\'s here/sets'"
    )
    assert publish(Catalog("abfss://c@a.dfs/x/{}"), "abfss://c@a.dfs/x") == names


@pytest.mark.parametrize("location", ["file:/elsewhere/sets", ""])
def test_a_name_with_another_table_is_refused(location: str) -> None:
    shown = location or "no place of its own"
    with pytest.raises(LedgerError, match=f"^main.lake.sets is another table, at {shown}: name"):
        publish(Catalog(location), "file:/here")


def test_a_session_without_delta_is_told_what_it_needs() -> None:
    with pytest.raises(
        LedgerError, match=r"^main\.lake\.sets was not made: .* has no Delta; start"
    ):
        publish(Catalog(error=NO_DELTA), "file:/here")
    with pytest.raises(RuntimeError, match="of another kind"):
        publish(Catalog(error="of another kind"), "file:/here")
