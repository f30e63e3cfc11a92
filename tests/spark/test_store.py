"""The tables on disk: which commit counts, and what is left of them when something dies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from twinbus.pipeline.store import CommitConflict, Snapshot, TableStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Files:
    """Hadoop's file system, with an answer or a step of its own."""

    def __init__(self, store: TableStore, **own: Any) -> None:
        self._real, self._own = store._files, own
        store._files = self

    def __getattr__(self, name: str) -> Any:
        return self._own.get(name) or getattr(self._real, name)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_of_two_that_commit_at_once_the_first_wins(
    spark: SparkSession, tmp_path: Path, scheme: str
) -> None:
    first, second = (TableStore(spark, f"{scheme}{tmp_path}") for _ in range(2))
    first.commit(Snapshot(number=0, batch=0, records=1))
    # It looked before the first one had committed.
    Files(second, exists=lambda path: False)
    with pytest.raises(CommitConflict, match=r"0\.json"):
        second.commit(Snapshot(number=0, batch=0, records=2))
    assert second.latest().records == 1
    assert [path.name for path in (tmp_path / "commits").glob("*")] == ["0.json"]


def test_a_disk_without_links_is_committed_to_by_a_rename(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = TableStore(spark, tmp_path)
    store.commit(Snapshot(number=0, batch=0))
    assert store.latest().number == 0
    with pytest.raises(CommitConflict):
        store.commit(Snapshot(number=0, batch=0))
