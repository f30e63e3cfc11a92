"""The tables on disk: which commit counts, and what is left of them when something dies."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store.increment import kept_tables, signature_of
from twinbus.pipeline.store.store import BRONZE, KEEP_S, SUMS, CommitConflict, Snapshot, TableStore
from twinbus.pipeline.store.stream import open_store

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
    first.commit(Snapshot(), Snapshot(records=1))
    # It looked before the first one had committed.
    Files(second, exists=lambda path: False)
    with pytest.raises(CommitConflict, match=r"0\.json"):
        second.commit(Snapshot(), Snapshot(records=2))
    assert first.latest().records == 1
    assert [path.name for path in (tmp_path / "commits").glob("*")] == ["0.json"]


def test_a_disk_without_links_is_committed_to_by_a_rename(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = TableStore(spark, tmp_path)
    store.commit(Snapshot(), Snapshot())
    assert store.latest().number == 0
    with pytest.raises(CommitConflict):
        store.commit(Snapshot(), Snapshot())


def test_a_replaced_part_stays_as_long_as_a_reader_may_take(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, remains = "batch=0-0a", "batch=0-0b", "batch=0-0c"
    places = [
        tmp_path / kind / part for part in (old, new, remains) for kind in (BRONZE, "sums-fates")
    ]
    for place in places:
        place.mkdir(parents=True)
        os.utime(place, (1_000_000_000, 1_000_000_000))
    store = TableStore(spark, tmp_path)

    def left_after(at_s: float) -> set[str]:
        monkeypatch.setattr("twinbus.pipeline.store.store._now_ms", lambda: int(at_s * 1000))
        store.sweep()
        return {place.name for place in places if place.exists()}

    now_s = time.time()
    before = store.commit(Snapshot(), Snapshot(batch=0, parts={BRONZE: (old,), SUMS: (old,)}))
    # One kind after the other, as a compaction does it.
    after = store.commit(before, replace(before, parts={BRONZE: (new,), SUMS: (old,)}))
    after = store.commit(after, replace(after, parts={BRONZE: (new,), SUMS: (new,)}))
    assert left_after(now_s + KEEP_S - 1) == {old, new}
    # A commit that replaces nothing does not forget what others replaced.
    store.commit(after, after)
    assert left_after(now_s + KEEP_S - 1) == {old, new}
    assert left_after(now_s + KEEP_S + 60) == {new}
    # The name of a part counts for the kind that has it.
    assert {place for place in places if place.exists()} == set(places[2:4])
    last = store.commit(store.latest(), store.latest())
    assert last.replaced_ms == {}


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Path:
    """A ledger whose tables have two batches, as far as `open_store` looks."""
    (tmp_path / "app-0.jsonl").touch()
    store = TableStore(spark, tmp_path / "_tables")
    snapshot = Snapshot(gold=signature_of(kept_tables()))
    for batch in range(2):
        snapshot = store.commit(snapshot, replace(snapshot, batch=batch))
        for noted in ("offsets", "commits"):
            place = tmp_path / "_tables" / "checkpoint" / noted / str(batch)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    (tmp_path / "_tables" / BRONZE).mkdir()
    assert open_store(spark, tmp_path).latest() == snapshot
    return tmp_path


@pytest.mark.parametrize("commits", [["0.json", "1.json"], ["1.json"]])
def test_tables_without_their_commits_are_not_taken_for_empty_ones(
    spark: SparkSession, ledger: Path, commits: list[str]
) -> None:
    for name in commits:
        (ledger / "_tables" / "commits" / name).unlink()
    with pytest.raises(LedgerError, match=r"have lost commits.*twinbus ledger rebuild LEDGER"):
        open_store(spark, ledger)


@pytest.mark.parametrize("survived", range(3))
def test_a_rebuild_that_dies_half_way_leaves_no_tables(
    spark: SparkSession, ledger: Path, survived: int
) -> None:
    store = TableStore(spark, ledger / "_tables")
    hadoop, left = store._files, iter(range(survived))

    def dies(path: Any, recursive: bool) -> bool:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return bool(hadoop.delete(path, recursive))

    Files(store, delete=dies)
    with pytest.raises(KeyboardInterrupt):
        store.remove()
    with pytest.raises(LedgerError, match=r"was broken off.*twinbus ledger rebuild LEDGER"):
        open_store(spark, ledger)
    TableStore(spark, ledger / "_tables").remove()
    assert open_store(spark, ledger).latest() == Snapshot()
