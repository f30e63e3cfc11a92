"""Tables of the time before Delta as Delta tables, where the ledger's files cannot make them again.

    commits/<number>.json         the last one names the parts that count
    checkpoint/sources/0/*        the files of the ledger that were taken
    bronze/batch=*/day=*/pair=*/  records; the others without day and pair
    sums-<gold table>/batch=*/

Every table is written anew and committed as one set; the old directories go afterwards. Killed in
between, it is done again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.store.lake import Snapshot, TableChange
from twinbus.pipeline.store.layout import BRONZE, JOURNEYS, SUMS, kept_tables, signature_of
from twinbus.pipeline.store.store import OLD_COMMITS, TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def take_over(store: TableStore) -> None:
    """Make Delta tables of old ones, and remove the old ones."""
    if store.latest().number < 0:
        old = _last_commit(store)
        if old["gold"] != signature_of(kept_tables()):
            raise LedgerError(
                f"the tables at {store.place} have other columns, and are the only copy of records"
                " whose files were removed: use the version of Twinbus that made them"
            )
        part = store.new_part(old["batch"])
        changes = {
            table: TableChange(store.write(rows, table, part))
            for table, rows in _tables(store, old["parts"])
        }
        names = ("batch", "records", "set_aside", "fan_out", "gold", "records_from")
        after = Snapshot(**{name: old[name] for name in names}, sum_parts=1)
        store.commit(Snapshot(), after, changes, sorted(_taken(store)))
    store.remove_old()


def _last_commit(store: TableStore) -> dict[str, Any]:
    texts = (text for name, text in store.texts_in(OLD_COMMITS) if name.endswith(".json"))
    commits: list[dict[str, Any]] = [json.loads(text) for text in texts]
    return max(commits, key=lambda commit: int(commit["number"]))


def _tables(store: TableStore, parts: dict[str, list[str]]) -> Iterator[tuple[str, DataFrame]]:
    """Every old table that has rows, with its name now."""
    for table in (BRONZE, JOURNEYS):
        if parts.get(table):
            yield table, store.read_old(table, table, parts[table])
    for gold in kept_tables():
        if parts.get(SUMS):
            yield gold.name, store.read_old(gold.name, f"{SUMS}-{gold.name}", parts[SUMS])


def _taken(store: TableStore) -> set[str]:
    """The names of the ledger's files that are in the tables, as Spark wrote them down."""
    lines = (
        line for _, text in store.texts_in("checkpoint/sources/0") for line in text.split("\n")
    )
    paths = (json.loads(line)["path"] for line in lines if line.startswith("{"))
    return {unquote(path).rpartition("/")[2] for path in paths}
